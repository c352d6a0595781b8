"""Commits, the host's and the handler's: each record's rows are kept once, and in time."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import anyio
import orjson
import pytest

from actorproc import Batch, Decision, PartitionContext, PartitionHandler, Processor, Record, errors
from actorproc.output.chain import read_cursor
from actorproc.sources.protocol import Chunk, End
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource
from tests.processor.doubling import QUICK, Double, _partitions, fed, rows


async def test_processed_records_are_committed_when_the_block_ends() -> None:
    store, source = Store(MemoryStore()), fed(1)
    settings = {**QUICK, "commit_interval": 1000}
    async with Processor(Double, source=source, container=store, **settings) as processor:
        with anyio.fail_after(60):
            while not any(p.counts.records for p in _partitions(processor)):
                await anyio.sleep(0.01)
        assert await rows(store) == []
    assert await rows(store) == [2 * n for n in range(10)]


async def test_manual_commits_survive_a_handoff() -> None:
    class Manual(PartitionHandler):
        output_schema = "n long"

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                ctx.emit(record, {"n": orjson.loads(record.value or b"")})
            await ctx.commit()

    store, source = Store(MemoryStore()), fed(4)
    settings = {**QUICK, "auto_commit": False}
    async with anyio.create_task_group() as tasks:
        for host in "abc":
            processor = Processor(Manual, name="Double", source=source, container=store, host=host, **settings)
            tasks.start_soon(lambda processor=processor: processor.run(until_end=True))  # type: ignore[misc]
    assert await rows(store) == sorted(n for n in range(10) for _ in range(4))


async def test_manual_commits_reach_an_end_without_further_records() -> None:
    class Filtering(MemorySource):
        """A source that skips foreign records, up to position 1000."""

        async def end(self, partition: str) -> End:
            return End("1000", None)

        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            async for chunk in super().read(partition, position):
                yield chunk if len(chunk.batch) else Chunk(chunk.batch, "1000")

    class Manual(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            await super().process(batch, ctx)
            await ctx.commit()

    store, source = Store(MemoryStore()), Filtering(2)
    source.append("0", [b"1", b"2"])  # and nothing in the other one
    settings = {**QUICK, "auto_commit": False}
    with anyio.fail_after(60):
        await Processor(Manual, name="Double", source=source, container=store, **settings).run(until_end=True)
    assert await rows(store) == [2, 4]
    for partition in ("0", "1"):
        cursor = await read_cursor(store, ProcessorLayout("Double"), partition)
        assert cursor is not None
        assert cursor.position == "1000"


async def test_commits_from_many_records_at_once_repeat_and_lose_nothing() -> None:
    class Committing(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            async def work(record: Record) -> None:
                for _ in range(record.sequence % 5):
                    await anyio.lowlevel.checkpoint()
                ctx.emit(record, {"n": record.json()})
                await ctx.commit(record)

            await ctx.map(batch, work, concurrency=8)

    store = Store(MemoryStore())
    with anyio.fail_after(60):
        source = fed(1, each=300)
        await Processor(Committing, name="Double", source=source, container=store, **QUICK).run(until_end=True)
    assert await rows(store) == list(range(300))


async def test_a_commit_in_the_loop_goes_as_far_as_it_says() -> None:
    class InLoop(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for index, record in enumerate(batch):
                ctx.emit(record, {"n": record.json()})
                if index % 10 == 9:
                    await ctx.commit(record)

    store = Store(MemoryStore())
    source = fed(1, each=95)
    await Processor(InLoop, name="Double", source=source, container=store, **QUICK).run(until_end=True)
    assert await rows(store) == list(range(95))


async def test_good_records_are_committed_while_a_later_batch_retries() -> None:
    class Stumbling(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            if batch.first >= 10:
                raise OSError("the database is away")
            await super().process(batch, ctx)

        def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision:
            return Decision.RETRY

    store = Store(MemoryStore())
    settings = QUICK | {"max_batch_records": 10, "commit_interval": 0.05}
    async with Processor(Stumbling, source=fed(1, 20), container=store, host="a", name="Double", **settings):
        with anyio.fail_after(60):
            while await rows(store) != [2 * n for n in range(10)]:
                await anyio.sleep(0.01)


async def test_good_records_before_a_stop_are_committed_and_not_repeated() -> None:
    calls: list[int] = []

    class Stopping(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            calls.append(batch.first)
            if batch.first >= 10:
                raise ValueError("no further")
            await super().process(batch, ctx)

        def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision:
            return Decision.STOP

    store = Store(MemoryStore())
    # A host that gets no CPU for a second fences itself, and would repeat what is not committed.
    settings = QUICK | {"max_batch_records": 10, "commit_interval": 1000, "lease_expiration_interval": 60}
    processor = Processor(Stopping, source=fed(1, 20), container=store, host="a", name="Double", **settings)
    with pytest.raises(errors.EndNotReached, match="no further"):
        await processor.run(until_end=True)
    assert await rows(store) == [2 * n for n in range(10)]
    assert calls.count(0) == 1
