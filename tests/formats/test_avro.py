"""Avro as its specification and its Java library read it: references, resolution, and values that are bombs or damaged.

The cases of resolution were compared with Java's Avro 1.12 over some 12,000 generated schemas and values.
"""

from __future__ import annotations

import io
import json
import struct
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from actorproc.codecs.limits import Limits
from actorproc.errors import DecodeError, SchemaError
from actorproc.formats.avro.decoder import AvroDecoder
from actorproc.formats.avro.registry_format import AvroFormat
from actorproc.formats.avro.schema import parsed_avro
from actorproc.formats.registry.client import RegistrySchema


def number(value: int) -> bytes:
    """As Avro writes an int or a long."""
    value = (value << 1) ^ (value >> 63)
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])


def read(writer: Any, value: bytes, reader: Any = None, *, items: int = 1_000_000, **references: Any) -> Any:
    named = {name: json.dumps(schema) for name, schema in references.items()}
    into = None if reader is None else parsed_avro(json.dumps(reader))
    return AvroDecoder(parsed_avro(json.dumps(writer), named), into, Limits(rows=items)).load(value)


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    """A record of fields `(name, type)` or `(name, type, default)`."""
    made = [dict(zip(("name", "type", "default"), field, strict=False)) for field in fields]
    return {"type": "record", "name": name, "fields": made, **more}


def logical(kind: Any, name: str, **more: Any) -> dict[str, Any]:
    return {**(kind if isinstance(kind, dict) else {"type": kind}), "logicalType": name, **more}


MILLIS, MICROS = logical("long", "timestamp-millis"), logical("long", "timestamp-micros")
PRICE: dict[str, Any] = logical("bytes", "decimal", precision=9, scale=2)
PLACE, SHIP = record(("lat", "int"), name="lib.Place"), record(("tons", "long"), name="lib.Ship")
NODE = record(("next", ["null", "Node"]), name="Node")


@pytest.mark.parametrize(
    ("writer", "value", "expected"),
    [
        ("lib.Place", b"\x02", {"lat": 1}),
        (["lib.Place", "lib.Ship"], b"\x02\x04", {"tons": 2}),
        (["null", "lib.Ship"], b"\x00", None),
        ({"type": "array", "items": "lib.Place"}, b"\x02\x02\x00", [{"lat": 1}]),
        ({"type": "map", "values": "lib.Place"}, b"\x02\x02a\x02\x00", {"a": {"lat": 1}}),
        ({"type": "array", "items": ["lib.Place", "lib.Ship"]}, b"\x02\x02\x04\x00", [{"tons": 2}]),
        (record(("p", "Place"), name="lib.Trip"), b"\x02", {"p": {"lat": 1}}),
        (record(("p", "Place"), name="Trip", namespace="lib"), b"\x02", {"p": {"lat": 1}}),
        ({"type": {"type": "array", "items": "lib.Place"}}, b"\x00", []),
    ],
)
def test_references_are_resolved_wherever_they_are(writer: Any, value: bytes, expected: Any) -> None:
    assert read(writer, value, Place=PLACE, Ship=SHIP) == expected


