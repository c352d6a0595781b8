"""Commits of a partition: their content, their time, and the position of the checkpoint."""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import count
from typing import ClassVar

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import structlog

from actorproc import errors
from actorproc.handler.base import CloseReason
from actorproc.handler.context import PartitionContext
from actorproc.records import Batch
from actorproc.runtime.tasks import first_cause
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.sources.protocol import Chunk
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource
from tests.partition.world import Numbers, World, _at_least, eventually


async def test_every_record_ends_as_rows_or_dead_letter_and_moves_the_checkpoint() -> None:
    world = World(max_batch_records=7)
    world.feed(100)
    await world.until_end(1)
    await world.check()
    checkpoint = await world.checkpoint()
    assert (checkpoint.cursor.sequence, checkpoint.number) == (99 * 3, 1)
    assert (checkpoint.totals.records, checkpoint.totals.rows, checkpoint.totals.dead_letters) == (100, 50, 10)
    assert Numbers.closed[-1] is CloseReason.HANDOFF


def test_records_without_rows_are_committed_as_promptly_as_rows() -> None:
    class Silent(Numbers):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            pass

    async def main() -> None:
        world = World(Silent, clock=VirtualClock, commit_interval=5, idle_commit_interval=60)
        world.feed(10)
        async with world.running(1):
            await anyio.sleep(4)
            assert not await _moved(world)
            await anyio.sleep(2)
            assert await _moved(world)
        assert await world.rows() == []

    run(main())


def test_a_moved_position_is_committed_after_idle_commit_interval() -> None:
    class Moving(MemorySource):
        """After its records the position moves each second without a record."""

        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            async with aclosing(super().read(partition, position)) as chunks:
                async for chunk in chunks:
                    yield chunk
                    for moved in count(int(chunk.next)) if not len(chunk.batch) else ():
                        yield Chunk(chunk.batch, str(moved))
                        await anyio.sleep(1)

    async def main() -> None:
        world = World(clock=VirtualClock, commit_interval=5, idle_commit_interval=60)
        world.source = Moving(1, step=3)
        world.feed(10)
        async with world.running(1) as actor:
            await anyio.sleep(10)
            first = actor.statistics.committed.position
            await anyio.sleep(45)
            assert actor.statistics.committed.position == first
            await anyio.sleep(30)
            assert int(actor.statistics.committed.position) > int(first)

    run(main())


def test_rows_are_committed_after_commit_interval() -> None:
    async def main() -> None:
        world = World(clock=VirtualClock, commit_interval=5, idle_commit_interval=60)
        world.feed(10)
        async with world.running(1):
            await anyio.sleep(4.9)
            assert await world.rows() == []
            await anyio.sleep(0.2)
            await world.check()

    run(main())


def test_a_long_batch_is_committed_as_it_ends() -> None:
    class Slow(Numbers):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            await anyio.sleep(6)
            await super().process(batch, ctx)

    async def main() -> None:
        world = World(Slow, clock=VirtualClock, page=5, commit_interval=5, idle_commit_interval=60)
        world.feed(20)
        async with world.running(1):
            await anyio.sleep(6.5)
            first = await world.rows()
            assert first
            await anyio.sleep(6)
            assert len(await world.rows()) > len(first)

    run(main())


async def _moved(world: World) -> bool:
    try:
        return (await world.checkpoint()).cursor.sequence == 27
    except AssertionError:
        return False


async def test_without_auto_commit_only_the_handler_commits() -> None:
    class Manual(Numbers):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            await super().process(batch, ctx)
            if batch.last >= 60:
                await ctx.commit()

    world = World(Manual, page=5, auto_commit=False, commit_interval=0.001, commit_rows=1)
    world.feed(10)
    async with world.running(1) as actor:
        await eventually(lambda: _at_least(actor.statistics.counts.records, 10))
        await anyio.sleep(0.02)
        assert await world.rows() == []
        world.feed(11)
        await eventually(lambda: _at_least(actor.statistics.committed.sequence, 60))
        assert await world.rows() == [n for n in range(21) if n % 2 == 0]


async def test_the_next_owner_goes_on_after_the_committed_record() -> None:
    class Manual(Numbers):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            await super().process(batch, ctx)
            await ctx.commit(batch[3])
            await anyio.sleep_forever()

    world = World(Manual)
    world.feed(10)
    async with world.running(1) as actor:
        await eventually(lambda: _at_least(actor.statistics.commits, 1))
    assert await world.rows() == [0, 2]
    world.handler = Numbers
    await world.until_end(2)
    await world.check()


