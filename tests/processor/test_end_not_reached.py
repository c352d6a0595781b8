"""`run(until_end=True)` that does not reach the end, or loses rows, raises an error with place and reason."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import ClassVar

import anyio
import pytest

from actorproc import Batch, Decision, PartitionContext, PartitionHandler, Processor, Producer, Record, errors
from actorproc.host.partition_slot import FAILURES_FOR_GOOD
from actorproc.output.chain import read_cursor
from actorproc.sources import LogSource
from actorproc.sources.protocol import Chunk
from actorproc.storage.names import ProcessorLayout, log_file
from actorproc.storage.store import Store
from actorproc.stores import open_store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource
from tests.processor.doubling import QUICK, Double, _partitions, fed, rows


async def test_until_end_names_the_partition_that_cannot_go_on() -> None:
    class Stopping(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            if ctx.partition == "2":
                raise ValueError("poison")
            await super().process(batch, ctx)

        def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision | None:
            return Decision.STOP

    store = Store(MemoryStore())
    processor = Processor(Stopping, name="Double", source=fed(), container=store, **QUICK)
    says = rf"1 of 4 partitions has not .*\npartition 2: failed at least {FAILURES_FOR_GOOD} times.*: poison"
    with anyio.fail_after(60), pytest.raises(errors.EndNotReached, match=says):
        await processor.run(until_end=True)
    assert await rows(store) == sorted(2 * n for n in range(10) for _ in range(3))
    assert (await store.list("Double/hosts/")).entries == [], "it has left in good order"


async def test_until_end_gives_up_at_once_on_a_mistake_in_the_handler() -> None:
    class Mistaken(Double):
        calls: ClassVar[list[str]] = []

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            if ctx.partition in "12":
                self.calls.append(ctx.partition)
                ctx.emit_each(batch, [])
            await super().process(batch, ctx)

    store, slowly = Store(MemoryStore()), QUICK | {"restart_backoff": 30, "restart_backoff_max": 60}
    processor = Processor(Mistaken, name="Double", source=fed(), container=store, **slowly)
    says = r"partitions 1-2: failed, and would again until the handler is fixed: HandlerMisuse: 0 rows for"
    with anyio.fail_after(20), pytest.raises(errors.EndNotReached, match=says):
        await processor.run(until_end=True)
    assert sorted(Mistaken.calls) == ["1", "2"]
    assert await rows(store) == sorted(2 * n for n in range(10) for _ in range(2))


async def test_until_end_fails_if_rows_were_emitted_after_their_commit() -> None:
    class Hasty(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for index in range(len(batch)):
                ctx.emit(batch[index], {"n": batch[index].json()})
                if index == 3:
                    await ctx.commit()

    store = Store(MemoryStore())
    processor = Processor(Hasty, name="Double", source=fed(1), container=store, **QUICK)
    with (
        anyio.fail_after(60),
        pytest.raises(errors.EndNotReached, match=r"rows were lost, .*\npartition 0: .* and is lost"),
    ):
        await processor.run(until_end=True)
    assert await rows(store) == [0, 1, 2, 3]


async def test_until_end_is_no_success_where_rows_came_after_process_had_returned() -> None:
    tasks: set[asyncio.Task[None]] = set()

    class Hasty(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            async def later(record: Record) -> None:
                await asyncio.sleep(0)
                with suppress(errors.HandlerError):
                    ctx.emit(record, {"n": 1})

            tasks.update(asyncio.ensure_future(later(record)) for record in batch)

    processor = Processor(Hasty, name="Double", source=fed(1), container=Store(MemoryStore()), **QUICK)
    with (
        anyio.fail_after(60),
        pytest.raises(errors.EndNotReached, match=r"rows were lost, .*\npartition 0: .*after process\(\) had returned"),
    ):
        await processor.run(until_end=True)


async def test_until_end_fails_if_the_source_ends_before_its_newest_record() -> None:
    class Gap(MemorySource):
        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            async for chunk in super().read(partition, position):
                yield Chunk(chunk.batch[: 7 - int(position)], "7")
                yield Chunk(chunk.batch[:0], "7")
                await anyio.sleep_forever()

    store, source = Store(MemoryStore()), Gap(1)
    source.append("0", [b"%d" % n for n in range(10)])
    processor = Processor(Double, source=source, container=store, **QUICK)
    says = r"(?s)1 of 1 partition has not .*nothing more of partition 0 after sequence 6, .* its newest record was 9"
    with anyio.fail_after(60), pytest.raises(errors.EndNotReached, match=says):
        await processor.run(until_end=True)
    assert await rows(store) == [2 * n for n in range(7)]


async def test_until_end_is_no_success_where_the_source_does_not_even_begin() -> None:
    class Lagging(MemorySource):
        """Its first chunk is empty, although `end` names records."""

        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            yield Chunk(Batch.of(partition, [], []), position)
            await anyio.sleep_forever()

    source = Lagging(1)
    source.append("0", [b"%d" % n for n in range(10)])
    processor = Processor(Double, source=source, container=Store(MemoryStore()), **QUICK)
    says = r"(?s)1 of 1 partition has not .*nothing more of partition 0 after sequence -1, .* its newest record was 9"
    with anyio.fail_after(60), pytest.raises(errors.EndNotReached, match=says):
        await processor.run(until_end=True)


async def test_until_end_processes_the_rest_if_some_ends_cannot_be_read() -> None:
    log, container = open_store("memory://damaged"), Store(MemoryStore())
    for _ in range(2):
        async with Producer(log, partitions=5) as producer:
            for n in range(50):
                await producer.send(str(n), key=f"k{n}")
    newest = {}
    for partition in "13":
        newest[partition] = key = (await log.list(f"partition={partition}/")).entries[-1].key
        await log.put(key, b"PAR1 damaged PAR1")
    processor = Processor(Double, source=LogSource(log), container=container, **QUICK)
    says = (
        r"^2 of 5 partitions have not reached the end they had at the start\n"
        rf"partition 1: could not tell where it ends: memory://damaged/{newest['1']}: .*\npartition 3: .*{newest['3']}"
    )
    with anyio.fail_after(60), pytest.raises(errors.EndNotReached, match=says):
        await processor.run(until_end=True)
    layout, whole = ProcessorLayout("Double"), LogSource(log)
    await whole.open()
    for partition in "024":
        cursor = await read_cursor(container, layout, partition)
        assert cursor is not None
        assert cursor.sequence == (await whole.end(partition)).sequence


@pytest.mark.parametrize("who", ["SIGTERM", "stop()"])
async def test_until_end_that_is_stopped_early_is_an_error_that_says_by_whom(who: str) -> None:
    class Slow(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            if ctx.partition == "1":
                asking.set()
                await anyio.sleep_forever()
            await super().process(batch, ctx)

    asking = anyio.Event()
    processor = Processor(
        Slow, name="Double", source=fed(2), container=Store(MemoryStore()), **QUICK, max_handoff_time=0.1
    )
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            says = (
                rf"1 of 2 partitions.*\npartition 1: not there yet when this host ended \({re.escape(who)} stopped it\)"
            )
            with pytest.raises(errors.EndNotReached, match=says):
                await processor.run(until_end=True, signals=who == "SIGTERM")

        tasks.start_soon(run)
        with anyio.fail_after(60):
            await asking.wait()
            while sum(p.counts.rows for p in _partitions(processor)) < 10:
                await anyio.sleep(0.01)
            await anyio.sleep(0.5)
        if who == "SIGTERM":
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            processor.stop()


@pytest.mark.slow
async def test_until_end_gives_up_on_a_plain_handler_that_hangs() -> None:
    hang = threading.Event()

    class Hangs(PartitionHandler):
        output_schema = "n long"

        def process(self, batch: Batch, ctx: PartitionContext) -> None:
            if ctx.partition == "0":
                hang.wait()
            for record in batch:
                ctx.emit(record, {"n": record.json()})

    store = Store(MemoryStore())
    settings = {**QUICK, "max_process_time": 0.1, "read_ahead_bytes": 4000, "max_batch_bytes": 4000}
    try:
        with (
            anyio.fail_after(60),
            pytest.raises(errors.EndNotReached, match=r"partition 0: failed at least 5 times .*has not ended"),
        ):
            await Processor(Hangs, name="Double", source=fed(3), container=store, **settings).run(until_end=True)
    finally:
        hang.set()
    assert len(await rows(store)) == 20


async def test_until_end_of_a_log_that_lost_records_is_an_error() -> None:
    log, container = Store(MemoryStore()), Store(MemoryStore())
    for each in (b"1", b"2"):
        async with Producer(log, partitions=1) as producer:
            await producer.send(each)
    processor = Processor(Double, source=LogSource(log), container=container, **QUICK)
    await processor.run(until_end=True)
    await log.delete(log_file("0", 1))
    processor = Processor(Double, source=LogSource(log), container=container, **QUICK)
    with (
        anyio.fail_after(60),
        pytest.raises(errors.EndNotReached, match="and this processor has read up to"),
    ):
        await processor.run(until_end=True)


async def test_until_end_fails_if_the_handler_never_commits_the_last_records() -> None:
    settings = QUICK | {"auto_commit": False}
    processor = Processor(Double, source=fed(1), container=Store(MemoryStore()), host="a", **settings)
    with (
        anyio.fail_after(60),
        pytest.raises(errors.EndNotReached, match=r"call ctx\.commit\(\) at the end of each batch"),
    ):
        await processor.run(until_end=True)
