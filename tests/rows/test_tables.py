"""Tables to output rows: matched by name, cast where nothing is lost, refused where something would be."""

from __future__ import annotations

import io
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from actorproc.errors import HandlerError
from actorproc.rows.encoder import RowEncoder
from actorproc.rows.output_schema import parse_schema

NOON = datetime(2013, 1, 1, 12, 30, 15, 250, tzinfo=UTC)
TEXTS = pa.array([b"a", b"\xff", "\u00fc".encode(), b"b\xc3", None], pa.binary()).view(pa.string())
OFFSETS = pa.array(range(6), pa.int32())
HIDES_ONE = pa.array([False, True, False, False, False])
NAIVE = NOON.replace(tzinfo=None)


def encoder(ddl: str) -> RowEncoder:
    return RowEncoder(parse_schema(ddl))


def sequenced(n: int, **columns: Any) -> pa.Table:
    return pa.table({"_sequence": pa.array(range(100, 100 + n), pa.int64()), **columns})


def test_a_table_is_matched_by_name_and_missing_columns_become_null() -> None:
    table, misfits = encoder("a int, b string, c double").encode_table(
        sequenced(2, c=pa.array([1, None], pa.int64()), b=pa.array(["x", "y"], pa.large_string()))
    )
    assert misfits == {}
    assert table.schema == encoder("a int, b string, c double").schema
    assert table.to_pylist() == [
        {"a": None, "b": "x", "c": 1.0, "_sequence": 100},
        {"a": None, "b": "y", "c": None, "_sequence": 101},
    ]


def test_a_table_is_put_in_the_order_of_its_records() -> None:
    given_table = pa.table({"n": [0, 1, 2, 3], "_sequence": [7, 5, 7, 6]})
    table, _ = encoder("n int").encode_table(given_table)
    assert table.to_pydict() == {"n": [1, 3, 0, 2], "_sequence": [5, 6, 7, 7]}


@pytest.mark.parametrize(
    ("column", "kind", "stored"),
    [
        (pa.array([1, 300], pa.int64()), "smallint", [1, 300]),
        (pa.array([2.0], pa.float64()), "int", [2]),
        (pa.array([1], pa.uint64()), "decimal(20,0)", [Decimal(1)]),
        (pa.array(["x", "x"]).dictionary_encode(), "string", ["x", "x"]),
        (pa.array(["x"], pa.string_view()), "string", ["x"]),
        (pa.array([b"xy"], pa.binary(2)), "binary", [b"xy"]),
        (pa.array([2000], pa.timestamp("ns", "Europe/Berlin")), "timestamp", [datetime(1970, 1, 1, 0, 0, 0, 2, UTC)]),
        (
            pa.array([2], pa.timestamp("s")),
            "timestamp_ntz",
            [datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC).replace(tzinfo=None)],
        ),
        (pa.array([86_400_000], pa.date64()), "date", [date(1970, 1, 2)]),
        (pa.array([Decimal("1.20")]), "decimal(5,1)", [Decimal("1.2")]),
        (pa.nulls(1), "array<int>", [None]),
        (pa.array([[1]], pa.large_list(pa.int8())), "array<bigint>", [[1]]),
        (pa.array([{"y": 1}]), "struct<x: string, y: int>", [{"x": None, "y": 1}]),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8())), "map<string, int>", [[("k", 1)]]),
    ],
)
def test_a_column_of_another_type_is_cast_where_nothing_is_lost(column: pa.Array, kind: str, stored: list[Any]) -> None:
    table, misfits = encoder(f"c {kind}").encode_table(sequenced(len(column), c=column))
    assert misfits == {}
    assert table.column("c").to_pylist() == stored


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array(["1"]), "int"),
        (pa.array([True]), "int"),
        (pa.array([1]), "string"),
        (pa.array([b"x"]), "string"),
        (pa.array(["x"]), "binary"),
        (pa.array([NAIVE]), "timestamp"),
        (pa.array([NOON]), "timestamp_ntz"),
        (pa.array([NAIVE]), "date"),
        (pa.array(["2013-01-01"]), "date"),
        (pa.array([1.5]), "decimal(5,2)"),
        (pa.array([{"x": 1, "y": 2}]), "struct<x: int>"),
        (pa.array([[1]], pa.list_view(pa.int32())), "array<int>"),
    ],
)
def test_a_lossy_column_type_is_refused_with_both_types(column: pa.Array, kind: str) -> None:
    with pytest.raises(HandlerError, match=r"emit_arrow: column 'c' is .*, the schema says .*; cast it in the handler"):
        encoder(f"c {kind}").encode_table(sequenced(1, c=column))


