"""Classifies errors of the Cosmos DB client for the reader."""

from __future__ import annotations

from azure.core.exceptions import AzureError, ClientAuthenticationError
from azure.cosmos.exceptions import CosmosHttpResponseError

from actorproc.errors import RecordsLost, SourceError

CLIENT_ERRORS = (AzureError, OSError, TimeoutError)
"""Raised by the client."""

THROTTLED = 429
_CREATED_AGAIN = 1024  # a detail of status 400
_REPLICA_BEHIND = 1002  # of status 404: the asked replica is behind another one


def final_error(what: str, error: Exception) -> SourceError | None:
    """The error that ends the reading; None if trying again may help.

    Args:
        what: is read, for the message.
    """
    status, detail = None, None
    if isinstance(error, CosmosHttpResponseError):
        status, detail = error.status_code, error.sub_status
    if status == 400 and detail == _CREATED_AGAIN:
        return created_again(what)
    if status in (401, 403):
        return SourceError(f"{what}: the login was refused: {first_line(error)}")
    if status == 404 and detail != _REPLICA_BEHIND:
        return SourceError(f"{what}: there is no such container: {first_line(error)}")
    if status == 400:
        return SourceError(f"{what}: the request was refused: {first_line(error)}")
    if status is None and isinstance(error, ClientAuthenticationError):
        return SourceError(f"{what}: Microsoft Entra gave no token: {first_line(error)}")
    return None


def created_again(what: str) -> RecordsLost:
    """The error for a container that is another one of the same name."""
    return RecordsLost(
        f"{what}: the container was deleted and created again; positions of one mean nothing in the other. Give the "
        "processor another name, which then begins the new container"
    )


def retry_after(error: Exception) -> float | None:
    """Seconds after which the service wants a throttled request again; None: it was not throttled."""
    if not isinstance(error, CosmosHttpResponseError) or error.status_code != THROTTLED:
        return None
    return int(error.headers.get("x-ms-retry-after-ms", 1_000)) / 1_000


def first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2]) or type(error).__name__
