"""Formats whose values do not name a schema: text, CSV, Arrow, and Avro, Protobuf and JSON Schema from files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import orjson
import pyarrow as pa
import pytest

from actorproc import DecodedRows, PartitionContext, PartitionHandler, Record, RecordHandler, Settings
from actorproc.codecs import open_decoder
from actorproc.errors import EndNotReached, SettingsError
from actorproc.testing import run_handler
from tests.formats import serialized
from tests.formats.samples import FORMATS, handlers, process
from tests.formats.serialized import AVRO, JSON_SCHEMA
from tests.partition.running import letters as found_letters


class Texts(DecodedRows):
    output_schema = "value string"


class Flights(DecodedRows):
    output_schema = "carrier string, delay double"


class Shown(RecordHandler[Any]):
    """Emits the value that the handler is given, as text."""

    output_schema = "value string"

    def process_record(self, value: Any, ctx: PartitionContext) -> dict[str, str]:
        return {"value": repr(value)}


async def rows_and_letters(
    handler: type[PartitionHandler], values: Sequence[bytes | None], **settings: Any
) -> tuple[list[tuple[Any, ...]], dict[int, str]]:
    """The rows without their last column, the sequence, by which they are in order; and the letters' messages."""
    result = await run_handler(handler, values, settings=Settings(dead_letter_limit=1, **settings))
    letters = {letter["sequence"]: letter["error"]["message"] for letter in result.dead_letters}
    sequences = [row["_sequence"] for row in result.rows]
    assert sequences == sorted(sequences)
    names = [name for name in result.rows[0] if name != "_sequence"] if result.rows else []
    return [tuple(row[name] for name in names) for row in result.rows], letters


async def test_text_must_be_utf8() -> None:
    values = ["Zürich".encode(), b"\xff", None, b""]
    for handler, shown in ((Texts, ["Zürich", ""]), (Shown, ["'Zürich'", "''"])):
        rows, letters = await rows_and_letters(handler, values, decode="text")
        assert rows == [(text,) for text in shown]
        assert letters.keys() == {1, 2}
        assert letters[2] == "the record has no value"


async def test_csv_lines_become_typed_columns() -> None:
    class Orders(DecodedRows):
        output_schema = "day date, price decimal(9,2), name string, n bigint"

    values = [
        b"7,2013-01-31,1.25,plain\r\n",
        b'8,2013-02-01,2.50,"quoted, with a comma"',
        b'9,2013-02-01,2.50,"two\nlines"',
        b"x,2013-02-01,2.50,no number",
        b"10,,,",
        b"11,2013-02-01",
        b'12,2013-02-01,1.00,"open',
        b"13,2013-02-01,1.00,a\n14,2013-02-01,1.00,b",
    ]
    declared = "n bigint, day date, price decimal(9,2), name string"
    rows, letters = await rows_and_letters(Orders, values, decode="csv", decode_schema=declared)
    assert [(row[3], str(row[0]), row[1], row[2]) for row in rows] == [
        (7, "2013-01-31", Decimal("1.25"), "plain"),
        (8, "2013-02-01", Decimal("2.50"), "quoted, with a comma"),
        (9, "2013-02-01", Decimal("2.50"), "two\nlines"),
        (10, "None", None, ""),
    ]
    assert letters.keys() == {3, 5, 6, 7}
    assert "conversion error to int64: invalid value 'x'" in letters[3]
    assert "Expected 4 columns, got 2" in letters[5]
    assert letters[6] == "CSV: a quote is not closed"
    assert letters[7] == "CSV: the value has 2 lines of CSV, not one"


class Invoices(DecodedRows):
    output_schema = "name string, amount decimal(10,2), share float"


@pytest.mark.parametrize("value", [b"a,9999999999,", b"a,100000000,", b"a,1.234,", b"a,1e3x,", b"a,,1e39"])
async def test_a_number_of_csv_that_does_not_fit_becomes_no_other_number(value: bytes) -> None:
    values = [b"a,99999999.99,1.5", value, b"b, 1 ,", b"c,,"]
    rows, letters = await rows_and_letters(Invoices, values, decode="csv", decode_schema=Invoices.output_schema)
    assert rows == [("a", Decimal("99999999.99"), 1.5), ("b", Decimal("1.00"), None), ("c", None, None)]
    assert letters.keys() == {1}


@pytest.mark.parametrize("value", [b'a,"1",', b'"a, b","1",\r\n', b"", b"\n", b"\xef\xbb\xbfa,,"])
async def test_a_line_of_csv_is_read_alike_in_any_place(value: bytes) -> None:
    found = []
    for before, after in ([0, 0], [0, 1], [1, 0], [1, 1]):
        values = [b'"x",1,'] * before + [value] + [b'y,,"2"'] * after
        rows, letters = await rows_and_letters(Invoices, values, decode="csv", decode_schema=Invoices.output_schema)
        found.append((rows[before : len(rows) - after], letters.get(before)))
    assert found == found[:1] * 4


