"""What other systems do to the Iceberg table, with pyiceberg: transactions go on or say why not, `verify` tells,
`repair` mends."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyiceberg.table.snapshots import SnapshotLogEntry

from actorproc.admin.resets import Resets
from actorproc.config.settings import Settings
from actorproc.connectors.iceberg.versions import held
from actorproc.errors import ActorprocError, UsageError
from actorproc.runtime.nudge import Nudges
from actorproc.sinks.tables.protocol import TableChange
from actorproc.stores import open_store
from tests.connectors.iceberg.catalogs import LAYOUT, NAME, World, opened, sqlite_world


@pytest.fixture
async def world(tmp_path: Path) -> World:
    made = sqlite_world(tmp_path)
    for _ in range(3):
        await made.process(20)
    assert made.is_exact()
    assert await made.damages() == []
    return made


def append(world: World, rows: int, sequence: int | None = 10**9) -> None:
    table = world.table()
    columns = {"n": [-1] * rows, "_sequence": [sequence] * rows, "partition": ["0"] * rows}
    given = pa.table({name: pa.array(values) for name, values in columns.items()})
    whole = table.schema().as_arrow()
    table.append(
        pa.table([given[f.name].cast(f.type) if f.name in columns else pa.nulls(rows, f.type) for f in whole], whole)
    )


async def test_rows_of_others_stay_until_a_repair_and_verify_counts_them(world: World) -> None:
    append(world, 3)
    await world.process(20)
    assert world.is_exact(beside=3)
    assert await world.damages() == ["has 3 rows in files of others that the output does not have"]
    await world.repair("remove")
    assert world.is_exact()
    assert await world.damages() == []


async def test_rows_that_others_rewrote_are_no_damage_and_a_repair_does_not_double_them(world: World) -> None:
    table = world.table()
    table.overwrite(table.scan().to_arrow())
    assert await world.damages() == []
    await world.process(20)
    assert await world.compact() == 2
    assert world.is_exact()
    await world.repair("remove")
    assert world.is_exact()
    await world.process(20)
    assert world.is_exact()


async def test_files_that_others_spell_as_hadoop_does_are_removed_by_a_repair(tmp_path: Path) -> None:
    """`file:/...`, as Spark names local files."""
    world = sqlite_world(tmp_path, location=f"file:{tmp_path}/table")
    await world.process(20)
    table = world.table()
    table.overwrite(table.scan().to_arrow())
    assert all(task.file.file_path.startswith(f"file:{tmp_path}") for task in world.table().scan().plan_files())
    await world.repair("remove")
    assert world.is_exact()


async def test_deleted_rows_are_found_missing_and_come_back_by_a_repair(world: World) -> None:
    world.table().delete("n < 7")
    await world.process(20)
    assert [what.partition(", for")[0] for what in await world.damages()] == ["lacks 4 rows", "lacks 3 rows"]
    await world.repair("remove")
    assert world.is_exact()


async def test_transactions_stop_at_a_table_that_was_set_back_until_it_is_repaired(world: World) -> None:
    table = world.table()
    first = min(table.metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
    table.manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    assert not world.is_exact()
    with pytest.raises(ActorprocError, match="was set back to an earlier version"):
        await world.process(20, store_patience=1)
    assert all("was set back" in what for what in await world.damages())
    append(world, 1)  # a newer version does not hide it
    with pytest.raises(ActorprocError, match="was set back to an earlier version"):
        await world.process(20, store_patience=1)
    await world.repair("remove")
    assert world.is_exact()
    await world.process(20)
    assert world.is_exact()
    assert await world.damages() == []


async def test_a_snapshot_with_a_tag_keeps_its_files_however_old(world: World) -> None:
    table = world.table()
    kept = table.current_snapshot()
    assert kept is not None
    table.manage_snapshots().create_tag(kept.snapshot_id, "audit").commit()
    await world.process(20)
    await world.compact()
    sink, home = await opened(world)
    home.store.time._correction = 3 * 3600.0
    await sink.commit(seen := await sink.load(), TableChange(seen.life))
    named = await sink.named_since(3600)
    await sink.close()
    old = {task.file.file_path for task in world.table().scan(snapshot_id=kept.snapshot_id).plan_files()}
    assert {path.partition("/state/")[2] for path in old} <= named
    assert world.table().scan(snapshot_id=kept.snapshot_id).to_arrow().num_rows == 60


async def test_a_version_to_which_somebody_went_back_for_a_while_is_held(world: World) -> None:
    """It was the newest one within the last hour, though it is old."""
    sink, home = await opened(world)
    table = world.table()
    versions = sorted(table.metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
    assert len(versions) >= 3
    home.store.time._correction = 7200.0  # all of them are old
    now = home.store.time.now()
    log = [(versions[0], now - 600), (versions[-1], now - 300)]
    entries = [SnapshotLogEntry(snapshot_id=s.snapshot_id, timestamp_ms=int(at * 1000)) for s, at in log]
    changed = table.metadata.model_copy(update={"snapshot_log": [*table.metadata.snapshot_log, *entries]})
    assert versions[0] in held(changed, now - 3600)
    assert versions[0] not in held(table.metadata, now - 3600)
    await sink.close()


async def test_snapshots_that_others_expire_do_no_harm(world: World) -> None:
    world.table().maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()
    assert len(world.table().metadata.snapshots) == 1
    await world.process(20)
    await world.compact()
    assert world.is_exact()
    assert await world.damages() == []


async def test_metadata_of_snapshots_that_have_left_the_table_is_deleted(world: World) -> None:
    sink, home = await opened(world)
    for later in (0.0, 3 * 3600.0, 6 * 3600.0):
        home.store.time._correction = later
        for _ in range(2):
            await sink.commit(seen := await sink.load(), TableChange(seen.life))
    await sink.close()
    table = world.table()
    snapshots = table.metadata.snapshots
    assert len(snapshots) <= 4
    named = {snapshot.manifest_list for snapshot in snapshots}
    named |= {manifest.manifest_path for snapshot in snapshots for manifest in snapshot.manifests(table.io)}
    there = {f"file://{path}" for path in Path(table.location().removeprefix("file://")).rglob("*.avro")}
    assert there == named
    assert world.is_exact()


async def test_old_metadata_files_are_deleted(world: World) -> None:
    with world.table().transaction() as transaction:
        transaction.set_properties({"write.metadata.previous-versions-max": "3"})
    for _ in range(4):
        await world.process(10)
    folder = Path(world.table().location().removeprefix("file://"))
    assert len([*folder.rglob("*.metadata.json")]) == 4


async def test_a_host_whose_clock_is_wrong_makes_versions_with_the_time_of_the_store(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they would seem old at once, and their readers miss files."""
    monkeypatch.setattr("pyiceberg.table.snapshots.time", SimpleNamespace(time=lambda: time.time() - 7200))
    await world.process(20)
    current = world.table().current_snapshot()
    assert current is not None
    assert abs(current.timestamp_ms / 1000 - time.time()) < 60