EVOLVED = [
    (("t", "long"), number(1500), ("t", MILLIS), datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)),
    (("t", "int"), number(1500), ("t", MICROS), datetime(1970, 1, 1, 0, 0, 0, 1500, UTC)),
    (("t", MILLIS), number(1500), ("t", "long"), 1500),
    (("t", MILLIS), number(1500), ("t", MICROS), datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)),
    (("t", MILLIS), number(1500), ("t", ["null", MICROS]), datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)),
    (("t", "int"), number(3), ("t", logical("int", "date")), date(1970, 1, 4)),
    (("t", "bytes"), b"\x02\x7b", ("t", PRICE), Decimal("1.23")),
    (("t", PRICE), b"\x02\x7b", ("t", logical("bytes", "decimal", precision=9, scale=3)), Decimal("1.23")),
    (("t", "int"), number(16777217), ("t", "float"), 16777216.0),
    (("t", "long"), number(2**53 + 1), ("t", "double"), float(2**53)),
    (("t", "string"), b"\x02a", ("t", "bytes"), b"a"),
    (("t", "int"), number(5), ("t", ["double", "long", "int"]), 5),
    (("t", ["int", "string"]), b"\x00\x0a", ("t", "double"), 5.0),
    (
        ("t", {"type": "enum", "name": "E", "symbols": ["a", "b"]}),
        b"\x02",
        ("t", {"type": "enum", "name": "E", "symbols": ["a", "z"], "default": "z"}),
        "z",
    ),
    (
        ("t", ["null", record(("x", "int"), name="Old")]),
        b"\x02\x02",
        ("t", ["null", record(("x", "long"), name="New", aliases=["Old"])]),
        {"x": 1},
    ),
    (
        ("t", [record(("x", "int"), name="A"), record(("x", "int"), name="B")]),
        b"\x02\x02",
        ("t", [record(("y", "int", 7), name="A"), record(("x", "int"), ("y", "int", 8), name="B")]),
        {"x": 1, "y": 8},
    ),
    (("t", {"type": "array", "items": "int"}), b"\x00", ("t", {"type": "array", "items": "string"}), []),
]  # fmt: skip


@pytest.mark.parametrize(("written", "value", "wanted", "expected"), EVOLVED)
def test_old_values_are_resolved_into_the_readers_schema(
    written: tuple[Any, ...], value: bytes, wanted: tuple[Any, ...], expected: Any
) -> None:
    found = read(record(written), value, record(wanted))["t"]
    assert (found, type(found)) == (expected, type(expected))


INNER = record(("a", "int", 1), ("b", ["null", "string"], None), ("c", MILLIS, 5), name="Inner")
DEFAULTS: list[tuple[Any, Any, Any]] = [
    (logical("int", "date"), 3, date(1970, 1, 4)),
    (MILLIS, 1500, datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)),
    (logical("long", "local-timestamp-micros"), 1, datetime(1970, 1, 1, 0, 0, 0, 1)),  # noqa: DTZ001
    (PRICE, "\u0001\u00ff", Decimal("5.11")),
    ({**PRICE, "type": "fixed", "name": "F", "size": 2}, "\u00ff\u00ff", Decimal("-0.01")),
    ("bytes", "\u00ff", b"\xff"),
    ({"type": "fixed", "name": "F", "size": 1}, "\u00ff", b"\xff"),
    ("float", 0.1, struct.unpack("<f", struct.pack("<f", 0.1))[0]),
    ("double", 2, 2.0),
    (INNER, {}, {"a": 1, "b": None, "c": datetime(1970, 1, 1, 0, 0, 0, 5000, UTC)}),
    (INNER, {"a": 9, "b": None}, {"a": 9, "b": None, "c": datetime(1970, 1, 1, 0, 0, 0, 5000, UTC)}),
    ({"type": "array", "items": INNER}, [{}], [{"a": 1, "b": None, "c": datetime(1970, 1, 1, 0, 0, 0, 5000, UTC)}]),
    ({"type": "map", "values": PRICE}, {"k": "\u0001"}, {"k": Decimal("0.01")}),
    (["null", "string"], None, None),
    ([MILLIS, "null"], 0, datetime(1970, 1, 1, tzinfo=UTC)),
    (["null", "string"], "x", "x"),  # since Avro 1.12 of any branch
]


@pytest.mark.parametrize(("kind", "default", "expected"), DEFAULTS)
def test_a_default_is_the_value_that_a_writer_would_have_written(kind: Any, default: Any, expected: Any) -> None:
    found = read(record(("a", "int")), b"\x02", record(("a", "int"), ("new", kind, default)))
    assert found == {"a": 1, "new": expected}
    assert type(found["new"]) is type(expected)


def test_a_default_that_can_be_changed_is_made_for_each_value() -> None:
    decoder = AvroDecoder(parsed_avro(json.dumps(record())), parsed_avro(json.dumps(record(("x", INNER, {})))))
    decoder.load(b"")["x"]["a"] = 7
    assert decoder.load(b"")["x"]["a"] == 1