def stream(rows: list[dict[str, Any]]) -> bytes:
    table, sink = pa.Table.from_pylist(rows), BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


async def test_an_arrow_stream_has_any_number_of_rows_and_columns() -> None:
    values = [
        stream([{"carrier": "AA", "delay": 1}, {"carrier": "UA", "delay": 2}]),
        stream([{"carrier": "DL"}]),
        stream([{"carrier": "B6", "delay": 1.5, "seats": 3}]),
        b"no stream",
    ]
    rows, letters = await rows_and_letters(Flights, values[:1], decode="arrow")
    assert rows == [("AA", 1.0), ("UA", 2.0)]
    rows, letters = await rows_and_letters(Flights, values[1:], decode="arrow")
    assert rows == [("DL", None), ("B6", 1.5)]
    assert letters.keys() == {2}
    rows, _ = await rows_and_letters(Shown, values[1:2], decode="arrow")
    assert rows == [("[{'carrier': 'DL'}]",)]


async def test_arrow_streams_of_different_types_share_a_batch() -> None:
    values = [stream([{"carrier": "AA", "delay": 1}]), stream([{"carrier": "UA", "delay": "late"}])]
    rows, letters = await rows_and_letters(Flights, values, decode="arrow")
    assert rows == [("AA", 1.0)]
    assert letters == {1: "column 'delay': it is double, and the field of the value is string"}


@pytest.mark.parametrize("delivery", ["at-least-once", "at-most-once"])
async def test_an_arrow_stream_decodes_alike_with_any_neighbours(delivery: str) -> None:
    drifted, own_sequence = stream([{"carrier": 7}]), stream([{"_sequence": 5, "delay": 3.0}])
    values = [stream([{"delay": 1.0}]), drifted, stream([{"delay": 2}]), drifted[:200], own_sequence]
    rows, letters = await rows_and_letters(Flights, values, decode="arrow", delivery=delivery)
    assert rows == [(None, 1.0), (None, 2.0), (None, 3.0)]
    assert letters.keys() == {1, 3}


async def test_a_damaged_arrow_stream_does_not_end_the_process() -> None:
    good = stream([{"carrier": "UA", "delay": 1.0}, {"carrier": "US", "delay": 2.0}])
    at = good.index(b"UAUS")  # the column's text; before it its offsets
    offsets = good.rindex((2).to_bytes(4, "little"), 0, at)
    damaged = good[:offsets] + (2**30).to_bytes(4, "little") + good[offsets + 4 :]
    rows, letters = await rows_and_letters(Flights, [good, damaged], decode="arrow")
    assert len(rows) == 2
    assert letters.keys() == {1}


def avro_value(schema: Any, value: dict[str, Any]) -> bytes:
    stream = BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


async def test_avro_by_a_schema_in_a_file(tmp_path: Path) -> None:
    schema = tmp_path / "flight.avsc"
    schema.write_bytes(orjson.dumps(AVRO))
    values = [avro_value(AVRO, {"carrier": "AA", "delay": 1.5}), b"\x08", None]
    for handler, row in ((Flights, ("AA", 1.5)), (Shown, ("{'carrier': 'AA', 'delay': 1.5}",))):
        rows, letters = await rows_and_letters(handler, values, decode="avro", decode_schema=str(schema))
        assert rows == [row]
        assert letters == {1: "Avro: the value is cut short", 2: "the record has no value"}


async def test_nested_avro_records_lose_the_fields_that_the_output_does_not_name(tmp_path: Path) -> None:
    class Nested(DecodedRows):
        output_schema = "legs array<struct<to: string>>, at struct<lat: double>, n int"

    place = {"type": "record", "name": "Place", "fields": [{"name": n, "type": "double"} for n in ("lat", "lon")]}
    leg = {"type": "record", "name": "Leg", "fields": [{"name": n, "type": "string"} for n in ("to", "by")]}
    fields = [{"name": "legs", "type": {"type": "array", "items": leg}}, {"name": "at", "type": place}]
    fields += [{"name": "n", "type": "long"}]
    schema = {"type": "record", "name": "Trip", "fields": fields}
    (tmp_path / "trip.avsc").write_bytes(orjson.dumps(schema))
    trip: dict[str, Any] = {"legs": [{"to": "JFK", "by": "AA"}], "at": {"lat": 1.0, "lon": 2.0}}
    values = [avro_value(schema, {**trip, "n": 1}), avro_value(schema, {**trip, "n": 2**40})]
    place_of = str(tmp_path / "trip.avsc")
    rows, letters = await rows_and_letters(Nested, [*values], decode="avro", decode_schema=place_of)
    assert rows == [([{"to": "JFK"}], {"lat": 1.0}, 1)]
    assert letters.keys() == {1}
    assert letters[1].startswith("column 'n': ")


