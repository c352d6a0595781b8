"""`HttpSink`: committed rows as JSON, in requests that are repeated, each with its key, until they are acknowledged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import anyio
import pyarrow as pa

from actorproc.config.options import parse_options
from actorproc.connectors.http.answers import failure, printable, retry_after
from actorproc.connectors.http.bodies import CONTENT_TYPES, Part, parts_of
from actorproc.connectors.http.options import HttpOptions
from actorproc.errors import UsageError
from actorproc.runtime.error_text import format_error
from actorproc.sinks.positions import PositionsInContainer, SentCommit, commits_of
from actorproc.sinks.protocol import Delivery, Guarantee, SinkError, SinkPlace

_MULTI_STATUS = 207
"""Says that parts of a request may have failed, in the words of each service."""

_SECRET_LENGTH = 4  # of a header's value that answers must not show

_MOST_BODY = 64 * 2**10
"""Bytes of an answer that are read. A longer one costs a connection."""


class HttpSink(PositionsInContainer):
    """`https://HOST/PATH`: each commit is one request, or several if it has many rows."""

    guarantee = Guarantee.AT_LEAST_ONCE
    options: HttpOptions

    def __init__(self, url: str, given: Mapping[str, Any], place: SinkPlace) -> None:
        self.options = parse_options(url, HttpOptions, given, of="sink")
        self.url = url
        self.place = place
        if not _is_valid(url):
            raise UsageError(
                f"sink {place.name}: give a URL such as https://host/path; secrets go into headers or path"
            )
        self._slots = anyio.CapacityLimiter(self.options.connections)
        self._session: aiohttp.ClientSession | None = None
        self._acknowledged: dict[str, set[str]] = {}
        """Keys by partition, of the delivery that is under way: after a failure it goes on behind them."""
        self._next_turn = 0.0
        self._not_before = 0.0

    async def open(self, schema: pa.Schema) -> None:
        """See `Sink.open`. Nothing can be tried without a row."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=self.options.timeout),
                auto_decompress=False,
                headers={
                    "User-Agent": "actorproc",
                    "Accept-Encoding": "identity",
                    "Content-Type": CONTENT_TYPES[self.options.body],
                    **self.options.headers,
                },
            )

    async def write(self, delivery: Delivery) -> None:
        """See `Sink.write`."""
        await super().write(delivery)
        self._acknowledged.pop(delivery.partition, None)

    async def send(self, delivery: Delivery) -> None:
        """See `PositionsInContainer.send`: one request after the other, in the order of the rows."""
        acknowledged = self._acknowledged.setdefault(delivery.partition, set())
        before = len(acknowledged)
        try:
            for commit in commits_of(delivery):
                for part in await self._parts(commit):
                    key = commit.key(part.first, part.stop)
                    if key not in acknowledged:
                        async with self._slots:
                            await self._turn()
                            await self._request(key, part.body)
                        acknowledged.add(key)
        except SinkError as error:
            error.made_progress = len(acknowledged) > before
            raise

    async def _parts(self, commit: SentCommit) -> list[Part]:
        rows = commit.rows
        return await self.place.clock.run_cpu_work(rows.nbytes, parts_of, rows, commit.partition, self.options)

    async def _turn(self) -> None:
        """Wait until one more request is allowed. All partitions of the host share the limits."""
        clock = self.place.clock
        self._check_wait()
        if self.options.max_per_second is not None:
            now = clock.monotonic()
            at = max(now, self._next_turn)
            self._next_turn = at + 1 / self.options.max_per_second
            await clock.sleep(at - now)
            self._check_wait()  # another partition may have been told meanwhile

    def _check_wait(self) -> None:
        if (asked := self._not_before - self.place.clock.monotonic()) > 0:
            raise SinkError(f"{self.url} has asked to wait {asked:.0f} s longer", again_in=asked)

    async def _request(self, key: str, body: bytes) -> None:
        if self._session is None:
            raise RuntimeError("not opened")
        url, headers = self.url + self.options.path, {"Idempotency-Key": key}
        try:
            async with self._session.request(
                self.options.method, url, data=body, headers=headers, allow_redirects=False
            ) as response:
                said = await _start_of(response)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if isinstance(error, TimeoutError):
                raise SinkError(f"{self.url} has not answered within {self.options.timeout:g} s") from None
            text = error.message if isinstance(error, aiohttp.ClientResponseError) else format_error(error)
            raise SinkError(
                f"{self.url}: {printable(self._without_path(text))[:500]}"
            ) from None  # its cause names the path
        if not 200 <= response.status < 300 or response.status == _MULTI_STATUS:
            await self._fail(response, said)

    async def _fail(self, response: aiohttp.ClientResponse, said: bytes) -> None:
        clock = self.place.clock
        again_in = retry_after(response.headers.get("Retry-After"), clock.wall(), self.options.most_retry_after)
        self._not_before = max(self._not_before, clock.monotonic() + again_in)
        raise failure(self.url, response.status, self._without_secrets(said), again_in)

    def _without_path(self, text: str) -> str:
        return text.replace(self.options.path, "...") if self.options.path else text

    def _without_secrets(self, said: bytes) -> bytes:
        """A receiver may repeat the request in its answer, and operators read that."""
        for secret in (self.options.path, *self.options.headers.values()):
            for part in {secret, secret.rpartition(" ")[2]}:  # of `Bearer TOKEN`
                if len(part) >= _SECRET_LENGTH:
                    said = said.replace(part.encode(), b"...")
        return said

    async def close(self) -> None:
        """See `Sink.close`."""
        if self._session is not None:
            await self._session.close()
            self._session = None


def _is_valid(url: str) -> bool:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    return bool(parts.hostname) and parts.username is None and not parts.fragment and url.isprintable()


async def _start_of(response: aiohttp.ClientResponse) -> bytes:
    """The body, as far as it is read. An answer that ends too early is none."""
    found = bytearray()
    async for chunk in response.content.iter_any():
        found += chunk
        if len(found) > _MOST_BODY:
            response.close()
            break
    return bytes(found)
