"""Rows as Avro values: the schema of columns, schemas of others, and every type of an output."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import orjson
import pyarrow as pa
import pytest

from actorproc.errors import SchemaError
from actorproc.formats.avro.encoder import AvroEncoder
from actorproc.formats.avro.row_schema import check_fit, name_from, schema_of_rows
from actorproc.formats.avro.schema import parsed_avro
from actorproc.formats.registry.client import RegistrySchema, SchemaRegistry
from actorproc.rows.output_schema import parse_schema
from actorproc.sinks.protocol import SinkRefused
from actorproc.sinks.row_encoder import RowRefused

EVERY_TYPE = """
    flag boolean NOT NULL, tiny byte, small short, number int, big long, real float, wide double, word string,
    raw binary, day date, at timestamp, wall timestamp_ntz, price decimal(9, 2), words array<string>,
    walls array<timestamp_ntz>, place struct<name: string, at: timestamp_ntz>, counts map<string, long>,
    days map<date, struct<at: timestamp_ntz>>
"""
ROW = {
    "flag": True, "tiny": -128, "small": 32767, "number": -(2**31), "big": 2**63 - 1, "real": 0.5, "wide": -0.0,
    "word": "zażółć", "raw": b"\x00\xff", "day": date(1, 1, 1),
    "at": datetime(9999, 12, 31, 23, 59, 59, 999999, UTC), "wall": datetime(1969, 12, 31, 23, 59, 59, 1),  # noqa: DTZ001
    "price": Decimal("-1234567.89"), "words": ["a", None], "walls": [datetime(2026, 3, 29, 2, 30), None],  # noqa: DTZ001
    "place": {"name": None, "at": datetime(2026, 3, 29, 2, 30)}, "counts": {"a": 1, "b": None},  # noqa: DTZ001
    "days": [{"key": date(2026, 1, 1), "value": {"at": datetime(2026, 3, 29, 2, 30)}}],  # noqa: DTZ001
}  # fmt: skip


class OneSchema(SchemaRegistry):
    """Has one schema, of each subject."""

    def __init__(self, text: str = "", references: dict[str, str] | None = None) -> None:
        self.found = RegistrySchema(258, "AVRO", text, references or {})

    async def register(self, subject: str, kind: str, text: str) -> int:
        self.found = RegistrySchema(258, kind, text)
        return 258

    async def version(self, subject: str, version: int | None = None) -> RegistrySchema | None:
        return self.found


def read(value: bytes, text: str) -> Any:
    assert value[:5] == b"\0\0\0\1\2"
    return fastavro.schemaless_reader(BytesIO(value[5:]), orjson.loads(text), None)


def rows(schema: pa.Schema, *given: dict[str, Any]) -> pa.RecordBatch:
    """A map of other keys than text comes back as an array of pairs, and is given as a list."""
    return pa.RecordBatch.from_pylist(
        [row | {"days": [(each["key"], each["value"]) for each in row.get("days") or ()]} for row in given], schema
    )


async def test_every_type_of_an_output_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    schema = parse_schema(EVERY_TYPE)
    registry = OneSchema()
    encoder = AvroEncoder(registry, "s", "orders", register=True)
    await encoder.open(schema)
    nothing = dict.fromkeys(schema.names) | {"flag": False, "days": []}
    some, none = encoder.encode(rows(schema, ROW, nothing)).to_pylist()
    assert read(some, registry.found.text) == ROW
    assert read(none, registry.found.text) == nothing


async def test_nothing_is_encoded_of_no_rows() -> None:
    encoder = AvroEncoder(OneSchema(), "s", "orders", register=True)
    await encoder.open(schema := parse_schema("n long"))
    assert len(encoder.encode(pa.RecordBatch.from_pylist([], schema))) == 0


async def test_a_row_that_no_python_object_holds_is_named() -> None:
    schema = parse_schema("at timestamp")
    encoder = AvroEncoder(OneSchema(), "s", "orders", register=True)
    await encoder.open(schema)
    times = pa.array([0, 253_402_300_800_000_000, 1], pa.int64()).cast(schema.field("at").type)
    with pytest.raises(RowRefused) as refused:
        encoder.encode(pa.RecordBatch.from_arrays([times], schema=schema))
    assert refused.value.number == 1


async def test_rows_are_written_with_a_schema_that_others_registered() -> None:
    money = '{"type": "fixed", "size": 8, "name": "x.Money", "logicalType": "decimal", "precision": 18, "scale": 4}'
    text = """{"type": "record", "name": "x.Order", "fields": [
        {"name": "more", "type": "string", "default": "none"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": "Money"},
        {"name": "kind", "type": ["null", {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}]}]}"""
    schema = parse_schema("kind string, price decimal(9, 2), at timestamp_ntz")
    encoder = AvroEncoder(OneSchema(text, {"x.Money": money}), "s", "orders", register=False)
    await encoder.open(schema)
    given = {"kind": "B", "price": Decimal("1.25"), "at": datetime(2026, 3, 29, 2, 30, 0, 1999)}  # noqa: DTZ001
    [value] = encoder.encode(pa.RecordBatch.from_pylist([given], schema)).to_pylist()
    named: dict[str, Any] = {}
    fastavro.parse_schema(orjson.loads(money), named_schemas=named)
    read_back = fastavro.schemaless_reader(BytesIO(value[5:]), fastavro.parse_schema(orjson.loads(text), named), None)
    assert read_back == {
        "more": "none", "at": datetime(2026, 3, 29, 2, 30, 0, 1000, UTC), "price": Decimal("1.2500"), "kind": "B"
    }  # fmt: skip
    wrong = [given, given | {"kind": "C"}, given]
    with pytest.raises(RowRefused, match="C") as refused:
        encoder.encode(pa.RecordBatch.from_pylist(wrong, schema))
    assert refused.value.number == 1
    with pytest.raises(RowRefused):
        encoder.encode(pa.RecordBatch.from_pylist([given | {"at": None}], schema))


@pytest.mark.parametrize(
    ("columns", "fields", "why"),
    [
        ("n long", '{"name": "n", "type": "int"}', "column n is int64, the field is int"),
        ("n long", '{"name": "n", "type": ["null", "double"]}', "n is int64, the field is null or double"),
        ("n double", '{"name": "n", "type": "long"}', "n is double, the field is long"),
        ("n string", '{"name": "n", "type": "bytes"}', "n is string, the field is bytes"),
        ("n timestamp", '{"name": "n", "type": "long"}', "the field is long"),
        ("n long", '{"name": "n", "type": {"type": "long", "logicalType": "timestamp-micros"}}', "timestamp-micros"),
        ("n long, m long", '{"name": "n", "type": "long"}', "it has no field m"),
        ("n long", '{"name": "n", "type": "long"}, {"name": "m", "type": "long"}', "the rows have no column m"),
        ("n struct<a: long>", '{"name": "n", "type": {"type": "record", "name": "r", "fields": []}}', "no field n.a"),
        ("n array<long>", '{"name": "n", "type": {"type": "array", "items": "int"}}', "the field is array"),
        ("n map<string, long>", '{"name": "n", "type": {"type": "map", "values": "int"}}', "the field is map"),
        ("n map<int, long>", '{"name": "n", "type": {"type": "map", "values": "long"}}', "the field is map"),
        (
            "n decimal(9, 2)",
            '{"name": "n", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3}}',
            "the field is decimal",
        ),
    ],
)
def test_columns_that_do_not_fit_are_refused_at_the_start(columns: str, fields: str, why: str) -> None:
    schema = parsed_avro(f'{{"type": "record", "name": "r0", "fields": [{fields}]}}')
    with pytest.raises(SchemaError, match=why):
        check_fit(parse_schema(columns), schema)


@pytest.mark.parametrize(
    "text", ['"long"', "{", '{"type": "record", "name": "r", "fields": [{"name": "n", "type": "x"}]}', "[" * 10_000]
)
async def test_a_subject_with_another_schema_is_refused(text: str) -> None:
    with pytest.raises(SinkRefused, match=r"subject orders-value: schema id 258"):
        await AvroEncoder(OneSchema(text), "orders-value", "orders", register=False).open(parse_schema("n long"))


def test_names_that_avro_does_not_allow() -> None:
    with pytest.raises(SchemaError, match=r"column .a\.größe.: a name in Avro has only"):
        schema_of_rows(parse_schema("a struct<`größe`: long>"), "orders")
    assert [name_from(text) for text in ("orders", "by-day.v2", "2026", "é")] == ["orders", "by_day_v2", "_2026", "_"]
    schema_of_rows(parse_schema("n long"), name_from('"],{}'))


def test_a_record_in_a_list_and_one_in_a_column_do_not_share_a_name() -> None:
    text = schema_of_rows(parse_schema("a struct<b_c: struct<d: long>>, a_b struct<c: struct<d: string>>"), "r")
    parsed_avro(text)
