"""The example of a custom source."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from actorproc import Capture, Processor
from actorproc.errors import UsageError
from actorproc.testing import check_source
from examples.sql_source import SqlSource


def insert(database: Path, *bodies: str | None) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(
            "create table if not exists events (id integer primary key autoincrement, customer text, body text)"
        )
        connection.executemany("insert into events (customer, body) values (?, ?)", [(b and b[:1], b) for b in bodies])


async def rows_after_a_run(database: Path, state: Path) -> list[tuple[int, bytes | None, bytes | None]]:
    source = SqlSource(str(database), poll_interval=0.01, page=3)
    await Processor(Capture, source=source, container=str(state), name="sql", host="a").run(until_end=True)
    files = sorted((state / "sql" / "output").rglob("*.parquet"))
    tables = [pq.ParquetFile(file).read() for file in files]
    return [(row["_sequence"], row["key"], row["value"]) for table in tables for row in table.to_pylist()]


async def test_a_table_is_processed_once_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    database, state = tmp_path / "shop.db", tmp_path / "state"
    insert(database, *[f"a{i}" for i in range(7)])
    expected = [(i + 1, b"a", b"a%d" % i) for i in range(7)]
    assert await rows_after_a_run(database, state) == expected
    assert await rows_after_a_run(database, state) == expected
    insert(database, *[f"b{i}" for i in range(5)])
    expected += [(i + 8, b"b", b"b%d" % i) for i in range(5)]
    assert await rows_after_a_run(database, state) == expected


async def test_the_source_keeps_the_contract_and_has_no_times(tmp_path: Path) -> None:
    database = tmp_path / "shop.db"
    insert(database, *"abcdefg")

    async def add() -> None:
        insert(database, "news")

    report = await check_source(lambda: SqlSource(str(database), poll_interval=0.001, page=2), add=add)
    assert (report.records, report.positions) == ({"0": 8}, {"0": ["0", "7", "2", "4", "6", "8"]})
    (refused,) = report.not_checked
    assert "table events has no time to start at" in refused


async def test_another_database_under_the_same_name_is_refused(
    tmp_path: Path,
) -> None:
    for name in ("a.db", "b.db"):
        insert(tmp_path / name, f"from {name}")
    expected = [(1, b"f", b"from a.db")]
    assert await rows_after_a_run(tmp_path / "a.db", tmp_path / "state") == expected
    with pytest.raises(UsageError, match=r"b\.db is not .*a\.db"):
        await rows_after_a_run(tmp_path / "b.db", tmp_path / "state")


async def test_columns_without_a_value_are_records_without_one(tmp_path: Path) -> None:
    insert(tmp_path / "shop.db", None, "a")
    expected = [(1, None, None), (2, b"a", b"a")]
    assert await rows_after_a_run(tmp_path / "shop.db", tmp_path / "state") == expected
