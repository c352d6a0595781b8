"""A front that keeps connections, as services do, and breaks one after it has applied the last request on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from tests.stores.proxy import Proxy, S, hang_up, listening, read_request


@asynccontextmanager
async def breaking_after(server: S, requests: int) -> AsyncIterator[tuple[S, list[str]]]:
    """The server as seen through it, and the last part of the target of each write that arrived.

    Counted are writes: once `requests` of them have arrived in all, no further request is answered.
    """
    proxy = Proxy(server)
    puts: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):  # the client is done
            await converse(reader, writer)

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request = await read_request(reader)
                if request.write:
                    puts.append(request.target.partition("?")[0].rpartition("/")[2])
                answer = (await proxy.forward(request)).replace(b"\r\nConnection: close", b"", 1)
                if len(puts) >= requests:
                    return
                writer.write(answer)
                await writer.drain()
        finally:
            await hang_up(writer)

    async with listening(serve) as endpoint:
        yield replace(server, endpoint=endpoint), puts