async def test_at_most_once_shows_no_record_to_a_second_owner() -> None:
    seen: list[int] = []

    class Once(Numbers):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            seen.extend(record.json() for record in batch)
            await anyio.sleep_forever()

    world = World(Once, max_batch_records=4, delivery="at-most-once")
    world.feed(12)
    for epoch in (1, 2, 3):
        async with world.running(epoch):
            await eventually(lambda epoch=epoch: _at_least(len(seen), 4 * epoch))  # type: ignore[misc]
    assert seen == list(range(12))


@pytest.mark.parametrize("delivery", ["at-least-once", "at-most-once"])
async def test_records_read_before_the_source_failed_are_committed(delivery: str) -> None:
    class Torn(MemorySource):
        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            async for chunk in super().read(partition, position):
                if chunk.next == "30":
                    raise errors.SourceError("the third page is torn")
                yield chunk

    world = World(page=10, read_ahead_batches=4, delivery=delivery)
    world.source = Torn(1, page=10, step=3)
    world.feed(25)
    world.source.append("0", [b"25"] * 5)
    actor = world.actor(1)
    with pytest.raises(ExceptionGroup) as caught:
        await actor.run()
    assert "the third page is torn" in str(first_cause(caught.value))
    assert await world.rows() == list(range(0, 20, 2))
    assert await world.letters() == [5, 15]


async def test_at_most_once_the_next_owner_logs_a_cut_off_batch() -> None:
    class Hanging(Numbers):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            begun.set()
            await anyio.sleep_forever()

    begun = anyio.Event()
    world = World(Hanging, delivery="at-most-once")
    world.feed(4)
    async with world.running(1):
        await begun.wait()
    world.handler = Numbers
    with structlog.testing.capture_logs() as logs:
        await world.until_end(2)
        await world.until_end(3)
    assert [(log["upto"], log["epoch"]) for log in logs if log["event"] == "partition.batch_cut_off"] == [(9, 2)]


async def test_at_most_once_records_without_rows_move_the_checkpoint() -> None:
    class Silent(Numbers):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            pass

    world = World(Silent, commit_interval=0.01, delivery="at-most-once")
    world.feed(10)
    async with world.running(1) as actor:
        await eventually(lambda: _at_least(actor.statistics.committed.sequence, 27))
    assert (await world.checkpoint()).totals.records == 10


async def test_output_written_by_one_commit_is_one_file_with_rows_in_order() -> None:
    world = World(max_batch_records=3)
    world.feed(50)
    await world.until_end(1)
    entries = (await world.store.list(world.layout.output)).entries
    assert [entry.key for entry in entries] == ["p/output/partition=0/00000000000000000000.parquet"]
    stored = await world.store.get(entries[0].key)
    assert stored is not None
    schema = pq.read_schema(io.BytesIO(stored.body))
    assert schema.remove_metadata().equals(pa.schema([("n", pa.int64()), pa.field("_sequence", pa.int64(), False)]))


async def test_a_commit_that_the_handler_cut_short_is_not_made_again() -> None:
    world = World()
    let_go = anyio.Event()

    class Hangs(MemoryStore):
        async def put_if_absent(self, key: str, body: bytes) -> str:
            tag = await super().put_if_absent(key, body)
            if world.layout.output in key:
                let_go.set()
                await anyio.sleep_forever()  # the reply
            return tag

    class Impatient(Numbers):
        closed: ClassVar[list[CloseReason]] = []

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            await super().process(batch, ctx)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ctx.commit)
                await let_go.wait()
                tasks.cancel_scope.cancel()

    memory = Hangs()
    world.store, world.handler = Store(memory, clock=world.clock(0)), Impatient
    world.feed(10)
    actor = world.actor(1)
    with pytest.raises(errors.HandlerError, match=r"ctx\.commit\(\) was cut short"):
        try:
            await actor.run()
        except ExceptionGroup as group:
            raise first_cause(group) from group
    assert Impatient.closed == [CloseReason.FAILED]
    memory.put_if_absent = MemoryStore.put_if_absent.__get__(memory)  # type: ignore[method-assign]
    world.handler = Numbers
    await world.until_end(1)
    await world.check()
