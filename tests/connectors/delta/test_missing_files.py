"""Files of the output that are missing: a table looks again, or refuses. It never seems to have all."""

from __future__ import annotations

import anyio
import pytest

from actorproc import Processor
from actorproc.admin import sinks as operate
from actorproc.admin.readers import register_reader
from actorproc.config.settings import Settings
from actorproc.connectors.delta.log import DeltaLog
from actorproc.errors import ActorprocError, UsageError
from actorproc.retention.readers import Reader
from actorproc.runtime.nudge import Nudges
from actorproc.simulation.clock import VirtualClock
from actorproc.sinks.tables.chain_reader import ChainReader
from actorproc.sinks.tables.open_tables import OpenTables
from actorproc.sinks.tables.progress import table_progress
from tests.connectors.delta.world import HOUR, LAYOUT, Copy, World, story


async def commit_only(world: World, count: int) -> None:
    """Commits that the table does not have yet."""
    world.feed(count)
    host = Processor(
        Copy, source=world.source, container=world.store, name="Copy", host="z", clock=VirtualClock("z"),
        nudges=Nudges(), commit_interval=1,
    )  # fmt: skip
    await host.run(until_end=True)


async def compact_and_die(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compactor dies after it has switched readers to the compacted files."""

    async def die(self: OpenTables) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(OpenTables, "kept_now", die)
        with pytest.raises(RuntimeError, match="killed"):
            await world.compact()


def test_a_compacted_file_that_goes_while_a_table_looks_keeps_no_commits_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(world: World) -> None:
        for _ in range(5):
            await world.until_end(feed=30)
        await compact_and_die(world, monkeypatch)
        await anyio.sleep(3 * HOUR)
        await commit_only(world, 30)
        read, begun = ChainReader._range, list[bool]()

        async def late(self: ChainReader, *given: object) -> object:
            if not begun:
                begun.append(True)
                await world.trim()
            return await read(self, *given)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(ChainReader, "_range", late)
            await world.until_end()
        assert begun
        assert max(await world.rows()) == world.fed - 1
        noted = await table_progress(world.store, LAYOUT, "table").read()
        assert noted is not None
        assert noted.positions == {name: place.position for name, place in (await world.state()).places.items()}
        assert [sink.state for sink in await operate.read_sinks(world.store, LAYOUT)] == ["up to date"]

    story(work)


def test_a_table_refuses_to_go_on_without_a_compacted_file_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(world: World) -> None:
        for _ in range(5):
            await world.until_end(feed=10)
        await compact_and_die(world, monkeypatch)
        keys = await world.objects(f"{LAYOUT.output}_compacted/")
        lost = {key: stored.body for key in keys if (stored := await world.store.get(key)) is not None}
        for key in lost:
            await world.store.delete(key)
        before = await world.rows()
        with pytest.raises(ActorprocError, match=r"in partition 0: the compacted file \S+ is missing"):
            await world.until_end(feed=10)
        (shown,) = await operate.read_sinks(world.store, LAYOUT)
        assert shown.state == "refusing"
        assert shown.behind > 0
        assert shown.error is not None
        assert "is missing" in shown.error
        with pytest.raises(UsageError, match=r"the compacted file \S+ is missing"):
            await operate.repair(world.store, LAYOUT, "table", {})
        assert await world.rows() == before
        for key, body in lost.items():
            await world.store.put(key, body)
        await world.until_end(feed=10)
        await world.check()

    story(work, partitions=1)


def test_a_table_that_starts_behind_a_compacted_file_that_is_lost_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(world: World) -> None:
        for _ in range(5):
            await world.until_end(feed=10)
        await compact_and_die(world, monkeypatch)
        for key in await world.objects(f"{LAYOUT.output}_compacted/"):
            await world.store.delete(key)
        await operate.delete(world.store, LAYOUT, "table")
        await world.until_end(feed=10, start="now")
        assert await world.rows() == list(range(50, 60))
        await operate.repair(world.store, LAYOUT, "table", {"table": {"url": "delta", "start": "now"}})
        await world.until_end(feed=10, start="now")
        assert await world.rows() == list(range(50, 70))

    story(work, partitions=1)


def test_other_partitions_go_on_while_one_lacks_a_compacted_file(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(world: World) -> None:
        for _ in range(5):
            await world.until_end(feed=20)
        await compact_and_die(world, monkeypatch)
        for key in await world.objects(f"{LAYOUT.output}_compacted/partition=0/"):
            await world.store.delete(key)
        with pytest.raises(ActorprocError, match="in partition 0"):
            await world.until_end(feed=20)
        assert [n for n in await world.rows() if n % 2] == [n for n in range(world.fed) if n % 2]

    story(work, partitions=2)


def test_a_repair_that_cannot_take_a_file_as_a_whole_leaves_what_the_table_has() -> None:
    """The table begins within a compacted file, and the commits behind its start exist nowhere else."""

    async def work(world: World) -> None:
        for _ in range(4):
            await commit_only(world, 10)
        await register_reader(world.retained, Reader.at("archive", {}), Settings())  # trims keep all rows for it
        for _ in range(5):
            await world.until_end(feed=10, start="now")
        await rewritten(world)
        await world.compact()
        await world.until_end(feed=10, start="now")
        await anyio.sleep(3 * HOUR)
        await world.compact()
        await world.trim()
        before = await world.rows()
        assert before == list(range(40, 100))
        with pytest.raises(UsageError, match=r"the table cannot take the compacted file \S+ as a whole"):
            await operate.repair(world.store, LAYOUT, "table", {"table": {"url": "delta", "start": "now"}})
        assert await world.rows() == before
        await world.until_end(feed=10, start="now")
        assert await world.rows() == list(range(40, 110))

    story(work, partitions=1)


async def rewritten(world: World) -> None:
    """The files of the table become files of others with the same rows, as an OPTIMIZE makes them."""
    state, log, actions = await world.state(), DeltaLog(world.store, f"{LAYOUT.output}_delta_log/"), []
    for path, file in state.adds.items():
        stored = await world.store.get(state.key_of(path) or "")
        assert stored is not None
        new = path.replace("partition=0/", "partition=0/part-")
        await world.store.put(f"{LAYOUT.output}{new}", stored.body)
        alike = {"partitionValues": {"partition": "0"}, "size": file.size, "dataChange": False}
        actions.append({"remove": {"path": path, "deletionTimestamp": 1, **alike}})
        actions.append({"add": {"path": new, "modificationTime": 1, "stats": None, **alike}})
    await log.refresh(state)
    assert await log.append(state, actions)
