"""Real catalogs: SQL on PostgreSQL, and Iceberg's own REST server; hosts that are killed; other systems' readers."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from actorproc.sinks.protocol import SinkMoved
from actorproc.sinks.tables.protocol import TableChange
from tests.connectors.iceberg.catalogs import Grown, World, opened, sqlite_world
from tests.connectors.iceberg.rest import rest_catalog
from tests.connectors.postgres.server import postgres
from tests.servers import REQUIRED, Unavailable


@contextmanager
def catalog_uri(kind: str, folder: Path) -> Iterator[str]:
    try:
        if kind == "rest":
            with rest_catalog(folder) as url:
                yield url
        else:
            with postgres() as server:
                yield server.url.replace("postgresql://", "postgresql+psycopg://")
    except Unavailable as why:
        if REQUIRED:
            raise
        pytest.skip(str(why))


@contextmanager
def catalog_world(kind: str, folder: Path) -> Iterator[World]:
    """With a catalog of this kind: `sqlite`, `postgres` or `rest`."""
    if kind == "sqlite":
        yield (world := sqlite_world(folder))
        world.close()
        return
    with catalog_uri(kind, folder) as uri:
        warehouse = {} if kind == "rest" else {"warehouse": f"file://{folder}/warehouse"}
        yield (world := World(str(folder / "state"), uri, warehouse))
        world.close()


@pytest.fixture(params=["postgres", "rest"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with catalog_world(request.param, tmp_path) as world:
        yield world


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "rest"])
@pytest.mark.parametrize("name", ["tag", "branch"])
async def test_a_name_that_an_old_snapshot_gets_while_it_is_dropped_keeps_it(
    kind: str, name: str, tmp_path: Path
) -> None:
    with catalog_world(kind, tmp_path) as world:
        for _ in range(3):
            await world.process(20)
        sink, _ = await opened(world)
        sink.options = sink.options.model_copy(update={"versions": -1.0})  # all but the newest one may go
        table = world.table()
        first, old, _ = sorted(table.metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
        seen = await sink.load()
        names = table.manage_snapshots()
        give = names.create_tag if name == "tag" else names.create_branch
        give(old.snapshot_id, "audit").commit()
        with pytest.raises(SinkMoved):
            await sink.commit(seen, TableChange(seen.life))
        await sink.commit(seen := await sink.load(), TableChange(seen.life))
        await sink.close()
        after = world.table()
        assert first not in after.metadata.snapshots
        assert after.metadata.refs["audit"].snapshot_id == old.snapshot_id
        assert after.scan(snapshot_id=old.snapshot_id).to_arrow().num_rows == 40


async def test_a_catalog_gets_rows_compaction_and_new_columns(world: World) -> None:
    await world.process(80)
    world.check()
    assert await world.compact() == 2
    await world.process(40, Grown)
    world.check()
    assert len([*world.table().scan().plan_files()]) < 10


async def test_a_catalog_refuses_the_second_of_two_transactions(world: World) -> None:
    await world.process(20)
    sinks = [(await opened(world))[0] for _ in range(2)]
    for _ in range(3):
        seen = [await sink.load() for sink in sinks]
        await sinks[0].commit(seen[0], TableChange(1))
        with pytest.raises(SinkMoved):
            await sinks[1].commit(seen[1], TableChange(1))
        sinks.reverse()
    for sink in sinks:
        await sink.close()
    world.check()


def by_duckdb(world: World) -> pa.Table:
    with duckdb.connect() as connection:
        for name in ("avro", "iceberg"):
            folder = Path(sysconfig.get_paths()["purelib"]) / f"duckdb_extension_{name}"
            connection.execute(f"LOAD '{next(folder.rglob('*.duckdb_extension'))}'")
        connection.execute("SET TimeZone = 'UTC'")
        at = world.table().metadata_location
        return connection.execute(f"SELECT * FROM iceberg_scan('{at}')").to_arrow_table()


def by_polars(world: World) -> pa.Table:
    return pl.scan_iceberg(world.table()).collect().to_arrow()


@pytest.mark.parametrize("read", [by_duckdb, by_polars])
async def test_other_readers_find_each_row_with_its_values(
    read: Callable[[World], pa.Table], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # else a warning asks for another package
    world = sqlite_world(tmp_path)
    await world.process(60)
    await world.compact()
    await world.process(20, Grown)
    expected, found = (sorted(table.to_pylist(), key=lambda row: row["n"]) for table in (world.rows(), read(world)))
    assert found == expected
