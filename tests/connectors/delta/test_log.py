"""The log of a Delta table: writers that slept, and what a checkpoint says."""

from __future__ import annotations

import anyio
import pytest

from actorproc.connectors.delta import DeltaTable
from actorproc.output.source_identity import dataset_identity
from actorproc.simulation.clock import VirtualClock
from actorproc.sinks.protocol import SinkMoved, SinkPlace
from actorproc.sinks.tables.protocol import TableChange, TableHome
from actorproc.storage.store import Store
from tests.connectors.delta.world import LAYOUT, World, story


class Held(Store):
    """A store whose next `create` sleeps first."""

    seconds = 0.0

    async def create(self, key: str, body: bytes) -> str:
        seconds, self.seconds = self.seconds, 0.0
        await anyio.sleep(seconds)
        return await super().create(key, body)


@pytest.mark.parametrize("within", [False, True])
def test_a_writer_that_slept_while_entries_were_deleted_does_not_write_into_the_past(within: bool) -> None:
    """It sleeps before its transaction, or within it: between its last look and the write of the entry."""

    async def work(world: World) -> None:
        await world.until_end(feed=9)
        clock = VirtualClock("sleeper")
        store = Held(world.store.backend, clock=clock)
        table = DeltaTable("delta", {}, SinkPlace("table", "Copy", clock))
        await table.open(None, TableHome(store, LAYOUT, await dataset_identity(store, LAYOUT) or ""))
        seen = await table.load()
        refused = False

        async def sleep_and_commit() -> None:
            nonlocal refused
            if within:
                store.seconds = 5 * 3600.0
            else:
                await anyio.sleep(5 * 3600.0)
            with pytest.raises(SinkMoved):
                await table.commit(seen, TableChange(seen.life, seen.places))
            refused = True

        async with anyio.create_task_group() as tasks, world.host(history=3600, interval=30):
            tasks.start_soon(sleep_and_commit)
            for _ in range(6 * 60):
                world.feed(3)
                await anyio.sleep(60)
        assert refused
        log = await world.objects(f"{LAYOUT.output}_delta_log/")
        assert f"{LAYOUT.output}_delta_log/{int(seen.version) + 2:020}.json" not in log
        await world.check()
        now = await world.state()
        assert (await table.load()).version == now.version
        await table.commit(await table.load(), TableChange(now.life))
        assert (await world.state()).version == now.version + 1

    story(work)
