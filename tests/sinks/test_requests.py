"""Requests of sinks to the store: an idle sink asks once per host, and one that is away asks nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from actorproc.retention.readers import Registry
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.sinks.host_registry import HostRegistry
from actorproc.storage.document import SharedDocument
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from tests.sinks.memory_sink import MemorySink
from tests.sinks.test_delivery import LAYOUT, World
from tests.sinks.test_ordered import Split


class Counting(MemoryStore):
    """Counts calls by the part of the key that names the kind of object."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock=clock)
        self.calls: list[str] = []
        self.fails = False

    async def get(self, key: str, *arguments: Any, **options: Any) -> Any:
        self.calls.append(key)
        await anyio.sleep(0.1)
        if self.fails:
            raise ConnectionError("away")
        return await super().get(key, *arguments, **options)

    async def put_if_match(self, key: str, body: bytes, tag: str) -> str:
        self.calls.append(key)
        return await super().put_if_match(key, body, tag)

    def of_sinks(self) -> int:
        return sum("/sinks/" in key or key.endswith("readers.json") or "/boundaries/" in key for key in self.calls)


def story(work: Callable[[World, Counting], Awaitable[None]], partitions: int) -> None:
    async def main() -> None:
        world, clock = World(partitions), VirtualClock("store")
        counted = Counting(clock)
        world.store = Store(counted, clock=clock)
        await work(world, counted)

    run(main())


@pytest.mark.parametrize("partitions", [2, 20])
def test_an_idle_sink_costs_a_request_in_five_seconds_for_all_partitions(partitions: int) -> None:
    async def work(world: World, store: Counting) -> None:
        async with world.host():
            world.feed(40)
            await world.delivered()
            await anyio.sleep(20)
            store.calls.clear()
            await anyio.sleep(100)
            assert 15 <= store.of_sinks() <= 25

    story(work, partitions)


def test_a_sink_that_is_away_costs_a_request_in_five_seconds() -> None:
    async def work(world: World, store: Counting) -> None:
        async with world.host():
            world.feed(40)
            await world.delivered()
            world.database.is_away = True
            world.feed(40)
            await anyio.sleep(60)
            store.calls.clear()
            await anyio.sleep(100)
            assert store.of_sinks() <= 25
            world.database.is_away = False
            await world.delivered()
        assert world.is_exact

    story(work, 10)


def test_calls_at_the_same_time_share_a_read_that_begins_after_them() -> None:
    async def main() -> None:
        clock = VirtualClock("store")
        backend = Counting(clock)
        store = Store(backend, clock=clock)
        registry, found = HostRegistry(store, LAYOUT), []

        async def read() -> None:
            found.append(await registry.read())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await anyio.sleep(0.05)  # the first read is under way
            await SharedDocument(store, LAYOUT.readers, Registry).swap(Registry({}, {}))
            for _ in range(50):
                tasks.start_soon(read)
        assert found[1:] == [registry.current] * 50
        assert registry.current is not None
        assert len(backend.calls) <= 4

    run(main())


def test_a_read_that_failed_tells_nobody_that_there_is_nothing() -> None:
    async def main() -> None:
        clock = VirtualClock("store")
        backend = Counting(clock)
        store = Store(backend, clock=clock)
        await SharedDocument(store, LAYOUT.readers, Registry).swap(Registry({}, {}))
        registry = HostRegistry(store, LAYOUT)
        backend.fails = True
        results: list[object] = []

        async def read() -> None:
            try:
                results.append(await registry.read())
            except Exception as error:  # noqa: BLE001
                results.append(error)

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(read)
        assert all(isinstance(result, Exception) for result in results), results

    run(main())


def test_a_restored_database_gets_the_rows_of_ended_partitions_again() -> None:
    async def work(world: Split) -> None:
        backup = world.database.copy()
        async with world.host(MemorySink):
            world.add("0", 10)
            world.add("1", 10)
            await world.delivered()
            await anyio.sleep(30)
        world.database.restore(backup)
        async with world.host(MemorySink):
            await world.delivered()
        assert world.is_exact

    async def main() -> None:
        await work(Split())

    run(main())
