"""Proves who sends a request: by account key, by shared access signature, or by Microsoft Entra."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl

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

    Args:
        again: the options as they are now: a key or a signature in a file may have been renewed.
    """

    def __init__(
        self, url: str, account: str, options: AzureBlobOptions, again: Callable[[], AzureBlobOptions], clock: Clock
    ) -> None:
        self._url = url
        self._account = account
        self._options = options
        self._again = again
        self._clock = clock
        self._credential: Any = None
        self._is_stale = False  # it keeps a token that was refused
        self._has_worked = False
        self._tokens = BearerTokens(self._fetch, clock)

    def signed(self, url: str) -> str:
        """The URL, with the signature if there is one."""
        sas = self._options.az_sas_token
        return url if sas is None else f"{url}{'&' if '?' in url else '?'}{sas}"

    async def header(self, method: str, url: str, headers: dict[str, str]) -> str | None:
        """The value of the header Authorization. Raises StoreError: there are no credentials."""
        if (key := self._options.az_account_key) is not None:
            return signature(decoded_key(key), self._account, method, url, headers)
        return None if self._options.az_sas_token is not None else f"Bearer {await self._tokens.get()}"

    def refused(self, error: StoreError, *, unauthorized: bool) -> StoreError:
        """The error for a refusal: what was renewed meanwhile is used from now on, as if the service had been away.

        Args:
            unauthorized: the answer is 401, as for an old token.
        """
        before = self._options
        if before.az_account_key is None and before.az_sas_token is None:
            if not unauthorized or self._tokens.refused():
                return error
            self._is_stale = True
            return StoreUnavailable(str(error))
        with suppress(UsageError, ValueError):  # the file is gone, or being written
            self._options = self._again()
        if self._options != before:
            return StoreUnavailable(str(error))
        end = _expiry(before.az_sas_token or "")
        if end is not None and end <= self._clock.wall():
            return CredentialsExpired(f"{error}; the signature has expired: renew az_sas_token")
        return error

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


def _expiry(sas: str) -> float | None:
    """When a signature ends, in seconds since 1970; None: it does not say, as one of a stored policy."""
    try:
        end = datetime.fromisoformat(dict(parse_qsl(sas))["se"])
    except (KeyError, ValueError):
        return None
    return (end if end.tzinfo else end.replace(tzinfo=UTC)).timestamp()


def _first(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
