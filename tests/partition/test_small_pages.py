"""Pages of a source become batches: small ones share one, and those that may not do not."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, ClassVar

import anyio
import pyarrow as pa
import pytest

from actorproc.handler.base import Decision
from actorproc.handler.context import PartitionContext
from actorproc.records import RECORD_SCHEMA, Batch, Record
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.sources.protocol import Chunk
from actorproc.testing.memory_source import MemorySource
from tests.partition.world import Numbers, World

# Small pieces: a batch costs its pauses however small it is


class Fails(Numbers):
    """At each five, until it is given up. A good record takes `work` seconds."""

    work = 0.001
    attempts: ClassVar[list[tuple[int, int]]]

    def __init_subclass__(cls) -> None:
        cls.attempts = []

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        self.attempts.append((ctx.attempt, len(batch)))

        async def one(record: Record) -> None:
            if (number := record.json()) % 10 == 5:
                raise ValueError("a five")
            await anyio.sleep(self.work)
            if number % 2 == 0:
                ctx.emit(record, {"n": number})

        await ctx.map(batch, one, concurrency=1)


def in_small_pages(handler: type[Fails], **settings: Any) -> list[int]:
    """The sizes of the batches that it gets of 1,000 records in pages of ten, in virtual time."""

    async def main() -> None:
        world = World(handler, page=10, clock=VirtualClock, **settings)
        world.feed(1000)
        await world.until_end(1)
        await world.check()
        assert world.budget.used == 0

    run(main())
    return [records for attempt, records in handler.attempts if attempt == 1]


def test_bad_records_in_each_of_many_small_pages_cost_their_pauses_together() -> None:
    class Quick(Fails): ...

    sizes = in_small_pages(Quick)
    assert sum(sizes) == 1000
    assert len(sizes) < 6, "of pauses, too"
    assert max(sizes) == 980
    assert Quick.attempts[:6] == [(1, 10), (2, 1), (3, 1), (1, 10), (2, 1), (3, 1)]


@pytest.mark.parametrize(
    ("work", "limits", "largest"),
    [
        (0.001, {"max_batch_records": 25}, {20}),
        (0.001, {"max_batch_bytes": 1500}, {40, 50, 60, 70}),
        (0.02, {}, {40, 50}),
        (0.05, {}, {10, 20}),
        (0.001, {"read_ahead_bytes": 3000, "max_batch_bytes": 3000}, {110, 120, 130, 140}),
        (0.001, {"max_attempts": 1}, {10}),  # no pause
        (0.001, {"delivery": "at-most-once"}, {10}),
    ],
)
def test_small_pages_share_a_batch_within_its_limits(work: float, limits: dict[str, Any], largest: set[int]) -> None:
    class Slow(Fails): ...

    Slow.work = work
    assert max(in_small_pages(Slow, **limits)) in largest


def test_without_pauses_each_page_is_a_batch() -> None:
    class Never(Fails):
        def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision:
            return Decision.DEAD_LETTER

    assert set(in_small_pages(Never)) == {10}


async def test_pages_of_other_types_are_batches_of_their_own() -> None:
    large = pa.schema(
        [field.with_type(pa.large_binary()) if field.name == "value" else field for field in RECORD_SCHEMA]
    )

    class Mixed(MemorySource):
        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            async for chunk in super().read(partition, position):
                batch = chunk.batch
                if int(chunk.next) % 40 == 0:
                    batch = Batch(partition, batch.data.cast(large), batch.sequence_array)
                yield Chunk(batch, chunk.next)

    world = World()
    world.source = Mixed(1, page=10, step=3)
    world.feed(200)
    await world.until_end(1)
    await world.check()
