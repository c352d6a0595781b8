"""Tokens of Microsoft Entra, with which librdkafka logs in to Event Hubs."""

from __future__ import annotations

from actorproc.errors import SourceError, UsageError
from actorproc.runtime.requirements import how_to_install


class EntraTokens:
    """The callback by which librdkafka gets a token: once for each client, and again before a token expires.

    Args:
        host: of the Event Hubs namespace.
        alternative: another way to log in, for the message.

    Raises:
        UsageError: the extra `azure` is not installed.
    """

    def __init__(self, host: str, alternative: str) -> None:
        try:
            from azure.identity import DefaultAzureCredential
        except ImportError:
            raise UsageError(f"{alternative}, or log in with Microsoft Entra: {how_to_install('azure')}") from None
        self._credential = DefaultAzureCredential()
        self._host = host
        self._alternative = alternative

    def __call__(self, _: str = "") -> tuple[str, float]:
        """A token, and when it expires, in seconds since 1970.

        Raises:
            SourceError: Entra gave none.
        """
        from azure.core.exceptions import AzureError

        try:
            found = self._credential.get_token(f"https://{self._host}/.default")
        except AzureError as error:
            cause = str(error).splitlines()[0]
            raise SourceError(
                f"Microsoft Entra gave no token for {self._host}: {cause} Log in with `az login`, give the machine an "
                f"identity, or {self._alternative}"
            ) from None
        return found.token, float(found.expires_on)
