"""Other systems' own readers, unmodified, read the Delta table: each row compared with the output."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from actorproc import Batch, PartitionContext, PartitionHandler, Processor
from actorproc.admin.compact import compact
from actorproc.config.settings import Settings
from actorproc.output.row_reader import all_slices, partitions_with_state, read_rows
from actorproc.output.schema_document import read_schema
from actorproc.rows.casting import fitted
from actorproc.rows.output_schema import output_schema
from actorproc.sinks.tables.open_tables import open_tables
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores import open_store
from actorproc.testing.memory_source import MemorySource
from tests.connectors.delta.readers import READERS, Place, same
from tests.servers import S3Server

LAYOUT = ProcessorLayout("Types")
NAMES = ("0", "a b", "x=y&z", "50%", "ü/#?", "~|<>")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Types(PartitionHandler):
    """A row with values that readers are known to get wrong."""

    output_schema = (
        "n long NOT NULL, t string, ts timestamp, f double, d date, x decimal(38,2), b binary, flag boolean, "
        "tiny tinyint, l array<int>, s struct<a: int, b: string>, m map<string, int>"
    )

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.emit(record, self.row(record.json()))

    def row(self, n: int) -> dict[str, Any]:
        odd = n % 3 == 0
        return {
            "n": n, "t": None if n % 5 == 0 else ("\U0001f33c" if odd else "\ufffd") * (n % 40) + str(n),
            "ts": _EPOCH + timedelta(microseconds=1_234_567_891 * n + n % 1000),
            "f": float("nan") if odd else -0.0 if n % 7 == 0 else n / 3, "d": (_EPOCH + timedelta(days=n - 500)).date(),
            "x": Decimal(n).scaleb(-2) + 10**30, "b": bytes([n % 256]), "flag": odd, "tiny": n % 100,
            "l": [n, None], "s": {"a": n, "b": None}, "m": {"k": n},
        }  # fmt: skip


class More(Types):
    """A column more."""

    output_schema = f"{Types.output_schema}, half float"

    def row(self, n: int) -> dict[str, Any]:
        return {**super().row(n), "half": n / 2}


class Fixture:
    """A processor with a Delta table at a place."""

    def __init__(self, url: str, server: S3Server | None) -> None:
        self.url, self.settings = url, Settings.load(commit_interval=1, **(server.settings if server else {}))
        self.place = Place.on(f"{url}/Types/output", server)
        self.sinks: dict[str, Any] = {"table": "delta"}
        self.source = MemorySource(0)
        for name in NAMES:
            self.source.add_partition(name)
        self.fed = 0

    async def feed(self, count: int, handler: type[PartitionHandler] = Types, container: Any = None) -> None:
        for n in range(self.fed, self.fed + count):
            self.source.append(NAMES[n % len(NAMES)], [str(n).encode()])
        self.fed += count
        host = Processor(
            handler, source=self.source, container=container or self.url, name="Types", host="a",
            settings=self.settings, sinks=self.sinks,
        )  # fmt: skip
        await host.run(until_end=True)

    async def expected(self) -> pa.Table:
        """The rows of the output, by our own reader."""
        async with open_store(self.url, self.settings) as store:
            return await output(store)


async def output(store: Store, layout: ProcessorLayout = LAYOUT) -> pa.Table:
    declared = await read_schema(store, layout)
    assert declared is not None
    schema = output_schema(declared)
    tables = [schema.append(pa.field("partition", pa.string())).empty_table()]
    async for piece in all_slices(store, layout, await partitions_with_state(store, layout)):
        async for batch in read_rows(store, piece):
            rows = fitted(pa.Table.from_batches([batch]), schema)
            tables.append(rows.append_column("partition", pa.repeat(pa.scalar(piece.partition), rows.num_rows)))
    return pa.concat_tables(tables)


@pytest.fixture(params=["folder", pytest.param("seaweedfs", marks=pytest.mark.servers)])
async def table(request: pytest.FixtureRequest, tmp_path: Path) -> Fixture:
    if request.param == "folder":
        return Fixture(str(tmp_path / "state"), None)
    server: S3Server = request.getfixturevalue("seaweedfs")
    return Fixture(await server.new_url(), server)


async def check(table: Fixture, readers: Sequence[str] = tuple(READERS)) -> None:
    expected = await table.expected()
    assert expected.num_rows == table.fed
    for name in readers:
        assert same(READERS[name](table.place), expected), name


@pytest.mark.slow
async def test_all_readers_find_all_rows_after_commits_new_columns_compaction_and_checkpoints(table: Fixture) -> None:
    await table.feed(120)
    await check(table)
    await table.feed(60, More)
    await check(table)
    for _ in range(3):
        await table.feed(12, More)
    assert (await compact(container=table.url, name="Types", older_than=0, settings=table.settings)).files_after == 6
    await check(table)
    for _ in range(10):
        await table.feed(12, More)
    await check(table)


CONDITIONS = [
    "n = 77",
    "n > 100 AND n < 104",
    "t > 'a'",
    "t = '\U0001f33c\U0001f33c\U0001f33c\U0001f33c\U0001f33c3'",
    "d = DATE '1968-09-01'",
    "ts >= TIMESTAMP '1970-01-01 00:41:09.135'",
    "ts = TIMESTAMP '1970-01-01 00:20:34.567892'",
    "partition = 'a b'",
    "partition = '50%' AND n > 50",
    "x > 0 AND n < 5",
    "tiny IS NULL",
    "t IS NULL",
]


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
async def test_filters_find_the_same_rows_as_without_statistics(tmp_path: Path, reader: str) -> None:
    """Each file has few rows, so that a wrong bound passes over rows that a filter wants."""
    table = Fixture(str(tmp_path / "state"), None)
    for _ in range(12):
        await table.feed(30)
    rows = await table.expected()
    with duckdb.connect() as plain:
        plain.execute("SET TimeZone = 'UTC'")
        plain.register("t", rows)
        for condition in CONDITIONS:
            wanted = plain.execute(f"SELECT n FROM t WHERE {condition} ORDER BY n").fetchall()
            found = READERS[reader](table.place, condition)["n"].to_pylist()
            assert sorted(found) == [n for (n,) in wanted], condition


async def test_a_reader_finds_a_table_without_rows(tmp_path: Path) -> None:
    table = Fixture(str(tmp_path / "state"), None)
    await table.feed(0)
    await check(table)


async def test_a_column_without_zone_is_read(tmp_path: Path) -> None:
    class Local(Types):
        output_schema = "n long, at timestamp_ntz"

        def row(self, n: int) -> dict[str, Any]:
            return {"n": n, "at": datetime(2026, 1, 1) + timedelta(milliseconds=n)}  # noqa: DTZ001

    table = Fixture(str(tmp_path / "state"), None)
    await table.feed(20, Local)
    await check(table)


async def test_trims_leave_the_rest_readable(tmp_path: Path) -> None:
    from actorproc.admin.retained import RetainedOutput
    from actorproc.retention.boundary import raise_boundary

    table = Fixture(str(tmp_path / "state"), None)
    for _ in range(3):
        await table.feed(12)
    async with open_store(table.url) as store:
        await raise_boundary(store, RetainedOutput(store, LAYOUT).boundary("a b"), 2)
        async with open_tables(store, LAYOUT, {}) as tables:
            await tables.catch_up()
        expected = await output(store)
    assert expected.num_rows == 32
    for name, read in READERS.items():
        assert same(read(table.place), expected), name
