"""`acmedb:PATH` as a sink: rows in a table of Acme's database, which is SQLite in truth."""

from __future__ import annotations

import sqlite3
from typing import Any

import pyarrow as pa
from pydantic import Field

from actorproc.spi import SinkRefused, SqlOptions, SqlSink


class AcmeOptions(SqlOptions):
    """Options of the sink."""

    most_rows: int = Field(10**6, gt=0, description="Most rows of one transaction.")


class AcmeSink(SqlSink):
    """A column for each column of the output, as text."""

    placeholder = "?"
    option_model = AcmeOptions
    options: AcmeOptions

    def connect(self) -> Any:
        """See `SqlSink.connect`."""
        path = self.url.partition(":")[2]
        return sqlite3.connect(path, timeout=30, check_same_thread=False, isolation_level="IMMEDIATE")

    def prepare(self, connection: Any, schema: pa.Schema) -> None:
        """See `SqlSink.prepare`."""
        columns = ", ".join(f'"{name}"' for name in schema.names)
        connection.execute(f'CREATE TABLE IF NOT EXISTS "{self.table}" ({columns})')
        there = {row[1] for row in connection.execute(f'PRAGMA table_info("{self.table}")')}
        for name in schema.names:
            if name not in there:
                connection.execute(f'ALTER TABLE "{self.table}" ADD COLUMN "{name}"')

    def apply(self, connection: Any, rows: pa.Table) -> None:
        """See `SqlSink.apply`."""
        if rows.num_rows > self.options.most_rows:
            raise SinkRefused(f"{rows.num_rows} rows are more than most_rows = {self.options.most_rows}")
        names = ", ".join(f'"{name}"' for name in rows.column_names)
        marks = ", ".join("?" * rows.num_columns)
        values = [tuple(None if v is None else str(v) for v in row.values()) for row in rows.to_pylist()]
        connection.executemany(f'INSERT INTO "{self.table}" ({names}) VALUES ({marks})', values)
