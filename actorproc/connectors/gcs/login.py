"""Proves who sends a request: by the key of a service account, or by application default credentials."""

from __future__ import annotations

from datetime import UTC
from typing import Any

from actorproc.connectors.gcs.options import CloudStorageOptions, parsed_key
from actorproc.connectors.shared.bearer_tokens import BearerTokens, Token
from actorproc.errors import CredentialsExpired, StoreError, StoreRefused, StoreUnavailable, UsageError
from actorproc.runtime.clock import Clock
from actorproc.runtime.requirements import how_to_install

_SCOPES = ["https://www.googleapis.com/auth/devstorage.full_control"]  # what it may do is up to its roles


class Login:
    """Default credentials are those that every Google client finds: a file that `GOOGLE_APPLICATION_CREDENTIALS` names
    (a key, or workload identity federation), `gcloud auth application-default login`, the machine's or pod's service
    account."""

    def __init__(self, url: str, options: CloudStorageOptions, clock: Clock) -> None:
        self._url = url
        self._options = options
        self._clock = clock
        self._credentials: Any = None
        self._tokens = BearerTokens(lambda: clock.run_in_thread(self._fetch), clock)

    async def header(self) -> str | None:
        """The value of the header Authorization. Raises StoreError: there are no credentials."""
        return None if self._options.gs_anonymous else f"Bearer {await self._tokens.get()}"

    def refused(self, error: StoreError) -> StoreError:
        """The error for an answer 401: an old token is fetched anew, as if the service had been away."""
        if self._options.gs_anonymous or self._tokens.refused():
            return error
        return StoreUnavailable(str(error))

    def _fetch(self) -> Token:
        """In a thread: Google's login is synchronous."""
        try:
            from google.auth import exceptions
            from google.auth.transport.requests import Request
        except ImportError:
            raise UsageError(f"{self._url}: gs:// needs Google's login: {how_to_install('gcs')}") from None
        try:
            if self._credentials is None:
                self._credentials = self._found()
            credentials = self._credentials
            credentials.refresh(Request())
        except ValueError:  # of a key, or of a file with credentials; its text may show a part of them
            raise StoreRefused(
                f"{self._url}: the credentials are malformed; check gs_service_account_key or the file that "
                "GOOGLE_APPLICATION_CREDENTIALS names"
            ) from None
        except exceptions.DefaultCredentialsError as error:
            raise StoreRefused(
                f"{self._url}: no credentials found; set gs_service_account_key or GOOGLE_APPLICATION_CREDENTIALS: "
                f"{_first(error)}"
            ) from error
        except exceptions.GoogleAuthError as error:
            if getattr(error, "retryable", False) or isinstance(error, exceptions.TransportError):
                raise StoreUnavailable(f"{self._url}: no token from Google: {_first(error)}") from error
            raise CredentialsExpired(f"{self._url}: Google refuses the login: {_first(error)}") from error
        expires = (
            credentials.expiry.replace(tzinfo=UTC).timestamp() if credentials.expiry else self._clock.wall() + 3600
        )
        return Token(credentials.token, expires)

    def _found(self) -> Any:
        if self._options.gs_service_account_key is None:
            import google.auth

            return google.auth.default(scopes=_SCOPES)[0]
        from google.oauth2.service_account import Credentials

        key = parsed_key(self._options.gs_service_account_key)
        return Credentials.from_service_account_info(key, scopes=_SCOPES)  # type: ignore[no-untyped-call]


def _first(error: Exception) -> str:
    return str(error.args[0] if error.args else error).strip().partition("\n")[0]
