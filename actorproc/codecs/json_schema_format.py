"""JSON Schemas of a registry: decoders of their values, and their columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from actorproc.codecs.json_schema import JsonSchemaDecoder, resolved
from actorproc.codecs.registry import RegistrySchema
from actorproc.codecs.registry_decoder import RegistryFormat
from actorproc.errors import SchemaError
from actorproc.handler.decoder import Decoder

_TYPES = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
_FORMATS = {"date-time": pa.timestamp("us", "UTC"), "date": pa.date32()}


class JsonSchemaFormat(RegistryFormat):
    """JSON with a JSON Schema."""

    kind = "JSON"

    def decoder(self, schema: RegistrySchema, reader: RegistrySchema | None) -> Decoder:
        return JsonSchemaDecoder(schema.text, schema.references)

    def columns(self, schema: RegistrySchema) -> pa.Schema:
        kind = _arrow_type(resolved(schema.text, schema.references), "the value")
        if not pa.types.is_struct(kind):
            raise SchemaError(f"schema id {schema.id} does not declare an object with properties: it has no columns")
        return pa.schema(list(kind))


def _arrow_type(schema: Any, path: str) -> pa.DataType:
    """The column type of values of a schema, with every part nullable."""
    kinds = _kinds(schema)
    if len(kinds) != 1:
        raise SchemaError(
            f"{path} has {len(kinds)} types in the JSON Schema, and a column has one: declare output_schema"
        )
    [(kind, of)] = kinds
    if kind == "object":
        return _object_type(of, path)
    if kind == "array":
        return pa.list_(pa.field("element", _arrow_type(of.get("items", {}), f"{path}[]")))
    if kind == "string":
        return _FORMATS.get(str(of.get("format")), pa.string())
    return _TYPES[kind]


def _object_type(schema: dict[str, Any], path: str) -> pa.DataType:
    if properties := schema.get("properties"):
        return pa.struct([(name, _arrow_type(of, f"{path}.{name}")) for name, of in properties.items()])
    return pa.map_(pa.string(), _arrow_type(schema.get("additionalProperties", {}), f"{path}.*"))


def _kinds(schema: Any) -> list[tuple[str, dict[str, Any]]]:
    """The types that the schema allows, except null, each with the schema that says so."""
    if not isinstance(schema, dict):
        return []
    for word in ("oneOf", "anyOf"):
        if word in schema:
            return [kind for branch in schema[word] for kind in _kinds(branch)]
    kinds = schema.get("type", "object" if "properties" in schema else [])
    return [(kind, schema) for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind != "null"]
