"""A host compacts its processor's output from time to time. In virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from actorproc import Processor
from actorproc.retention.boundary import read_boundary
from actorproc.runtime.nudge import Nudges
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from tests.sinks.tables.test_committer import LAYOUT, Copy, World


def story(work: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        await work(World())

    run(main())


async def ranges(world: World) -> int:
    found = [await read_boundary(world.store, LAYOUT.boundary(partition)) for partition in world.partitions]
    return sum(len(boundary.ranges) for boundary in found)


async def feed_for(world: World, seconds: int) -> None:
    for _ in range(seconds // 5):
        world.feed(len(world.partitions))
        await anyio.sleep(5)


def test_a_table_that_was_fed_for_hours_has_few_files() -> None:
    async def work(world: World) -> None:
        async with world.host(interval=60), world.host(interval=60):
            await feed_for(world, 9_000)
            assert await ranges(world) >= len(world.partitions)
            assert len(world.catalog.names) < 3 * 1_000, "of 3 * 1,800 commits"
        await world.check()

    story(work)


def plain(world: World, **settings: Any) -> Processor:
    return Processor(
        Copy, source=world.source, container=world.store, name="Copy", host="a", clock=VirtualClock("a"),
        nudges=Nudges(), commit_interval=1, **settings,
    )  # fmt: skip


def test_without_a_table_hosts_compact_if_they_are_told_to() -> None:
    async def work(world: World) -> None:
        for settings, wanted in [({}, 0), ({"compact_interval": 600}, len(world.partitions))]:
            async with plain(world, **settings):
                await feed_for(world, 1_800)
                assert (await ranges(world) > 0) is bool(wanted)

    story(work)
