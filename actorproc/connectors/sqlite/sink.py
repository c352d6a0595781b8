"""`SqliteSink`: committed rows in a table of a SQLite file. For one machine: hosts on others cannot share the file."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa

from actorproc.errors import UsageError
from actorproc.rows.json_values import plain_rows, to_json
from actorproc.sinks.protocol import SinkRefused
from actorproc.sinks.sql import SqlSink

_BUSY = 30.0
"""Seconds that a transaction waits for another one: SQLite has one writer at a time."""


class SqliteSink(SqlSink):
    """`sqlite:PATH`: the file of the database. It is created."""

    placeholder = "?"
    position_types = {"text": "TEXT", "number": "INTEGER"}  # noqa: RUF012

    def connect(self) -> sqlite3.Connection:
        """See `SqlSink.connect`."""
        path = self.url.partition(":")[2].removeprefix("//")
        if not path:
            raise UsageError(f"sink {self.place.name}: sqlite:PATH, such as sqlite:results.db")
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path, timeout=_BUSY, check_same_thread=False, isolation_level="IMMEDIATE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    def prepare(self, connection: sqlite3.Connection, schema: pa.Schema) -> None:
        """See `SqlSink.prepare`."""
        table = quoted(self.table)
        columns = ", ".join(f"{quoted(field.name)} {_type(field.type)}" for field in schema)
        connection.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")
        there = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
        for field in schema:
            if field.name not in there:
                connection.execute(f"ALTER TABLE {table} ADD COLUMN {quoted(field.name)} {_type(field.type)}")

    def apply(self, connection: sqlite3.Connection, rows: pa.Table) -> None:
        """See `SqlSink.apply`."""
        names = ", ".join(map(quoted, self.columns))
        marks = ", ".join("?" * len(self.columns))
        try:
            for batch in rows.to_batches():
                values = [tuple(map(_value, row.values())) for row in plain_rows(batch)]
                connection.executemany(f"INSERT INTO {quoted(self.table)} ({names}) VALUES ({marks})", values)
        except (sqlite3.IntegrityError, sqlite3.DataError, OverflowError) as error:
            raise SinkRefused(f"table {self.table}: {error}") from error


def quoted(name: str) -> str:
    """A name as SQL: data never becomes a part of a statement in another way."""
    if "\0" in name:
        raise SinkRefused(f"{name!r} cannot be a name in SQL")
    return '"' + name.replace('"', '""') + '"'


def _type(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return "INTEGER"
    if pa.types.is_floating(kind):
        return "REAL"
    return "BLOB" if pa.types.is_binary(kind) else "TEXT"


def _value(value: Any) -> Any:
    """A value of `plain_rows` as SQLite takes it: dates, times and decimals are text, lists and structs JSON."""
    if value is None or isinstance(value, int | float | str | bytes):
        return value
    if isinstance(value, dict | list):
        return to_json(value).decode()
    return str(value)