@pytest.mark.parametrize(
    ("reader", "why"),
    [
        (record(("a", "int"), ("b", "int")), r"R\.b: the value has no such field, and the reader's schema no default"),
        (record(("a", "int"), ("b", "int", "x")), r"R\.b: its default is no int: 'x'"),
        (record(("a", "int"), ("b", record(("c", "int")), {})), "R is declared twice"),
        (record(("a", "int"), ("b", record(("c", "int"), name="S"), {})), r"R\.b: its default has no c"),
        (record(("a", "int"), ("b", ["null", "int"], "x")), r"R\.b: its default is of none of the types of its union"),
        (record(("a", "int"), ("b", "float", 1e40)), r"R\.b: its default is out of range"),
        (record(("a", "string")), r"R\.a: int cannot be read as string"),
        (record(("a", ["null", "string"])), r"R\.a: the reader's union has no int"),
        (record(("a", logical("int", "date"))), None),
        ("int", "R cannot be read as int"),
    ],
)
def test_a_schema_that_cannot_be_resolved_says_where(reader: Any, why: str | None) -> None:
    if why is None:
        assert read(record(("a", "int")), b"\x02", reader) == {"a": date(1970, 1, 2)}
        return
    with pytest.raises(ValueError, match=why):
        read(record(("a", "int")), b"\x02", reader)


NOTHING = record(name="Nothing")
BOMBS = [
    ({"type": "array", "items": "null"}, number(10**9) + b"\0"),
    ({"type": "array", "items": "null"}, number(-(10**9)) + b"\0\0"),
    ({"type": "array", "items": "null"}, number(1_000) * 1_500 + b"\0"),
    ({"type": "array", "items": NOTHING}, number(2**62) + b"\0"),
    ({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}, number(10**9) + b"\0"),
    ({"type": "map", "values": "null"}, number(10**9) + b"\0"),
    ({"type": "array", "items": {"type": "array", "items": "null"}}, number(1_000) + (number(10**6) + b"\0") * 1_000),
    (record(("a", {"type": "array", "items": "null"}), name="Inner"), number(10**9) + b"\0"),
]


@pytest.mark.parametrize(("writer", "value"), BOMBS)
@pytest.mark.parametrize("is_skipped", [False, True])
def test_few_bytes_do_not_become_many_items(writer: Any, value: bytes, is_skipped: bool) -> None:
    began = time.monotonic()
    whole = record(("bomb", writer))
    with pytest.raises(DecodeError, match="the value has more than 1,000,000 items"):
        read(whole, value, record(name="R") if is_skipped else None)
    assert time.monotonic() - began < 5


def test_types_that_double_do_not_become_many_items() -> None:
    """A schema of some lines, whose only value has no bytes, and 2^60 fields."""
    named: dict[str, Any] = {"T0": record(name="T0")}
    for level in range(1, 60):
        named[f"T{level}"] = record(("a", f"T{level - 1}"), ("b", f"T{level - 1}"), name=f"T{level}")
    for writer, value in (("T59", b""), (["null", "T59"], b"\x02")):
        with pytest.raises(DecodeError, match="more than 1,000,000 items"):
            read(writer, value, **named)
    texts = {name: json.dumps(schema) for name, schema in named.items()}
    with pytest.raises(SchemaError, match="beyond the first 10,000 parts"):
        AvroFormat().columns(RegistrySchema(1, "AVRO", '"T59"', texts))


def test_a_long_default_counts_as_many_items() -> None:
    reader = {"type": "array", "items": record(("text", "string", "x" * 100_000), name="Nothing")}
    with pytest.raises(DecodeError, match="more than 1,000,000 items"):
        read({"type": "array", "items": NOTHING}, number(1_000) + b"\0", reader)


@pytest.mark.parametrize("kind", [NODE, record(("next", {"type": "array", "items": "Node"}), name="Node")])
def test_a_value_that_is_deep_is_refused_and_does_not_end_the_process(kind: Any) -> None:
    def value(levels: int) -> bytes:
        return b"\x02" * levels + b"\0" * (levels + 1 if kind is not NODE else 1)

    assert read(kind, value(90))["next"]
    for levels in (300, 100_000):
        with pytest.raises(DecodeError, match="nested more than 200 deep"):
            read(kind, value(levels))


