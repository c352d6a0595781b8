"""Keyed state over the owners of a partition: restored, merged, swept, read beside them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from actorproc.errors import CorruptObject, HandlerError
from actorproc.handler.base import PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.output.checkpoint import Checkpoint
from actorproc.records import Batch
from actorproc.runtime.clock import SYSTEM
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.state.merging import SLACK, first_merged
from actorproc.state.reading import read_state
from actorproc.storage.backend import Stored
from actorproc.storage.names import STATE
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from tests.partition.world import Hosts, World, _at_least, eventually

KEYS = 7


class Counts(PartitionHandler):
    """Counts the numbers of each remainder. A row has the count after its number."""

    output_schema = "n long, count long"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            n = record.json()
            count = ctx.state.get(n % KEYS, 0) + 1
            ctx.state.set(n % KEYS, count)
            ctx.emit(record, {"n": n, "count": count})
        if ctx.state.get("last", -1) >= n:
            raise AssertionError("the state is ahead of the batch")
        ctx.state.set("last", n)


async def held(world: World) -> dict[Any, Any]:
    return dict((await read_state(world.store, world.layout, "0")).items(""))


async def objects(world: World) -> list[str]:
    return [entry.key for entry in (await world.store.list(world.layout.attached_dir(STATE, "0"))).entries]


def expected(fed: int) -> dict[Any, Any]:
    return {**Counter(n % KEYS for n in range(fed)), "last": fed - 1}


async def check(world: World) -> None:
    assert await held(world) == expected(world.fed)
    counts = await world.columns("count")
    assert counts == [n // KEYS + 1 for n in range(world.fed)]


async def test_the_next_owner_goes_on_with_the_state_of_the_last_one() -> None:
    world = World(Counts, page=10, max_batch_records=3)
    for epoch in range(1, 4):
        world.feed(15)
        await world.until_end(epoch)
    await check(world)


@pytest.mark.parametrize("delivery", ["at-least-once", "at-most-once"])
async def test_a_killed_owner_leaves_the_state_of_its_commits(delivery: str) -> None:
    world = World(Counts, page=5, commit_rows=1, max_batch_records=4, delivery=delivery)
    world.feed(100)
    for epoch in range(1, 5):
        async with world.running(epoch) as actor:
            await eventually(lambda actor=actor: _at_least(actor.statistics.commits, 3))  # type: ignore[misc]
    await world.until_end(9)
    if delivery == "at-least-once":
        await check(world)
    else:  # a lost record is neither in the rows nor in the state
        numbers = await world.columns("n")
        state = await held(world)
        assert {key: count for key, count in state.items() if key != "last"} == Counter(n % KEYS for n in numbers)


async def test_the_manifest_stays_short_if_each_batch_moves_the_checkpoint() -> None:
    world = World(Counts, commit_rows=1, max_batch_records=1, delivery="at-most-once")
    world.feed(60)
    async with world.running(1) as actor:
        await eventually(lambda: _at_least(actor.statistics.commits, 60))
    assert len((await world.checkpoint()).state) < 20


async def test_the_manifest_stays_short_and_replaced_objects_stay_for_readers() -> None:
    world = World(Counts, commit_rows=1, max_batch_records=1)
    world.feed(60)
    await world.until_end(1)
    checkpoint = await world.checkpoint()
    assert checkpoint.number == 60
    assert len(checkpoint.state) < 10
    assert len(await objects(world)) > 60, "an hour of age spares readers"
    await check(world)


@pytest.mark.parametrize("within", [True, False])
async def test_too_much_state_commits_nothing_of_its_batch(within: bool) -> None:
    class Large(PartitionHandler):
        output_schema = "n long"

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                ctx.emit(record, {"n": record.json()})
                ctx.state.set(record.json(), bytes(300_000))
                if within:
                    await ctx.commit(record)

    world = World(Large, state_bytes=2**20, max_batch_records=1)
    world.feed(10)
    for epoch in (1, 2):
        with pytest.raises(ExceptionGroup) as failure:
            await world.until_end(epoch)
        assert failure.group_contains(HandlerError, match="state_bytes = 1048576 allows no more")
        assert sorted(await held(world)) == await world.columns("n") == [0, 1, 2]  # of the batches before


def test_after_an_hour_only_named_objects_are_left() -> None:
    async def main() -> None:
        world = World(Counts, clock=VirtualClock, commit_rows=1, max_batch_records=1)
        world.store = Store(MemoryStore(clock=VirtualClock("store")), clock=VirtualClock("host"))
        for epoch in range(1, 4):
            world.feed(20)
            await world.until_end(epoch)
            await SYSTEM.sleep(3700)
        world.feed(1)
        await world.until_end(9)
        checkpoint = await world.checkpoint()
        assert len(await objects(world)) <= len(checkpoint.state) + 1 < 10
        await check(world)

    run(main(), seed=0)


class Noted(MemoryStore):
    """Notes the keys that are read."""

    def __init__(self) -> None:
        super().__init__(clock=VirtualClock("store"))
        self.read: list[str] = []

    async def get(self, key: str, *, unless: str | None = None, tail: int | None = None) -> Stored | None:
        self.read.append(key)
        return await super().get(key, unless=unless, tail=tail)


@pytest.mark.slow
def test_after_a_day_of_commits_objects_are_few_and_a_takeover_reads_no_history() -> None:
    async def main() -> None:
        world, backend = World(Counts, clock=VirtualClock, commit_interval=1), Noted()
        world.store = Store(backend, clock=VirtualClock("host"))
        async with world.running(1):
            for hour in range(24):
                for _ in range(60):
                    world.feed(1)
                    await SYSTEM.sleep(60)
                assert hour < 2 or len(await objects(world)) < 100, "an hour of commits, and what the manifest names"
        before = await world.checkpoint()
        assert before.number > 1400
        backend.read.clear()
        async with world.running(2):
            await SYSTEM.sleep(10)
            folders = world.layout.attached_dir(STATE, "0"), world.layout.output
            state, output = (sum(key.startswith(folder) for key in backend.read) for folder in folders)
        assert len(before.state) <= state <= len(before.state) + 16 < 30
        assert output <= 17
        await check(world)

    run(main(), seed=0)


async def test_an_object_that_was_deleted_stops_the_partition() -> None:
    world = World(Counts)
    world.feed(10)
    await world.until_end(1)
    [key] = await objects(world)
    stored = await world.store.get(key)
    assert stored is not None
    await world.store.delete(key)
    with pytest.raises(CorruptObject, match="it holds committed keyed state"):
        await world.actor(2).run()
    with pytest.raises(CorruptObject, match="it holds committed keyed state"):
        await held(world)
    await world.store.put(key, stored.body)
    await world.until_end(3)
    await check(world)


async def test_a_checkpoint_with_state_is_refused_by_versions_without_it() -> None:
    class Earlier(Checkpoint, frozen=True):
        newest_format_version = 1

    world = World(Counts)
    world.feed(10)
    await world.until_end(1)
    stored = await world.store.get(world.layout.checkpoint("0"))
    assert stored is not None
    with pytest.raises(CorruptObject, match="update actorproc"):
        Earlier.from_json("c", stored.body)


async def test_without_auto_commit_only_committed_state_is_kept() -> None:
    class Committing(Counts):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            await super().process(batch, ctx)
            if batch.first == 0:
                await ctx.commit()

    world = World(Committing, page=10, max_batch_records=10, auto_commit=False)
    world.feed(30)
    await world.until_end(1)
    assert await held(world) == expected(10)
    await world.until_end(2)
    assert await held(world) == expected(10)
    assert await world.columns("count") == [n // KEYS + 1 for n in range(10)]


async def test_a_deleted_key_stays_deleted_through_merges() -> None:
    class Deleting(PartitionHandler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                n = record.json()
                ctx.state.set(n, "x" * 100)
                ctx.state.delete(n - 2)

    world = World(Deleting, commit_rows=1, max_batch_records=1, page=1, commit_interval=0.0001)
    for epoch in range(1, 15):
        world.feed(3)
        await world.until_end(epoch)
        assert sorted(await held(world)) == [world.fed - 2, world.fed - 1]


class Visits(PartitionHandler):
    """Counts numbers by remainder; a key lives for 100 s after the commit of its last number."""

    output_schema = "n long, count long"
    state_ttl = "100s"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            n = record.json()
            count = ctx.state.get(n % 2, 0) + 1
            ctx.state.set(n % 2, count, ttl=1000 if n % 2 else None)
            ctx.emit(record, {"n": n, "count": count})


def test_keys_expire_by_commit_time_with_any_clock_of_the_store() -> None:
    async def main() -> None:
        clock = VirtualClock(0)
        world = World(Visits, clock=lambda epoch: VirtualClock(epoch) if epoch else clock)
        world.feed(2)
        await world.until_end(1)
        await SYSTEM.sleep(500)
        world.feed(2)  # the store's clock is behind: no commit has a later time
        clock.offset = -5000.0
        await world.until_end(2)
        clock.offset = 0.0
        assert await held(world) == {0: 2, 1: 2}
        await SYSTEM.sleep(500)
        world.feed(1)
        await world.until_end(3)
        assert await held(world) == {0: 3}, "this commit was made 1000 s later"
        assert await world.columns("count") == [1, 1, 2, 2, 3]
        world.feed(2)
        await world.until_end(4)
        assert (await world.columns("count"))[5:] == [1, 4]

    run(main(), seed=0)


def test_a_host_whose_clock_is_wrong_expires_no_keys_of_others() -> None:
    async def main() -> None:
        wrong = {2: 7200.0, 3: -7200.0}
        world = Hosts(Visits, clock=lambda epoch: VirtualClock(epoch, offset=wrong.get(epoch, 0.0)))
        for epoch in range(1, 5):
            world.feed(2)
            await world.until_end(epoch)
            await SYSTEM.sleep(50)
        assert await world.columns("count") == [1, 1, 2, 2, 3, 3, 4, 4]
        await SYSTEM.sleep(100)
        for epoch in (5, 6):
            world.feed(2)
            await world.until_end(epoch)
        assert (await world.columns("count"))[8:] == [5, 5, 6, 6], "a key lives until the commit after its time"

    run(main(), seed=0)


@pytest.mark.parametrize(
    ("sizes", "live", "first"),
    [
        ([], 0, 0),
        ([5], 5, 1),
        ([1, 1], 2, 0),
        ([100, 1, 1], 102, 1),
        ([100, 3, 1], 104, 3),
        ([100, 3, 2, 1, 1], 107, 0 + 1),
        ([SLACK, 1], 0, 0),
    ],
)
def test_objects_are_merged_from_the_end_while_the_next_is_no_larger(sizes: list[int], live: int, first: int) -> None:
    assert first_merged(sizes, live) == first


@pytest.mark.parametrize("grown", [100, 10_000, 3_000_000])
def test_a_manifest_has_few_objects_and_little_is_written_again(grown: int) -> None:
    """Deltas of 10 KiB over a state of `grown` KiB."""
    sizes, written, most = [grown << 10], 0, 0
    for _ in range(3000):
        sizes += [10 << 10] * 16
        live = grown << 10
        if (first := first_merged(sizes, live)) < len(sizes):
            sizes[first:] = [min(sum(sizes[first:]), live)]
            written += sizes[-1]
        most = max(most, len(sizes))
    assert most <= 28
    assert sum(sizes) <= 2 * live + SLACK + (160 << 10)
    assert written <= 20 * 3000 * (160 << 10)
