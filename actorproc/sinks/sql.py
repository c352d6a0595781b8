"""`SqlSink`: the base of sinks in SQL databases. Rows and position are one transaction there.

A sink of your own says how to connect, and how to add rows:

    class MySink(SqlSink):
        def connect(self) -> Any:
            return driver.connect(...)              # DB-API 2.0, without autocommit

        def apply(self, connection: Any, rows: pa.Table) -> None:
            connection.cursor().executemany("INSERT INTO ...", ...)
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, ClassVar, TypeVar

import anyio
import pyarrow as pa
from msgspec.structs import astuple
from pydantic import Field

from actorproc.config.options import parse_options
from actorproc.records import SEQUENCE
from actorproc.sinks import sql_refused, sql_versions
from actorproc.sinks.keyed_rows import commit_numbers, last_of_keys
from actorproc.sinks.options import SinkOptions
from actorproc.sinks.protocol import (
    Ability,
    Delivery,
    Guarantee,
    Sink,
    SinkError,
    SinkMoved,
    SinkPlace,
    SinkRefused,
    SinkRow,
)

T = TypeVar("T")

POSITIONS = "actorproc_sink_positions"
"""Table of the sink's rows: one for each sink and partition."""

PARTITION = pa.field("_partition", pa.string())
"""Column that tells from which partition a row comes: `_sequence` is unique within it."""

_COLUMNS = ("home", "life", "term", "fence", "position", "put_id")


class SqlOptions(SinkOptions):
    """Options of a sink in a SQL database."""

    table: str | None = Field(None, description="Table of the rows. Default: the processor's name.")
    connections: int = Field(4, gt=0, le=1000, description="Connections of a host: partitions that deliver at once.")