def test_types_that_are_deep_or_endless_are_refused() -> None:
    deep = '{"type": "array", "items": ' * 5_000 + '"int"' + "}" * 5_000
    with pytest.raises(ValueError, match="nested more than 200 deep"):
        parsed_avro(deep)
    chain: dict[str, Any] = {f"T{n}": record(("a", f"T{n - 1}"), name=f"T{n}") for n in range(1, 1_000)}
    with pytest.raises(ValueError, match="nested more than 200 deep"):
        read("T999", b"", T0=record(name="T0"), **chain)
    with pytest.raises(ValueError, match="Node contains itself in each of its values"):
        read(record(("next", "Node"), name="Node"), b"")


def test_unions_of_unions_are_resolved_in_bounded_time() -> None:
    def schema(prefix: str, leaf: str) -> tuple[str, dict[str, str]]:
        named = {f"{prefix}0": record(("a", leaf), name=f"{prefix}0")}
        for level in range(1, 40):
            inner = ["null", f"{prefix}{level - 1}"]
            named[f"{prefix}{level}"] = record(("a", inner), ("b", inner), name=f"{prefix}{level}")
        return json.dumps(f"{prefix}39"), {name: json.dumps(of) for name, of in named.items()}

    began = time.monotonic()
    with pytest.raises(ValueError, match="resolved in more than 100,000 steps"):
        AvroDecoder(parsed_avro(*schema("W", "int")), parsed_avro(*schema("R", "string")))
    assert time.monotonic() - began < 5


DAMAGED = [
    ("boolean", b"\x07", "7 is no boolean"),
    ("int", number(2**31), "2147483648 is no int"),
    ("long", b"\xff" * 9 + b"\x7f", "a number has more than 64 bits"),
    ("long", b"\x80" * 30 + b"\x01", "a number has more than 64 bits"),
    ("bytes", number(-3) + b"abc", "a length is -3"),
    ("string", number(-3) + b"abc", "a length is -3"),
    ("string", b"\x08abc", "the value is cut short"),
    ("double", b"1234567", "the value is cut short"),
    ("long", b"\x80", "the value is cut short"),
    ("int", b"\x02\x02", "1 bytes are left over"),
    (["null", "int"], number(-1) + b"\x02", "-1 is none of 2 types of a union"),
    (["null", "int"], b"\x04", "2 is none of 2 types of a union"),
    ({"type": "enum", "name": "E", "symbols": ["a", "b"]}, b"\x01", "-1 is none of 2 symbols"),
    ({"type": "enum", "name": "E", "symbols": ["a", "b"]}, b"\x04", "2 is none of 2 symbols"),
    ({"type": "array", "items": "int"}, b"\x01\x01\x02\x00", "a block has -1 bytes"),
    (PRICE, number(1_000) + bytes(1_000), "a decimal has 1000 bytes"),
]


