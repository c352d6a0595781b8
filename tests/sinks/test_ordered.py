"""Ordered sinks: a partition that follows others is delivered after them, also when they are delivered again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import anyio
import pytest

from actorproc import Processor
from actorproc.admin import sinks as operate
from actorproc.errors import UsageError
from actorproc.retention.boundary import raise_boundary
from actorproc.retention.readers import decide, read_registry
from actorproc.runtime.nudge import Nudges
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from tests.sinks.memory_sink import MemorySink
from tests.sinks.test_delivery import LAYOUT, Copy, World


class OrderedSink(MemorySink):
    """Rows are read in the order of `database.rows`."""

    ordered = True


class Split(World):
    """A partition 0 that is split into 1 and 2, which are merged into 3."""

    parents: dict[str, tuple[str, ...]] = {"1": ("0",), "2": ("0",), "3": ("1", "2")}  # noqa: RUF012

    def __init__(self, **settings: Any) -> None:
        super().__init__(1, **settings)

    def add(self, partition: str, count: int) -> None:
        """Records, in a partition that follows its parents."""
        if partition not in self.source._parents:
            self.source.add_partition(partition, self.parents[partition])
        for n in range(self.fed, self.fed + count):
            self.source.append(partition, [str(n).encode()])
        self.fed += count

    def host(self, kind: type[MemorySink] = OrderedSink, **options: Any) -> Processor:
        self.hosts += 1
        name = f"host-{self.hosts}"
        return Processor(
            Copy, source=self.source, container=self.store, name="Copy", host=name, clock=VirtualClock(name),
            nudges=Nudges(), **{"sinks": {"db": kind(self.database)}, **self.settings, **options},
        )  # fmt: skip

    @property
    def out_of_order(self) -> list[tuple[str, int]]:
        """Rows behind which there is one of a partition before theirs."""
        rows = self.database.rows
        return [row for at, row in enumerate(rows) if any(b[0] in self.before(row[0]) for b in rows[at + 1 :])]

    def before(self, partition: str) -> set[str]:
        return {q for parent in self.parents.get(partition, ()) for q in (parent, *self.before(parent))}


def story(work: Callable[[Split], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        await work(Split(**settings))

    run(main())


async def all_committed(world: Split, host: Processor) -> None:
    with anyio.fail_after(600):
        while host.statistics().counts.rows < world.fed:
            await anyio.sleep(0.1)


def test_children_are_delivered_after_their_parents() -> None:
    async def work(world: Split) -> None:
        async with world.host():
            for partition in ("0", "1", "2", "3"):
                world.add(partition, 20)
                await anyio.sleep(1)
            await world.delivered()
        assert world.is_exact
        assert not world.out_of_order

    story(work)


def test_a_child_waits_while_the_sink_lacks_its_parent() -> None:
    class Stuck(OrderedSink):
        """Takes nothing of partition 0."""

        async def write(self, delivery: Any) -> None:
            if delivery.partition == "0" and self.database.is_away:
                raise ConnectionError("away")
            await super().write(delivery)

        def _check(self) -> None:
            """Answers else."""

    async def work(world: Split) -> None:
        world.database.is_away = True
        async with world.host(Stuck) as host:
            world.add("0", 10)
            world.add("1", 10)
            await all_committed(world, host)
            await anyio.sleep(60)
            (sink,) = next(found.sinks for found in host.statistics().partitions if found.partition == "1")
            assert (sink.state, sink.waits_for) == ("waiting for parents", ("0",))
            assert world.database.rows == []
            world.database.is_away = False
            await world.delivered()
        assert world.is_exact
        assert not world.out_of_order

    story(work)


def test_the_rest_of_an_ended_partition_is_delivered() -> None:
    async def work(world: Split) -> None:
        world.database.is_away = True
        async with world.host(MemorySink) as host:  # not ordered: nobody waits for it
            world.add("0", 10)
            world.add("1", 10)
            await all_committed(world, host)
            await anyio.sleep(60)  # longer than the partition waits for its sinks as it ends
            world.database.is_away = False
            await world.delivered()
        assert world.is_exact

    story(work)


@pytest.mark.parametrize("kind", [OrderedSink, MemorySink])
def test_a_run_until_the_end_delivers_ended_partitions(kind: type[MemorySink]) -> None:
    async def work(world: Split) -> None:
        world.database.is_away = True
        async with world.host(kind) as host:
            world.add("0", 10)
            world.add("1", 10)
            await all_committed(world, host)
            await anyio.sleep(60)
        world.database.is_away = False
        assert world.database.rows == []
        with anyio.fail_after(600):
            await world.until_end(kind=kind)
        assert world.is_exact
        assert kind is MemorySink or not world.out_of_order

    story(work)


def test_a_redelivery_repeats_the_partitions_that_follow() -> None:
    async def work(world: Split) -> None:
        async with world.host():
            for partition in ("0", "1", "2", "3"):
                world.add(partition, 10)
                await anyio.sleep(2)
            await world.delivered()
            await anyio.sleep(30)
            assert set(await operate.deliver_again(world.store, LAYOUT, "db", 0, ["1"])) == {"1", "3"}
            await anyio.sleep(60)
            first, again = world.database.rows[:40], world.database.rows[40:]
            assert sorted(again) == sorted(row for row in first if row[0] in ("1", "3"))
            assert [partition for partition, _ in again] == ["1"] * 10 + ["3"] * 10

    story(work)


def test_a_redelivery_is_refused_if_a_follower_was_trimmed() -> None:
    async def work(world: Split) -> None:
        world.add("0", 10)
        world.add("1", 10)
        await world.until_end()
        registry = await read_registry(world.store, LAYOUT.readers)
        assert await decide(world.store, LAYOUT.readers, registry, {"1": 1})
        await raise_boundary(world.store, LAYOUT.boundary("1"), 1)
        with pytest.raises(UsageError, match="partition 1: nothing can be delivered again from commit 0 on"):
            await operate.deliver_again(world.store, LAYOUT, "db", 0, ["0"])

    story(work)


def test_a_pause_is_done_with_ended_partitions_too() -> None:
    async def work(world: Split) -> None:
        async with world.host():
            world.add("0", 10)
            world.add("1", 10)
            await world.delivered()
            await anyio.sleep(60)
            await operate.pause(world.store, LAYOUT, "db")
            await anyio.sleep(60)
            (status,) = await operate.read_sinks(world.store, LAYOUT)
            assert status.state == "paused"

    story(work)


@pytest.mark.parametrize("seed", range(8))
def test_splits_keep_their_order_while_hosts_die(seed: int) -> None:
    async def work(world: Split) -> None:
        random = Random(seed)
        async with anyio.create_task_group() as tasks:
            scopes: list[anyio.CancelScope] = []

            async def host() -> None:
                processor = world.host(
                    lease_acquire_interval=2, lease_renew_interval=1, lease_expiration_interval=8, rebalance_delay=1
                )
                with anyio.CancelScope() as scope:
                    scopes.append(scope)
                    await processor.run()

            partitions = ["0"]
            for step in range(40):
                if len(scopes) < 3:
                    tasks.start_soon(host)
                if step % 10 == 9 and len(partitions) < 4:
                    partitions.append(str(len(partitions)))
                world.add(partitions[-1], random.randrange(1, 20))
                await anyio.sleep(random.uniform(0.5, 6))
                match random.randrange(5):
                    case 0 if scopes:
                        scopes.pop(random.randrange(len(scopes))).cancel()
                    case 1:
                        world.database.lose_replies = random.randrange(4)
                    case 2:
                        world.database.is_away = not world.database.is_away
            world.database.is_away, world.database.lose_replies = False, 0
            tasks.start_soon(host)
            await world.delivered(limit=3000)
            tasks.cancel_scope.cancel()
        assert world.database.repeated == []
        assert not world.out_of_order

    story(work)