@pytest.mark.parametrize(
    ("column", "kind", "bad", "message"),
    [
        (pa.array([1, 300, 2, -129]), "tinyint", [101, 103], "not in range: -128 to 127"),
        (pa.array([1.0, 1.5]), "int", [101], "1.5 does not fit"),
        (pa.array([1.0, 1e300]), "float", [101], "1e+300 does not fit: out of range for float"),
        (pa.array([1, None, 2]), "bigint NOT NULL", [101], "None does not fit: it is NOT NULL"),
        (pa.array([1000, 1001], pa.timestamp("ns")), "timestamp_ntz", [101], "would lose data"),
        (pa.array([Decimal("1.0"), Decimal("1.5")]), "decimal(5,0)", [101], "data loss"),
        (pa.array([0, 2**62], pa.timestamp("us")), "timestamp_ntz", [101], "outside the years 1 to 9999"),
        (pa.array([0, 2**30], pa.date32()), "date", [101], "outside the years"),
        (
            pa.array([[{"x": 0}], None, [{"x": 2**62}]], pa.list_(pa.struct([("x", pa.timestamp("us"))]))),
            "array<struct<x: timestamp_ntz>>",
            [102],
            "outside the years",
        ),
        (
            pa.array([[("k", 2**62)], [("k", 0)]], pa.map_(pa.string(), pa.timestamp("us"))),
            "map<string, timestamp_ntz>",
            [100],
            "outside the years",
        ),
        (pa.array([[1], [300], [2]]).slice(1), "array<tinyint>", [100], "300"),
        (pa.array([[300], [1], [2]]).slice(1), "array<tinyint>", [], ""),
        (TEXTS, "string", [101, 103], "Invalid UTF8"),
        (TEXTS.slice(2), "string", [101], "Invalid UTF8"),
        (TEXTS.slice(2, 1), "string", [], ""),
        (pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 0, None]), TEXTS), "string", [101], "Invalid UTF8"),
        (pa.array([b"a", b"\xff"], pa.large_binary()).view(pa.large_string()), "string", [101], "Invalid UTF8"),
        (pa.ListArray.from_arrays(OFFSETS, TEXTS), "array<string>", [101, 103], "Invalid UTF8"),
        (pa.ListArray.from_arrays(OFFSETS, TEXTS, mask=HIDES_ONE), "array<string>", [103], "Invalid UTF8"),
        (pa.StructArray.from_arrays([TEXTS], ["x"]), "struct<x: string>", [101, 103], "Invalid UTF8"),
        (pa.StructArray.from_arrays([TEXTS], ["x"], mask=HIDES_ONE), "struct<x: string>", [103], "Invalid UTF8"),
        (
            pa.MapArray.from_arrays(OFFSETS, TEXTS.fill_null(""), OFFSETS[:5]),
            "map<string, int>",
            [101, 103],
            "Invalid UTF8",
        ),
        (pa.MapArray.from_arrays(OFFSETS, OFFSETS[:5], TEXTS), "map<int, string>", [101, 103], "Invalid UTF8"),
        (pa.array([{"x": 1}, None, {"x": None}]), "struct<x: bigint NOT NULL>", [102], "x: it is NOT NULL"),
        (
            pa.array([[("k", {"x": 1}), ("l", None)]], pa.map_(pa.string(), pa.struct([("x", pa.int64())]))),
            "map<string, struct<x: bigint NOT NULL>>",
            [],
            "",
        ),
        (
            pa.array(
                [None, [("k", {"x": 1})], [("l", None)], None, [("m", {"x": 3})]],
                pa.map_(pa.string(), pa.struct([pa.field("x", pa.int64(), False)])),
            ).slice(1),
            "map<string, struct<x: bigint NOT NULL>>",
            [],
            "",
        ),
        (
            pa.array(
                [[("k", {"x": 1})], [("l", {"x": None})], [("m", {"x": 3})]],
                pa.map_(pa.string(), pa.struct([pa.field("x", pa.int64(), False)])),
            ),
            "map<string, struct<x: bigint NOT NULL>>",
            [101],
            "x: it is NOT NULL",
        ),
        (pa.array([[{"x": "a"}, None], None]), "array<struct<x: string NOT NULL>>", [], ""),
        (pa.array([{"x": {"y": [1]}}, {"x": None}, None]), "struct<x: struct<y: array<bigint> NOT NULL>>", [], ""),
        (
            pa.array(
                [[{"x": 1}], [], [{"x": 1}, {"x": None}]], pa.list_(pa.struct([pa.field("x", pa.int64(), False)]))
            ),
            "array<struct<x: bigint NOT NULL>>",
            [102],
            "x: it is NOT NULL",
        ),
    ],
)
def test_a_table_value_that_does_not_fit_fails_its_record(
    column: pa.Array, kind: str, bad: list[int], message: str
) -> None:
    n = len(column)
    table, misfits = encoder(f"c {kind}, d int").encode_table(sequenced(n, c=column, d=pa.array(range(n), pa.int32())))
    assert sorted(misfits) == bad
    assert all(message in str(misfits[sequence]) for sequence in bad)
    assert table.column("_sequence").to_pylist() == [s for s in range(100, 100 + n) if s not in bad]
    assert table.column("d").to_pylist() == [i for i in range(n) if 100 + i not in bad]
    assert table.column("c").to_pylist() == column.take([i for i in range(n) if 100 + i not in bad]).to_pylist()
    table.validate(full=True)
    pq.write_table(table, io.BytesIO())  # Parquet takes it as in a commit


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"a": [1]}), r"no column _sequence; keep the one of batch.to_arrow\(\).* It has: a"),
        (pa.table({"a": [1], "_sequence": ["x"]}), r"column '_sequence' is string"),
        (pa.table({"a": [1], "_sequence": [1.0]}), r"_sequence must be int64 without nulls"),
        (pa.table({"a": [1], "_sequence": pa.array([None], pa.int64())}), r"_sequence must be int64 without nulls"),
        (pa.table([[1], [1], [1]], names=["a", "a", "_sequence"]), r"the table has 'a' more than once"),
        (sequenced(1, aa=[1]), r"there is no column 'aa'; did you mean 'a'\?"),
        (sequenced(1, b=[1]), r"column 'a' is NOT NULL, but the table does not have it"),
    ],
)
def test_a_table_that_cannot_be_matched_is_refused(table: pa.Table, message: str) -> None:
    with pytest.raises(HandlerError, match=message):
        encoder("a bigint NOT NULL, b bigint").encode_table(table)
