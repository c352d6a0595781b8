"""`PostgresSink`: committed rows in a table of a PostgreSQL database, written by COPY."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import psycopg
import pyarrow as pa
from psycopg import sql
from pydantic import Field

from actorproc.connectors.postgres.copying import column_type, csv_of
from actorproc.sinks.protocol import SinkPlace, SinkRefused
from actorproc.sinks.sql import POSITIONS, SqlOptions, SqlSink

_LOCK = 5_143_970_274
"""Of `open`: two hosts that create a table at once would collide in the catalog."""


class PostgresOptions(SqlOptions):
    """Options of a PostgreSQL sink."""

    password: str | None = Field(None, repr=False, description="Or `@FILE`. Default: libpq's (PGPASSWORD, ~/.pgpass).")
    create: bool = Field(True, description="Whether to create the table, and the columns that it lacks.")
    connect_timeout: int = Field(10, gt=0, le=3600, description="Seconds.")


class PostgresSink(SqlSink):
    """`postgresql://USER@HOST:PORT/DATABASE`, as libpq has it. `table` may be SCHEMA.TABLE."""

    option_model: ClassVar[type[SqlOptions]] = PostgresOptions
    options: PostgresOptions

    def __init__(self, url: str, given: Mapping[str, Any], place: SinkPlace) -> None:
        super().__init__(url, given, place)
        self._target = sql.Identifier(*self.table.split("."))

    def connect(self) -> psycopg.Connection[Any]:
        """See `SqlSink.connect`."""
        options: dict[str, Any] = {"connect_timeout": self.options.connect_timeout}
        if self.options.password is not None:
            options["password"] = self.options.password
        return psycopg.connect(self.url, application_name=f"actorproc {self.place.processor}", **options)

    def prepare(self, connection: psycopg.Connection[Any], schema: pa.Schema) -> None:
        """See `SqlSink.prepare`."""
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        there = self._columns(connection)
        if self.options.create:
            declared = [_declaration(field) for field in schema]
            if not there:
                connection.execute(
                    sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(self._target, sql.SQL(", ").join(declared))
                )
            for field, declaration in zip(schema, declared, strict=True):
                if there and field.name not in there:
                    connection.execute(
                        sql.SQL("ALTER TABLE {} ADD COLUMN IF NOT EXISTS {}").format(self._target, declaration)
                    )
        elif missing := [name for name in schema.names if name not in there]:
            raise SinkRefused(
                f"table {self.table} lacks the columns {', '.join(missing)}: add them, or set create = true"
            )

    def _columns(self, connection: psycopg.Connection[Any]) -> set[str]:
        found = connection.execute("SELECT to_regclass(%s)", (self._target.as_string(connection),)).fetchone()
        if found is None or found[0] is None:
            return set()
        rows = connection.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
            (self._target.as_string(connection),),
        ).fetchall()
        return {name for (name,) in rows}

    def apply(self, connection: psycopg.Connection[Any], rows: pa.Table) -> None:
        """See `SqlSink.apply`."""
        names = sql.SQL(", ").join(map(sql.Identifier, self.columns))
        statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT CSV)").format(self._target, names)
        try:
            with connection.cursor() as cursor, cursor.copy(statement) as copy:
                copy.write(csv_of(rows))
        except (psycopg.DataError, psycopg.IntegrityError) as error:
            raise SinkRefused(f"table {self.table}: {error}") from error

    def is_taken(self, error: BaseException) -> bool:
        """See `SqlSink.is_taken`."""
        if not isinstance(error, psycopg.errors.UniqueViolation):
            return False
        return error.diag.table_name == POSITIONS


def _declaration(field: pa.Field) -> sql.Composed:
    return sql.SQL("{} {}").format(sql.Identifier(field.name), sql.SQL(column_type(field.type)))
