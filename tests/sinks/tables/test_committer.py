"""Tables of a processor: each committed row once, whatever hosts, the table and operators do. In virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from actorproc import Batch, Event, Hooks, PartitionContext, PartitionHandler, Processor
from actorproc.errors import ActorprocError, UsageError
from actorproc.retention.readers import read_registry
from actorproc.runtime.nudge import Nudges
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.sinks.entries import delete_sink, pause_sink
from actorproc.sinks.protocol import SinkRefused
from actorproc.sinks.tables.progress import table_progress
from actorproc.sinks.tables.protocol import TableChange, TableSnapshot
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource
from tests.sinks.memory_table import Catalog, MemoryTable

LAYOUT = ProcessorLayout("Copy")


class Copy(PartitionHandler):
    """Emits each number."""

    output_schema = "n long"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.emit(record, {"n": record.json()})


class World:
    """A stream of numbers, a container, and a catalog with the table."""

    def __init__(self, partitions: int = 3) -> None:
        self.partitions = [str(number) for number in range(partitions)]
        self.source = MemorySource(partitions)
        clock = VirtualClock("store")
        self.store = Store(MemoryStore(clock=clock), clock=clock)
        self.catalog = Catalog()
        self.fed = self.hosts = 0

    def feed(self, count: int) -> None:
        for n in range(self.fed, self.fed + count):
            self.source.append(self.partitions[n % len(self.partitions)], [str(n).encode()])
        self.fed += count

    def host(self, *tables: str, **options: Any) -> Processor:
        self.hosts += 1
        name = f"host-{self.hosts}"
        sinks = {table: MemoryTable(self.catalog, **options) for table in tables or ("table",)}
        return Processor(
            Copy, source=self.source, container=self.store, name="Copy", host=name, clock=VirtualClock(name),
            nudges=Nudges(), sinks=sinks, commit_interval=1, store_patience=5,
        )  # fmt: skip

    async def until_end(self, **options: Any) -> None:
        await self.host(**options).run(until_end=True)

    async def check(self) -> None:
        assert await self.catalog.rows(self.store) == list(range(self.fed))

    async def complete(self, limit: float) -> None:
        """Wait until the table has all rows."""
        with anyio.fail_after(limit):
            while await self.catalog.rows(self.store) != list(range(self.fed)):
                await anyio.sleep(0.5)


def story(work: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        await work(World())

    run(main())


def test_a_run_until_the_end_leaves_the_table_complete() -> None:
    async def work(world: World) -> None:
        for count in (100, 50, 0):
            world.feed(count)
            await world.until_end()
            await world.check()
        assert world.catalog.columns == ("n", "_sequence")

    story(work)


def test_one_host_makes_a_transaction_each_interval() -> None:
    async def work(world: World) -> None:
        async with world.host(), world.host(), world.host():
            await anyio.sleep(60)  # they have found each other
            before = world.catalog.count
            for _ in range(10):
                world.feed(30)
                await anyio.sleep(60)
            assert 9 <= world.catalog.count - before <= 11
            world.feed(30)
            await world.complete(limit=130)
        await world.check()

    story(work)


def test_a_stopped_host_brings_the_table_up_to_date() -> None:
    async def work(world: World) -> None:
        async with world.host(interval=3600):
            world.feed(30)
            await anyio.sleep(20)
        await world.check()

    story(work)


def test_a_host_without_the_table_does_not_keep_it_waiting() -> None:
    """During a rolling update, for example. Other hosts make transactions, at longer intervals."""

    async def work(world: World) -> None:
        first = Processor(
            Copy, source=world.source, container=world.store, name="Copy", host="a", clock=VirtualClock("a"),
            nudges=Nudges(), commit_interval=1,
        )  # fmt: skip
        async with first, world.host():
            world.feed(30)
            await world.complete(limit=660)

    story(work)


def test_lost_replies_repeat_nothing() -> None:
    async def work(world: World) -> None:
        for _ in range(3):
            world.catalog.lose_replies = 1
            world.feed(100)
            await world.until_end()
            await world.check()
            assert world.catalog.lose_replies == 0

    story(work)


def test_a_table_that_is_away_keeps_no_host_from_committing_and_is_completed_later() -> None:
    async def work(world: World) -> None:
        async with world.host():
            await anyio.sleep(70)
            world.catalog.is_away = True
            world.feed(50)
            await anyio.sleep(200)
            progress = await table_progress(world.store, LAYOUT, "table").read()
            assert progress is not None
            assert progress.error == "SinkError: the catalog is away"
            world.catalog.is_away = False
            await world.complete(limit=200)

    story(work)


def test_a_run_until_the_end_fails_if_the_table_stays_away() -> None:
    async def work(world: World) -> None:
        await world.until_end()
        world.feed(10)
        host = world.host()
        world.catalog.is_away = True
        with pytest.raises(ActorprocError, match=r"the table of sink table is not up to date: .*catalog is away"):
            await host.run(until_end=True)
        world.catalog.is_away = False
        await world.until_end()
        await world.check()

    story(work)


def test_a_pause_holds_the_table_and_a_resume_completes_it() -> None:
    async def work(world: World) -> None:
        async with world.host(interval=10):
            world.feed(10)
            await world.complete(limit=60)
            await pause_sink(world.store, LAYOUT, "table", paused=True)
            await anyio.sleep(60)
            paused = await table_progress(world.store, LAYOUT, "table").read()
            assert paused is not None
            assert paused.fenced
            before = world.catalog.count
            world.feed(10)
            await anyio.sleep(60)
            assert world.catalog.count == before
            await pause_sink(world.store, LAYOUT, "table", paused=False)
            await world.complete(limit=60)

    story(work)


def test_a_table_that_is_registered_anew_becomes_what_the_chain_has() -> None:
    """Files that it names and the chain has not, and those of strangers, leave it."""

    async def work(world: World) -> None:
        world.feed(60)
        await world.until_end()
        await delete_sink(world.store, LAYOUT, "table")
        lost = next(iter(world.catalog.names))
        del world.catalog.names[lost]
        world.catalog.names[f"{LAYOUT.output}partition=0/rewritten.parquet"] = "0"
        world.feed(60)
        await world.until_end()
        await world.check()
        assert world.catalog.life == 2

    story(work)


def test_a_table_that_starts_now_has_later_rows_only() -> None:
    async def work(world: World) -> None:
        world.feed(60)
        await world.host("other").run(until_end=True)
        world.catalog = Catalog()
        await world.host("table", start="now").run(until_end=True)
        assert await world.catalog.rows(world.store) == []
        world.feed(60)
        await world.until_end()
        assert await world.catalog.rows(world.store) == list(range(60, 120))

    story(work)


def test_two_tables_in_the_folder_of_the_output_are_refused() -> None:
    async def work(world: World) -> None:
        with pytest.raises(UsageError, match="sinks a and b: both would be the table in the folder"):
            await world.host("a", "b").run(until_end=True)

    story(work)


def test_a_registered_table_says_that_it_names_files() -> None:
    async def work(world: World) -> None:
        await world.until_end()
        assert (await read_registry(world.store, LAYOUT.readers)).has_table_within

    story(work)


class Stubborn(MemoryTable):
    """Refuses transactions while it is told to."""

    refuses = False

    async def commit(self, seen: TableSnapshot, change: TableChange) -> None:
        if self.refuses:
            raise SinkRefused("no")
        await super().commit(seen, change)


class Notes(Hooks):
    def __init__(self) -> None:
        self.events: list[Event] = []

    async def delivered(self, event: Event) -> None:
        self.events.append(event)

    async def sink_failed(self, event: Event) -> None:
        self.events.append(event)


def test_a_table_tells_its_lag_and_hooks_what_it_takes_and_refuses() -> None:
    async def work(world: World) -> None:
        table, notes = Stubborn(world.catalog, interval=5), Notes()
        processor = Processor(
            Copy, source=world.source, container=world.store, name="Copy", host="a", clock=VirtualClock("a"),
            nudges=Nudges(), sinks={"table": table}, hooks=notes, commit_interval=1, store_patience=5,
        )  # fmt: skip
        async with processor:
            world.feed(9)
            await world.complete(60)
            await anyio.sleep(20)
            (found,) = processor.statistics().tables
            assert (found.state, found.lag, found.lag_rows, found.lag_seconds) == ("running", 0, 0, 0.0)
            taken = [event for event in notes.events if event.kind == "delivered"]
            assert (sum(event.rows for event in taken), {event.sink for event in taken}) == (9, {"table"})
            assert sum(event.commits for event in taken) >= 3
            table.refuses = True
            world.feed(6)
            await anyio.sleep(120)
            (found,) = processor.statistics().tables
            assert (found.state, found.lag_rows) == ("refusing", 6)
            assert found.lag is not None
            assert found.lag >= 3
            assert found.lag_seconds is not None
            assert 100 < found.lag_seconds < 121
            assert [event.reason for event in notes.events if event.kind == "sink_failed"] == ["SinkRefused: no"]
            world.catalog.is_away = True
            await anyio.sleep(200)
            (found,) = processor.statistics().tables
            assert (found.state, found.lag_rows) == ("failing", 6), "as it was last seen"
            assert found.lag_seconds is not None
            assert 300 < found.lag_seconds < 321
            world.catalog.is_away = table.refuses = False
            await world.complete(120)
            await anyio.sleep(5)
            assert processor.statistics().tables[0].lag_seconds == 0.0

    story(work)


def test_a_table_that_cannot_be_read_is_at_most_as_late_as_since_it_was_up_to_date() -> None:
    async def work(world: World) -> None:
        async with world.host(interval=5) as processor:
            world.feed(9)
            await world.complete(60)
            await anyio.sleep(20)
            world.catalog.is_away = True
            await anyio.sleep(100)
            (found,) = processor.statistics().tables
            assert (found.state, found.lag, found.lag_rows) == ("failing", None, None)
            assert found.lag_seconds is not None
            assert 90 < found.lag_seconds < 110
            world.catalog.is_away = False
            await anyio.sleep(100)
            assert processor.statistics().tables[0].lag_seconds == 0.0

    story(work)
