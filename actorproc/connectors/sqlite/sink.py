"""`SqliteSink`: committed rows in a table of a SQLite file. For one machine: hosts on others cannot share the file."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from actorproc.errors import UsageError
from actorproc.rows.json_values import plain_rows, to_json
from actorproc.sinks.protocol import SinkError, SinkPlace, SinkRefused
from actorproc.sinks.sql_table import SqlTableSink

_BUSY = 30.0
"""Seconds that a transaction waits for another one: SQLite has one writer at a time."""

_REFUSALS = (sqlite3.IntegrityError, sqlite3.DataError, OverflowError)


_PASSING = (
    "SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_IOERR", "SQLITE_FULL", "SQLITE_NOMEM", "SQLITE_PROTOCOL",
    "SQLITE_READONLY_DBMOVED",
)  # fmt: skip


class _Connection(sqlite3.Connection):
    file: tuple[int, int]
    """Device and number of the file that it was opened on."""


class SqliteSink(SqlTableSink):
    """`sqlite:PATH`: the file of the database. It is created."""

    placeholder = "?"
    position_types = {"text": "TEXT", "number": "INTEGER"}  # noqa: RUF012

    def __init__(self, url: str, given: Mapping[str, Any], place: SinkPlace) -> None:
        super().__init__(url, given, place)
        path = url.partition(":")[2].removeprefix("//")
        if not path:
            raise UsageError(f"sink {place.name}: sqlite:PATH, such as sqlite:results.db")
        self.url = f"sqlite:{Path(path).resolve()}"  # the same file from any working directory

    def connect(self) -> sqlite3.Connection:
        """See `SqlSink.connect`."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        connection = self._opened()
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    def _opened(self) -> _Connection:
        """A connection that knows its file: one that was replaced while it was opened is opened anew."""
        while True:
            before = _file_at(self._path)
            connection = sqlite3.connect(
                self._path, timeout=_BUSY, check_same_thread=False, isolation_level="IMMEDIATE", factory=_Connection
            )
            if before is not None and _file_at(self._path) == before:
                connection.file = before
                return connection
            connection.close()

    @property
    def _path(self) -> Path:
        return Path(self.url.removeprefix("sqlite:"))

    def check_target(self, connection: sqlite3.Connection) -> None:
        """See `SqlSink.check_target`: SQLite goes on in a file that was deleted, and nobody would find the rows."""
        if isinstance(connection, _Connection) and _file_at(self._path) != connection.file:
            raise SinkError(f"{self._path} was deleted or replaced while it was open: it is opened anew")

    def begin_preparing(self, connection: sqlite3.Connection) -> None:
        """See `SqlSink.begin_preparing`. Python would begin a transaction only before the first row."""
        connection.execute("BEGIN IMMEDIATE")

    def quoted(self, name: str) -> str:
        """See `SqlTableSink.quoted`."""
        return quoted(name)

    def column_type(self, kind: pa.DataType) -> str:
        """See `SqlTableSink.column_type`."""
        if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
            return "INTEGER"
        if pa.types.is_floating(kind):
            return "REAL"
        return "BLOB" if pa.types.is_binary(kind) else "TEXT"

    def there(self, connection: sqlite3.Connection, table: Sequence[str]) -> set[str]:
        """See `SqlTableSink.there`."""
        return {row[0] for row in connection.execute("SELECT name FROM pragma_table_info(?)", (table[-1],))}

    def unique(self, connection: sqlite3.Connection, table: Sequence[str]) -> list[set[str]]:
        """See `SqlTableSink.unique`. A partial index does not count."""
        key = connection.execute("SELECT name FROM pragma_table_info(?) WHERE pk > 0", (table[-1],)).fetchall()
        return [{name for (name,) in key}, *({*columns} for columns in self._indexes(connection, table).values())]

    def _indexes(self, connection: sqlite3.Connection, table: Sequence[str]) -> dict[str, dict[str, str]]:
        """The columns of unique indexes by name, with their collations."""
        indexes = connection.execute(
            'SELECT name FROM pragma_index_list(?) WHERE "unique" = 1 AND partial = 0', (table[-1],)
        ).fetchall()
        columns = "SELECT name, coll FROM pragma_index_xinfo(?) WHERE key = 1"
        return {name: dict(connection.execute(columns, (name,)).fetchall()) for (name,) in indexes}

    def _check_unique(self, connection: sqlite3.Connection, names: Sequence[str]) -> None:
        """Also refuse a key in which different values are equal: a row would replace rows of other keys."""
        super()._check_unique(connection, names)
        table, key = names[-1], self.options.key
        loose = [f"column {name}" for name in key if self._is_loose(connection, table, name)] or [
            f"index {name}"
            for name, columns in self._indexes(connection, names).items()
            if {*columns} == {*key} and any(collation.upper() != "BINARY" for collation in columns.values())
        ]
        if loose:
            raise SinkRefused(
                f"table {table}: different keys are equal in its {loose[0]}: create it anew with COLLATE BINARY"
            )

    def _is_loose(self, connection: sqlite3.Connection, table: str, column: str) -> bool:
        """Whether a column compares without case, or without spaces at the end. A union has its collation."""
        texts = f"SELECT {quoted(column)} AS k FROM {quoted(table)} WHERE 0 UNION ALL VALUES ('a'), ('A'), ('a ')"
        found = connection.execute(f"SELECT count(DISTINCT k) < 3 FROM ({texts})").fetchone()
        return bool(found[0])

    def load(self, connection: sqlite3.Connection, table: str, rows: pa.Table) -> None:
        """See `SqlTableSink.load`."""
        names = ", ".join(map(quoted, rows.schema.names))
        marks = ", ".join("?" * len(rows.schema.names))
        try:
            for batch in rows.to_batches():
                values = [tuple(map(_value, row.values())) for row in plain_rows(batch)]
                connection.executemany(f"INSERT INTO {table} ({names}) VALUES ({marks})", values)
        except _REFUSALS as error:
            raise SinkRefused(f"table {self.table}: {error}") from error

    def lasts(self, error: Exception) -> bool:
        """See `SqlSink.lasts`: all but a lock that is held, a full disk, memory, and a file that was replaced."""
        if isinstance(error, PermissionError | NotADirectoryError | FileNotFoundError):
            return True
        name = getattr(error, "sqlite_errorname", "")
        return isinstance(error, sqlite3.Error) and not name.startswith(_PASSING)

    def is_refusal(self, error: BaseException) -> bool:
        """See `SqlTableSink.is_refusal`."""
        return isinstance(error, _REFUSALS)


def _file_at(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def quoted(name: str) -> str:
    """A name as SQL: data never becomes a part of a statement in another way."""
    if "\0" in name or not name:
        raise SinkRefused(f"{name!r} cannot be a name in SQL")
    return '"' + name.replace('"', '""') + '"'


def _value(value: Any) -> Any:
    """A value of `plain_rows` as SQLite takes it: dates, times and decimals are text, lists and structs JSON."""
    if value is None or isinstance(value, int | float | str | bytes):
        return value
    if isinstance(value, dict | list):
        return to_json(value).decode()
    return str(value)
