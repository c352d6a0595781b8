"""`PostgresSink`: committed rows in a table of a PostgreSQL database, written by COPY."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from pydantic import Field

from actorproc.connectors.postgres.coarse import Column, is_coarser
from actorproc.connectors.postgres.copying import column_type, csv_of
from actorproc.connectors.postgres.refusals import is_of_row
from actorproc.connectors.postgres.search_path import has_any, schema_of, schemas_with
from actorproc.sinks.protocol import SinkPlace, SinkRefused
from actorproc.sinks.sql import POSITIONS, SqlOptions
from actorproc.sinks.sql_table import SqlTableSink
from actorproc.sinks.sql_versions import LIVES

_GONE = {"keepalives_idle": 20, "keepalives_interval": 10, "keepalives_count": 4, "tcp_user_timeout": 60_000}
"""By which a connection ends that has no peer any more: after a minute, not after hours. libpq's names and units."""

_LOCK = 5_143_970_274
"""Of `open`: two hosts that create a table at once would collide in the catalog."""

_NAME = 63
"""Bytes of a name. PostgreSQL cuts longer ones off, and two of them may become one."""

_LASTING = (
    "does not exist", "authentication failed", "no password supplied", "no pg_hba.conf entry", "permission denied",
    "not permitted to log in",
)  # fmt: skip
"""In what a server answers to a connection that it refuses for good."""


class PostgresOptions(SqlOptions):
    """Options of a PostgreSQL sink."""

    password: str | None = Field(None, repr=False, description="Or `@FILE`. Default: libpq's (PGPASSWORD, ~/.pgpass).")
    create: bool = Field(True, description="Whether to create the table, and the columns that it lacks.")
    connect_timeout: int = Field(10, gt=0, le=3600, description="Seconds.")


