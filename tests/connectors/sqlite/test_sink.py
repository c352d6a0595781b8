"""The SQLite sink against the checks of the test kit."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest

from actorproc import Batch, PartitionContext, PartitionHandler, Processor
from actorproc.connectors.sqlite import SqliteSink
from actorproc.records import SEQUENCE
from actorproc.runtime.clock import SYSTEM
from actorproc.sinks.protocol import Delivery, Guarantee, SinkPlace, SinkRefused, SinkRow
from actorproc.testing import check_sink
from actorproc.testing.memory_source import MemorySource
from actorproc.testing.sink_modes_check import Rows
from tests.sinks.matrix import tried

PLACE = SinkPlace("db", "Delays", SYSTEM)
ROW = SinkRow("home", 1, "term", 0, 1)


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


class Copies(PartitionHandler):
    output_schema = "n long"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.emit(record, {"n": record.json()})


async def test_rows_of_a_file_that_is_deleted_or_replaced_under_a_host_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actorproc.sinks.host_sinks._REOPEN_AFTER", 0.1)
    path, source = tmp_path / "rows.db", MemorySource(1)

    async def found(count: int) -> None:
        with anyio.fail_after(90):
            while True:
                with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as rows:
                    numbers = [n for (n,) in rows.execute('SELECT n FROM "Copies" ORDER BY n')]
                    if len(numbers) >= count:
                        assert numbers == list(range(count))
                        return
                await anyio.sleep(0.1)

    async with Processor(
        Copies, source=source, container=tmp_path / "state", sinks={"db": f"sqlite:{path}"}, commit_interval=0.1
    ):
        source.append("0", [b"0", b"1"])
        await found(2)
        for file in tmp_path.glob("rows.db*"):
            file.unlink()
        source.append("0", [b"2"])
        await found(3)
        with closing(sqlite3.connect(tmp_path / "other.db")) as other:
            other.execute("CREATE TABLE t (x)")
        for file in tmp_path.glob("rows.db*"):
            file.unlink()
        (tmp_path / "other.db").rename(path)
        source.append("0", [b"3"])
        await found(4)


@pytest.mark.parametrize(
    ("columns", "index", "says"),
    [
        ("k TEXT COLLATE NOCASE PRIMARY KEY, j TEXT", "", "column k"),
        ("k TEXT COLLATE RTRIM PRIMARY KEY, j TEXT", "", "column k"),
        ("k TEXT COLLATE NOCASE PRIMARY KEY, j TEXT", "WITHOUT ROWID", "column k"),
        ("k TEXT, j TEXT", "CREATE UNIQUE INDEX loose ON t (k COLLATE NOCASE)", "index loose"),
        ("k TEXT COLLATE nocase, j TEXT", "CREATE UNIQUE INDEX exact ON t (k COLLATE BINARY)", "column k"),
        ("k TEXT, j TEXT", "CREATE UNIQUE INDEX exact ON t (k)", ""),
        ("k TEXT COLLATE BINARY PRIMARY KEY, j TEXT COLLATE NOCASE UNIQUE", "", ""),
    ],
)
async def test_a_key_in_which_different_values_are_equal_is_refused(
    tmp_path: Path, columns: str, index: str, says: str
) -> None:
    path = tmp_path / "rows.db"
    with closing(sqlite3.connect(path)) as own:
        more = "_sequence INTEGER, _partition TEXT, _version INTEGER NOT NULL DEFAULT 0"
        own.executescript(f"CREATE TABLE t ({columns}, n INTEGER, {more}) {index.replace('CREATE', '; CREATE')}")
    schema = pa.schema([("k", pa.string()), ("n", pa.int64()), SEQUENCE])
    rows = pa.table({"k": ["a", "A", "a "], "n": [1, 2, 3], "_sequence": range(3)}, schema)
    async with SqliteSink(f"sqlite:{path}", {"table": "t", "mode": "upsert", "key": "k"}, PLACE) as sink:
        if says:
            with pytest.raises(SinkRefused, match=f"different keys are equal in its {says}"):
                await sink.open(schema)
        else:
            await sink.open(schema)
            await sink.write(Delivery("0", rows, 0, (3,), None, ROW, registration="r"))
    with closing(sqlite3.connect(path)) as own:
        found = own.execute("SELECT k FROM t ORDER BY k").fetchall()
    assert found == ([] if says else [("A",), ("a",), ("a ",)])


async def test_a_file_that_is_replaced_while_it_is_opened_is_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, schema = tmp_path / "rows.db", pa.schema([pa.field("n", pa.int64()), SEQUENCE])
    real, others = sqlite3.connect, [tmp_path / "other.db", None]

    def replaced(database: Any, **options: Any) -> sqlite3.Connection:
        """Replaces the file after the first connection, and deletes it after the second one."""
        connection: sqlite3.Connection = real(database, **options)
        if others:
            for file in tmp_path.glob("rows.db*"):
                file.unlink()
            if (other := others.pop(0)) is not None:
                other.rename(path)
        return connection

    for each in (path, tmp_path / "other.db"):
        with closing(real(each)) as connection:
            connection.execute("CREATE TABLE t (x)")
    monkeypatch.setattr(sqlite3, "connect", replaced)
    async with SqliteSink(f"sqlite:{path}", {}, PLACE) as sink:
        await sink.open(schema)
        await sink.write(Delivery("0", pa.table({"n": [1], "_sequence": [0]}, schema), 0, (1,), None, ROW))
    assert others == []
    with closing(real(path)) as connection:
        assert connection.execute("SELECT n FROM Delays").fetchall() == [(1,)]
