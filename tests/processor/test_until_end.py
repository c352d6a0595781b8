"""`run(until_end=True)` processes the records that exist at the start, and returns."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from functools import partial
from io import BytesIO
from typing import Any, ClassVar

import anyio
import pyarrow.parquet as pq
import pytest

from actorproc import (
    Batch,
    Decision,
    PartitionContext,
    PartitionHandler,
    PartitionInfo,
    Processor,
    Record,
    RecordHandler,
    WakeContext,
)
from actorproc.host.partition_slot import FAILURES_FOR_GOOD
from actorproc.runtime.nudge import Nudges
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.sources.protocol import Chunk, End, Start
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource
from tests.processor.doubling import QUICK, Double, fed, rows


class WithTimers(PartitionHandler):
    """A handler that could set timers."""

    output_schema = "n long"

    def on_wake(self, key: Any, ctx: WakeContext) -> None:
        pass


async def test_until_end_processes_all_records_and_returns() -> None:
    store = Store(MemoryStore())
    await Processor(Double, source=fed(), container=store, host="a", **QUICK).run(until_end=True)
    assert await rows(store) == sorted(2 * n for n in range(10) for _ in range(4))
    assert (await store.list("Double/hosts/")).entries == []


async def test_until_end_returns_if_an_earlier_run_began_at_the_end() -> None:
    class Named(MemorySource):
        async def start(self, partition: str, at: Any) -> str:
            return "$" if at == "latest" else await super().start(partition, at)

        def sequence_before(self, partition: str, position: str) -> int | None:
            return None

        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            yield Chunk(Batch.of(partition, [], []), position)
            await anyio.sleep_forever()

    store, source = Store(MemoryStore()), Named(1)
    source.append("0", [b"%d" % n for n in range(10)])
    for start in ("latest", "earliest"):  # the second has a checkpoint, and its start does not count
        processor = Processor(Double, source=source, container=store, start=start, **QUICK)
        with anyio.fail_after(60):
            await processor.run(until_end=True)
    assert await rows(store) == []


async def test_until_end_is_there_although_the_newest_records_were_deleted_meanwhile() -> None:
    class Shrinks(MemorySource):
        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            del self._values[partition][7:]
            async for chunk in super().read(partition, position):
                yield chunk

    store, source = Store(MemoryStore()), Shrinks(1)
    source.append("0", [b"%d" % n for n in range(10)])
    with anyio.fail_after(60):
        await Processor(Double, source=source, container=store, **QUICK).run(until_end=True)
    assert await rows(store) == [2 * n for n in range(7)]


async def test_until_end_tries_again_if_the_source_cannot_tell_its_end_just_then() -> None:
    class Unsteady(MemorySource):
        asked: ClassVar[int] = 0

        async def end(self, partition: str) -> End:
            type(self).asked += 1
            if self.asked in {2, 3}:
                raise OSError("away for a moment")
            return await super().end(partition)

        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            del self._values[partition][7:]
            async for chunk in super().read(partition, position):
                yield chunk

    store, source = Store(MemoryStore()), Unsteady(1)
    source.append("0", [b"%d" % n for n in range(10)])
    with anyio.fail_after(60):
        await Processor(Double, source=source, container=store, **QUICK).run(until_end=True)
    assert source.asked >= 4
    assert await rows(store) == [2 * n for n in range(7)]


@pytest.mark.parametrize("partitions", [1, 50])
def test_until_end_adds_no_pause_to_its_requests(partitions: int) -> None:
    """In virtual time, with a store and a source that answer at once."""

    async def main() -> float:
        clock = VirtualClock("a")
        store = Store(MemoryStore(clock=clock), clock=clock)
        began = clock.monotonic()
        processor = Processor(Double, source=fed(partitions), container=store, host="a", clock=clock, nudges=Nudges())
        await processor.run(until_end=True)
        assert len(await rows(store)) == 10 * partitions
        return clock.monotonic() - began

    assert run(main()) < 0.001


@pytest.mark.parametrize("base", [PartitionHandler, WithTimers])
def test_until_end_reads_nothing_for_the_end_while_all_partitions_run_here(base: type[PartitionHandler]) -> None:
    class Slow(base):  # type: ignore[misc, valid-type]
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            await anyio.sleep(60)

    async def main() -> None:
        clock = VirtualClock("a")
        store = Store(MemoryStore(clock=clock), clock=clock)
        processor = Processor(Slow, source=fed(), container=store, host="a", clock=clock, nudges=Nudges())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(processor.run, until_end=True))
            await anyio.sleep(10)
            before = store.requests["get"] + store.requests["list"]
            await anyio.sleep(40)
            assert store.requests["get"] + store.requests["list"] - before < 20, "only the looks at the group"

    run(main())


async def test_until_end_from_the_latest_record_returns_though_the_source_grows() -> None:
    class Grows(MemorySource):
        async def start(self, partition: str, at: Start) -> str:
            if at == "latest":
                self.append(partition, [b"1"] * 5)
            return await super().start(partition, at)

        def sequence_before(self, partition: str, position: str) -> int | None:
            return None

    source = Grows(1)
    source.append("0", [b"%d" % n for n in range(10)])
    store = Store(MemoryStore())
    with anyio.fail_after(60):
        await Processor(Double, source=source, container=store, start="latest", **QUICK).run(until_end=True)
    assert await rows(store) == []


async def test_until_end_waits_for_a_failing_partition_with_progress() -> None:
    class Stumbling(Double):
        failures: ClassVar[int] = 0

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                if record.sequence and type(self).failures < record.sequence:
                    type(self).failures += 1
                    raise ValueError("once for each record")
                ctx.emit(record, {"n": record.json()})
                await ctx.commit(record)

        def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision | None:
            return Decision.STOP

    store = Store(MemoryStore())
    with anyio.fail_after(60):
        await Processor(Stumbling, name="Double", source=fed(1, FAILURES_FOR_GOOD + 2), container=store, **QUICK).run(
            until_end=True
        )
    assert Stumbling.failures == FAILURES_FOR_GOOD + 1
    assert await rows(store) == list(range(FAILURES_FOR_GOOD + 2))


async def test_until_end_of_an_empty_stream_returns() -> None:
    await Processor(Double, source=MemorySource(3), container=Store(MemoryStore()), **QUICK).run(until_end=True)


async def test_until_end_sees_the_commits_of_an_ordinary_host() -> None:
    store, source = Store(MemoryStore()), fed(4)
    async with Processor(Double, source=source, container=store, host="a", **QUICK):
        with anyio.fail_after(60):
            while len(await rows(store)) < 40:
                await anyio.sleep(0.01)
            await Processor(Double, source=source, container=store, host="b", **QUICK).run(until_end=True)


@pytest.mark.parametrize("fails", [False, True])
async def test_until_end_fires_timers_that_an_earlier_run_left(fails: bool) -> None:
    class Wakes(RecordHandler):
        output_schema = "n string"
        fired: ClassVar[list[str]] = []
        fails: ClassVar[bool] = False

        def process_record(self, record: Record, ctx: PartitionContext) -> None:
            ctx.wake(record.text, after=0 if fails else 0.3)

        def on_wake(self, key: Any, ctx: WakeContext) -> dict[str, str]:
            if self.fails:
                raise ConnectionError("away")
            self.fired.append(key)
            return {"n": key}

    store, source = Store(MemoryStore()), MemorySource(2)
    source.append("1", [b"a"])
    for fired in ([], ["a"], ["a"]):
        Wakes.fails = fails and not fired
        with anyio.fail_after(60):
            await Processor(Wakes, source=source, container=store, **QUICK).run(until_end=True)
        assert Wakes.fired == fired
        await anyio.sleep(0.3)


async def test_until_end_commits_although_timers_fire_when_it_asks() -> None:
    class Wakes(RecordHandler):
        output_schema = "n string"

        def process_record(self, record: Record, ctx: PartitionContext) -> None:
            ctx.wake(record.text, after=0)

        async def on_wake(self, key: Any, ctx: WakeContext) -> dict[str, str]:
            await anyio.sleep(0.1)  # the end of the partition is noticed meanwhile
            return {"n": key}

    source = MemorySource(1)
    source.append("0", [b"a", b"b"])
    settings = {**QUICK, "commit_interval": 3600, "min_batch_records": 10, "max_batch_wait": 0.1}
    with anyio.fail_after(20):
        await Processor(Wakes, source=source, container=Store(MemoryStore()), **settings).run(until_end=True)


async def test_until_end_ends_although_timers_set_themselves_again() -> None:
    class Polls(RecordHandler):
        def process_record(self, record: Record, ctx: PartitionContext) -> None:
            ctx.wake(record.text, after=0.1)

        async def on_wake(self, key: Any, ctx: WakeContext) -> None:
            await anyio.sleep(0.05)
            ctx.wake(key, after=0.1)

    store, source = Store(MemoryStore()), MemorySource(1)
    source.append("0", [b"%d" % n for n in range(4)])
    for _ in range(2):
        with anyio.fail_after(20):
            await Processor(Polls, source=source, container=store, **QUICK).run(until_end=True)
        await anyio.sleep(0.2)


@pytest.mark.parametrize("slow", [False, True])
async def test_stream_time_does_not_follow_the_wall_clock_while_records_wait(slow: bool) -> None:
    """Records come after the start, in the middle of a session. `slow`: while timers of another key fire."""
    source = MemorySource(1, page=10)

    def append(key: bytes, first: int, last: int) -> None:
        for n in range(first, last):
            source.append("0", [b"x"], key=key, timestamp=datetime(2025, 1, 1, tzinfo=UTC) + timedelta(seconds=n))

    class Visits(RecordHandler):
        output_schema = "key string, clicks int"

        async def opened(self, ctx: PartitionInfo) -> None:
            if not slow and ctx.epoch == 1:
                append(b"k", 10, 40)

        def process_record(self, record: Record, ctx: PartitionContext) -> None:
            key = (record.key or b"").decode()
            ctx.state.set(key, ctx.state.get(key, 0) + 1)
            ctx.wake(key, (record.timestamp or datetime.now(UTC)) + timedelta(seconds=5 if key == "slow" else 1800))

        async def on_wake(self, key: Any, ctx: WakeContext) -> dict[str, Any]:
            if key == "slow":
                append(b"k", 10, 40)
                await anyio.sleep(2)  # longer than `stream_idle_time`, and than an attempt may take
            clicks = ctx.state[key]
            ctx.state.delete(key)
            return {"key": key, "clicks": clicks}

    if slow:
        append(b"slow", 0, 1)
    append(b"k", 0 if not slow else 6, 10)
    store, settings = Store(MemoryStore()), {**QUICK, "stream_idle_time": 1.5 if slow else 0, "max_batch_records": 10}
    for _ in range(2):
        processor = Processor(Visits, source=source, container=store, **settings)
        if slow:
            async with processor:
                with anyio.fail_after(60):
                    while not (await store.list("Visits/output/")).entries:
                        await anyio.sleep(0.05)
            break
        await processor.run(until_end=True)
    files = [await store.get(entry.key) for entry in (await store.list("Visits/output/")).entries]
    found = [tuple(row.values())[:2] for file in files if file for row in pq.read_table(BytesIO(file.body)).to_pylist()]
    assert found == ([("slow", 1)] if slow else [("k", 40)])
