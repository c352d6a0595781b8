"""A store behind a REST interface: one session, one attempt per request, and the errors of the network.

The clients of both clouds hide what the contract of stores needs. obstore shows neither the status nor the `Date` of
an answer, so a throttled request looks like a refused one, and the age of an object would be guessed from this
machine's clock. Azure's client repeats below its own settings, as aiohttp does; Google's is synchronous. So the few
calls are made here, over the aiohttp that S3 needs anyway. Only the login is the clouds' own.
"""

from __future__ import annotations

import io
import ssl
from abc import abstractmethod
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import anyio
from yarl import URL

from actorproc.config.settings import Settings
from actorproc.errors import StoreError, StoreRefused, StoreUnavailable
from actorproc.runtime.clock import Clock
from actorproc.runtime.send_once import sending_once
from actorproc.storage.backend import LANE, OUTSIDE, Backend, Listing, all_pages
from actorproc.storage.user_agent import user_agent

_CONNECT_TIMEOUT = 5.0  # seconds
_STREAMED = 2**16  # bytes from which aiohttp sends a body in parts, between which other tasks run


class Reply(NamedTuple):
    """An answer of the service, whatever its status."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpStore(Backend):
    """Objects below `prefix` (empty, or ends with '/').

    Args:
        service: URL of the service, without a '/' at its end.
        endpoint: the same, if it is not the provider's usual one.
        hint: what to check if the service cannot be reached.
    """

    def __init__(
        self, url: str, prefix: str, service: str, endpoint: str | None, hint: str, settings: Settings, clock: Clock
    ) -> None:
        self.url = url
        self.endpoint = endpoint
        self._prefix = prefix
        self._service = service
        self._hint = hint
        self._settings = settings
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        self._proxy = _proxy_of(service)

    @property
    def route(self) -> str | None:
        return urlsplit(self.endpoint).hostname if self.endpoint else OUTSIDE

    async def open(self) -> None:
        """Connect and list one key, so that wrong settings fail here."""
        settings = self._settings
        timeout = aiohttp.ClientTimeout(
            total=None,
            sock_connect=min(_CONNECT_TIMEOUT, settings.store_timeout),
            sock_read=settings.store_timeout,
        )
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=settings.store_concurrency + LANE),
            timeout=timeout,
            headers={"User-Agent": user_agent(settings)},
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        self._session = session
        try:
            sending_once(session)
            with anyio.fail_after(settings.store_timeout):
                await self.list("", limit=1)
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await self.close()
            if isinstance(error, TimeoutError):
                raise StoreUnavailable(
                    f"{self.url}: no answer from {self._service} in {settings.store_timeout:g} s; check {self._hint}, "
                    "or raise store_timeout"
                ) from None
            raise

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        return await all_pages(lambda wanted, page: self.list_page(prefix, after, wanted, page), limit)

    @abstractmethod
    async def _authorized(self, method: str, url: str, headers: dict[str, str], size: int) -> dict[str, str]:
        """The headers of a request, with those that prove who sends it. `size`: of its body."""

    async def _send(
        self, what: str, method: str, url: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Reply:
        """Send one request, once.

        Args:
            what: where and what is tried, for messages.
            url: encoded.

        Raises:
            StoreUnavailable: there is no whole answer.
            StoreRefused: the service is not trusted, or there are no credentials.
        """
        session = self._session
        if session is None:
            raise StoreUnavailable(f"{what}: the store is closed")
        sent = await self._authorized(method, url, dict(headers or {}), len(body or b""))
        data = io.BytesIO(body) if body is not None and len(body) >= _STREAMED else body
        try:
            async with session.request(
                method, URL(url, encoded=True), headers=sent, data=data, allow_redirects=False, proxy=self._proxy
            ) as answer:
                return Reply(answer.status, answer.headers, await answer.read())
        except (
            aiohttp.ClientError,
            OSError,
            ValueError,
        ) as error:  # ValueError: a proxy's URL or a header is malformed
            raise self._unanswered(what, error) from error

    def _unanswered(self, what: str, error: Exception) -> StoreError:
        certificate = getattr(error, "certificate_error", error)
        if isinstance(certificate, ssl.SSLCertVerificationError):
            return StoreRefused(f"{what}: no TLS with {self._service}: {certificate}; check {self._hint}")
        if isinstance(error, aiohttp.ClientSSLError):  # one alert may be a server's restart
            return StoreUnavailable(f"{what}: no TLS with {self._service}: {error}; check {self._hint}")
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ClientHttpProxyError):
            return StoreUnavailable(
                f"{what}: cannot reach {self._service}: {_shown(error)}; check {self._hint} and the network"
            )
        if isinstance(error, ValueError):
            return StoreRefused(f"{what}: {_shown(error)}; check {self._hint}")
        return StoreUnavailable(f"{what}: no whole answer from {self._service}: {_shown(error)}")

    def _date(self, reply: Reply) -> float:
        """The service's own clock: seconds since 1970."""
        try:
            return parsedate_to_datetime(reply.headers["Date"]).timestamp()
        except (KeyError, ValueError):
            raise StoreRefused(f"{self.url}: answers without a Date header, from which ages are counted") from None

    def _what(self, verb: str, key: str = "") -> str:
        return f"{self.url}: {verb} {key!r}" if key else f"{self.url}: {verb}"


def _shown(error: Exception) -> str:
    """The error without URLs, which may hold a signature, or the password of a proxy."""
    if isinstance(error, aiohttp.ClientResponseError):
        return f"{error.status} {error.message}"
    if isinstance(error, aiohttp.InvalidURL):
        return "the URL of a proxy is malformed"
    return str(error) or type(error).__name__


def _proxy_of(service: str) -> str | None:
    """The proxy of the environment. (aiohttp's own `trust_env` would also send passwords from ~/.netrc.)"""
    parts = urlsplit(service)
    host = parts.hostname or ""
    return None if proxy_bypass(host) else getproxies().get(parts.scheme)
