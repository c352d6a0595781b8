"""Classifies errors of the Event Hubs client for the reader."""

from __future__ import annotations

from azure.core.exceptions import AzureError
from azure.eventhub.exceptions import AuthenticationError, EventHubError

from actorproc.errors import SourceError

CLIENT_ERRORS = (EventHubError, AzureError, OSError)
"""Raised by the client: AzureError where Microsoft Entra gives no token."""

_FINAL = {
    "link:stolen": "another reader has a higher epoch: the partition has moved, or another processor reads in this "
    "consumer group (give each its own, ?group=NAME)",
    "not-found": "there is no such hub, partition or consumer group",
    "unauthorized-access": "the login lacks the right to listen (to send, for a replay)",
    "resource-limit-exceeded": "the service refuses more readers",
}
"""By the AMQP condition: the service would refuse a new connection, too.

https://learn.microsoft.com/azure/event-hubs/exceptions-dotnet
"""


def final_error(what: str, error: Exception) -> SourceError | None:
    """The error that ends the reading; None if a new connection may help.

    Args:
        what: is read, for the message.
    """
    if (condition := getattr(error, "error", None)) in _FINAL:
        return SourceError(f"{what}: {_FINAL[condition]}. The service says: {first_line(error)}")
    if isinstance(error, AuthenticationError | AzureError):
        return SourceError(f"{what}: the login was refused: {first_line(error)}")
    return None


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
