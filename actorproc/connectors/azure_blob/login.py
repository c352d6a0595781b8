"""Proves who sends a request: by account key, by shared access signature, or by Microsoft Entra."""

from __future__ import annotations

from typing import Any

from actorproc.connectors.azure_blob.options import AzureBlobOptions
from actorproc.connectors.azure_blob.shared_key import decoded_key, signature
from actorproc.connectors.shared.bearer_tokens import BearerTokens, Token
from actorproc.errors import CredentialsExpired, StoreError, StoreRefused, StoreUnavailable, UsageError
from actorproc.runtime.clock import Clock
from actorproc.runtime.requirements import how_to_install

_SCOPE = "https://storage.azure.com/.default"


class Login:
    """Of one account.

    Entra's login takes what it finds: variables of a service principal or of workload identity, the managed identity of
    the machine, `az login`.
    """

    def __init__(self, url: str, account: str, options: AzureBlobOptions, clock: Clock) -> None:
        self._url = url
        self._account = account
        self._key = None if options.az_account_key is None else decoded_key(options.az_account_key)
        self._sas = None if options.az_sas_token is None else options.az_sas_token.removeprefix("?")
        self._credential: Any = None
        self._is_stale = False  # it keeps a token that was refused
        self._has_worked = False
        self._tokens = BearerTokens(self._fetch, clock)

    def signed(self, url: str) -> str:
        """The URL, with the signature if there is one."""
        return url if self._sas is None else f"{url}{'&' if '?' in url else '?'}{self._sas}"

    async def header(self, method: str, url: str, headers: dict[str, str]) -> str | None:
        """The value of the header Authorization. Raises StoreError: there are no credentials."""
        if self._key is not None:
            return signature(self._key, self._account, method, url, headers)
        return None if self._sas is not None else f"Bearer {await self._tokens.get()}"

    def refused(self, error: StoreError) -> StoreError:
        """The error for an answer 401: an old token is fetched anew, as if the service had been away."""
        if self._key is not None or self._sas is not None or self._tokens.refused():
            return error
        self._is_stale = True
        return StoreUnavailable(str(error))

    async def close(self) -> None:
        self._is_stale = False
        credential, self._credential = self._credential, None
        if credential is not None:
            await credential.close()

    async def _fetch(self) -> Token:
        try:
            from azure.core.exceptions import AzureError, ClientAuthenticationError
            from azure.identity import CredentialUnavailableError
            from azure.identity.aio import DefaultAzureCredential
        except ImportError:
            raise UsageError(
                f"{self._url}: set az_account_key or az_sas_token, or log in by Microsoft Entra: "
                f"{how_to_install('azure-blob')}"
            ) from None
        if self._is_stale:
            await self.close()
        if self._credential is None:
            self._credential = DefaultAzureCredential()
        try:
            found = await self._credential.get_token(_SCOPE)
        except CredentialUnavailableError as error:
            # The identity of a machine may be away for a while.
            kind = StoreUnavailable if self._has_worked else StoreRefused
            raise kind(f"{self._url}: no login by Microsoft Entra: {_first(error)}") from error
        except ClientAuthenticationError as error:
            raise CredentialsExpired(
                f"{self._url}: no login by Microsoft Entra, and no az_account_key or az_sas_token: {_first(error)}"
            ) from error
        except AzureError as error:
            raise StoreUnavailable(f"{self._url}: no answer from Microsoft Entra: {_first(error)}") from error
        self._has_worked = True
        return Token(found.token, float(found.expires_on))


def _first(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
