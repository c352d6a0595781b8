"""Memory of a partition: rows until they are committed, batches read ahead, and no batch while it waits."""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncGenerator

import anyio
import pytest

from actorproc.handler.base import Decision
from actorproc.handler.context import PartitionContext
from actorproc.partition.actor import PartitionActor
from actorproc.records import Batch
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.sources.protocol import Chunk
from actorproc.testing.memory_source import MemorySource
from tests.partition.world import Numbers, World, _is, eventually


async def test_rows_count_as_waiting_until_they_are_committed_or_their_owner_ends() -> None:
    world = World(max_batch_records=7, commit_interval=1000)
    world.feed(20)
    async with world.running(1) as actor:
        await eventually(lambda: _is(actor.statistics.counts.records == 20))
        assert world.waiting.used > 0
    assert world.waiting.used == world.waiting.holders == 0
    world.settings = world.settings.model_copy(update={"commit_interval": 0.001})
    async with world.running(2) as actor:
        await eventually(lambda: _is(actor.statistics.counts.rows == 10))
        await eventually(lambda: _is(world.waiting.used == world.waiting.holders == 0))


async def test_a_partition_that_waits_for_news_keeps_no_batch() -> None:
    seen: list[weakref.ref[Batch]] = []

    class Watched(Numbers):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            await super().process(batch, ctx)
            seen.append(weakref.ref(batch))

    world = World(Watched, max_batch_records=7, commit_interval=0.01)
    world.feed(10)
    async with world.running(1) as actor:
        await eventually(lambda: _committed(actor))
        gc.collect()
        assert [batch() for batch in seen] == [None, None]


async def _committed(actor: PartitionActor) -> bool:
    return actor.statistics.committed.sequence == 27


@pytest.mark.parametrize("pausing", [False, True])
def test_read_ahead_goes_no_further_than_its_batches(pausing: bool) -> None:
    class Stuck(Numbers):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            if pausing:
                raise ValueError("not yet")
            await anyio.sleep_forever()

        def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision:
            return Decision.RETRY

    class Counted(MemorySource):
        pages = 0

        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            async for chunk in super().read(partition, position):
                Counted.pages += 1
                yield chunk

    async def main() -> None:
        world = World(Stuck, clock=VirtualClock, read_ahead_batches=2)
        world.source = Counted(1, page=10, step=3)
        world.feed(1000)
        async with world.running(1):
            await anyio.sleep(100)
        assert Counted.pages == 4, "one is handled, two wait, one waits for room"

    run(main())
