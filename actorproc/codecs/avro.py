"""Avro values by a known schema, with fastavro: decoded one by one, since no library makes columns of them."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
from fastavro.schema import SchemaParseException, UnknownType, parse_schema

from actorproc.codecs.converted_values import ConvertedValues
from actorproc.codecs.row_columns import RowColumns
from actorproc.errors import DecodeError
from actorproc.handler.decoder import Columns, Decoder, Values

_WITHOUT_COLUMN_TYPE = frozenset({"uuid", "time-millis", "time-micros", "duration"})
"""Logical types that stay text, numbers or bytes, because no column type corresponds to them."""


class AvroDecoder(Decoder):
    """Decodes values by the schema with which they were written, without a header.

    Args:
        writer: the schema with which the values were written, from `parsed_avro`.
        reader: the schema into which they are resolved (defaults, aliases, promotions); None: the writer's.
    """

    def __init__(self, writer: Any, reader: Any = None) -> None:
        self.writer = writer
        self._reader = reader

    def values(self, kind: Any = Any) -> Values[Any]:
        return _AvroValues(self.writer, self._reader, kind)

    def columns(self, schema: pa.Schema) -> Columns:
        return RowColumns(self.values(), schema)


class _AvroValues(ConvertedValues):
    def __init__(self, writer: Any, reader: Any, kind: Any) -> None:
        super().__init__(kind)
        self._writer = writer
        self._reader = reader

    def load(self, value: bytes) -> Any:
        stream = BytesIO(value)
        try:
            loaded = fastavro.schemaless_reader(stream, self._writer, self._reader)
        except EOFError:
            raise DecodeError("the value is cut short") from None
        if left := len(value) - stream.tell():
            raise DecodeError(f"{left} bytes are left over after the value: it has another schema")
        return loaded


def parsed_avro(text: str, references: Mapping[str, str] | None = None) -> Any:
    """A schema as fastavro takes it.

    Args:
        references: texts of the schemas whose types it names, each after those that it names itself.

    Raises:
        ValueError: it is not an Avro schema, or names an unknown type.
    """
    named: dict[str, Any] = {}
    try:
        for reference in (references or {}).values():
            parse_schema(_plain(json.loads(reference)), named)
        return parse_schema(_plain(json.loads(text)), named)
    except (SchemaParseException, UnknownType, KeyError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _plain(schema: Any) -> Any:
    """The schema without the logical types that have no column type."""
    if isinstance(schema, list):
        return [_plain(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {name: value if name == "default" else _plain(copy.copy(value)) for name, value in schema.items()}
    if schema.get("logicalType") in _WITHOUT_COLUMN_TYPE:
        del plain["logicalType"]
    return plain
