"""JSON objects to columns: which values are rows, why others are not, and that neighbours never matter."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorproc.codecs.json_parsing import JsonParser
from actorproc.rows.output_schema import parse_schema


def parse(ddl: str, *values: bytes | None) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """Rows with their `_sequence`, and reasons; values are numbered from 0."""
    parser = JsonParser(parse_schema(ddl))
    sequences = pa.array(range(len(values)), pa.int64())
    table, errors = parser.parse(pa.array(values, pa.binary()), sequences)
    table.validate(full=True)
    rows = table.sort_by("_sequence").to_pylist()
    return rows, {sequence: str(error) for sequence, error in errors.items()}


NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
TAKEN = [
    ("int", b"7", 7),
    ("int", b"7.0", 7),
    ("int", b"-0", 0),
    ("bigint", b"9223372036854775807", 2**63 - 1),
    ("bigint", b"1e3", 1000),
    ("double", b"7", 7.0),
    ("double", b"9007199254740993", 9007199254740992.0),
    ("double", b"123456789012345678901234567890", 1.2345678901234568e29),
    ("double", b"5e-324", 5e-324),
    ("double", b"-0.0", -0.0),
    ("double", b"-0", -0.0),
    ("array<double>", b"[1, -0 ,-0]", [1.0, -0.0, -0.0]),
    ("double", b"Infinity", math.inf),
    ("array<struct<x: double>>", b'[ {"x": -Infinity},{"x":Infinity} ]', [{"x": -math.inf}, {"x": math.inf}]),
    ("double", b"1.7976931348623158e308", 1.7976931348623157e308),
    ("float", b"0.1", 0.10000000149011612),
    ("boolean", b"true", True),
    ("string", rb'"\u00e9\ud83d\ude00\u0000\n"', "é😀\0\n"),
    ("string", '"é"'.encode(), "é"),
    ("timestamp", b'"2013-01-01T12:00:00Z"', NOON),
    ("timestamp", b'"2013-01-01 14:00:00.000000+0200"', NOON),
    ("timestamp_ntz", b'"2013-01-01T12:00"', NOON.replace(tzinfo=None)),
    ("timestamp_ntz", b'"2013-01-01"', datetime(2013, 1, 1, tzinfo=UTC).replace(tzinfo=None)),
    ("date", b'"2013-01-31"', date(2013, 1, 31)),
    ("bigint", b"9007199254740993.0", 9007199254740993),
    ("bigint", b"0e100", 0),
    ("bigint", b"12345.0", 12345),
    ("array<bigint>", b"[1, 123456789012345678.0]", [1, 123456789012345678]),
    ("map<string, bigint>", b'{"a": 123456789012345678e0}', [("a", 123456789012345678)]),
    ("decimal(10,2)", b"1.10", Decimal("1.10")),
    ("decimal(10,2)", b"0.1000", Decimal("0.10")),
    ("decimal(10,2)", b"1e2", Decimal("100.00")),
    ("decimal(10,2)", b'"1.1"', Decimal("1.10")),
    ("decimal(38,0)", b"12345678901234567890123456789012345678", Decimal(12345678901234567890123456789012345678)),
    ("array<int>", b"[1, null, 2]", [1, None, 2]),
    ("array<timestamp_ntz>", b'["2013-01-01"]', [datetime(2013, 1, 1, tzinfo=UTC).replace(tzinfo=None)]),
    ("array<float>", b"[0.5, 1]", [0.5, 1.0]),
    (
        "struct<x: int, y: struct<z: date>>",
        b'{"y": {"z": "2013-01-31", "w": 1}, "v": []}',
        {"x": None, "y": {"z": date(2013, 1, 31)}},
    ),
    ("map<string, double>", b'{"a": 1, "b": null}', [("a", 1.0), ("b", None)]),
    ("map<string, timestamp>", b'{"a": "2013-01-01T12:00:00Z"}', [("a", NOON)]),
    ("map<string, struct<x: int>>", b'{"a": {"x": 1, "y": 2}}', [("a", {"x": 1})]),
]


@pytest.mark.parametrize(("kind", "text", "stored"), TAKEN)
@pytest.mark.parametrize("beside", [[], [b'{"c": null}', b"{}"], [b"garbage", b'{"c": {"no": "type"}, "c": 1}']])
def test_a_value_that_fits_is_stored_whatever_its_neighbours(
    kind: str, text: bytes, stored: object, beside: list[bytes]
) -> None:
    rows, reasons = parse(f"c {kind}", b'{"x": [1, {"c": 2}], "c": ' + text + b"}", *beside)
    assert repr(rows[0]["c"]) == repr(stored).replace("datetime.timezone.utc", "zoneinfo.ZoneInfo(key='UTC')")
    assert 0 not in reasons


REFUSED = [
    ("int", b"1.5", "column 'c': 1.5 (number) does not fit int"),
    ("int", b'"1"', "column 'c': '1' (str) does not fit int"),
    ("int", b"true", "column 'c': True (bool) does not fit int"),
    ("tinyint", b"128", "out of range for tinyint"),
    ("bigint", b"-9223372036854775809", "out of range for bigint"),
    ("bigint", b"1.0000000000000000001", "does not fit bigint"),
    ("bigint", b"1e-400", "does not fit bigint"),
    ("bigint", b"1e30000000", "out of range for bigint"),
    ("struct<x: bigint>", b'{"x": 1.0000000000000000001}', "does not fit bigint"),
    ("double", b'"1"', "'1' (str) does not fit double"),
    ("double", b"1e400", "1E+400 (number) does not fit double"),
    ("double", b"-1.7976931348623159e308", "-1.7976931348623159E+308 (number) does not fit double"),
    ("float", b"1.7976931348623159e308", "1.7976931348623159E+308 (number) does not fit double"),
    ("double", b"17976931348623159" + b"0" * 292, "is an int that double cannot hold exactly"),
    (
        "array<double>",
        b"[Infinity, 1.7976931348623159e308]",
        "[1]: 1.7976931348623159E+308 (number) does not fit double",
    ),
    (
        "struct<Info: array<double>>",
        b'{"Info": [1.7976931348623159e308]}',
        ".Info[0]: 1.7976931348623159E+308 (number) does not fit",
    ),
    ("float", b"1e300", "column 'c': 1e+300 does not fit: out of range for float"),
    ("string", b"1", "1 (int) does not fit string"),
    ("string", b'"\\ud800"', "surrogates not allowed"),
    ("string", b'"\xff"', "not JSON"),
    ("boolean", b"0", "0 (int) does not fit boolean"),
    (
        "timestamp",
        b'"2013-01-01T12:00:00"',
        "does not fit: ISO 8601 with a zone and at most 6 decimals is read (2013-01-01T05:00:00.123456Z); without "
        "a zone declare timestamp_ntz",
    ),
    ("timestamp_ntz", b'"2013-01-01T12:00:00Z"', "ISO 8601 without a zone, with at most 6 decimals, is read"),
    ("timestamp", b'"noon"', "column 'c': 'noon' does not fit"),
    ("timestamp", b"1357041600", "1357041600 (int) does not fit string"),
    ("timestamp", b'"0001-01-01T00:00:00+14:00"', "'0001-01-01T00:00:00+14:00' does not fit"),
    ("timestamp NOT NULL", b"null", "column 'c': None does not fit: it is NOT NULL"),
    ("date", b'"2013-02-30"', "YYYY-MM-DD is read"),
    ("date", b"5", "5 (int) does not fit string"),
    ("decimal(10,2)", b"1.005", "more than 2 digits after the point"),
    ("decimal(10,2)", b"9.99e-21", "more than 2 digits after the point"),
    ("decimal(10,2)", b"1e-9999999", "more than 2 digits after the point"),
    ("decimal(10,2)", b"1e99999999999999999999", "1E+999999999999999999 is out of range for decimal(10,2)"),
    ("decimal(10,2)", b'"1e99999999999999999999"', "(str) does not fit decimal(10,2)"),
    ("decimal(10,2)", b'" 1"', "' 1' (str) does not fit decimal(10,2)"),
    ("decimal(5,2)", b"1000", "out of range for decimal(5,2)"),
    (
        "decimal(10,2)",
        b'"one"',
        """'one' (str) does not fit decimal(10,2); a number is read, or one as text ("1.25")""",
    ),
    ("struct<a:decimal(10,2)>", b'{"a": "one"}', "column 'c': .a: 'one' (str) does not fit decimal(10,2)"),
    ("array<int>", b"1", "1 (int) does not fit array"),
    ("array<int>", b'[1, "x"]', "[1]: 'x' (str) does not fit int"),
    ("array<float>", b"[1e300]", "[1e+300] does not fit: out of range for float"),
    ("struct<x: int>", b"[]", "[] (list) does not fit struct"),
    ("struct<x: int NOT NULL>", b"{}", ".x: it is NOT NULL"),
    ("map<string, int>", b'{"a": "x"}', "['a']: 'x' (str) does not fit int"),
    ("int NOT NULL", b"null", "column 'c': None does not fit: it is NOT NULL"),
]


@pytest.mark.parametrize(("kind", "text", "message"), REFUSED)
def test_only_the_value_that_does_not_fit_is_refused(kind: str, text: bytes, message: str) -> None:
    bad = b'{"c": ' + text + b"}"
    rows, reasons = parse(f"c {kind}, d int", bad)
    assert rows == []
    assert message in reasons[0]
    nullable = kind.removesuffix(" NOT NULL") == kind
    rows, reasons = parse(f"c {kind}, d int", *[b'{"d": 1}'] * 3, bad, b'{"d": 5}')
    assert [row["_sequence"] for row in rows] == ([0, 1, 2, 4] if nullable else [])
    assert message in reasons[3]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "the value is null (a tombstone), not a JSON object"),
        (b"", "the value is not JSON: "),
        (b"[1]", "the value is [1], not a JSON object"),
        (b'"{}"', "the value is '{}', not a JSON object"),
        (b'{"c": 1', "the value is not JSON: "),
        (b'{"c": 1}}', "the value is not JSON: "),
        (b'{"c": 1}{"c": 2}', "the value is not JSON: "),
        (b'{"c": 1}\n{"c": 2}', "the value is not JSON: "),
        (b'{"c": 1},', "the value is not JSON: "),
        (b'\xef\xbb\xbf{"c": 1}', "the value is not JSON: "),
        (b'{"c": 1, "d": "\xff"}', "the value is not JSON: "),
        (b'{"c": 01}', "the value is not JSON: "),
        (b"{'c': 1}", "the value is not JSON: "),
    ],
)
def test_a_value_that_is_not_a_json_object_is_refused_alone(value: bytes | None, message: str) -> None:
    rows, reasons = parse("c int", b'{"c": 10}', b'{"c": 11}', value, b'{"c": 13}')
    assert [(row["_sequence"], row["c"]) for row in rows] == [(0, 10), (1, 11), (3, 13)]
    assert list(reasons) == [2]
    assert reasons[2].startswith(message)


@pytest.mark.parametrize(
    "halves",
    [
        (b'{"c": 1', b'"d": 2}'),
        (b'{"c": 1,', b'"d": 2}'),
        (b'{"c": {"x": 1}', b'{"c": 2}}'),
        (b'{"c": [{"x": 1}', b'{"x": 2}]}'),
        (b'{"c": "}', b'{"}'),
        (b'{"c": 1} {', b'"c": 2}'),
    ],
)
def test_values_never_merge_into_one_row(halves: tuple[bytes, bytes]) -> None:
    """Even where as many rows as values come out, since another value holds two objects."""
    rows, reasons = parse("c int", *halves, b'{"c": 7}{"c": 8}', b'{"c": 9}')
    assert [(row["_sequence"], row["c"]) for row in rows] == [(3, 9)]
    assert sorted(reasons) == [0, 1, 2]


@pytest.mark.parametrize(
    "value", [b' {"c": 1}', b'{"c": 1}\n', b'\r\n\t{"c": 1} ', b'{\n "c": 1\n}', b'{"c": 0, "c": 1}']
)
def test_white_space_and_repeated_names_are_accepted(value: bytes) -> None:
    assert parse("c int", value) == ([{"c": 1, "_sequence": 0}], {})
    assert parse("c int", value, b"{}", b"x")[0] == [{"c": 1, "_sequence": 0}, {"c": None, "_sequence": 1}]


@pytest.mark.parametrize("white", [b"\x0b", b"\x0c"])
def test_white_space_other_than_of_json_is_refused(white: bytes) -> None:
    for value in (white + b'{"c": 1}', b'{"c": 1}' + white):
        assert parse("c int", value)[1].keys() == {0}
        assert parse("c int", value, b'{"c": 1.0}')[1].keys() == {0}


@pytest.mark.parametrize("ignored", [b"NaN", b"[" * 199 + b"]" * 199, b'{"c": 1, "c": 2}', b'"\\ud800"'])
def test_an_ignored_field_does_not_refuse_its_record(ignored: bytes) -> None:
    value = b'{"c": 1, "other": ' + ignored + b"}"
    row = {"c": 1, "_sequence": 0}
    assert parse("c int", value) == ([row], {})
    rows, reasons = parse("c int", value, b"garbage", b'{"c": 1.0}')
    assert rows == [row, {"c": 1, "_sequence": 2}]
    assert list(reasons) == [1]


@pytest.mark.parametrize("number", [b"1e400", b"-1e400", b"1" + b"0" * 400])
def test_a_number_beyond_all_doubles_is_refused_beside_decimals(number: bytes) -> None:
    assert parse("c double, d decimal(5,2)", b'{"c": ' + number + b"}")[0] == []


def test_no_values_make_no_rows() -> None:
    assert parse("c int") == ([], {})


# For any documents: a value alone, a value in a batch, and Python's own parser agree.

SCHEMA = (
    "i int, l bigint, d double, f float, b boolean, s string, t timestamp, n timestamp_ntz, a date, "
    "xs array<double>, st struct<i: int, s: string, t: timestamp>, ss array<struct<d: double>>"
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-200, 200),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=4),
    st.sampled_from(
        ["2013-01-01", "2013-01-01T12:00:00Z", "2013-01-01 12:00:00.5", "2013-02-30", "}\n{", "{", "}", "1.5"]
    ),
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("istdx"), inner, max_size=3),
    max_leaves=5,
)
fitting = st.fixed_dictionaries(
    {},
    optional={
        "i": st.integers(-(2**31), 2**31 - 1) | st.none(),
        "l": st.integers(-(2**63), 2**63 - 1),
        "d": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**70), 2**70),
        "f": st.floats(width=32, allow_nan=False, allow_infinity=False),
        "b": st.booleans(),
        "s": st.text(),
        "t": st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat),
        "n": st.datetimes().map(datetime.isoformat),
        "a": st.dates().map(date.isoformat),
        "xs": st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.none(), max_size=3),
        "st": st.fixed_dictionaries({}, optional={"i": st.integers(0, 9), "s": st.text(max_size=3), "x": scalars})
        | st.none(),
        "ss": st.lists(st.fixed_dictionaries({}, optional={"d": st.integers()}) | st.none(), max_size=2),
        "other": anything,
    },
)
loose = st.dictionaries(st.sampled_from([*"ildfbstna", "xs", "st", "ss", "other"]), anything, max_size=4)


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    document = draw(fitting | loose)
    text = json.dumps(document, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, None, None, 1])))
    raw = text.encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 9)) == 0:  # damage
        at, until = sorted((draw(st.integers(0, len(raw))), draw(st.integers(0, len(raw)))))
        raw = draw(
            st.sampled_from([raw[:at], raw[at:], raw[:at] + raw[until:], raw[:at] + b"}\n{" + raw[at:], raw + raw])
        )
    return raw


def normal(rows: list[dict[str, Any]]) -> str:
    return repr([{k: v for k, v in row.items() if k != "_sequence"} for row in rows]).replace("-0.0", "0.0")


@pytest.mark.slow
@given(st.lists(texts(), min_size=1, max_size=8))
def test_a_value_gives_the_same_alone_and_among_others(values: list[bytes]) -> None:
    alone = [parse(SCHEMA, value) for value in values]
    together, reasons = parse(SCHEMA, *values)
    assert sorted(reasons) == [index for index, (rows, _) in enumerate(alone) if not rows]
    assert normal(together) == normal([row for rows, _ in alone for row in rows])
    assert [row["_sequence"] for row in together] == [index for index in range(len(values)) if index not in reasons]


@given(st.lists(fitting, min_size=1, max_size=8))
def test_both_ways_of_parsing_give_the_same_rows(documents: list[dict[str, Any]]) -> None:
    values = [json.dumps(document).encode() for document in documents]
    at_once, none_failed = parse(SCHEMA, *values)
    assert none_failed == {}
    one_by_one, reasons = parse(SCHEMA, *values, b"garbage")
    assert list(reasons) == [len(values)]
    assert normal(one_by_one) == normal(at_once)


@given(st.lists(fitting, min_size=1, max_size=5))
def test_stored_values_are_those_that_python_reads(documents: list[dict[str, Any]]) -> None:
    rows, _ = parse(SCHEMA, *(json.dumps(document).encode() for document in documents))
    for document, row in zip(documents, rows, strict=True):
        assert [row[name] for name in "ilbs"] == [document.get(name) for name in "ilbs"]
        assert row["d"] == (float(document["d"]) if "d" in document else None)
        assert row["f"] == document.get("f")
        assert row["t"] == (datetime.fromisoformat(document["t"]) if "t" in document else None)
        assert row["n"] == (datetime.fromisoformat(document["n"]) if "n" in document else None)
        assert row["a"] == (date.fromisoformat(document["a"]) if "a" in document else None)
        assert row["xs"] == document.get("xs")


decimal_texts = st.decimals(allow_nan=False, allow_infinity=False).map(str) | st.decimals(-1000, 1000, places=3).map(
    str
)


@given(st.lists(decimal_texts, min_size=1, max_size=5))
def test_decimals_are_exact_both_ways(numbers: list[str]) -> None:
    values = [b'{"c": ' + number.lower().encode() + b"}" for number in numbers]
    alone = [parse("c decimal(12,3)", value)[0] for value in values]
    for number, rows in zip(numbers, alone, strict=True):
        exact = Decimal(number)
        fits = abs(exact) < 10**9 and exact == round(exact, 3)
        assert [row["c"] for row in rows] == ([exact] if fits else [])
    rows, _ = parse("c decimal(12,3)", *values, b"garbage")
    assert [row["c"] for row in rows] == [row["c"] for rows in alone for row in rows]
