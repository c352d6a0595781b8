"""Servers that answer too much, too slowly, elsewhere or not in HTTP: requests end in time, with a short message."""

from __future__ import annotations

import asyncio
import gzip
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from actorproc.sinks.protocol import SinkError
from tests.connectors.http.receiver import receiver
from tests.connectors.http.test_sink import ROW, SCHEMA, deliver, delivery, http_sink

Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\n"


@asynccontextmanager
async def hostile(behaviour: Behaviour) -> AsyncIterator[str]:
    """A server that reads the start of a request, and then does this."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await behaviour(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}/"
    finally:
        server.close()


async def forever(writer: asyncio.StreamWriter, chunk: bytes, pause: float = 0.0) -> None:
    while True:
        writer.write(chunk)
        await writer.drain()
        await asyncio.sleep(pause)


async def endless_body(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n")
    await forever(writer, b"10000\r\n" + b"x" * 65536 + b"\r\n")


async def slow_body(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(OK + b"Content-Length: 1000000\r\n\r\n")
    await forever(writer, b"x", 0.05)


async def slow_headers(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(OK)
    await forever(writer, b"X-A: b\r\n", 0.05)


async def endless_headers(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(OK)
    await forever(writer, b"X-A: b\r\n" * 1000)


async def endless_header(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(OK + b"X-A: ")
    await forever(writer, b"b" * 65536)


async def endless_reason(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 500 ")
    await forever(writer, b"b" * 65536)


async def silence(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3600)


async def no_http(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x00\xff\x1b[31mSSH-2.0-OpenSSH\r\n" * 10)
    await writer.drain()


async def cut_off(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(OK + b"Content-Length: 100\r\n\r\nhalf")
    await writer.drain()


async def continues(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await forever(writer, b"HTTP/1.1 100 Continue\r\n\r\n", 0.01)


async def bad_chunks(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n")
    await writer.drain()


@pytest.mark.parametrize(
    "behaviour",
    [
        endless_body, slow_body, slow_headers, endless_headers, endless_header, endless_reason, silence, no_http,
        cut_off, continues, bad_chunks,
    ],
)  # fmt: skip
async def test_a_request_ends_in_time_and_memory(behaviour: Behaviour) -> None:
    async with hostile(behaviour) as url:
        with receiver() as other:
            await deliver(http_sink(other.url))  # imports what a delivery needs
        sink = http_sink(url, timeout=1)
        before = time.monotonic()
        tracemalloc.start()
        try:
            with pytest.raises(SinkError) as caught:
                await deliver(sink)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert time.monotonic() - before < 5
        assert peak < 16 * 2**20
        assert len(str(caught.value)) < 1000
        assert str(caught.value).isprintable()
        assert await sink.read("0") is None


async def test_a_long_body_after_200_is_an_acknowledgement() -> None:
    async def endless(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"Transfer-Encoding: chunked\r\n\r\n")
        await forever(writer, b"10000\r\n" + b"x" * 65536 + b"\r\n")

    async with hostile(endless) as url:
        sink = http_sink(url, timeout=5)
        await deliver(sink)
        assert await sink.read("0") == ROW


async def test_a_body_is_not_unpacked() -> None:
    bomb = gzip.compress(b"x" * 2**24)

    async def packed(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 No\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb) + bomb)
        await writer.drain()

    async with hostile(packed) as url:
        tracemalloc.start()
        try:
            with pytest.raises(SinkError, match="answers 400") as caught:
                await deliver(http_sink(url))
            assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
        finally:
            tracemalloc.stop()
    assert str(caught.value).isprintable()


async def test_a_redirect_reaches_no_other_host() -> None:
    with receiver() as other:

        async def redirect(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(f"HTTP/1.1 307 x\r\nLocation: {other.url}\r\nContent-Length: 0\r\n\r\n".encode())
            await writer.drain()

        async with hostile(redirect) as url:
            with pytest.raises(SinkError, match="answers 307, a redirect, which is not followed"):
                await deliver(http_sink(url))
        assert other.arrived == []


async def test_cookies_are_not_kept() -> None:
    seen = []

    async def cookie(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"Set-Cookie: a=b\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        await cookie(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with http_sink(f"http://{host}:{port}/") as sink:
        await sink.open(SCHEMA)
        first = delivery()
        await sink.write(first)
        await sink.write(delivery(since=1, was=first.now))
    server.close()
    assert len(seen) == 2
    assert not any(b"ookie" in each for each in seen)
