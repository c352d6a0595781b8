"""`SqlTableSink`: the base of SQL sinks that write a table themselves, in every mode.

With `mode = upsert` rows go into a temporary table, and from there into the target, where a key has no later version.
Deleted keys are in a second table, `TABLE_deleted`, with their versions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from actorproc.sinks import sql_versions
from actorproc.sinks.keyed_rows import deletes
from actorproc.sinks.protocol import Ability, Delivery, SinkPlace, SinkRefused
from actorproc.sinks.sql import PARTITION, SqlSink
from actorproc.sinks.sql_versions import VERSION

HOME = pa.field("_home", pa.string())
"""Column of the container and processor, with `on_reset = replace`: rows of others are not deleted."""

_DELETED = "_deleted"


class SqlTableSink(SqlSink):
    """A table of a SQL database. A subclass knows its names and types, and how to add many rows quickly."""

    can: ClassVar[frozenset[Ability]] = frozenset({"upsert", "replace", "keep"})
    shared_lock: ClassVar[str] = ""
    """Appended to a query, it locks the row against `exclusive_lock`. "": transactions that write wait anyway."""
    exclusive_lock: ClassVar[str] = ""
    stage: ClassVar[str] = "actorproc_rows"
    """The temporary table of `mode = upsert`."""

    def __init__(self, url: str, given: Mapping[str, Any], place: SinkPlace) -> None:
        super().__init__(url, given, place)
        self._stage_schema = pa.schema([])

    # For a subclass

    @abstractmethod
    def quoted(self, name: str) -> str:
        """A name as SQL. Raises SinkRefused: it cannot be one."""

    @abstractmethod
    def column_type(self, kind: pa.DataType) -> str:
        """The type of a column of this Arrow type."""

    def key_type(self, kind: pa.DataType) -> str:
        """The same of a column of the key."""
        return self.column_type(kind)

    @abstractmethod
    def there(self, connection: Any, table: Sequence[str]) -> set[str]:
        """Names of the columns that a table has. Empty: it does not exist."""

    @abstractmethod
    def unique(self, connection: Any, table: Sequence[str]) -> list[set[str]]:
        """The columns of each unique index of a table."""

    @abstractmethod
    def load(self, connection: Any, table: str, rows: pa.Table) -> None:
        """Add rows to a table, of which the quoted name is given.

        Raises:
            SinkRefused: rows do not fit.
        """

    def create_stage(self, columns: str) -> str:
        """The statement that creates the temporary table, if the connection has none."""
        return f"CREATE TEMPORARY TABLE IF NOT EXISTS {self.stage} ({columns})"

    # Preparing

    @property
    def names(self) -> tuple[str, ...]:
        """The name of the table, in its parts."""
        return (self.table,)

    @property
    def _target(self) -> str:
        return ".".join(map(self.quoted, self.names))

    @property
    def deleted_names(self) -> tuple[str, ...]:
        """The name of the table of deleted keys, in its parts."""
        return (*self.names[:-1], f"{self.names[-1]}_deleted")

    @property
    def _tombs(self) -> str:
        return ".".join(map(self.quoted, self.deleted_names))

    @property
    def counted_as(self) -> tuple[str, ...]:
        """See `SqlSink.counted_as`."""
        return (".".join(self.names),)

    def find_own(self, connection: Any, table: str, column: str, values: Sequence[str]) -> str | None:
        """See `SqlSink.find_own`."""
        return self.quoted(table) if self.there(connection, (table,)) else None

    def prepare(self, connection: Any, schema: pa.Schema) -> None:
        """See `SqlSink.prepare`."""
        options = self.options
        if options.deleted is not None:
            schema = schema.remove(schema.get_field_index(options.deleted))
        if options.on_reset == "replace":
            schema = schema.append(HOME)
        if options.mode == "upsert":
            version = pa.field(VERSION, pa.int64())
            self._stage_schema = schema.append(version).append(pa.field(_DELETED, pa.bool_()))
            schema = schema.append(version)
        if len(schema.names) > len({*schema.names}):
            raise SinkRefused(f"the output must not have a column {schema.names[-1]}: the sink has one of this name")
        self.columns = tuple(schema.names)
        self._provide(connection, self.names, schema, options.key)
        if options.mode == "upsert":
            self._check_unique(connection, self.names)
        if options.deleted is not None:
            keys = pa.schema([*(schema.field(name) for name in options.key), schema.field(VERSION)])
            other = self.there(connection, self.deleted_names) - set(keys.names)
            if other:
                raise SinkRefused(
                    f"table {'.'.join(self.deleted_names)} is for deleted keys, and there is another one of this name"
                )
            self._provide(connection, self.deleted_names, keys, options.key)
            self._check_unique(connection, self.deleted_names)

    def _provide(self, connection: Any, names: Sequence[str], schema: pa.Schema, key: Sequence[str]) -> None:
        """Create the table, or the columns that it lacks."""
        there, table = self.there(connection, names), ".".join(map(self.quoted, names))
        if VERSION in there and VERSION not in schema.names:
            raise SinkRefused(
                f"table {'.'.join(names)} keeps the newest row of each key, by its column {VERSION}: this sink needs "
                "mode = upsert, or another table"
            )
        missing = [field for field in schema if field.name not in there]
        if missing and not self.creates:
            raise SinkRefused(
                f"table {'.'.join(names)} lacks the columns {', '.join(field.name for field in missing)}: add them, "
                "or set create = true"
            )
        cursor = connection.cursor()
        if not there:
            columns = [self._declared(field, key) for field in schema]
            if key:
                columns.append(f"PRIMARY KEY ({self._joined(key)})")
            cursor.execute(f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(columns)})")
            if HOME.name in schema.names:
                self.create_index(connection, table)
            return
        for field in missing:
            cursor.execute(f"ALTER TABLE {table} ADD COLUMN {self._declared(field, key)}")

    def create_index(self, connection: Any, table: str) -> None:
        """So that what a reset replaces is found without reading the table."""
        columns = f"{self.quoted(PARTITION.name)}, {self.quoted('_sequence')}"
        name = self.quoted(f"{self.names[-1]}_by_sequence")
        connection.cursor().execute(f"CREATE INDEX IF NOT EXISTS {name} ON {table} ({columns})")

    def _declared(self, field: pa.Field, key: Collection[str]) -> str:
        if field.name in key:
            return f"{self.quoted(field.name)} {self.key_type(field.type)} NOT NULL"
        constraint = " NOT NULL DEFAULT 0" if field.name == VERSION else ""
        return f"{self.quoted(field.name)} {self.column_type(field.type)}{constraint}"

    def _check_unique(self, connection: Any, names: Sequence[str]) -> None:
        if {*self.options.key} not in self.unique(connection, names):
            raise SinkRefused(
                f"table {'.'.join(names)} needs a primary key, or a unique index, of exactly the columns "
                f"{', '.join(self.options.key)}"
            )

    # Writing

    def apply(self, connection: Any, rows: pa.Table) -> None:
        """See `SqlSink.apply`."""
        self.load(connection, self._target, rows.select(self.columns))

    def stamped(self, connection: Any, delivery: Delivery, rows: pa.Table) -> pa.Table:
        """See `SqlSink.stamped`."""
        options = self.options
        if options.on_reset == "replace":
            rows = rows.append_column(HOME, pa.repeat(pa.scalar(self._origin(delivery), pa.string()), rows.num_rows))
        if options.mode == "append":
            return rows
        gone, lock = deletes(rows, options.deleted), ""
        if options.deleted is not None:  # a deletion and an older row of its key must see each other
            lock = self.exclusive_lock if pc.any(gone).as_py() else self.shared_lock
        lives = self.own(sql_versions.LIVES)
        life = sql_versions.life_of(
            connection.cursor(), self.placeholder, lives, self.counted_as, delivery.registration, lock
        )
        return rows.append_column(VERSION, sql_versions.versions(delivery, life)).append_column(_DELETED, gone)

    def clear(self, connection: Any, delivery: Delivery) -> None:
        """See `SqlSink.clear`."""
        mark, names = self.placeholder, map(self.quoted, (HOME.name, PARTITION.name, "_sequence"))
        home, partition, sequence = names
        target = self._target.replace("%", "%%") if "%" in mark else self._target  # a name may have a percent sign
        connection.cursor().execute(
            f"DELETE FROM {target} WHERE {home} = {mark} AND {partition} = {mark} AND {sequence} > {mark}",
            (self._origin(delivery), delivery.partition, delivery.replace_after),
        )

    def _origin(self, delivery: Delivery) -> str:
        """Of a row in `_home`: two sinks of a processor may have one table."""
        return f"{delivery.now.home}#{self.place.name}"

    def upsert(self, connection: Any, rows: pa.Table) -> None:
        """See `SqlSink.upsert`."""
        cursor, key = connection.cursor(), self.options.key
        if null := [name for name in key if rows[name].null_count]:  # some databases would make up a key
            raise SinkRefused(f"{null[0]} is null, and it is part of the key")
        columns = ", ".join(
            f"{self.quoted(f.name)} {self.key_type(f.type) if f.name in key else self.column_type(f.type)}"
            for f in self._stage_schema
        )
        cursor.execute(self.create_stage(columns))
        cursor.execute(f"DELETE FROM {self.stage}")
        self.load(connection, self.stage, rows.select(self._stage_schema.names))
        try:
            for statement in self._merges(any_deleted=bool(pc.any(rows[_DELETED]).as_py())):
                cursor.execute(statement)
        except Exception as error:
            if self.is_refusal(error):
                raise SinkRefused(f"table {self.table}: {error}") from error
            raise

    def _merges(self, *, any_deleted: bool) -> list[str]:
        """Deletions first, then rows: each key is there once."""
        version, stage = self.quoted(VERSION), self.stage
        if self.options.deleted is None:
            return [self.merge(self._target, self.columns, "1 = 1")]
        gone, tombs, target = f"{stage}.{self.quoted(_DELETED)}", self._tombs, self._target
        same_tomb, same_row = self._same(tombs), self._same(target)
        later = f"EXISTS (SELECT 1 FROM {tombs} WHERE {same_tomb} AND {tombs}.{version} > {stage}.{version})"
        older = f"{{}}.{version} <= {stage}.{version}"
        deletions = [
            self.delete(target, f"{gone} AND {same_row} AND {older.format(target)}"),
            self.merge(tombs, (*self.options.key, VERSION), gone),
        ]
        return [
            *(deletions if any_deleted else ()),
            self.merge(target, self.columns, f"NOT {gone} AND NOT {later}"),
            self.delete(tombs, f"NOT {gone} AND {same_tomb} AND {older.format(tombs)}"),
        ]

    def delete(self, table: str, condition: str) -> str:
        """The statement that deletes the rows of a table for which a row of the stage fulfils the condition."""
        return f"DELETE FROM {table} WHERE EXISTS (SELECT 1 FROM {self.stage} WHERE {condition})"

    def merge(self, table: str, columns: Sequence[str], condition: str) -> str:
        """The statement that brings rows of the stage into a table, where that has no later version."""
        key, version = self.options.key, self.quoted(VERSION)
        changed = ", ".join(f"{q} = excluded.{q}" for q in map(self.quoted, columns))
        return (  # in the order of keys: transactions that lock them in another one would wait for each other
            f"INSERT INTO {table} ({self._joined(columns)}) SELECT {self._joined(columns)} FROM {self.stage} "
            f"WHERE {condition} ORDER BY {self._joined(key)} ON CONFLICT ({self._joined(key)}) "
            f"DO UPDATE SET {changed} WHERE {table}.{version} <= excluded.{version}"
        )

    def _same(self, table: str) -> str:
        return " AND ".join(f"{table}.{q} = {self.stage}.{q}" for q in map(self.quoted, self.options.key))

    def _joined(self, names: Sequence[str]) -> str:
        return ", ".join(map(self.quoted, names))
