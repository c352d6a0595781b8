"""Owners of a partition, one after another and two at once."""

from __future__ import annotations

import re

import anyio
import orjson
import pytest

from actorproc import errors
from actorproc.output.chain import OutputChain
from actorproc.partition.actor import PartitionActor
from actorproc.runtime.tasks import first_cause
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from tests.partition.world import World, _at_least, eventually


async def test_owner_after_owner_goes_on_where_the_last_one_stopped() -> None:
    world = World(page=10, max_batch_records=3)
    for epoch in range(1, 6):
        world.feed(33)
        await world.until_end(epoch)
    await world.check()
    assert (await world.checkpoint()).totals.records == 165


async def test_a_killed_owner_loses_nothing_and_the_next_one_repeats_no_row() -> None:
    world = World(page=5, commit_rows=1, max_batch_records=4)
    world.feed(100)
    for epoch in range(1, 5):
        async with world.running(epoch) as actor:
            await eventually(lambda actor=actor: _at_least(actor.statistics.commits, 2))  # type: ignore[misc]
    await world.until_end(9)
    await world.check()


def test_commit_times_grow_with_any_clock_of_the_store() -> None:
    """Whether the owner before was drained, so that a checkpoint has passed its commits, or killed."""

    async def main() -> None:
        clock, ahead = VirtualClock(0), {1: 0.0, 2: 600.0, 3: -7200.0, 4: 300.0, 5: -60.0, 6: 900.0, 7: 0.0, 8: 0.0}
        world = World(clock=lambda epoch: VirtualClock(epoch) if epoch else clock, commit_rows=1)
        for epoch, clock.offset in ahead.items():
            world.feed(10)
            if epoch in (1, 4, 7):
                async with world.running(epoch) as actor:
                    await eventually(lambda actor=actor: _at_least(actor.statistics.commits, 1))  # type: ignore[misc]
            else:
                await world.until_end(epoch)
        times: list[float] = []
        while (commit := await OutputChain(world.store, world.layout, "0").read(len(times))) is not None:
            times.append(commit.time)
        assert len(times) == len(ahead)
        assert times == sorted(times)
        assert times[-1] - times[0] == pytest.approx(900, abs=60)

    run(main(), seed=0)


def test_a_store_whose_clock_was_a_year_ahead_is_not_followed() -> None:
    async def main() -> None:
        clock, ahead = VirtualClock(0), {1: 0.0, 2: 365 * 86_400.0, 3: 0.0}
        world = World(clock=lambda epoch: VirtualClock(epoch) if epoch else clock, commit_rows=1)
        times: list[float] = []
        for epoch, clock.offset in ahead.items():
            world.feed(10)
            await world.until_end(epoch)
            commit = await OutputChain(world.store, world.layout, "0").read(len(times))
            assert commit is not None
            times.append(commit.time)
        assert times[1] - times[0] == pytest.approx(365 * 86_400, abs=60)
        assert times[2] - times[0] == pytest.approx(0, abs=60)

    run(main(), seed=0)


async def test_the_loser_of_two_owners_is_fenced_at_its_next_commit() -> None:
    world = World(commit_rows=1)
    lost: list[Exception] = []

    async def run(actor: PartitionActor) -> None:
        try:
            await actor.run()
        except Exception as error:  # noqa: BLE001
            lost.append(first_cause(error))

    old, new = world.actor(1), world.actor(2)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, old)
        world.feed(10)
        await eventually(lambda: _at_least(old.statistics.commits, 1))
        tasks.start_soon(run, new)
        await eventually(lambda: _at_least(new.statistics.state == "running", True))
        while not lost:
            before = old.statistics.commits + new.statistics.commits
            world.feed(10)
            with anyio.fail_after(60):
                while not lost and old.statistics.commits + new.statistics.commits == before:
                    await anyio.sleep(0.001)
        tasks.cancel_scope.cancel()
    assert [type(error) for error in lost] == [errors.Fenced]
    assert re.search("host-([12]) with epoch \\1 has", str(lost[0])), "it names the winner"
    await world.until_end(3)
    await world.check()


async def test_an_earlier_epoch_is_refused_at_the_door() -> None:
    world = World()
    world.feed(1)
    await world.until_end(5)
    actor = world.actor(4)
    with pytest.raises(errors.Fenced, match="epoch 5"):
        await actor.run()


async def test_the_next_owner_publishes_dead_letters_of_a_dead_one() -> None:
    world = World(commit_rows=1)
    world.feed(10)
    await world.until_end(1)
    for entry in (await world.store.list(world.layout.dead_letters)).entries:
        await world.store.delete(entry.key)
    stored = await world.store.get(world.layout.checkpoint("0"))
    assert stored is not None
    document = orjson.loads(stored.body) | {"number": 0, "cursor": ["0", -1]}
    await world.store.put(world.layout.checkpoint("0"), orjson.dumps(document))
    world.feed(10)
    await world.until_end(2)
    await world.check()
