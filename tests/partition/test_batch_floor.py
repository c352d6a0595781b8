"""`min_batch_records` and `max_batch_wait`: a batch waits until it has enough records. In virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any, ClassVar

import anyio
import pytest

from actorproc.config.settings import Settings
from actorproc.errors import SettingsError
from actorproc.handler.context import PartitionContext
from actorproc.partition.actor import PartitionActor
from actorproc.records import Batch
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from tests.partition.world import Numbers, World


class Timed(Numbers):
    """Keeps when each batch came, and its size."""

    batches: ClassVar[list[tuple[float, int]]]
    work = 0.0

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        self.batches.append((anyio.current_time(), len(batch)))
        await anyio.sleep(self.work * len(batch))
        await super().process(batch, ctx)


def batches(
    feed: Callable[[World], Awaitable[None]], *, work: float = 0.0, page: int = 10, **settings: Any
) -> list[tuple[float, int]]:
    """Seconds from the start, and sizes, of the batches of a handler that takes `work` seconds for a record."""

    class Handler(Timed):
        batches: ClassVar[list[tuple[float, int]]] = []

    Handler.work = work

    async def main() -> float:
        world = World(Handler, page=page, clock=VirtualClock, **settings)
        began = anyio.current_time()
        async with world.running(1) as actor:
            await feed(world)
            with anyio.fail_after(600):
                while actor.statistics.counts.records < world.fed:
                    await anyio.sleep(0.01)
            actor.drain()
            await drained(actor)
        await world.check()
        assert world.budget.used == 0
        return began

    began = run(main())
    return [(round(at - began, 1), size) for at, size in Handler.batches]


async def drained(actor: PartitionActor) -> None:
    with anyio.fail_after(5):
        while actor.statistics.state in ("running", "draining"):
            await anyio.sleep(0.01)


async def trickle(world: World) -> None:
    """A record every tenth of a second."""
    for _ in range(300):
        world.feed(1)
        await anyio.sleep(0.1)


def sizes(found: list[tuple[float, int]]) -> list[int]:
    return [size for _, size in found]


def test_records_that_trickle_in_share_batches_of_the_floor() -> None:
    found = sizes(batches(trickle, min_batch_records=100, max_batch_wait=60))
    assert set(found) == {100}
    assert max(sizes(batches(trickle))) < 5, "without a floor"


def test_a_batch_below_the_floor_comes_after_max_batch_wait() -> None:
    found = batches(trickle, min_batch_records=100, max_batch_wait=2)
    assert all(18 <= size <= 22 for size in sizes(found)[:-1])
    assert all(1.9 <= later - earlier <= 2.3 for (earlier, _), (later, _) in pairwise(found[:-1]))


def test_small_pages_of_a_backlog_are_joined_up_to_the_floor() -> None:
    async def backlog(world: World) -> None:
        world.feed(1_000)

    assert min(sizes(batches(backlog, min_batch_records=95, max_batch_wait=60))[:-1]) == 95
    assert sizes(batches(backlog, min_batch_records=100, max_batch_records=100, max_batch_wait=60)) == [100] * 10


def test_a_slow_handler_does_not_get_less_than_the_floor() -> None:
    async def backlog(world: World) -> None:
        world.feed(1_000)

    found = sizes(batches(backlog, work=0.1, page=1_000, min_batch_records=200, max_batch_wait=5))
    assert set(found) == {200}
    assert max(sizes(batches(backlog, work=0.1, page=1_000))) <= 50, "without a floor it gets five seconds of work"


def test_more_pieces_than_a_batch_may_hold_are_copied_into_one() -> None:
    async def singly(world: World) -> None:
        world.feed(500)

    assert sizes(batches(singly, page=1, min_batch_records=500, max_batch_wait=60)) == [500]


def test_a_drain_leaves_too_few_records_to_the_next_owner() -> None:
    async def main() -> None:
        world = World(Numbers, clock=VirtualClock, min_batch_records=100, max_batch_wait=1_000)
        world.feed(10)
        async with world.running(1) as actor:
            await anyio.sleep(50)
            assert actor.statistics.counts.records == 0
            actor.drain()
            await drained(actor)
        assert (await world.checkpoint()).cursor.sequence == -1

    run(main())


def test_the_floor_is_at_most_the_largest_batch() -> None:
    with pytest.raises(SettingsError, match=r"min_batch_records \(20 records\) must be at most max_batch_records \(10"):
        Settings.load(min_batch_records=20, max_batch_records=10)
