"""Other systems' own readers, unmodified, read the Iceberg table: each row compared with the output."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.table import Table

from actorproc.admin.compact import compact
from actorproc.connectors.iceberg.catalog import open_catalog
from actorproc.connectors.iceberg.options import IcebergOptions
from tests.connectors.delta.readers import in_polars, same
from tests.connectors.delta.test_readers import CONDITIONS, Fixture, More
from tests.connectors.iceberg.catalogs import Copy, World, sqlite_world
from tests.servers import S3Server
from tests.spark.conftest import ROOT


class IcebergFixture(Fixture):
    """A processor with an Iceberg table, whose metadata is beside its container. `given`: properties of the catalog."""

    def __init__(self, folder: Path, url: str, server: S3Server | None, uri: str | None = None, **given: str) -> None:
        super().__init__(url, server)
        self.uri = uri or f"sqlite:///{folder}/catalog.db"
        if uri is None:
            given["warehouse"] = f"{self.place.url.partition('/Types')[0]}-warehouse"
        if server is not None:
            given |= {
                "s3.endpoint": server.endpoint, "s3.access-key-id": server.access_key,
                "s3.secret-access-key": server.secret_key, "s3.region": "us-east-1",
            }  # fmt: skip
        elif uri is None:
            given["warehouse"] = f"file://{given['warehouse']}"
        self.given = given
        self.sinks = {"lake": {"url": f"iceberg:{self.uri}", **given}}

    def table(self) -> Table:
        catalog = open_catalog(self.uri, IcebergOptions.model_validate(self.given))
        return catalog.load_table("default.Types")


def pyiceberg(fixture: IcebergFixture, condition: str | None = None) -> pa.Table:
    scan = fixture.table().scan()
    return (scan if condition is None else scan.filter(in_pyiceberg(condition))).to_arrow()


def in_pyiceberg(condition: str) -> str:
    moment = re.sub(r"TIMESTAMP '(\S+) (.*)'", r"'\1T\2+00:00'", condition)
    return moment.replace("DATE '", "'")


def polars(fixture: IcebergFixture, condition: str | None = None) -> pa.Table:
    server = fixture.place.server
    options = None if server is None else {k.lower(): v for k, v in fixture.place.storage.items()}
    frame = pl.scan_iceberg(fixture.table(), storage_options=options)
    return (frame if condition is None else frame.filter(in_polars(condition))).collect().to_arrow()


def loads(*extensions: str) -> str:
    """Statements that load extensions of DuckDB from their packages."""
    packages = Path(sysconfig.get_paths()["purelib"])
    files = [next((packages / f"duckdb_extension_{name}").rglob("*.duckdb_extension")) for name in extensions]
    return "; ".join(f"LOAD '{file}'" for file in files)


def duck(fixture: IcebergFixture, condition: str | None = None) -> pa.Table:
    with duckdb.connect() as connection:
        connection.execute(loads("avro", "httpfs", "iceberg"))
        if (server := fixture.place.server) is not None:
            connection.execute(
                f"CREATE SECRET (TYPE s3, KEY_ID '{server.access_key}', SECRET '{server.secret_key}', "
                f"REGION 'us-east-1', ENDPOINT '{server.endpoint.partition('://')[2]}', URL_STYLE 'path', "
                "USE_SSL false)"
            )
        connection.execute("SET TimeZone = 'UTC'")
        where = "" if condition is None else f"WHERE {condition}"
        at = fixture.table().metadata_location
        return connection.execute(f"SELECT * FROM iceberg_scan('{at}') {where}").to_arrow_table()


READERS: Mapping[str, Callable[..., pa.Table]] = {"pyiceberg": pyiceberg, "polars": polars, "duckdb": duck}


@pytest.fixture(params=["folder", pytest.param("seaweedfs", marks=pytest.mark.servers)])
async def table(request: pytest.FixtureRequest, tmp_path: Path) -> IcebergFixture:
    if request.param == "folder":
        return IcebergFixture(tmp_path, str(tmp_path / "state"), None)
    server: S3Server = request.getfixturevalue("seaweedfs")
    return IcebergFixture(tmp_path, await server.new_url(), server)


@pytest.fixture(autouse=True)
def _plan_by_pyiceberg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # else a warning asks for another package


async def check(table: IcebergFixture) -> None:
    expected = await table.expected()
    assert expected.num_rows == table.fed
    for name, read in READERS.items():
        assert same(read(table), expected), name


@pytest.mark.slow
async def test_all_readers_find_all_rows_after_commits_new_columns_and_compaction(table: IcebergFixture) -> None:
    await table.feed(120)
    await check(table)
    await table.feed(60, More)
    await check(table)
    for _ in range(3):
        await table.feed(12, More)
    settings = table.settings.model_copy(update={"sinks": table.sinks})
    assert (await compact(container=table.url, name="Types", older_than=0, settings=settings)).files_after == 6
    await check(table)
    await table.feed(12, More)
    await check(table)


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
async def test_filters_find_the_same_rows_as_without_statistics(tmp_path: Path, reader: str) -> None:
    """Each file has few rows, so that a wrong bound passes over rows that a filter wants."""
    table = IcebergFixture(tmp_path, str(tmp_path / "state"), None)
    for _ in range(12):
        await table.feed(30)
    rows = await table.expected()
    with duckdb.connect() as plain:
        plain.execute("SET TimeZone = 'UTC'")
        plain.register("t", rows)
        for condition in CONDITIONS:
            wanted = plain.execute(f"SELECT n FROM t WHERE {condition} ORDER BY n").fetchall()
            found = READERS[reader](table, condition)["n"].to_pylist()
            assert sorted(found) == [n for (n,) in wanted], condition


class Delays(Copy):
    """What the examples of docs/tables.md read."""

    output_schema = "n long, minutes long"

    def row(self, n: int) -> dict[str, Any]:
        return {"n": n, "minutes": n}


async def delays(folder: Path) -> World:
    world = sqlite_world(folder, table="flights.delays")
    await world.process(50, Delays)
    return world


def examples(folder: Path) -> list[str]:
    """The programs of docs/tables.md that read an Iceberg table, for a catalog in this folder."""
    page = (ROOT / "docs/tables.md").read_text().partition("### Read an Iceberg table")[2].partition("\n### ")[0]
    return [code.replace("/data/", f"{folder}/") for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL)]


async def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    await delays(tmp_path)
    *programs, spark = examples(tmp_path)
    assert "SparkSession" in spark  # test_spark.py runs it
    names: dict[str, Any] = {}
    counts: Sequence[Callable[[Any], int]] = (len, len, lambda late: len(late.fetchall()))
    for program, rows in zip(programs, counts, strict=True):
        exec(program.replace("INSTALL iceberg; LOAD iceberg", loads("avro", "iceberg")), names)
        assert rows(names["late"]) == 19
    names["duckdb"].default_connection().close()
    names["catalog"].close()
