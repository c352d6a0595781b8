"""The lag in seconds is that of the oldest record in hand, whatever other timestamps say."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import UTC, datetime

import anyio
import pytest

from actorproc import Batch, PartitionContext, PartitionHandler
from actorproc.simulation.clock import EPOCH, VirtualClock
from actorproc.simulation.loop import current_loop, run
from actorproc.sources.protocol import Chunk
from actorproc.testing.memory_source import MemorySource
from tests.partition.world import World


class Holds(PartitionHandler):
    """Is at work on its batch for a long time."""

    output_schema = "n long"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        await anyio.sleep(1000)


class HoldsTheSecond(PartitionHandler):
    """Is at work on its second batch for a long time."""

    output_schema = "n long"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        if batch.first > 0:
            await anyio.sleep(1000)


class Chained(MemorySource):
    """Its records began their way when `oldest` says."""

    oldest: float | None = None

    async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        async for chunk in super().read(partition, position):
            yield replace(chunk, oldest=self.oldest)


def lags_of(
    ages: list[float | None],
    began: float | None = None,
    handler: type[PartitionHandler] = Holds,
    **settings: int,
) -> tuple[float | None, float | None]:
    """The lag, own and end to end, of records so many seconds old, 10 s after the handler got them."""

    async def main() -> tuple[float | None, float | None]:
        world = World(handler, clock=lambda number: VirtualClock(str(number)), **settings)
        world.source = source = Chained(1)
        now = EPOCH + current_loop().time()
        source.oldest = None if began is None else now - began
        for age in ages:
            time = None if age is None else datetime.fromtimestamp(now - age, UTC)
            source.append("0", [b"1"], timestamp=time)
        async with world.running(1) as actor:
            await anyio.sleep(10)
            return actor.lag.seconds, actor.lag.seconds_end_to_end

    return run(main())


BEFORE_1970, FUTURE = EPOCH + 100_000, -1e9


@pytest.mark.parametrize(
    ("ages", "seconds"),
    [
        ([30.0], 40.0),
        ([30.0, 3600.0, 5.0], 3610.0),
        ([FUTURE, 3600.0], 3610.0),
        ([BEFORE_1970, None, 30.0], 40.0),
        ([FUTURE], 10.0),  # since the handler got it
        ([BEFORE_1970], None),
        ([None], None),
    ],
)
def test_the_oldest_record_that_makes_sense_counts(ages: list[float | None], seconds: float | None) -> None:
    assert list(lags_of(ages)) == pytest.approx([seconds, seconds], abs=0.5)


@pytest.mark.parametrize(
    ("began", "seconds"), [(500.0, 510.0), (5.0, 40.0), (FUTURE, 40.0), (BEFORE_1970, 40.0), (None, 40.0)]
)
def test_end_to_end_is_never_less_than_the_own_lag(began: float | None, seconds: float) -> None:
    assert list(lags_of([30.0], began)) == pytest.approx([40.0, seconds], abs=0.5)


def test_an_older_record_in_a_later_batch_counts() -> None:
    assert lags_of([5.0, 3600.0], handler=HoldsTheSecond, max_batch_records=1)[0] == pytest.approx(3610.0, abs=0.5)