async def test_protobuf_by_a_generated_class(tmp_path: Path) -> None:
    flight_pb2 = serialized.generated(tmp_path)
    assert "flight_pb2" in sys.modules
    value = flight_pb2.Flight(carrier="AA", delay=1.5).SerializeToString()
    rows, letters = await rows_and_letters(
        Flights, [value, b"\xff", b""], decode="protobuf", decode_schema="flight_pb2:Flight"
    )
    assert rows == [("AA", 1.5), ("", None)]
    assert letters.keys() == {1}


async def test_json_by_a_json_schema_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "flight.json").write_bytes(orjson.dumps(JSON_SCHEMA))
    values: list[bytes | None] = [b'{"carrier": "AA", "delay": 2}', b'{"delay": 2}', b"{", None]
    for handler, row in ((Flights, ("AA", 2.0)), (Shown, ("{'carrier': 'AA', 'delay': 2}",))):
        rows, letters = await rows_and_letters(
            handler, values, decode="json-schema", decode_schema=str(tmp_path / "flight.json")
        )
        assert rows == [row]
        assert letters[1] == 'not valid by the JSON Schema: "carrier" is a required property'
        assert letters[2].startswith("the value is not JSON: ")
        assert letters[3] == "the record has no value"


async def test_a_column_type_that_the_format_lacks_gives_no_record_up() -> None:
    class Binary(DecodedRows):
        output_schema = "content binary"

    with pytest.raises(EndNotReached, match="column 'content' is binary, which JSON does not have"):
        await run_handler(Binary, [b"{}"])


async def test_a_handler_of_records_decodes_columns_of_its_own() -> None:
    class Doubled(PartitionHandler):
        output_schema = "twice double"

        def process(self, batch: Any, ctx: PartitionContext) -> None:
            table = ctx.decode_arrow(batch, "delay double")
            twice = pa.compute.multiply(table["delay"], 2.0)
            ctx.emit_arrow(pa.table({"twice": twice, "_sequence": table["_sequence"]}))

    rows, letters = await rows_and_letters(Doubled, [b'{"delay": 2}', b'{"delay": "x"}'])
    assert rows == [(4.0,)]
    assert letters.keys() == {1}


async def test_record_handlers_of_records_get_the_bytes_with_each_decoder() -> None:
    class Raw(RecordHandler):
        output_schema = "value binary"

        def process_record(self, record: Record, ctx: PartitionContext) -> dict[str, Any]:
            return {"value": record.value}

    assert await rows_and_letters(Raw, [b"\xff"], decode="text") == ([(b"\xff",)], {})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"decode": "avro"}, "decode = avro needs decode_schema or schema_registry"),
        ({"decode": "csv"}, "decode = csv needs decode_schema"),
        ({"decode": "csv", "decode_schema": "a array<int>"}, "field 'a' is array<int>: a field of CSV has no parts"),
        ({"decode": "text", "decode_schema": "a int"}, "decode_schema = 'a int': decode = text takes none"),
        ({"decode": "avro", "decode_schema": "absent.avsc"}, "decode_schema = 'absent.avsc': .*No such file"),
        ({"decode": "protobuf", "decode_schema": "orjson:Flight"}, "give a class that protoc generated"),
    ],
)
def test_settings_that_name_no_schema_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        open_decoder(Settings(**given))


@pytest.mark.parametrize(
    ("format_of", "library"),
    [("avro", "confluent_kafka.schema_registry"), ("protobuf", "ptars"), ("json-schema", "jsonschema_rs")],
)
def test_a_missing_extra_is_named(format_of: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("actorproc.formats.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(SettingsError, match=rf"pip install '\.\[{format_of}\]' in the checkout"):
        open_decoder(Settings(decode=format_of, schema_registry="http://127.0.0.1:9"))


NAMES = {
    "json": "JSON", "json-schema": "JSON", "avro": "Avro", "protobuf": "Protobuf", "csv": "CSV", "text": "text",
    "arrow": "Arrow",
}  # fmt: skip


@pytest.mark.parametrize("way", list(handlers()))
@pytest.mark.parametrize("name", list(FORMATS))
async def test_a_value_that_cannot_be_read_names_its_format(name: str, way: str) -> None:
    made = FORMATS[name]
    good = made.value(1)
    outcome = await process(handlers(made.schema)[way], made.decoder, [good, b'"\xff', good])
    [letter] = found_letters(outcome).values()
    assert letter["error"]["type"] == "DecodeError" or name == "json"
    assert NAMES[name] in letter["error"]["message"]