@pytest.mark.parametrize(("writer", "value", "why"), DAMAGED)
def test_a_damaged_value_is_refused_and_not_read_as_another(writer: Any, value: bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        read(writer, value)


def test_a_decimal_with_more_digits_than_declared_stays_exact() -> None:
    three_digits = logical("bytes", "decimal", precision=3)
    assert read(three_digits, b"\x06\x7f\xff\xff") == Decimal(8388607)
    [table, errors] = AvroDecoder(parsed_avro(json.dumps(record(("c", three_digits))))).columns(
        pa.schema([("c", pa.decimal128(3, 0))])
    ).parse(pa.array([b"\x06\x7f\xff\xff", b"\x02\x01"]), pa.array([0, 1]))  # fmt: skip
    assert (table.column("c").to_pylist(), list(errors)) == ([Decimal(1)], [0])


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ('"Unknown"', "unknown type 'Unknown'"),
        ("7", "7 is not an Avro type"),
        ('{"type": "array"}', "has no 'items'"),
        ('[["int"]]', "a union directly contains a union"),
        ('{"type": "record", "name": "R"}', "no list of fields"),
        ('{"type": "record", "name": "R", "fields": [7]}', "7 is not a field"),
        ('{"type": "record", "fields": []}', "a type without a name"),
        ('{"type": "fixed", "name": "F", "size": -1}', "F has the size -1"),
        ('{"type": "enum", "name": "E"}', "no list of symbols"),
    ],
)
def test_an_invalid_schema_is_refused_with_the_reason(schema: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parsed_avro(schema)


@pytest.mark.parametrize(
    ("more", "column"),
    [
        ({"precision": 38, "scale": 5}, pa.decimal128(38, 5)),
        ({}, pa.binary()),
        ({"precision": 2, "scale": 3}, pa.binary()),
        ({"precision": 64}, "R.c is a decimal of 64 digits, which no column type holds"),
    ],
)
def test_decimals_of_any_precision_have_a_column_or_a_reason(more: dict[str, int], column: Any) -> None:
    schema = RegistrySchema(1, "AVRO", json.dumps(record(("c", logical("bytes", "decimal", **more)))))
    if isinstance(column, str):
        with pytest.raises(SchemaError, match=column):
            AvroFormat().columns(schema)
    else:
        assert AvroFormat().columns(schema) == pa.schema([("c", column)])


# For any schema: a value decodes as with fastavro.

LEAVES: dict[str, Any] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=80),
    "string": st.text(st.characters(codec="utf-8"), max_size=80),
}


@st.composite
def schemas_and_values(draw: st.DrawFn) -> tuple[Any, Any]:
    names = iter(range(1_000))

    def build(depth: int, *, in_union: bool = False) -> tuple[Any, st.SearchStrategy[Any]]:
        deeper = ["record", "array", "map"] + ([] if in_union else ["union"])
        kind = draw(st.sampled_from([*LEAVES, "enum", "fixed", "date", *(deeper if depth else [])]))
        if kind in LEAVES:
            return kind, LEAVES[kind]
        if kind == "date":
            return logical("int", "date"), st.dates()
        if kind == "enum":
            symbols = ["a", "b", "c"]
            return {"type": "enum", "name": f"N{next(names)}", "symbols": symbols}, st.sampled_from(symbols)
        if kind == "fixed":
            size = draw(st.integers(0, 3))
            return {"type": "fixed", "name": f"N{next(names)}", "size": size}, st.binary(min_size=size, max_size=size)
        if kind == "union":
            branches = [build(depth - 1, in_union=True) for _ in range(draw(st.integers(1, 3)))]
            unique = {of if isinstance(of, str) else of.get("name", of["type"]): (of, v) for of, v in branches}
            return [of for of, _ in unique.values()], st.one_of([v for _, v in unique.values()])
        if kind == "record":
            parts = [build(depth - 1) for _ in range(draw(st.integers(0, 3)))]
            schema = record(*[(f"f{at}", of) for at, (of, _) in enumerate(parts)], name=f"N{next(names)}")
            return schema, st.fixed_dictionaries({f"f{at}": value for at, (_, value) in enumerate(parts)})
        inner, values = build(depth - 1)
        if kind == "array":
            return {"type": "array", "items": inner}, st.lists(values, max_size=3)
        return {"type": "map", "values": inner}, st.dictionaries(st.text(max_size=3), values, max_size=3)

    schema, values = build(3)
    return schema, draw(values)


@given(schemas_and_values(), st.booleans())
def test_a_value_is_read_as_fastavro_reads_it(drawn: tuple[Any, Any], is_resolved: bool) -> None:
    schema, value = drawn
    parsed = fastavro.parse_schema(schema)
    stream = io.BytesIO()
    try:
        fastavro.schemaless_writer(stream, parsed, value)
    except ValueError:  # it takes a text in a union for a date
        assume(False)
    stream.seek(0)
    expected = fastavro.schemaless_reader(stream, parsed, None)
    assert read(schema, stream.getvalue(), schema if is_resolved else None) == expected
