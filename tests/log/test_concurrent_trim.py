"""A trim during a pause or a lookup loses and repeats nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import orjson
import pytest

from actorproc.admin.replay import Replay
from actorproc.admin.replay_target import LogTarget
from actorproc.admin.retained import RetainedLog
from actorproc.admin.trim import trim
from actorproc.config.settings import Settings
from actorproc.log.positions import log_end
from actorproc.produce.producer import Producer
from actorproc.produce.staged_files import StagedFile, encode_staged
from actorproc.produce.transactions import Transactions, is_done
from actorproc.records import Batch
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.sources import LogSource
from actorproc.storage.backend import Stored
from actorproc.storage.names import ProcessorLayout, log_staged
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from tests.log.reading import log_contents

Meanwhile = Callable[[], Awaitable[None]]


class World:
    """A log of one partition, in virtual time, that somebody appends to and trims."""

    def __init__(self) -> None:
        self.clock = VirtualClock("a")
        self.store = self.seen_by(MemoryStore)

    def seen_by(self, kind: type[MemoryStore]) -> Store:
        return Store(kind("trimmed beside", clock=self.clock), clock=self.clock)

    async def append(self, *values: str, timestamp: datetime | None = None) -> None:
        async with Producer(self.store, partitions=1, clock=self.clock, linger=0) as producer:
            for value in values:
                await (await producer.send(value, timestamp=timestamp))

    async def trim(self) -> None:
        assert (await trim(RetainedLog(self.store), Settings())).files

    async def hours_later(self) -> None:
        await self.append("x")
        await self.clock.sleep(7200)
        await self.append("y")
        await self.trim()


@pytest.fixture
def world() -> Any:
    from actorproc.stores import memory

    yield World()
    memory._named.pop("trimmed beside", None)


class Between(MemoryStore):
    """Runs `meanwhile` between a listing and the read of a listed file."""

    meanwhile: Meanwhile | None = None

    async def get(self, key: str, *, unless: str | None = None, tail: int | None = None) -> Stored | None:
        if key.startswith("partition=") and (work := self.meanwhile) is not None:
            self.meanwhile = None
            await work()
        return await super().get(key, unless=unless, tail=tail)


async def produce(store: Store) -> int:
    async with Producer(store, clock=store.clock, linger=0) as producer:
        return (await (await producer.send("mine"))).sequence


async def latest(store: Store) -> int:
    source = LogSource(store, clock=store.clock)
    await source.open()
    return int(await source.start("0", "latest"))


async def base(store: Store) -> int:
    return (await log_end(store, "0", 0)).base


@pytest.mark.parametrize("look", [produce, latest, base])
def test_a_newest_segment_trimmed_after_the_listing_is_not_corrupt(world: World, look: Any) -> None:
    async def main() -> None:
        await world.append("old")
        await world.clock.sleep(7200)
        store = world.seen_by(Between)

        async def others() -> None:
            await world.append("theirs")
            await world.trim()

        store.backend.meanwhile = others  # type: ignore[attr-defined]
        assert await look(store) == 2

    run(main())


def sleep_before_first_append(monkeypatch: pytest.MonkeyPatch, meanwhile: Meanwhile) -> None:
    """The first append of a transaction waits until `meanwhile` is over."""
    create, todo = Transactions._create, [meanwhile]

    async def slept(self: Transactions, *args: Any) -> bool:
        if todo:
            await todo.pop()()
        return await create(self, *args)

    monkeypatch.setattr(Transactions, "_create", slept)


async def staged(store: Store, *values: str) -> list[StagedFile]:
    times = [datetime(2026, 1, 1, tzinfo=UTC)] * len(values)
    data = Batch.of("", [value.encode() for value in values], range(len(values)), timestamps=times).data
    body, parts = encode_staged([(data, np.zeros(len(values), np.uint32))])
    key = log_staged("t", 7, store.clock.nonce())
    await store.put(key, body)
    return [StagedFile(key, data.nbytes, parts)]


def test_a_driver_that_slept_finds_its_batch_done(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def commit() -> None:
        async with Transactions.opened(world.store) as driver:
            await driver.commit("t", 7, await staged(world.store, "a", "b"))

    async def main() -> None:
        await world.append("first")

        async def another() -> None:
            await commit()
            assert await is_done(world.store, "t", 7)
            assert (await log_contents(world.store))["0"] == [b"first", b"a", b"b"]
            await world.hours_later()

        sleep_before_first_append(monkeypatch, another)
        await commit()
        assert await base(world.store) == 5, "first, a, b, x, y"

    run(main())


def test_a_replay_that_slept_finds_its_letters_replayed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    letter = {
        "partition": "0", "sequence": 5, "key": None, "value": "dead", "headers": [],
        "timestamp": "2026-01-01T00:00:00Z",
        "error": {"type": "E", "message": "", "traceback": None}, "attempts": 1, "host": "h", "epoch": 1,
        "time": "2026-01-01T00:00:00Z",
    }  # fmt: skip

    async def main() -> None:
        await world.append("first")
        key = ProcessorLayout("H").dead_letter_file("0", 3)
        await world.store.put(key, orjson.dumps(letter) + b"\n")

        async def replay() -> tuple[int, int] | None:
            async with Replay.opened(world.store, "H", LogTarget.opened(world.store)) as replay:
                return await replay.file(key)

        async def another() -> None:
            assert await replay() == (1, 0)
            await world.hours_later()

        sleep_before_first_append(monkeypatch, another)
        assert await replay() == (0, 1)
        assert await base(world.store) == 4, "first, dead, x, y"

    run(main())


def test_a_time_is_found_after_a_trimmed_record_from_the_future(world: World) -> None:
    async def main() -> None:
        began = world.clock.now()
        await world.append("by a wrong clock", timestamp=began + timedelta(days=3650))
        await world.clock.sleep(7200)
        for number in range(20):
            await world.append(str(number))
            await world.clock.sleep(30)
        await world.trim()
        source = LogSource(world.store, clock=world.clock)
        await source.open()
        assert await source.start("0", began + timedelta(seconds=7200 + 10 * 30 - 1)) == "11"
        assert await source.start("0", world.clock.now() + timedelta(days=1)) == "21"

    run(main())