async def test_a_dropped_table_is_made_anew(world: World) -> None:
    world.catalog().drop_table(NAME)
    await world.process(20)
    assert world.is_exact()


async def test_a_reset_that_takes_rows_back_stops_at_files_of_which_nobody_can_tell_whose_rows_they_have(
    tmp_path: Path,
) -> None:
    world = sqlite_world(tmp_path, on_reset="replace")
    await world.process(60)
    append(world, 2, sequence=None)
    table = world.table()
    table.overwrite(table.scan().to_arrow())
    assert await world.damages() == ["has 2 rows in files of others that the output does not have"]
    await take_back(world)
    with pytest.raises(ActorprocError, match=r"a reset takes rows back, and \S+ has rows that may be these"):
        await world.process(20, store_patience=1)
    await world.repair("remove")
    assert world.is_exact()


async def test_a_reset_that_takes_rows_back_leaves_files_of_others_without_such_rows(tmp_path: Path) -> None:
    world = sqlite_world(tmp_path, on_reset="replace")
    await world.process(60)
    append(world, 2, sequence=None)
    await take_back(world)
    await world.process(20)
    assert world.is_exact(beside=2)


async def take_back(world: World) -> None:
    async with open_store(world.container) as store:
        resets = Resets(store, LAYOUT, Settings(), world.source, "ann", nudges=Nudges())
        done = await resets.carry_out(await resets.plan(15, ["0", "1"]), {})
        assert [reset.refusal for reset in done] == ["", ""]


@pytest.mark.parametrize(("given", "says"), [((), "is not partitioned"), (("n",), "is partitioned by n")])
async def test_a_table_that_is_partitioned_in_another_way_is_refused(
    tmp_path: Path, given: tuple[str, ...], says: str
) -> None:
    """Without the partition in the metadata, readers would find nulls: it is not in the files."""
    world = sqlite_world(tmp_path)
    world.catalog().create_namespace("default")
    table = world.catalog().create_table(NAME, pa.schema([("n", pa.int64())]))
    with table.update_spec() as update:
        for column in given:
            update.add_identity(column)
    with pytest.raises(UsageError, match=says):
        await world.process(10)
