"""Columns of JSON Schemas with references, and of schemas that would have too many columns."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from actorproc.errors import SchemaError
from actorproc.formats.json_schema.registry_format import JsonSchemaFormat
from actorproc.formats.registry.client import RegistrySchema


def columns(schema: Any, **references: Any) -> pa.Schema:
    named = {name.replace("_", "."): json.dumps(of) for name, of in references.items()}
    return JsonSchemaFormat().columns(RegistrySchema(1, "JSON", json.dumps(schema), named))


def object_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


PLACE = {**object_of(lat={"type": "number"}, at={"$ref": "#/$defs/time"}), "$defs": {"time": {"type": "string"}}}
PLACED = pa.struct([("at", pa.string()), ("lat", pa.float64())])


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        (object_of(c={"$ref": "#/$defs/a"}) | {"$defs": {"a": {"type": "integer"}}}, pa.int64()),
        (object_of(c={"$ref": "#a"}) | {"$defs": {"x": {"$anchor": "a", "type": "integer"}}}, pa.int64()),
        (object_of(c={"$ref": "place.json"}), PLACED),
        (object_of(c={"$ref": "place.json#/properties/lat"}), pa.float64()),
        (object_of(c={"oneOf": [{"type": "null"}, {"$ref": "place.json"}]}), PLACED),
        (object_of(c={"type": "array", "items": {"$ref": "place.json"}}), pa.list_(pa.field("element", PLACED))),
        ({"$ref": "#/$defs/a", "$defs": {"a": object_of(c={"type": "boolean"})}}, pa.bool_()),
        ({"$id": "https://example.com/main", **object_of(c={"$ref": "#/$defs/a"}), "$defs": {"a": {"type": "string"}}},
         pa.string()),
        (object_of(c={"type": "object", "additionalProperties": {"$ref": "place.json"}}), pa.map_(pa.string(), PLACED)),
    ],
)  # fmt: skip
def test_references_are_followed(schema: Any, kind: pa.DataType) -> None:
    assert columns(schema, place_json=PLACE) == pa.schema([("c", kind)])


def test_definitions_that_double_are_refused() -> None:
    """Some lines of a schema, and 2^50 columns."""
    definitions: dict[str, Any] = {"D0": {"type": "integer"}}
    for level in range(1, 51):
        inner = {"$ref": f"#/$defs/D{level - 1}"}
        definitions[f"D{level}"] = object_of(a=inner, b=inner)
    with pytest.raises(SchemaError, match="beyond 100 levels or 10,000 parts"):
        columns({"$ref": "#/$defs/D50", "$defs": definitions})


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (object_of(c={"$ref": "#"}), "beyond 100 levels or 10,000 parts, as in a schema that contains itself"),
        (object_of(c={"$ref": "#/properties/c"}), "beyond 100 levels"),
        (object_of(c={"oneOf": [{"$ref": "#/properties/c"}, {"$ref": "#/properties/c"}]}), "beyond 100 levels"),
        (object_of(c={"$ref": "other.json"}), "schema id 1: .*other.json"),
        (object_of(c={"$ref": "https://example.com/x"}), "schema id 1: .*example.com"),
        (object_of(c={"type": "text"}), "the value.c has the type 'text', which JSON Schema does not have"),
        (object_of(c={"type": ["string", "number"]}), "the value.c has 2 types"),
        (object_of(c={"type": [["string"]]}), "which JSON Schema does not have"),
        ({"properties": 7}, "schema id 1 is not a JSON Schema"),
        ({"oneOf": 7}, "schema id 1 is not a JSON Schema"),
        ({"type": "string"}, "schema id 1 does not declare an object with properties"),
    ],
)
def test_a_schema_without_columns_says_why(schema: Any, why: str) -> None:
    with pytest.raises(SchemaError, match=why):
        columns(schema)
