"""The SQLite sink against the checks of the test kit."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest

from actorproc.connectors.sqlite import SqliteSink
from actorproc.records import SEQUENCE
from actorproc.runtime.clock import SYSTEM
from actorproc.sinks.protocol import Delivery, Guarantee, SinkPlace, SinkRefused, SinkRow
from actorproc.testing import check_sink
from actorproc.testing.sink_modes_check import Rows
from tests.sinks.matrix import tried


async def test_it_keeps_exactly_once(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"

    def make() -> SqliteSink:
        return SqliteSink(f"sqlite:{path}", {"table": "the rows"}, SinkPlace("db", "Delays", SYSTEM))

    async def rows() -> Sequence[int]:
        with sqlite3.connect(path) as connection:
            return [n for (n,) in connection.execute('SELECT n FROM "the rows"')]

    def modes(options: Mapping[str, Any]) -> tuple[SqliteSink, Rows]:
        table = f"table {len(made)}"
        made.append(table)

        async def read() -> Sequence[int]:
            with sqlite3.connect(path) as connection:
                return [n for (n,) in connection.execute(f'SELECT n FROM "{table}"')]

        return SqliteSink(f"sqlite:{path}", {"table": table, **options}, SinkPlace("db", table, SYSTEM)), read

    made = list[str]()
    checked = await check_sink(make, rows, modes)
    tried("sqlite", checked, on="SQLite")
    assert (checked.guarantee, checked.repeated) == (Guarantee.EXACTLY_ONCE, 0)
    assert len(made) == 3


async def test_a_table_of_keys_is_not_appended_to(tmp_path: Path) -> None:
    place, url = SinkPlace("db", "Delays", SYSTEM), f"sqlite:{tmp_path / 'rows.db'}"
    schema = pa.schema([pa.field("n", pa.int64()), SEQUENCE])
    async with SqliteSink(url, {"mode": "upsert", "key": "n"}, place) as keyed:
        await keyed.open(schema)
    async with SqliteSink(url, {}, place) as appending:
        with pytest.raises(SinkRefused, match="keeps the newest row of each key"):
            await appending.open(schema)


async def test_a_database_that_does_not_answer_lets_a_caller_go(tmp_path: Path) -> None:
    gate = threading.Event()

    class Hanging(SqliteSink):
        def connect(self) -> sqlite3.Connection:
            gate.wait(60)
            return super().connect()

    sink = Hanging(f"sqlite:{tmp_path / 'rows.db'}", {}, SinkPlace("db", "Delays", SYSTEM))
    with anyio.move_on_after(0.05) as scope:
        await sink.read("0")
    assert scope.cancelled_caught
    gate.set()


async def test_two_sinks_of_one_table_replace_their_own_rows_only(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    schema = pa.schema([pa.field("n", pa.int64()), SEQUENCE])

    async def deliver(name: str, numbers: list[int]) -> None:
        async with SqliteSink(f"sqlite:{path}", {"on_reset": "replace"}, SinkPlace(name, "Delays", SYSTEM)) as sink:
            await sink.open(schema)
            rows = pa.table({"n": numbers, "_sequence": numbers}, schema)
            now = SinkRow("memory://x", 1, "t", 0, 1, "p")
            await sink.write(Delivery("0", rows, 0, (len(numbers),), None, now, begins=True, replace_after=-1))

    await deliver("low", [1, 2])
    await deliver("high", [8, 9])
    with sqlite3.connect(path) as connection:
        assert sorted(n for (n,) in connection.execute("SELECT n FROM Delays")) == [1, 2, 8, 9]


async def test_a_table_of_deleted_keys_is_no_other_table(tmp_path: Path) -> None:
    url, schema = f"sqlite:{tmp_path / 'rows.db'}", pa.schema([("k", pa.string()), ("gone", pa.bool_()), SEQUENCE])
    async with SqliteSink(url, {"table": "t_deleted"}, SinkPlace("other", "Delays", SYSTEM)) as other:
        await other.open(schema)
    options = {"table": "t", "mode": "upsert", "key": "k", "deleted": "gone"}
    async with SqliteSink(url, options, SinkPlace("db", "Delays", SYSTEM)) as sink:
        with pytest.raises(SinkRefused, match="there is another one of this name"):
            await sink.open(schema)


def test_the_file_is_the_same_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sink = SqliteSink("sqlite:rows.db", {"table": "t"}, SinkPlace("db", "Delays", SYSTEM))
    assert sink.registered_as == f"sqlite:{tmp_path.resolve() / 'rows.db'} table t"
