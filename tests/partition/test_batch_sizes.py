"""How large batches are: within their limits, and as much work as the handler does in a moderate time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from actorproc.handler.base import PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.partition.read_ahead import fitting
from actorproc.records import Batch
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from tests.partition.world import World


@pytest.mark.parametrize("column", ["value", "keys", "headers"])
def test_a_batch_keeps_both_limits_for_bytes_of_any_column(column: str) -> None:
    large: list[Any] = [b"x" * 200] * 1000
    if column == "headers":
        large = [[("h", content)] for content in large]
    short: list[bytes | None] = [b"v"] * 1000
    chunk = (
        Batch.of("0", large, range(1000)) if column == "value" else Batch.of("0", short, range(1000), **{column: large})
    )
    cut = fitting(chunk, 80, 10_000), fitting(chunk, 30, 10_000), fitting(chunk, 80, 10)
    assert 35 < cut[0] < 50
    assert chunk[: cut[0]].nbytes <= 10_000 < chunk[: cut[0] + 1].nbytes
    assert cut[1:] == (30, 1)


# The size of batches


def sizes_of_batches(seconds: Callable[[int, int], float], records: int = 80_000, **settings: Any) -> list[int]:
    """The sizes of the batches of a backlog in virtual time. `seconds` gives the time that a batch takes."""
    sizes: list[int] = []

    class Works(PartitionHandler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            sizes.append(len(batch))
            await anyio.sleep(seconds(len(sizes), len(batch)))

    async def main() -> None:
        world = World(Works, page=20_000, clock=VirtualClock, **settings)
        world.feed(records)
        async with world.running(1) as actor:
            while actor.statistics.counts.records < records:
                await anyio.sleep(1)

    run(main())
    return sizes


@pytest.mark.parametrize("settings", [{"max_process_time": 2.0}, {"max_handoff_time": 1.0}])
def test_a_batch_takes_a_fraction_of_the_handoff_and_process_times(settings: dict[str, float]) -> None:
    sizes = sizes_of_batches(lambda _, size: size * 1e-3, records=20_000, **settings)
    assert 250 < max(sizes) <= 500, (
        "half a second of work: it was five, so that the batch was given up, again and again"
    )
    assert sum(sizes) == 20_000, "each record was handled once"


def test_batches_of_a_quick_handler_soon_grow_to_the_limit() -> None:
    sizes = sizes_of_batches(lambda _, size: size * 1e-6)
    assert sizes[0] == 10
    assert max(sizes) == 10_000
    assert len(sizes) < 12
    assert max(sizes_of_batches(lambda _, size: size * 1e-6, max_batch_records=1000)) == 1000


@pytest.mark.parametrize(("each", "most"), [(0.001, 5000), (0.03, 166), (1.0, 5)])
def test_a_slow_handler_gets_batches_of_some_seconds(each: float, most: int) -> None:
    sizes = sizes_of_batches(lambda _, size: size * each, records=20_000 if each < 1 else 1000)
    assert 0.9 * most <= max(sizes[1:]) <= most  # of the first nothing is known


def test_a_handler_with_a_fixed_cost_per_batch_gets_large_batches() -> None:
    assert max(sizes_of_batches(lambda _, size: 6.0)) == 10_000
    assert max(sizes_of_batches(lambda _, size: 6.0 + size * 0.0001)) == 10_000
    assert 4000 < max(sizes_of_batches(lambda _, size: 6.0 + size * 0.001)) <= 5500


def test_small_quick_batches_do_not_lead_to_one_large_batch() -> None:
    """Calls, 32 at once: one takes as long as 32."""
    sizes: list[int] = []

    class Calls(PartitionHandler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            sizes.append(len(batch))
            await ctx.map(batch, lambda _: anyio.sleep(0.1))

    async def main() -> None:
        world = World(Calls, page=20_000, clock=VirtualClock)
        async with world.running(1) as actor:
            for few in (3, 1, 6, 2, 9):
                world.feed(few)
                await anyio.sleep(5)
            world.feed(20_000)
            while actor.statistics.counts.records < world.fed:
                await anyio.sleep(1)

    run(main())
    assert sizes[:5] == [3, 1, 6, 2, 9]
    assert max(sizes) / 32 * 0.1 < 6
    assert max(sizes) > 1000


@pytest.mark.parametrize("seconds", [4.9, 5.05, 5.2])
def test_batches_do_not_shrink_when_their_cost_does_not_depend_on_size(seconds: float) -> None:
    sizes = sizes_of_batches(lambda _, size: seconds + size * 0.0001, 200_000)
    assert max(sizes) > 1000


def test_batch_size_follows_a_service_that_gets_fast_and_slow() -> None:
    def seconds(number: int, size: int) -> float:
        return 3.0 if number == 1 else size * (0.0005 if number < 8 else 0.05)

    sizes = sizes_of_batches(seconds, 120_000)
    assert max(sizes[:8]) == 10_000
    assert max(sizes[9:]) == 100, "one was on its way"
