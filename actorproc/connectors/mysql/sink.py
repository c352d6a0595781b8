"""`MysqlSink`: committed rows in a table of a MySQL or MariaDB database."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.types as pt
import pymysql
from pydantic import Field

from actorproc.connectors.mysql.coarse import Column, is_coarser
from actorproc.connectors.mysql.errors import is_of_a_row, is_taken, lasts, text_of
from actorproc.connectors.mysql.session import Session
from actorproc.connectors.mysql.tables import check_engine, check_keys, information
from actorproc.errors import UsageError
from actorproc.rows.json_values import plain_rows, to_json
from actorproc.sinks.protocol import SinkError, SinkPlace, SinkRefused
from actorproc.sinks.sql import POSITIONS, SqlOptions
from actorproc.sinks.sql_refused import REFUSED
from actorproc.sinks.sql_table import SqlTableSink
from actorproc.sinks.sql_versions import LIVES

_NAME = 64
"""Characters of a name."""

_LOCK = "actorproc"
"""Of `open`: hosts that create a table or a column at once."""

_LOCK_TIMEOUT = 60
"""Seconds to wait for it: tables are created within one."""

_KEY_CHARACTERS = 700
"""Of all text columns of a key together: an index has 3,072 bytes, and a character up to 4."""

_READ_TIMEOUT = 600
"""Seconds for one answer: a connection that is cut off silently fails at last."""

_TYPES = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.binary(): "longblob",
    pa.date32(): "date",
}

_COLLATIONS = ("utf8mb4_nopad_bin", "utf8mb4_0900_bin")
"""Of MariaDB and of MySQL. They have none in common by which "a" and "a " are two keys."""


class MysqlOptions(SqlOptions):
    """Options of a MySQL sink."""

    password: str | None = Field(None, repr=False, description="Or `@FILE`. Default: none.")
    ca: str | None = Field(None, description="File of the authority that signs the server's certificate: use TLS.")
    create: bool = Field(True, description="Whether to create the table, and the columns that it lacks.")
    connect_timeout: int = Field(10, gt=0, le=3600, description="Seconds.")


class MysqlSink(SqlTableSink):
    """`mysql://USER@HOST:PORT/DATABASE`. Times are UTC; NaN and infinity, which MySQL does not have, are null."""

    option_model: ClassVar[type[SqlOptions]] = MysqlOptions
    options: MysqlOptions
    shared_lock = "LOCK IN SHARE MODE"
    exclusive_lock = "FOR UPDATE"

    def __init__(self, url: str, given: Mapping[str, Any], place: SinkPlace) -> None:
        super().__init__(url, given, place)
        self._address = urlsplit(url)
        if not self._address.hostname or not self._address.username or not self._address.path.strip("/"):
            raise UsageError(f"sink {place.name}: mysql://USER@HOST:PORT/DATABASE")
        self._collation = ""

    def connect(self) -> Session:
        """See `SqlSink.connect`."""
        address, options = self._address, self.options
        return Session(
            host=address.hostname, port=address.port or 3306, user=unquote(address.username or ""),
            password=options.password or "", database=unquote(address.path.strip("/")),
            connect_timeout=options.connect_timeout, read_timeout=_READ_TIMEOUT, write_timeout=_READ_TIMEOUT,
            ssl={"ca": options.ca} if options.ca else None,
        )  # fmt: skip

    def begin_preparing(self, connection: Session) -> None:
        """See `SqlSink.begin_preparing`."""
        cursor = connection.cursor()
        cursor.execute(
            "SELECT collation_name FROM information_schema.collations WHERE collation_name IN (%s, %s)", _COLLATIONS
        )
        known = {name for (name,) in cursor.fetchall()}
        if not known:
            raise SinkRefused("the server is too old: it needs to be MariaDB 10.2 or MySQL 8.0.17 at least")
        self._collation = next(name for name in _COLLATIONS if name in known)
        text = f"varchar(380) CHARACTER SET utf8mb4 COLLATE {self._collation}"
        self.position_types = {"text": text, "number": "bigint", "long": "longtext CHARACTER SET utf8mb4"}
        cursor.execute("SELECT GET_LOCK(%s, %s)", (_LOCK, _LOCK_TIMEOUT))
        if cursor.fetchone() != (1,):
            raise SinkError(f"another host prepares its tables: the lock {_LOCK} was not free within {_LOCK_TIMEOUT} s")

    def prepare(self, connection: Session, schema: pa.Schema) -> None:
        """See `SqlSink.prepare`."""
        try:
            super().prepare(connection, schema)
            for table in (self.names, self.deleted_names, (POSITIONS,), (LIVES,), (REFUSED,)):
                check_engine(connection, table)
            self._check_precision(connection, schema)
        except (pymysql.err.ProgrammingError, pymysql.err.NotSupportedError) as error:
            raise SinkRefused(f"table {self.table}: {text_of(error)}") from error
        connection.cursor().execute("SELECT RELEASE_LOCK(%s)", (_LOCK,))

    def _check_precision(self, connection: Session, schema: pa.Schema) -> None:
        what = "column_name, column_type, data_type, numeric_scale, datetime_precision"
        for name, declared, *values in information(connection, self.names, what, "columns t"):
            if name not in schema.names or name not in self.columns:
                continue
            kind = schema.field(name).type
            if is_coarser(Column(*values), kind):
                raise SinkRefused(
                    f"table {self.table} would round the column {name}: it is {declared} there, and needs the "
                    f"precision of {self.column_type(kind)}"
                )

    @property
    def names(self) -> tuple[str, ...]:
        """See `SqlTableSink.names`."""
        return tuple(self.table.split("."))

    @property
    def creates(self) -> bool:
        """See `SqlTableSink.creates`."""
        return self.options.create

    def quoted(self, name: str) -> str:
        """See `SqlTableSink.quoted`."""
        if "\0" in name or not name or len(name) > _NAME or name.endswith(" "):
            raise SinkRefused(
                f"{name!r} cannot be a name in MySQL: 1 to {_NAME} characters, no NUL, no space at the end"
            )
        return "`" + name.replace("`", "``") + "`"

    def column_type(self, kind: pa.DataType) -> str:
        """See `SqlTableSink.column_type`."""
        if pt.is_decimal(kind):
            return f"decimal({kind.precision}, {kind.scale})"
        if pt.is_timestamp(kind):
            return "datetime(6)"
        if pt.is_nested(kind):
            return "json"
        return _TYPES.get(kind, f"longtext CHARACTER SET utf8mb4 COLLATE {self._collation}")

    def key_type(self, kind: pa.DataType) -> str:
        """See `SqlTableSink.key_type`."""
        most = _KEY_CHARACTERS // len(self.options.key)
        if pt.is_binary(kind):
            return f"varbinary({most})"
        if pt.is_string(kind):
            return f"varchar({most}) CHARACTER SET utf8mb4 COLLATE {self._collation}"
        return self.column_type(kind)

    def there(self, connection: Session, table: Sequence[str]) -> set[str]:
        """See `SqlTableSink.there`."""
        return {name for (name,) in information(connection, table, "column_name", "columns t")}

    def unique(self, connection: Session, table: Sequence[str]) -> list[set[str]]:
        """See `SqlTableSink.unique`. An index of a prefix does not count."""
        return [*self._unique(connection, table).values()]

    def _unique(self, connection: Session, table: Sequence[str]) -> dict[str, set[str]]:
        """The columns of unique indexes by name. A prefix or an expression is no column: ""."""
        found: dict[str, set[str]] = {}
        what = "index_name, IF(sub_part IS NULL, COALESCE(column_name, ''), '')"
        for index, column in information(connection, table, what, "statistics t", "non_unique = 0"):
            found.setdefault(index, set()).add(column)
        return found

    def _check_unique(self, connection: Session, names: Sequence[str]) -> None:
        """Also refuse what lets a row replace those of other keys: a loose collation, another unique index."""
        super()._check_unique(connection, names)
        check_keys(connection, names, self.options.key, self._collation)
        key = {*self.options.key}
        if others := sorted(name for name, columns in self._unique(connection, names).items() if not key <= columns):
            raise SinkRefused(
                f"table {'.'.join(names)} has the unique index {others[0]}, and rows would replace rows of other keys "
                "by it: drop it, or make it an index that is not unique"
            )

    def create_index(self, connection: Session, table: str) -> None:
        """See `SqlTableSink.create_index`. Of text an index takes the begin."""
        connection.cursor().execute(f"CREATE INDEX actorproc_by_sequence ON {table} (_partition(100), _sequence)")

    def load(self, connection: Session, table: str, rows: pa.Table) -> None:
        """See `SqlTableSink.load`. PyMySQL joins the rows to statements of many."""
        names = ", ".join(map(self.quoted, rows.schema.names)).replace("%", "%%")
        statement = f"INSERT INTO {table.replace('%', '%%')} ({names}) VALUES ({', '.join(['%s'] * rows.num_columns)})"
        try:
            for batch in rows.to_batches():
                values = [tuple(map(_value, row.values())) for row in plain_rows(batch)]
                connection.cursor().executemany(statement, values)
        except pymysql.err.MySQLError as error:
            if not is_of_a_row(error):
                raise
            raise SinkRefused(f"table {self.table}: {text_of(error)}") from error

    def delete(self, table: str, condition: str) -> str:
        """See `SqlTableSink.delete`: with EXISTS, MariaDB would read the whole table."""
        return f"DELETE {table} FROM {table} JOIN actorproc_rows ON {condition}"

    def merge(self, table: str, columns: Sequence[str], condition: str) -> str:
        """See `SqlTableSink.merge`. The version changes last, since each assignment sees those before it."""
        version = self.quoted("_version")
        is_newer = f"VALUES({version}) >= {table}.{version}"
        ordered = [*(name for name in columns if name != "_version"), "_version"]
        changed = ", ".join(f"{q} = IF({is_newer}, VALUES({q}), {table}.{q})" for q in map(self.quoted, ordered))
        names = ", ".join(map(self.quoted, columns))
        return (
            f"INSERT INTO {table} ({names}) SELECT {names} FROM actorproc_rows WHERE {condition} "
            f"ORDER BY {', '.join(map(self.quoted, self.options.key))} ON DUPLICATE KEY UPDATE {changed}"
        )

    def storable(self, connection: Session, text: str) -> str:
        """See `SqlSink.storable`. JSON that the server would not take in a statement is `null`: the reason says so."""
        return text if connection.takes(text) else "null"

    def lasts(self, error: Exception) -> bool:
        """See `SqlSink.lasts`."""
        return lasts(error)

    def is_refusal(self, error: BaseException) -> bool:
        """See `SqlTableSink.is_refusal`."""
        return is_of_a_row(error)

    def is_taken(self, error: BaseException) -> bool:
        """See `SqlSink.is_taken`."""
        return is_taken(error)


def _value(value: Any) -> Any:
    if isinstance(value, dict | list):
        return to_json(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
