"""Avro schemas of a registry: decoders of their values, and their columns."""

from __future__ import annotations

import pyarrow as pa

from actorproc.codecs.limits import MOST_COLUMNS
from actorproc.errors import SchemaError
from actorproc.formats.avro.decoder import AvroDecoder
from actorproc.formats.avro.schema import AvroType, parsed_avro
from actorproc.formats.registry.client import RegistrySchema
from actorproc.formats.registry.decoder import RegistryFormat
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
    "null": pa.null(),
}
_LOGICAL = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}


_DIGITS = 38


class AvroFormat(RegistryFormat):
    """Avro."""

    kind = "AVRO"

    def decoder(self, schema: RegistrySchema, reader: RegistrySchema | None) -> Decoder:
        return AvroDecoder(_parsed(schema), None if reader is None else _parsed(reader), self.limits)

    def columns(self, schema: RegistrySchema) -> pa.Schema:
        kind = _Columns().arrow_type(_parsed(schema), ())
        if not pa.types.is_struct(kind):
            raise SchemaError(f"schema id {schema.id} is not a record, so it has no columns")
        return pa.schema(list(kind))


def _parsed(schema: RegistrySchema) -> AvroType:
    return parsed_avro(schema.text, schema.references)


class _Columns:
    def __init__(self) -> None:
        self._parts = 0

    def arrow_type(self, kind: AvroType, path: tuple[str, ...]) -> pa.DataType:
        """The column type of an Avro type, with every part nullable."""
        self._parts += 1
        if self._parts > MOST_COLUMNS:
            raise _no_column(path, f"beyond the first {MOST_COLUMNS:,} parts")
        if kind.kind == "union":
            branches = [branch for branch in kind.branches if branch.kind != "null"]
            if len(branches) != 1:
                raise _no_column(path, f"a union of {len(branches)} types")
            return self.arrow_type(branches[0], path)
        if kind.logical == "decimal":
            if not 0 < kind.precision <= _DIGITS:
                raise _no_column(path, f"a decimal of {kind.precision} digits")
            return pa.decimal128(kind.precision, kind.scale)
        if kind.logical is not None:
            return _LOGICAL[kind.logical]
        if kind.kind == "record":
            return self._struct(kind, path)
        if kind.inner is None:
            return _TYPES[kind.kind]
        inner = self.arrow_type(kind.inner, path)
        return pa.list_(pa.field("element", inner)) if kind.kind == "array" else pa.map_(pa.string(), inner)

    def _struct(self, kind: AvroType, path: tuple[str, ...]) -> pa.DataType:
        if kind.name in path:
            raise _no_column(path, f"{kind.name}, which contains itself")
        within = (*path, kind.name)
        return pa.struct([(field.name, self.arrow_type(field.type, (*within, field.name))) for field in kind.fields])


def _no_column(path: tuple[str, ...], what: str) -> SchemaError:
    return SchemaError(f"{'.'.join(path)} is {what}, which no column type holds: declare output_schema without it")
