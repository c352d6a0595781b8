"""A proxy in front of a real server of a store. A test decides the network's behaviour for each request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from urllib.parse import urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.connectors.gcs.server import GcsServer
from tests.connectors.shared.azure_storage import BlobServer
from tests.servers import S3Server

S = TypeVar("S", bound="S3Server | BlobServer | GcsServer")

_CONDITIONS = {"if-match", "if-none-match"}


@dataclass(frozen=True)
class Request:
    method: str
    target: str
    head: bytes
    headers: dict[str, str]
    body: bytes

    @property
    def write(self) -> bool:
        return self.method in ("PUT", "POST")

    @property
    def conditional_write(self) -> bool:
        return self.write and ("ifGenerationMatch=" in self.target or not _CONDITIONS.isdisjoint(self.headers))


Network = Callable[[Request], Awaitable[bytes | None]]
"""Handles a request. Returns the reply to pass on, or None to break the connection without one."""


class Proxy:
    """`on_request` decides; by default everything passes. `seen`: the received requests, in order."""

    def __init__(self, server: S3Server | BlobServer | GcsServer) -> None:
        self.server: Any = server
        self.seen: list[Request] = []
        self.on_request: Network = self.forward
        self._upstream = urlsplit(server.endpoint)

    async def forward(self, request: Request) -> bytes:
        """Let the server have it; its reply."""
        head = request.head.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
        return await self._exchange(head + request.body)

    async def forward_unconditionally(self, request: Request) -> bytes:
        """Let the server have it without its conditions, as a service would that does not know them. S3 only."""
        headers = {
            name: value for name, value in request.headers.items() if name.startswith("x-amz-meta") or name == "range"
        }
        signed = AWSRequest(request.method, self.server.endpoint + request.target, headers=headers, data=request.body)
        S3SigV4Auth(Credentials(self.server.access_key, self.server.secret_key), "s3", "us-east-1").add_auth(signed)
        lines = [f"{request.method} {request.target} HTTP/1.1", f"Host: {self._upstream.netloc}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in signed.headers.items()]
        lines += [f"Content-Length: {len(request.body)}", "", ""]
        return await self._exchange("\r\n".join(lines).encode() + request.body)

    async def _exchange(self, data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(self._upstream.hostname, self._upstream.port)
        try:
            writer.write(data)
            await writer.drain()
            return await reader.read()
        finally:
            await hang_up(writer)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request per connection."""
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                request = await read_request(reader)
                self.seen.append(request)
                reply = await self.on_request(request)
                if reply is not None:
                    writer.write(reply)
                    await writer.drain()
        finally:
            await hang_up(writer)


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[None, None, None]]


@asynccontextmanager
async def proxied(server: S) -> AsyncIterator[tuple[Proxy, S]]:
    """A proxy, and the server as it is seen through it."""
    proxy = Proxy(server)
    async with listening(proxy.serve) as endpoint:
        yield proxy, replace(server, endpoint=endpoint)


@asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[str]:
    """An endpoint whose connections `serve` serves. None of them outlives the block. An open one
    would fail a later test.
    """
    tasks: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    listener = await asyncio.start_server(connected, "127.0.0.1", 0, limit=2**20)
    host, port = listener.sockets[0].getsockname()[:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        listener.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await listener.wait_closed()


def reply(status: int, code: str, message: str = "as the test wants it") -> bytes:
    """An error as S3 words it."""
    body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'.encode()
    head = (
        f"HTTP/1.1 {status} {code}\r\nContent-Type: application/xml\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        with suppress(ConnectionError):
            await writer.wait_closed()
    finally:
        writer.transport.abort()  # cancelled: do not wait for the other side to read the rest


async def read_request(reader: asyncio.StreamReader) -> Request:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))  # never says "100 Continue"
    return Request(method, target, head, headers, body)
