"""A pause of a table: no transaction lands once it counts as paused, whatever committers had under way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from actorproc import Processor
from actorproc.admin.sinks import read_sinks
from actorproc.output.source_identity import dataset_identity
from actorproc.runtime.logger import get_logger
from actorproc.runtime.nudge import Nudges
from actorproc.simulation.clock import VirtualClock
from actorproc.sinks.entries import pause_sink
from actorproc.sinks.tables.committer import TableCommitter
from actorproc.sinks.tables.protocol import TableChange, TableHome, TableSnapshot
from tests.sinks.memory_table import Catalog, MemoryTable
from tests.sinks.tables.test_committer import LAYOUT, Copy, World, story

Act = Callable[[], Awaitable[None]]


class Watched(MemoryTable):
    """Lets something happen before its first load, or before its first commit."""

    def __init__(self, catalog: Catalog, *, load: Act | None = None, commit: Act | None = None) -> None:
        super().__init__(catalog)
        self.before_load, self.before_commit = load, commit

    async def load(self) -> TableSnapshot:
        if (act := self.before_load) is not None:
            self.before_load = None
            await act()
        return await super().load()

    async def commit(self, seen: TableSnapshot, change: TableChange) -> None:
        if (act := self.before_commit) is not None:
            self.before_commit = None
            await act()
        await super().commit(seen, change)


async def committer(world: World, table: MemoryTable) -> TableCommitter:
    home = TableHome(world.store, LAYOUT, await dataset_identity(world.store, LAYOUT) or "")
    return TableCommitter("table", table, home, schema=None, host="x", log=get_logger("tests"))


async def begun(world: World) -> TableCommitter:
    """A committer, of a table that lacks rows."""
    world.feed(30)
    await world.until_end()
    world.feed(30)
    host = Processor(
        Copy, source=world.source, container=world.store, name="Copy", host="z", clock=VirtualClock("z"),
        nudges=Nudges(), commit_interval=1,
    )  # fmt: skip
    await host.run(until_end=True)
    return await committer(world, MemoryTable(world.catalog))


async def pause(world: World, *, paused: bool = True) -> None:
    await pause_sink(world.store, LAYOUT, "table", paused=paused)


async def shown(world: World) -> str:
    (found,) = await read_sinks(world.store, LAYOUT)
    return found.state


def test_a_committer_that_loads_after_the_fence_of_a_pause_changes_nothing() -> None:
    async def work(world: World) -> None:
        other = await begun(world)

        async def fenced() -> None:
            await pause(world)
            await other.commit()
            assert await shown(world) == "paused"

        slow = await committer(world, Watched(world.catalog, load=fenced))
        await slow.commit()
        assert await world.catalog.rows(world.store) == list(range(30))
        assert await shown(world) == "paused"
        await pause(world, paused=False)
        await other.commit()
        await world.check()

    story(work)


def test_a_second_pause_is_fenced_anew() -> None:
    async def work(world: World) -> None:
        other = await begun(world)
        await pause(world)
        await other.commit()
        await pause(world, paused=False)

        async def paused_again() -> None:
            await pause(world)
            assert await shown(world) == "pausing"
            await other.commit()
            assert await shown(world) == "paused"

        slow = await committer(world, Watched(world.catalog, commit=paused_again))
        await slow.commit()
        assert await world.catalog.rows(world.store) == list(range(30))
        assert await shown(world) == "paused"

    story(work)
