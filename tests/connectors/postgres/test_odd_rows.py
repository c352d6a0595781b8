"""Odd tables, names and values that users of other sinks have reported."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import anyio
import pyarrow as pa
import pytest

from actorproc.connectors.postgres import PostgresSink
from actorproc.sinks.protocol import Delivery, SinkMoved, SinkRefused, SinkRow
from tests.connectors.postgres.one_partition import Target as OnePartition
from tests.connectors.postgres.one_partition import query as answer
from tests.connectors.postgres.server import Postgres

pytestmark = pytest.mark.servers

UPSERT = {"mode": "upsert", "key": ("k",)}


async def query(server: Postgres, text: Any) -> list[tuple[Any, ...]]:
    return await answer(server.url, text)


class Target(OnePartition):
    def __init__(self, server: Postgres, table: str, **options: Any) -> None:
        super().__init__(server.url, table, **options)


async def test_names_keep_their_case_and_may_be_words_of_sql(server: Postgres) -> None:
    target = Target(server, "Order", mode="upsert", key=("select", "User"))
    await target.write({"select": 1, "User": "a", "group": 2, 'q"uote': "x", "UPPER": 1, "upper": 2})
    await target.write({"select": 1, "User": "a", "group": 3, 'q"uote': "y", "UPPER": 3, "upper": 4})
    assert await query(server, 'SELECT "group", "q""uote", "UPPER", upper FROM "Order"') == [(3, "y", 3, 4)]
    await target.sink.close()


async def test_a_table_in_another_schema_with_another_column_order(server: Postgres) -> None:
    await query(server, "CREATE SCHEMA Sales")
    await query(server, "CREATE TABLE sales.orders (total bigint, extra text DEFAULT 'x', k bigint PRIMARY KEY)")
    target = Target(server, "sales.orders", **UPSERT)
    await target.write({"k": 1, "total": 10}, {"k": 2, "total": 20}, {"k": 1, "total": 11})
    assert await query(server, "SELECT k, total, extra FROM sales.orders ORDER BY k") == [(1, 11, "x"), (2, 20, "x")]
    await target.sink.close()


@pytest.mark.parametrize(
    ("create", "why"),
    [
        ("CREATE TABLE {} (k bigint, v bigint)", "needs a primary key, or a unique index, of exactly the columns k"),
        ("CREATE TABLE {} (k bigint, v bigint, UNIQUE (k, v))", "of exactly the columns k"),
        ("CREATE VIEW {} AS SELECT 1 AS k", "table odd_"),
        (
            "CREATE TABLE {} (k bigint PRIMARY KEY, v bigint); CREATE RULE r AS ON INSERT TO {} DO ALSO SELECT 1",
            "cannot be used with table that has INSERT or UPDATE rules",
        ),
        ("CREATE TABLE {} (k bigint PRIMARY KEY); ALTER TABLE {} OWNER TO other", "must be owner"),
    ],
)
async def test_a_table_that_cannot_take_keys_is_refused_at_the_start(
    server: Postgres, create: str, why: str, request: Any
) -> None:
    table = f"odd_{abs(hash(create)) % 10**6}"
    await query(server, "DO $$BEGIN CREATE ROLE other LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END$$")
    await query(server, "DO $$BEGIN CREATE ROLE me LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END$$")
    await query(server, "GRANT ALL ON SCHEMA public TO me")
    await query(server, create.replace("{}", table))
    target = Target(server, table, **UPSERT)
    if "OWNER" in create:
        target.sink.url = server.url.replace("postgres@", "me@")
        await query(server, "DROP TABLE IF EXISTS actorproc_sink_positions, actorproc_sink_lives")
    with pytest.raises(SinkRefused, match=why) as refused:
        await target.write({"k": 1, "v": 1})
    assert "\n" not in str(refused.value)
    await query(server, "DROP TABLE IF EXISTS actorproc_sink_positions, actorproc_sink_lives")  # of `me`


async def test_a_missing_schema_is_refused_at_the_start(server: Postgres) -> None:
    with pytest.raises(SinkRefused, match='schema "nowhere" does not exist'):
        await Target(server, "nowhere.orders").write({"k": 1})


@pytest.mark.parametrize("name", ["x" * 64, "", "a\0b"])
async def test_names_that_postgresql_would_change_are_refused(server: Postgres, name: str) -> None:
    with pytest.raises(SinkRefused, match="cannot be a name in PostgreSQL"):
        await Target(server, "names").write({name: 1})


async def test_refused_rows_are_kept_with_their_reason(server: Postgres) -> None:
    await query(
        server,
        "CREATE TABLE narrow (k bigint, word varchar(3), amount numeric(5, 2), day date CHECK (day > '2000-01-01'), "
        "_sequence bigint, _partition text)",
    )
    rows: list[dict[str, Any]] = [
        {"k": 1, "word": "abc", "amount": Decimal("1.50"), "day": date(2026, 1, 1)},
        {"k": 2, "word": "long", "amount": None, "day": None},
        {"k": 3, "word": "a\0b", "amount": None, "day": None},
        {"k": 4, "word": None, "amount": Decimal("1000.00"), "day": None},
        {"k": 5, "word": None, "amount": None, "day": date(1999, 1, 1)},
        {"k": 6, "word": "", "amount": Decimal("-999.99"), "day": None},
    ]
    target = Target(server, "narrow", on_refused="keep")
    await target.write(*rows)
    assert await query(server, "SELECT k, word FROM narrow ORDER BY k") == [(1, "abc"), (6, "")]
    columns = "part, number, sequence, reason, fields"
    kept = await query(
        server, f"SELECT {columns} FROM actorproc_sink_refused WHERE sink = 'narrow/pg' ORDER BY sequence"
    )
    assert [row[:3] for row in kept] == [("0", 0, 1), ("0", 0, 2), ("0", 0, 3), ("0", 0, 4)]
    reasons = ["value too long", "invalid byte sequence", "numeric field overflow", "violates check constraint"]
    assert all(reason in row[3] for reason, row in zip(reasons, kept, strict=True))
    assert [json.loads(row[4])["word"] for row in kept] == ["long", "a\0b", None, None]
    await target.sink.close()


async def test_keys_of_every_type_that_a_key_can_have(server: Postgres) -> None:
    moment = datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)
    key = {
        "flag": True, "large": -(2**63), "word": "ž'\\", "bytes": b"\x00\\", "day": date(1, 1, 1), "moment": moment,
        "money": Decimal("-0.01"),
    }  # fmt: skip
    target = Target(server, "typed_keys", mode="upsert", key=tuple(key))
    for number in range(3):
        await target.write({**key, "n": number}, {**key, "word": "", "n": -number})
    assert sorted(await query(server, "SELECT word, n FROM typed_keys")) == [("", -2), ("ž'\\", 2)]
    await target.sink.close()


async def test_a_changed_row_is_repaired_by_a_redelivery(server: Postgres) -> None:
    target = Target(server, "repaired", **UPSERT)
    await target.write({"k": 1, "v": "right"})
    await query(server, "UPDATE repaired SET v = 'wrong'")
    row = target.row
    target.row = SinkRow("home", 1, "term", 0, 0)
    with pytest.raises(SinkMoved):
        await target.write({"k": 1, "v": "right"})
    assert row is not None
    table = pa.table({"k": [1], "v": ["right"], "_sequence": [0]})
    again = SinkRow("home", 1, "another term", 0, 1)
    await target.sink.write(Delivery("0", table, 0, (1,), row, again, registration="one", begins=True))
    assert await query(server, "SELECT v FROM repaired") == [("right",)]
    await target.sink.close()


async def test_two_owners_upsert_the_same_keys_in_another_order(server: Postgres) -> None:
    schema = pa.schema([("k", pa.int64()), ("_sequence", pa.int64())])
    first = Target(server, "shared_keys", **UPSERT)  # counts the registration, at which two at once would collide
    await first.write({"k": 1})
    await first.sink.close()
    one, other = Target(server, "shared_keys", **UPSERT), Target(server, "shared_keys", **UPSERT)
    keys = list(range(5000))
    for sink in (one.sink, other.sink):
        await sink.open(schema)

    async def deliver(sink: PostgresSink, partition: str, given: list[int]) -> None:
        row = None
        for number in range(8):
            now = SinkRow("home", 1, "term", 0, number + 1)
            table = pa.table({"k": given, "_sequence": range(len(given))}, schema)
            await sink.write(Delivery(partition, table, number, (len(given),), row, now, registration="one"))
            row = now

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(deliver, one.sink, "a", keys)
        tasks.start_soon(deliver, other.sink, "b", keys[::-1])
    assert await query(server, "SELECT count(*), count(DISTINCT k) FROM shared_keys") == [(5000, 5000)]
    await one.sink.close()
    await other.sink.close()


@pytest.mark.parametrize("round_", range(5))
async def test_a_late_row_of_a_parent_never_brings_back_a_deleted_key(server: Postgres, round_: int) -> None:
    """The child deletes the keys while the parent, which is behind, adds them: at once, on two connections."""
    schema = pa.schema([("k", pa.int64()), ("gone", pa.bool_()), ("_sequence", pa.int64())])
    options: dict[str, Any] = {**UPSERT, "deleted": "gone"}
    table, count = f"deleted_{round_}", 2000
    parent, child = Target(server, table, **options).sink, Target(server, table, **options).sink
    for found in (parent, child):
        await found.open(schema)

    async def deliver(found: PostgresSink, partition: str, depth: int, *, gone: bool, after: float) -> None:
        rows = pa.table({"k": range(count), "gone": [gone] * count, "_sequence": range(count)}, schema)
        now = SinkRow("home", 1, "term", 0, 1)
        await anyio.sleep(after)
        await found.write(Delivery(partition, rows, 0, (count,), None, now, registration="one", depth=depth))

    await deliver(parent, "first", 0, gone=False, after=0)  # counts the registration
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: deliver(parent, "parent", 0, gone=False, after=round_ * 0.005))
        tasks.start_soon(lambda: deliver(child, "child", 1, gone=True, after=0.01))
    assert await query(server, f"SELECT count(*) FROM {table}") == [(0,)]
    assert await query(server, f"SELECT count(*) FROM {table}_deleted") == [(count,)]
    for found in (parent, child):
        await found.close()


COARSE = [
    (pa.float64(), "real"), (pa.float64(), "numeric(8, 1)"), (pa.float32(), "numeric(8, 1)"),
    (pa.decimal128(10, 3), "numeric(8, 1)"), (pa.decimal128(10, 3), "real"), (pa.decimal128(16, 3), "double precision"),
    (pa.int32(), "real"), (pa.int64(), "double precision"),
    (pa.timestamp("us", "UTC"), "timestamp(0) with time zone"), (pa.timestamp("us"), "timestamp(3)"),
    (pa.timestamp("us"), "date"), (pa.timestamp("us"), "time"), (pa.float64(), "coarse_domain"),
]  # fmt: skip

FINE = [
    (pa.float64(), "double precision"), (pa.float64(), "numeric"), (pa.float32(), "real"), (pa.float64(), "bigint"),
    (pa.decimal128(10, 3), "numeric(7, 3)"), (pa.decimal128(10, 3), "numeric"), (pa.decimal128(10, 3), "text"),
    (pa.decimal128(15, 3), "double precision"), (pa.int16(), "real"), (pa.int32(), "double precision"),
    (pa.int64(), "smallint"), (pa.int64(), "numeric(8)"), (pa.timestamp("us", "UTC"), "timestamptz"),
    (pa.timestamp("us"), "timestamp(6)"), (pa.timestamp("us"), "text"), (pa.date32(), "date"),
    (pa.date32(), "timestamp(0)"), (pa.string(), "timestamp(0)"),
]  # fmt: skip


async def opened(server: Postgres, kind: pa.DataType, column: str, **options: Any) -> None:
    await query(server, "DROP TABLE IF EXISTS precise; DROP DOMAIN IF EXISTS coarse_domain")
    await query(server, "CREATE DOMAIN coarse_domain AS numeric(8, 1)")
    versioned = "k bigint PRIMARY KEY, _version bigint, " if options else ""
    await query(server, f"CREATE TABLE precise ({versioned}v {column}, _sequence bigint, _partition text)")
    target = Target(server, "precise", **options)
    fields = [("k", pa.int64())] if options else []
    try:
        await target.sink.open(pa.schema([*fields, ("v", kind), ("_sequence", pa.int64())]))
    finally:
        await target.sink.close()


@pytest.mark.parametrize("options", [{}, UPSERT], ids=["append", "upsert"])
async def test_a_column_that_would_round_is_refused_at_the_start(server: Postgres, options: dict[str, Any]) -> None:
    for kind, column in COARSE:
        with pytest.raises(SinkRefused, match="table precise would round the column v"):
            await opened(server, kind, column, **options)


async def test_a_column_that_is_as_fine_as_the_output_is_taken(server: Postgres) -> None:
    for kind, column in FINE:
        await opened(server, kind, column)


async def test_an_integer_column_is_refused_where_a_cast_would_round(server: Postgres) -> None:
    """COPY refuses 1.5 there, and takes 1."""
    with pytest.raises(SinkRefused, match="would round"):
        await opened(server, pa.float64(), "bigint", **UPSERT)