class PostgresSink(SqlTableSink):
    """`postgresql://USER@HOST:PORT/DATABASE`, as libpq has it. `table` may be SCHEMA.TABLE."""

    option_model: ClassVar[type[SqlOptions]] = PostgresOptions
    options: PostgresOptions
    shared_lock = "FOR SHARE"
    exclusive_lock = "FOR UPDATE"
    stage = "actorproc_stage"  # `actorproc_rows` of an earlier version may be left over on a connection of a pooler

    def __init__(self, url: str, given: Mapping[str, Any], place: SinkPlace) -> None:
        super().__init__(url, given, place)
        self._names: tuple[str, ...] = tuple(self.table.split("."))
        self._deleted_names = super().deleted_names
        self._has_deferrable = False

    def connect(self) -> psycopg.Connection[Any]:
        """See `SqlSink.connect`. What the sink relies on must not depend on settings of role, database or environment.

        Statements are not prepared: a pooler may run the next one on another connection of the server.
        """
        options: dict[str, Any] = {"connect_timeout": self.options.connect_timeout, "client_encoding": "utf8"}
        given = conninfo_to_dict(self.url)
        options |= {name: value for name, value in _GONE.items() if name not in given}
        if self.options.password is not None:
            options["password"] = self.options.password
        name = f"actorproc {self.place.processor}"
        connection = psycopg.connect(self.url, application_name=name, prepare_threshold=None, **options)
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED  # each BEGIN says so
        if connection.info.encoding != "utf-8":
            connection.close()
            raise SinkRefused(
                f"the connection speaks {connection.info.encoding}, although it asked for utf8: see its pooler"
            )
        return connection

    @property
    def names(self) -> tuple[str, ...]:
        """See `SqlTableSink.names`. With their schema, once the sink is open."""
        return self._names

    @property
    def deleted_names(self) -> tuple[str, ...]:
        """See `SqlTableSink.deleted_names`. It may be in another schema than the target."""
        return self._deleted_names

    @property
    def counted_as(self) -> tuple[str, ...]:
        """See `SqlSink.counted_as`. Earlier versions counted under the spelling of the option `table`."""
        return tuple({".".join(self.names): None, self.names[-1]: None})

    @property
    def creates(self) -> bool:
        """See `SqlTableSink.creates`."""
        return self.options.create

    def prepare(self, connection: psycopg.Connection[Any], schema: pa.Schema) -> None:
        """See `SqlSink.prepare`."""
        try:
            super().prepare(connection, schema)
            self._check_types(connection, schema)
            self._check_precision(connection, schema)
            self._has_deferrable = self._find_deferrable(connection)
        except (psycopg.ProgrammingError, psycopg.NotSupportedError) as error:  # a right, a schema, a view, a type
            raise SinkRefused(f"table {self.table}: {error.diag.message_primary or _in_a_line(error)}") from error

    def _check_types(self, connection: psycopg.Connection[Any], schema: pa.Schema) -> None:
        """Let the server plan an insertion of such rows, without doing it: types and rights are checked.

        Text may go into any type that is neither a number nor boolean, such as uuid: COPY reads it.
        """
        found = connection.execute(
            "SELECT attname, typcategory::text FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid "
            "WHERE attrelid = to_regclass(%s) AND attnum > 0",
            (".".join(map(self.quoted, self.names)),),
        ).fetchall()
        categories = dict(found)
        names = [name for name in schema.names if name in self.columns]
        values = [
            "NULL"
            if pa.types.is_string(schema.field(name).type) and categories.get(name) not in ("N", "B")
            else f"NULL::{self.column_type(schema.field(name).type)}"
            for name in names
        ]
        columns = sql.SQL(", ").join(map(sql.Identifier, names))
        target = sql.Identifier(*self.names)
        conflict = sql.SQL("ON CONFLICT DO NOTHING" if self.options.mode == "upsert" else "")  # not every table can
        connection.execute(
            sql.SQL("EXPLAIN INSERT INTO {} ({}) SELECT {} WHERE false {}").format(
                target, columns, sql.SQL(", ").join(map(sql.SQL, values)), conflict
            )
        )

    def _find_deferrable(self, connection: psycopg.Connection[Any]) -> bool:
        """Whether the target has constraints, or foreign keys of others, that may be checked by the commit only."""
        target = ".".join(map(self.quoted, self.names))
        query = "SELECT 1 FROM pg_constraint WHERE condeferrable AND to_regclass(%s) IN (conrelid, confrelid) LIMIT 1"
        return connection.execute(query, (target,)).fetchone() is not None

    def _check_precision(self, connection: psycopg.Connection[Any], schema: pa.Schema) -> None:
        found = connection.execute(
            "SELECT column_name, data_type, numeric_precision, numeric_scale, datetime_precision "
            "FROM information_schema.columns WHERE table_schema = %s AND table_name = %s",
            (self.names[0], self.names[-1]),
        ).fetchall()
        for name, *values in found:
            if name not in schema.names or name not in self.columns:
                continue
            column, kind = Column(*values), schema.field(name).type
            if is_coarser(column, kind, is_cast=self.options.mode == "upsert"):
                raise SinkRefused(
                    f"table {self.table} would round the column {name}: it is {column.data_type} there, and needs "
                    f"the precision of {self.column_type(kind)}"
                )

    def lasts(self, error: Exception) -> bool:
        """See `SqlSink.lasts`. A refused connection has no code: the texts are those of an English server."""
        if isinstance(error, psycopg.ProgrammingError | psycopg.NotSupportedError):
            return True
        text = str(error)
        return isinstance(error, psycopg.OperationalError) and any(part in text for part in _LASTING)

    def begin_preparing(self, connection: psycopg.Connection[Any]) -> None:
        """See `SqlSink.begin_preparing`."""
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        spelled = tuple(self.table.split("."))
        self._names = self._with_schema(connection, spelled)
        self._deleted_names = self._with_schema(connection, (*spelled[:-1], f"{spelled[-1]}_deleted"))

    def _with_schema(self, connection: psycopg.Connection[Any], names: Sequence[str]) -> tuple[str, ...]:
        """Where PostgreSQL finds the table now, or would create it: a schema that is added later changes nothing."""
        for name in names:
            self.quoted(name)
        if len(names) > 1:
            return tuple(names)
        schema = schema_of(connection, names[0])
        return (*names,) if schema is None else (schema, *names)

    def find_own(
        self, connection: psycopg.Connection[Any], table: str, column: str, values: Sequence[str]
    ) -> str | None:
        """See `SqlSink.find_own`. It may be in any schema of the search path, to which others may have been added."""
        found = [(schema, table) for schema in schemas_with(connection, table)]
        if len(found) > 1:
            found = [each for each in found if has_any(connection, each, column, values)] or found
        return ".".join(map(self.quoted, found[0])) if found else None

    def quoted(self, name: str) -> str:
        """See `SqlTableSink.quoted`."""
        if "\0" in name or not name or len(name.encode()) > _NAME:
            raise SinkRefused(f"{name!r} cannot be a name in PostgreSQL: it has more than {_NAME} bytes, none, or NUL")
        return '"' + name.replace('"', '""') + '"'

    def column_type(self, kind: pa.DataType) -> str:
        """See `SqlTableSink.column_type`."""
        return column_type(kind)

    def there(self, connection: psycopg.Connection[Any], table: Sequence[str]) -> set[str]:
        """See `SqlTableSink.there`."""
        rows = connection.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
            (".".join(map(self.quoted, table)),),
        ).fetchall()
        return {name for (name,) in rows}

    def unique(self, connection: psycopg.Connection[Any], table: Sequence[str]) -> list[set[str]]:
        """See `SqlTableSink.unique`. A partial index, or one of expressions, does not count."""
        rows = connection.execute(
            "SELECT array_agg(attname::text) FROM pg_index JOIN pg_attribute ON attrelid = indrelid "
            "AND attnum = ANY (indkey::int2[]) WHERE indrelid = to_regclass(%s) AND indisunique AND indisvalid "
            "AND indpred IS NULL AND indexprs IS NULL GROUP BY indexrelid",
            (".".join(map(self.quoted, table)),),
        ).fetchall()
        return [{*names} for (names,) in rows]

    def create_stage(self, columns: str) -> str:
        """See `SqlTableSink.create_stage`. A pooler gives the connection to other sinks after the transaction."""
        return f"{super().create_stage(columns)} ON COMMIT DROP"

    def load(self, connection: psycopg.Connection[Any], table: str, rows: pa.Table) -> None:
        """See `SqlTableSink.load`."""
        names = sql.SQL(", ").join(map(sql.Identifier, rows.schema.names))
        target = sql.SQL(table)  # quoted before
        statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT CSV, ENCODING 'UTF8')").format(target, names)
        try:
            with connection.cursor() as cursor, cursor.copy(statement) as copy:
                copy.write(csv_of(rows))
        except psycopg.Error as error:
            if self.is_refusal(error):
                raise SinkRefused(f"table {self.table}: {_in_a_line(error)}") from error
            raise

    def settle(self, connection: psycopg.Connection[Any]) -> None:
        """See `SqlSink.settle`."""
        if not self._has_deferrable:
            return
        try:
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        except psycopg.Error as error:
            if self.is_refusal(error):
                raise SinkRefused(f"table {self.table}: {_in_a_line(error)}") from error
            raise

    def storable(self, connection: psycopg.Connection[Any], text: str) -> str:
        """See `SqlSink.storable`. In a database that is not in UTF-8, other characters than ASCII are JSON escapes."""
        if connection.info.parameter_status("server_encoding") == "UTF8":
            return text
        return "".join(each if each.isascii() else json.dumps(each)[1:-1] for each in text)

    def is_refusal(self, error: BaseException) -> bool:
        """See `SqlSink.is_refusal`."""
        return is_of_row(error) and not self.is_taken(error)

    def is_taken(self, error: BaseException) -> bool:
        """See `SqlSink.is_taken`."""
        if not isinstance(error, psycopg.errors.UniqueViolation):
            return False
        return error.diag.table_name in (POSITIONS, LIVES)


def _in_a_line(error: psycopg.Error) -> str:
    return " ".join(str(error).split())