class SqlSink(Sink):
    """A table of a SQL database, to which rows are appended. Calls of the driver run in threads."""

    guarantee = Guarantee.EXACTLY_ONCE
    can: ClassVar[frozenset[Ability]] = frozenset({"keep"})
    option_model: ClassVar[type[SqlOptions]] = SqlOptions
    placeholder: ClassVar[str] = "%s"
    """Of a parameter, as the driver spells it."""
    position_types: Mapping[str, str] = {"text": "text", "number": "bigint"}

    def __init__(self, url: str, given: Mapping[str, Any], place: SinkPlace) -> None:
        self.options: SqlOptions = parse_options(url, self.option_model, given, of="sink")
        self.url = url
        self.place = place
        self.table = self.options.table or place.processor
        self.columns: tuple[str, ...] = ()
        """Of the rows, with `_sequence` and `_partition`, once the sink is open."""
        self._key = f"{place.processor}/{place.name}"
        self._own: dict[str, str] = {}
        self._free: list[Any] = []  # connections
        self._limit = anyio.CapacityLimiter(self.options.connections)

    @property
    def registered_as(self) -> str:
        """See `SinkTarget.registered_as`."""
        return f"{self.url} table {self.table}"

    # For a sink of one's own

    @abstractmethod
    def connect(self) -> Any:
        """A new DB-API connection without autocommit."""

    @abstractmethod
    def apply(self, connection: Any, rows: pa.Table) -> None:
        """Add the rows within the transaction of the connection. Do not commit.

        Raises:
            SinkRefused: rows do not fit.
        """

    def check_target(self, connection: Any) -> None:
        """Called before and after each transaction. Raises SinkError: nobody finds the target of this connection any
        more. By default never."""

    def begin_preparing(self, connection: Any) -> None:
        """Called first in `open`: hosts that create tables at once may have to wait for each other."""

    @property
    def creates(self) -> bool:
        """Whether tables and columns are created."""
        return True

    def find_own(self, connection: Any, table: str, column: str, values: Sequence[str]) -> str | None:
        """The SQL name of a table of the sink's own, such as that of positions, if it is there. By default None: it is
        created if it is missing.

        Args:
            column: where two tables could be meant, it is the one that has one of these values there.
        """
        return None

    @property
    def counted_as(self) -> tuple[str, ...]:
        """Names under which the lives of the target are counted: the name for new ones, then others that may be
        stored."""
        return (self.table,)

    def prepare(self, connection: Any, schema: pa.Schema) -> None:
        """Create or check the table of the rows, and add the columns that it lacks. By default nothing."""

    def stamped(self, connection: Any, delivery: Delivery, rows: pa.Table) -> pa.Table:
        """The rows with the columns that the modes of the sink need."""
        return rows

    def upsert(self, connection: Any, rows: pa.Table) -> None:
        """Of a sink that can `upsert`: bring rows with different keys in, where a key has no later version.

        Raises:
            SinkRefused: rows do not fit.
        """
        raise NotImplementedError

    def clear(self, connection: Any, delivery: Delivery) -> None:
        """Of a sink that can `replace`: delete the rows of home and partition after `replace_after`."""
        raise NotImplementedError

    def settle(self, connection: Any) -> None:
        """Called after each attempt to put rows of which the refused ones are kept: check what else the commit would.

        Raises:
            SinkRefused: rows do not fit.
        """

    def storable(self, connection: Any, text: str) -> str:
        """JSON, or the reason of a refusal, without characters that the database does not have. By default it has all
        of them."""
        return text

    # The contract

    async def open(self, schema: pa.Schema) -> None:
        """See `Sink.open`."""
        schema = schema.append(PARTITION)
        self.columns = tuple(schema.names)
        await self._in_transaction(lambda connection: self._prepare_all(connection, schema))

    def _prepare_all(self, connection: Any, schema: pa.Schema) -> None:
        with self._lasting():
            self._provide_all(connection, schema)

    def _provide_all(self, connection: Any, schema: pa.Schema) -> None:
        self.begin_preparing(connection)
        types = self.position_types
        text, number = types["text"], types["number"]
        columns = (
            f"sink {text} NOT NULL, part {text} NOT NULL, home {text} NOT NULL, life {number} NOT NULL, "
            f"term {text} NOT NULL, fence {number} NOT NULL, position {number} NOT NULL, put_id {text} NOT NULL, "
            "PRIMARY KEY (sink, part)"
        )
        self._provide_own(connection, POSITIONS, columns, "sink", (self._key,))
        if self.options.on_refused == "keep":
            self._provide_own(connection, sql_refused.REFUSED, sql_refused.columns(types), "sink", (self._key,))
        if self.options.mode == "upsert":
            self._provide_own(connection, sql_versions.LIVES, sql_versions.columns(types), "target", self.counted_as)
        self.prepare(connection, schema)

    def _provide_own(self, connection: Any, table: str, columns: str, known_by: str, values: Sequence[str]) -> None:
        """Find the table, or create it. One that is there needs no right to create tables."""
        found = self.find_own(connection, table, known_by, values)
        if found is None:
            if not self.creates:
                raise SinkRefused(
                    f"a table of the sink is missing: CREATE TABLE {table} ({columns}), or set create = true"
                )
            connection.cursor().execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")
            found = self.find_own(connection, table, known_by, values) or table
        self._own[table] = found.replace("%", "%%") if "%" in self.placeholder else found

    def own(self, table: str) -> str:
        """The name of a table of the sink's own in a statement with parameters."""
        return self._own.get(table, table)

    async def check(self, schema: pa.Schema) -> None:
        """See `Sink.check`: a delivery without rows into the prepared tables, which is rolled back."""
        schema = schema.append(PARTITION)
        self.columns = tuple(schema.names)

        def work(connection: Any) -> None:
            self._prepare_all(connection, schema)
            none = Delivery("", schema.empty_table(), 0, (), None, SinkRow("", 0, "", 0, 0))
            self._move(connection.cursor(), none)
            if self.options.mode == "append":
                self.apply(connection, self.stamped(connection, none, none.rows))

        await self._in_thread(self._run, work, True)

    async def read(self, partition: str) -> SinkRow | None:
        """See `Sink.read`."""

        def read(connection: Any) -> SinkRow | None:
            cursor, mark = connection.cursor(), self.placeholder
            cursor.execute(  # names of ours only
                f"SELECT {', '.join(_COLUMNS)} FROM {self.own(POSITIONS)} WHERE sink = {mark} AND part = {mark}",
                (self._key, partition),
            )
            found = cursor.fetchone()
            return None if found is None else SinkRow(*found)

        found: SinkRow | None = await self._in_transaction(read)
        return found

    async def write(self, delivery: Delivery) -> None:
        """See `Sink.write`. The position comes first: its lock makes a second owner wait, and then find it moved."""

        def write(connection: Any) -> None:
            self._move(connection.cursor(), delivery)
            self._change(connection, delivery)

        try:
            await self._in_transaction(write)
        except SinkRefused as refused:
            if "keep" not in self.can or self.options.on_refused == "keep":
                raise
            raise SinkRefused(f"{await self._refused_record(delivery)}{refused}") from refused.__cause__

    async def _refused_record(self, delivery: Delivery) -> str:
        """The beginning of the message about a refused row: its record. It is looked for without leaving rows."""

        def look(connection: Any) -> pa.Table | None:
            self._move(connection.cursor(), delivery)
            put, rows = partial(self._put_settled, connection), self._rows(connection, delivery)
            return sql_refused.first_refused(connection.cursor(), rows, put)

        found = None
        with suppress(Exception):  # whatever a database raises: the refusal is told without it
            found = await self._in_thread(self._run, look, True)
        if found is None:
            return ""
        return f"the row of record {found[SEQUENCE.name][0]} of partition {delivery.partition}: "

    def _rows(self, connection: Any, delivery: Delivery) -> pa.Table:
        origin = pa.repeat(pa.scalar(delivery.partition, pa.string()), delivery.rows.num_rows)
        return self.stamped(connection, delivery, delivery.rows.append_column(PARTITION, origin))

    def _change(self, connection: Any, delivery: Delivery) -> None:
        options = self.options
        if options.on_refused == "keep":
            self._refused(connection.cursor()).forget(delivery)
        if delivery.replace_after is not None:
            self.clear(connection, delivery)
        if delivery.rows.num_rows:
            rows = self._rows(connection, delivery)
            if options.on_refused == "keep":
                self._put_or_keep(connection, delivery, rows)
            else:
                self._put(connection, rows)

    def _put(self, connection: Any, rows: pa.Table) -> None:
        if self.options.mode == "upsert":
            self.upsert(connection, last_of_keys(rows, self.options.key))
        else:
            self.apply(connection, rows)

    def _put_settled(self, connection: Any, rows: pa.Table) -> None:
        self._put(connection, rows)
        self.settle(connection)

    def _put_or_keep(self, connection: Any, delivery: Delivery, rows: pa.Table) -> None:
        """Each commit by itself, unless all is taken: what is refused must not depend on how commits are joined."""
        cursor = connection.cursor()

        def put(part: pa.Table) -> None:
            self._put_settled(connection, part.drop_columns([sql_refused.NUMBER]))

        rows = rows.append_column(sql_refused.NUMBER, commit_numbers(delivery))
        if self.options.mode == "upsert":
            is_whole = sql_refused.takes(cursor, rows, put)
            refused = (
                []
                if is_whole
                else [
                    each
                    for commit in _split(rows, delivery.counts)
                    for each in sql_refused.put_or_refuse(cursor, last_of_keys(commit, self.options.key), put)
                ]
            )
        else:
            refused = sql_refused.put_or_refuse(cursor, rows, put)
        self._refused(cursor).keep(delivery, refused, lambda text: self.storable(connection, text))

    def _refused(self, cursor: Any) -> sql_refused.RefusedRows:
        return sql_refused.RefusedRows(cursor, self.placeholder, self.own(sql_refused.REFUSED), self._key)

    def _move(self, cursor: Any, delivery: Delivery) -> None:
        mark, was, now, positions = self.placeholder, delivery.was, delivery.now, self.own(POSITIONS)
        after = astuple(now)
        where = (self._key, delivery.partition)
        if was is None:
            marks = ", ".join([mark] * (2 + len(_COLUMNS)))
            cursor.execute(
                f"INSERT INTO {positions} (sink, part, {', '.join(_COLUMNS)}) SELECT {marks} "
                f"WHERE NOT EXISTS (SELECT 1 FROM {positions} WHERE sink = {mark} AND part = {mark})",
                (*where, *after, *where),
            )
        else:
            cursor.execute(
                f"UPDATE {positions} SET {', '.join(f'{name} = {mark}' for name in _COLUMNS)} "
                f"WHERE sink = {mark} AND part = {mark} AND {' AND '.join(f'{name} = {mark}' for name in _COLUMNS)}",
                (*after, *where, *astuple(was)),
            )
        if cursor.rowcount != 1:
            raise SinkMoved(f"sink {self._key}, partition {delivery.partition}: its row is not {was}")

    async def close(self) -> None:
        """See `Sink.close`."""
        await self._in_thread(self._close_all)

    async def _in_transaction(self, work: Callable[[Any], T]) -> T:
        """Run `work` in a thread, and commit."""
        return await self._in_thread(self._run, work)

    async def _in_thread(self, work: Callable[..., T], *args: object) -> T:
        """Run `work` in a thread of this sink: a database that does not answer takes none from others.

        A caller that is cancelled does not wait. A transaction that lands later has moved the row.
        """
        return await self.place.clock.run_in_thread(work, *args, limiter=self._limit, abandon=True)

    def _run(self, work: Callable[[Any], T], roll_back: bool = False) -> T:
        if self._free:
            connection = self._free.pop()
        else:
            with self._lasting():
                connection = self.connect()
        try:
            self.check_target(connection)
            result = work(connection)
            connection.rollback() if roll_back else connection.commit()
            self.check_target(connection)
        except BaseException as error:
            with suppress(Exception):
                connection.rollback()
            self._close_all(connection)  # the server may have gone, and with it all connections
            if self.is_taken(error):
                raise SinkMoved(str(error)) from error
            if self.is_refusal(error):  # at the commit
                raise SinkRefused(" ".join(str(error).split())) from error
            raise
        self._free.append(connection)
        return result

    def _close_all(self, *others: Any) -> None:
        free, self._free = self._free, []
        for connection in (*free, *others):
            with suppress(Exception):
                connection.close()

    @contextmanager
    def _lasting(self) -> Iterator[None]:
        """Raise SinkRefused where a new try would fail, too."""
        try:
            yield
        except SinkError:
            raise
        except Exception as error:
            if not self.lasts(error):
                raise
            raise SinkRefused(" ".join(str(error).split())) from error

    def lasts(self, error: Exception) -> bool:
        """Whether an error of the driver, while it connects or prepares tables, lasts until somebody mends its cause:
        a wrong name or password, a missing right. By default never: it is tried again."""
        return False

    def is_refusal(self, error: BaseException) -> bool:
        """Whether the driver's error says that a row does not fit. By default never."""
        return False

    def is_taken(self, error: BaseException) -> bool:
        """Whether the driver's error says that another transaction has inserted the sink's row. By default never."""
        return False


def _split(rows: pa.Table, counts: Sequence[int]) -> Iterator[pa.Table]:
    first = 0
    for count in counts:
        yield rows.slice(first, count)
        first += count
