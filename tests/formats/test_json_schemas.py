"""JSON Schemas of strangers: nothing is fetched, and references, patterns and depth take bounded time."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from actorproc.errors import DecodeError, SchemaError
from actorproc.formats.json_schema.decoder import JsonSchemaDecoder
from actorproc.formats.json_schema.registry_format import JsonSchemaFormat
from actorproc.formats.registry.client import RegistrySchema


def columns(schema: Any, **references: Any) -> pa.Schema:
    texts = {name: json.dumps(text) for name, text in references.items()}
    return JsonSchemaFormat().columns(RegistrySchema(1, "JSON", json.dumps(schema), texts))


@pytest.mark.parametrize("word", ["$ref", "$schema", "$dynamicRef"])
@pytest.mark.parametrize("url", ["http://127.0.0.1:9/x", "file:///etc/hosts", "file:///etc/hosts#/a", "ftp://a/b"])
def test_nothing_is_fetched_from_elsewhere(word: str, url: str) -> None:
    with pytest.raises(ValueError, match=r"not present in a registry|nknown"):
        JsonSchemaDecoder(json.dumps({word: url}))
    if word == "$ref":
        with pytest.raises(SchemaError, match="not present in a registry"):
            columns({"properties": {"a": {word: url}}})


def test_a_name_below_a_foreign_id_is_not_fetched() -> None:
    with pytest.raises(ValueError, match=r"127\.0\.0\.1:9/x/y is not among the references"):
        JsonSchemaDecoder(json.dumps({"$id": "http://127.0.0.1:9/x/", "$ref": "y"}))


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(?=(a+)+$)b", r"(.*)\1\1x", r"^(a|aa|(?!b)a)+$"])
def test_a_pattern_that_backtracks_for_ever_is_an_error_of_the_value(pattern: str) -> None:
    decoder = JsonSchemaDecoder(json.dumps({"properties": {"a": {"type": "string", "pattern": pattern}}}))
    with pytest.raises(DecodeError):
        decoder.check(json.dumps({"a": "a" * 5000 + "!"}).encode())


def test_a_pattern_that_is_too_large_is_refused() -> None:
    with pytest.raises(ValueError, match="pattern"):
        JsonSchemaDecoder(json.dumps({"pattern": "((a{1,1000}){1,1000}){1,1000}"}))


def test_values_and_schemas_of_any_depth_are_decoded_or_refused() -> None:
    decoder = JsonSchemaDecoder(json.dumps({"additionalProperties": {"$ref": "#"}}))
    decoder.check(b'{"a":' * 150 + b"{}" + b"}" * 150)
    with pytest.raises(DecodeError):
        decoder.check(b'{"a":' * 50_000 + b"{}" + b"}" * 50_000)
    schema: Any = True
    for _ in range(800):
        schema = {"not": schema}
    with pytest.raises(ValueError, match="Recursion"):
        JsonSchemaDecoder(json.dumps(schema))
    JsonSchemaDecoder('{"$ref": "#"}').check(b"1")


def test_columns_of_references() -> None:
    place = {"type": "object", "properties": {"lat": {"type": "number"}, "name": {"$ref": "#/$defs/name"}}}
    place["$defs"] = {"name": {"type": "string"}}
    schema = {
        "properties": {
            "from": {"$ref": "place.json", "description": "a place"},
            "via": {"type": "array", "items": {"$ref": "place.json"}},
            "at": {"anyOf": [{"$ref": "#/$defs/time"}, {"type": "null"}]},
            "rest": {"type": "object", "additionalProperties": {"$ref": "#/$defs/time"}},
            "$ref": {"type": "integer"},
        },
        "$defs": {"time": {"type": "string", "format": "date-time"}},
    }
    time, found = pa.timestamp("us", "UTC"), pa.struct([("lat", pa.float64()), ("name", pa.string())])
    for own in ({}, {"$id": "http://example.com/flight"}, {"$id": "flight"}):
        with_id = "$id" in own and ":" in own["$id"]
        named = {"http://example.com/place.json" if with_id else "place.json": place}
        assert columns({**schema, **own}, **named) == pa.schema(
            [
                ("$ref", pa.int64()),
                ("at", time),
                ("from", found),
                ("rest", pa.map_(pa.string(), time)),
                ("via", pa.list_(pa.field("element", found))),
            ]
        )


def test_a_schema_that_contains_itself_has_no_columns() -> None:
    with pytest.raises(SchemaError, match="children"):
        columns({"properties": {"children": {"type": "array", "items": {"$ref": "#"}}}})


def test_references_that_double_at_each_step_have_no_columns() -> None:
    doubling: Any = {f"d{n}": {"properties": {k: {"$ref": f"#/$defs/d{n + 1}"} for k in "ab"}} for n in range(40)}
    with pytest.raises(SchemaError, match="beyond 100 levels or 10,000 parts"):
        columns({"$ref": "#/$defs/d0", "$defs": {**doubling, "d40": {"type": "string"}}})
