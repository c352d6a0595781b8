"""Avro schemas of a registry: decoders of their values, and their columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from actorproc.codecs.avro import AvroDecoder, parsed_avro
from actorproc.codecs.registry import RegistrySchema
from actorproc.codecs.registry_decoder import RegistryFormat
from actorproc.errors import SchemaError
from actorproc.handler.decoder import Decoder

_TYPES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "enum": pa.string(),
}
_LOGICAL = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}


class AvroFormat(RegistryFormat):
    """Avro."""

    kind = "AVRO"

    def decoder(self, schema: RegistrySchema, reader: RegistrySchema | None) -> Decoder:
        return AvroDecoder(_parsed(schema), None if reader is None else _parsed(reader))

    def columns(self, schema: RegistrySchema) -> pa.Schema:
        parsed = _parsed(schema)
        kind = _arrow_type(parsed, parsed.get("__named_schemas", {}) if isinstance(parsed, dict) else {}, ())
        if not pa.types.is_struct(kind):
            raise SchemaError(f"schema id {schema.id} is not a record, so it has no columns")
        return pa.schema(list(kind))


def _parsed(schema: RegistrySchema) -> Any:
    return parsed_avro(schema.text, schema.references)


def _arrow_type(schema: Any, named: dict[str, Any], path: tuple[str, ...]) -> pa.DataType:
    """The column type of an Avro schema, with every part nullable."""
    if isinstance(schema, list):
        branches = [branch for branch in schema if branch != "null"]
        if len(branches) != 1:
            raise _no_column(path, f"a union of {len(branches)} types")
        return _arrow_type(branches[0], named, path)
    if isinstance(schema, str):
        if schema in _TYPES:
            return _TYPES[schema]
        if schema in path:
            raise _no_column(path, f"{schema}, which contains itself")
        return _arrow_type(named[schema], named, path) if schema in named else pa.null()
    kind, logical = schema["type"], schema.get("logicalType")
    if logical == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    if kind == "record":
        within = (*path, schema["name"])
        fields = [(f["name"], _arrow_type(f["type"], named, (*within, f["name"]))) for f in schema["fields"]]
        return pa.struct(fields)
    if kind == "array":
        return pa.list_(pa.field("element", _arrow_type(schema["items"], named, path)))
    if kind == "map":
        return pa.map_(pa.string(), _arrow_type(schema["values"], named, path))
    return _arrow_type(kind, named, path)


def _no_column(path: tuple[str, ...], what: str) -> SchemaError:
    return SchemaError(f"{'.'.join(path)} is {what}, which no column type holds: declare output_schema without it")
