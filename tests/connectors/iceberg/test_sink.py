"""The Iceberg table of a processor: each committed row once, whatever others do with the table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from actorproc.errors import UsageError
from actorproc.sinks.protocol import SinkMoved
from actorproc.sinks.tables.protocol import AddedFile, RemovedFile, TableChange
from tests.connectors.iceberg.catalogs import LAYOUT, Grown, World, opened, sqlite_world


@pytest.fixture
def world(tmp_path: Path) -> World:
    return sqlite_world(tmp_path)


async def test_each_row_is_in_the_table_once(world: World) -> None:
    await world.process(60)
    world.check()
    await world.process(40)
    world.check()
    assert set(world.rows()["partition"].to_pylist()) == {"0", "1"}


async def test_columns_that_come_later_are_null_in_older_rows(world: World) -> None:
    await world.process(20)
    await world.process(20, Grown)
    rows = sorted(world.rows().to_pylist(), key=lambda row: row["n"])
    assert [row["more"] for row in rows] == [None] * 20 + [n + 1 for n in range(20, 40)]
    assert rows[30]["deep"] == {"x": 30, "y": ["30"]}


def operations(world: World) -> list[str]:
    return [str(s.summary.operation.value) for s in world.table().metadata.snapshots if s.summary]


async def test_files_with_a_column_wait_until_the_table_has_it(world: World) -> None:
    """The catalog was away as a host of a later version started; a committer of the earlier one meets its files."""
    await world.process(20)
    world.feed(20)
    await world.host(Grown, sinks={}).run(until_end=True)
    with pytest.raises(UsageError, match="the column more, which the table does not have yet"):
        await world.compact()
    assert sorted(world.rows()["n"].to_pylist()) == list(range(20))  # a reader fails at a column that it does not find
    await world.process(20, Grown)
    world.check()
    assert sorted(world.rows()["more"].drop_null().to_pylist()) == list(range(21, 61))


async def test_compacted_files_replace_small_ones_and_change_no_rows(world: World) -> None:
    await world.process(120)
    before = operations(world)
    assert set(before) == {"append"}
    assert await world.compact() == 2
    await world.process(40)
    world.check()
    assert operations(world)[len(before) :] == ["replace", "append"] or operations(world)[-2:] == ["append", "replace"]
    paths = [task.file.file_path for task in world.table().scan().plan_files()]
    assert sum("/compacted/" in path for path in paths) == 2
    (replace,) = [s for s in world.table().metadata.snapshots if s.summary and s.summary.operation.value == "replace"]
    assert replace.summary is not None
    assert replace.summary["added-records"] == replace.summary["deleted-records"]


async def test_files_have_bounds_by_which_engines_pass_over_them(world: World) -> None:
    await world.process(100)
    of = world.table().scan(row_filter="n >= 95").plan_files()
    assert len(list(of)) == 2
    assert len(list(world.table().scan(row_filter="partition = '1'").plan_files())) == 5


async def test_a_stranger_may_append_and_rewrite(world: World) -> None:
    await world.process(60)
    table = world.table()
    table.append(table.scan().to_arrow().slice(0, 3).set_column(0, "n", pa.array([-1, -2, -3], pa.int64())))
    await world.process(20)
    assert sorted(world.rows()["n"].to_pylist()) == [-3, -2, -1, *range(80)]
    table = world.table()
    table.overwrite(table.scan().to_arrow())  # all files are the stranger's now
    await world.compact()
    await world.process(20)
    assert sorted(world.rows()["n"].to_pylist()) == [-3, -2, -1, *range(100)]


async def test_old_versions_leave_the_table(world: World) -> None:
    for _ in range(3):
        await world.process(10)
    sink, home = await opened(world)
    table = await sink.load()
    home.store.time._correction = 3 * 3600.0
    await sink.commit(table, TableChange(table.life))
    assert len(world.table().metadata.snapshots) == 2
    world.check()
    await sink.close()


async def test_the_version_before_a_gap_is_kept_as_long_as_it_may_be_read(world: World) -> None:
    """It was the newest one until the gap ended, however old it is."""
    for _ in range(2):
        await world.process(10)
    sink, home = await opened(world)

    async def commit(later: float) -> set[int]:
        home.store.time._correction = later
        await sink.commit(await sink.load(), TableChange(1))
        return {snapshot.snapshot_id for snapshot in world.table().metadata.snapshots}

    before = world.table().current_snapshot()
    assert before is not None
    await commit(7200)
    kept = await commit(7260)
    assert (before.snapshot_id in kept, len(kept)) == (True, 3)
    assert before.snapshot_id in await commit(7200 + 3590)
    assert before.snapshot_id not in await commit(7200 + 3610)
    await sink.close()


async def test_of_two_transactions_on_one_version_the_second_is_refused(world: World) -> None:
    await world.process(20)
    one, _ = await opened(world)
    other, _ = await opened(world)
    # Even if the table asks its clients to try again, as is the default.
    assert "commit.retry.num-retries" not in world.table().properties
    seen = [await sink.load() for sink in (one, other)]
    await one.commit(seen[0], TableChange(1))
    with pytest.raises(SinkMoved):
        await other.commit(seen[1], TableChange(1))
    assert (await one.load()).count == seen[0].count + 1
    world.check()


async def test_a_reply_that_is_lost_is_settled_by_the_next_load(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.process(20)
    real, lost = SqlCatalog.commit_table, [1]

    def commit(*given: Any, **named: Any) -> Any:
        found = real(*given, **named)
        if lost[0]:
            lost[0] -= 1
            raise OSError("the reply was lost")
        return found

    monkeypatch.setattr(SqlCatalog, "commit_table", commit)
    await world.process(40)
    assert lost == [0]
    world.check()
    for path in [snapshot.manifest_list for snapshot in world.table().metadata.snapshots]:
        assert Path(path.removeprefix("file://")).exists()


async def test_a_file_that_the_table_does_not_name_is_not_removed(world: World) -> None:
    await world.process(20)
    sink, _ = await opened(world)
    gone = RemovedFile(LAYOUT.output_file("0", 999), "0")
    with pytest.raises(SinkMoved, match="does not name"):
        await sink.commit(await sink.load(), TableChange(1, removes=[gone]))


async def test_manifests_stay_few(world: World) -> None:
    await world.process(20)
    sink, _ = await opened(world)
    seen = await sink.load()
    (file,) = [AddedFile(key, "0", 1000, 10, 0.0, {"record_count": 10}) for key in [LAYOUT.output_file("0", 0)]]
    for number in range(120):
        each = replace(file, key=LAYOUT.output_file("0", 1000 + number))
        await sink.commit(seen, TableChange(1, adds=[each]))
        seen = await sink.load()
    snapshot = world.table().current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(world.table().io)) <= 60
    assert len(seen.files) == 120 + 2


async def test_other_targets_are_refused(tmp_path: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [({"tabel": "x"}, "no option 'tabel'"), ({"versions": 60}, "versions")]
    for options, says in wrong:
        world = sqlite_world(tmp_path, **options)
        with pytest.raises(UsageError, match=says):
            await world.process(1)
    world = sqlite_world(tmp_path)
    catalog = world.catalog()
    catalog.create_namespace("default")
    table = catalog.create_table("default.Copy", pa.schema([("n", pa.string()), ("partition", pa.string())]))
    with table.update_spec() as update:
        update.add_identity("partition")
    with pytest.raises(UsageError, match="cannot have the columns of the output"):
        await world.process(1)
