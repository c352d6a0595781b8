"""`Through`: a store on a real server behind a proxy that misbehaves, and the same store seen directly."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from actorproc.config.settings import Settings
from actorproc.runtime.backoff import Backoff
from actorproc.storage.store import Store, StoreLimits
from actorproc.stores import open_store
from tests.connectors.gcs.server import GcsServer
from tests.connectors.shared.azure_storage import BlobServer
from tests.servers import S3Server
from tests.stores.proxy import Proxy, Request, proxied, reply

Server = S3Server | BlobServer | GcsServer


class Through(NamedTuple):
    server: Server
    store: Store
    proxy: Proxy
    direct: Store

    def answer(self, status: int, code: str) -> bytes:
        """An error as the service words it."""
        return answer(self.server, status, code)

    @property
    def writes(self) -> list[Request]:
        return [request for request in self.proxy.seen if request.write]


def answer(server: Server, status: int, code: str) -> bytes:
    if not isinstance(server, GcsServer):
        return reply(status, code)
    error = {"code": status, "message": "as the test wants it", "errors": [{"reason": code}]}
    body = json.dumps({"error": error}).encode()
    head = f"HTTP/1.1 {status} {code}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


@asynccontextmanager
async def through_proxy(server: Server) -> AsyncIterator[Through]:
    """An empty place on the server."""
    url = await server.new_url()
    async with proxied(server) as (proxy, front), opened(url, server) as direct, opened(url, front) as store:
        proxy.seen.clear()
        yield Through(server, store, proxy, direct)


@asynccontextmanager
async def opened(url: str, server: Server) -> AsyncIterator[Store]:
    store = open_store(url, Settings.load(**server.settings))
    store.limits = StoreLimits(timeout=10, patience=20, backoff=Backoff(0.001, 0.01))
    async with store:
        yield store
