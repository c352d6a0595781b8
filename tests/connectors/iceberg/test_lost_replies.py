"""Iceberg's REST catalog behind a network that loses requests and replies, answers with errors after it has applied a
commit, and applies some of them late: each row is in the table once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from tests.connectors.iceberg.catalogs import World
from tests.connectors.iceberg.test_catalogs import catalog_world
from tests.stores.proxy import Proxy, Request, proxied


@dataclass(frozen=True)
class Catalog:
    """Iceberg's REST server."""

    endpoint: str


def refusal(status: int) -> bytes:
    body = b'{"error":{"message":"as the test wants it","type":"ServiceFailure","code":%d}}' % status
    return b"HTTP/1.1 %d Error\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


class Network:
    """`fates`: how many commits met each one."""

    def __init__(self, proxy: Proxy, random: Random) -> None:
        self._proxy, self._random = proxy, random
        self.fates = dict.fromkeys(("lost request", "lost reply", "500", "502", "503", "504", "late"), 0)
        self._late: set[asyncio.Task[bytes]] = set()

    async def handle(self, request: Request) -> bytes | None:
        is_commit = request.method == "POST" and request.target.endswith("/tables/Copy")
        if not is_commit or self._random.random() < 0.4:
            return await self._proxy.forward(request)
        fate = self._random.choice([*self.fates])
        self.fates[fate] += 1
        if fate == "late":
            task = asyncio.create_task(self._apply_late(request))
            self._late.add(task)
            return refusal(504)
        if fate != "lost request":
            await self._proxy.forward(request)
        return refusal(int(fate)) if fate.isdigit() else None

    async def _apply_late(self, request: Request) -> bytes:
        await asyncio.sleep(self._random.uniform(0.1, 3))
        return await self._proxy.forward(request)

    async def settle(self) -> None:
        await asyncio.gather(*self._late)


@pytest.mark.slow
async def test_replies_that_are_lost_or_late_double_nothing(tmp_path: Path) -> None:
    with catalog_world("rest", tmp_path) as direct:
        async with proxied(Catalog(direct.uri)) as (proxy, seen):  # type: ignore[type-var]
            world = World(direct.container, seen.endpoint, direct.options)
            await world.process(20)
            network = Network(proxy, Random(7))
            proxy.on_request = network.handle
            for _ in range(30):
                await world.process(20)
            await network.settle()
            proxy.on_request = proxy.forward
            assert min(network.fates.values()) > 0, network.fates
            direct.fed = world.fed
            assert direct.is_exact()
            assert await world.compact() == 2
            await world.process(20)
            assert await world.damages() == []
        direct.fed = world.fed
        assert direct.is_exact()
