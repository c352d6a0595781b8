"""Any value decodes the same alone and in a batch, and CSV decodes to the values that were written."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorproc.codecs.arrow import ArrowDecoder
from actorproc.codecs.csv import CsvDecoder
from actorproc.formats.avro.decoder import AvroDecoder
from actorproc.formats.avro.schema import parsed_avro
from actorproc.handler.decoder import Decoder
from actorproc.rows.output_schema import parse_schema

SCHEMA = parse_schema("name string, price decimal(9,2), n bigint")
AVRO = """{"type": "record", "name": "Order", "fields": [
    {"name": "name", "type": "string"},
    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    {"name": "n", "type": ["null", "long", "string"]}]}"""


def csv_line(fields: list[Any]) -> bytes:
    line = io.StringIO()
    csv.writer(line).writerow(fields)
    return line.getvalue().encode()


def arrow_stream(fields: list[Any]) -> bytes:
    table, sink = pa.Table.from_pylist([dict(zip(SCHEMA.names, fields, strict=True))]), io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def avro_record(fields: list[Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, json.loads(AVRO), dict(zip(SCHEMA.names, fields, strict=True)))
    return stream.getvalue()


FORMATS: dict[str, tuple[Decoder, Callable[[list[Any]], bytes]]] = {
    "csv": (CsvDecoder(SCHEMA), csv_line),
    "arrow": (ArrowDecoder(), arrow_stream),
    "avro": (AvroDecoder(parsed_avro(AVRO)), avro_record),
}

texts = st.text(st.characters(codec="utf-8"), max_size=5)
prices = st.decimals(-9_999_999, 9_999_999, places=2)
counts = st.none() | st.integers(-(2**63), 2**63 - 1) | texts
odd_texts = st.text('19,."\n\r a\ufeff', max_size=6)
odd_lines = st.tuples(*[st.sampled_from(["1", '"1"', "", '"', "a\n1"]) | odd_texts] * 3).map(",".join)


@st.composite
def batches(draw: st.DrawFn, name: str) -> list[bytes]:
    """Some of the values are damaged, or not of the format at all."""
    values = [
        FORMATS[name][1](draw(st.tuples(texts, prices, counts).map(list))) for _ in range(draw(st.integers(1, 6)))
    ]
    for at in draw(st.lists(st.integers(0, len(values) - 1), max_size=3)):
        if draw(st.booleans()):
            values[at] = draw(odd_lines).encode()
        else:
            start, end = sorted(draw(st.tuples(st.integers(0, len(values[at])), st.integers(0, len(values[at])))))
            values[at] = values[at][:start] + draw(st.binary(max_size=4)) + values[at][end:]
    return values


def parsed(decoder: Decoder, values: list[bytes]) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """Rows with the values' numbers, and why other values have none."""
    numbers = pa.array(range(len(values)), pa.int64())
    table, errors = decoder.columns(SCHEMA).parse(pa.array(values, pa.binary()), numbers)
    table.validate(full=True)
    return table.sort_by("_sequence").to_pylist(), {at: str(why) for at, why in errors.items()}


@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
def test_columns_are_the_same_of_a_value_alone_and_among_others(name: str, data: st.DataObject) -> None:
    values = data.draw(batches(name))
    rows, errors = parsed(FORMATS[name][0], values)
    alone = [parsed(FORMATS[name][0], [value]) for value in values]
    assert rows == [{**row, "_sequence": at} for at, (own, _) in enumerate(alone) for row in own]
    assert errors == {at: why[0] for at, (_, why) in enumerate(alone) if why}


@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
def test_objects_are_the_same_of_a_value_alone_and_among_others(name: str, data: st.DataObject) -> None:
    values = data.draw(batches(name))
    decoded = FORMATS[name][0].values()
    together = decoded.parse_all(pa.array(values, pa.binary()))
    try:
        alone = [decoded.parse(value) for value in values]
    except ValueError:
        assert together is None
    else:
        assert together in (None, alone)


@given(st.lists(st.from_regex(r"-?[0-9]{1,12}(\.[0-9]{1,4})?", fullmatch=True), min_size=1, max_size=5))
def test_a_decimal_of_csv_is_the_one_that_was_written_or_none(written: list[str]) -> None:
    rows, errors = parsed(FORMATS["csv"][0], [csv_line(["", number, 1]) for number in written])
    exact = [Decimal(number) for number in written]
    fitting = [number for number in exact if abs(number) < 10**7 and number == round(number, 2)]
    assert [row["price"] for row in rows] == fitting
    assert len(errors) == len(written) - len(fitting)


@given(st.lists(st.integers(-(2**65), 2**65), min_size=1, max_size=5))
def test_an_integer_of_csv_is_the_one_that_was_written_or_none(written: list[int]) -> None:
    rows, errors = parsed(FORMATS["csv"][0], [csv_line(["", 1, number]) for number in written])
    fitting = [number for number in written if -(2**63) <= number < 2**63]
    assert [row["n"] for row in rows] == fitting
    assert len(errors) == len(written) - len(fitting)


@given(st.lists(texts | odd_texts, min_size=1, max_size=5))
def test_a_text_of_csv_is_the_one_that_was_written(written: list[str]) -> None:
    rows, _ = parsed(FORMATS["csv"][0], [csv_line([text, 1, 1]) for text in written])
    assert [row["name"] for row in rows] == written
