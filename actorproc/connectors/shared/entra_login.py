"""The login by Microsoft Entra that the Azure clients of one source share, if it has no key."""

from __future__ import annotations

from typing import Any

from actorproc.errors import UsageError
from actorproc.runtime.requirements import how_to_install


class EntraLogin:
    """A credential that is made when it is first needed, and keeps its tokens until `close`.

    Args:
        source: URL of the source, for messages.
        variable: that could hold a key instead, for messages.
        extra: that has azure-identity, for messages.
    """

    def __init__(self, source: str, variable: str, extra: str) -> None:
        self._source, self._variable, self._extra = source, variable, extra
        self._credential: Any = None

    def credential(self) -> Any:
        """Raises UsageError: azure-identity is not installed."""
        if self._credential is None:
            try:
                from azure.identity.aio import DefaultAzureCredential
            except ImportError:
                raise UsageError(
                    f"source {self._source}: set {self._variable} in the environment, or log in with Microsoft Entra: "
                    f"{how_to_install(self._extra)}"
                ) from None
            self._credential = DefaultAzureCredential()
        return self._credential

    async def close(self) -> None:
        credential, self._credential = self._credential, None
        if credential is not None:
            await credential.close()
