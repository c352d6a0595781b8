"""Avro values by a known schema, decoded one by one, since no library makes columns of them."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa

from actorproc.codecs.converted_values import ConvertedValues
from actorproc.codecs.limits import DEFAULT, Limits
from actorproc.errors import DecodeError
from actorproc.formats.avro.reading import Budget
from actorproc.formats.avro.resolution import resolved_reader
from actorproc.formats.avro.row_columns import RowColumns
from actorproc.formats.avro.schema import AvroType
from actorproc.handler.decoder import Columns, Decoder, Values


class AvroDecoder(Decoder):
    """Decodes values by the schema with which they were written, without a header.

    Args:
        writer: the schema with which the values were written, from `parsed_avro`.
        reader: the schema into which they are resolved (defaults, aliases, promotions); None: the writer's.
        limits: of one value; its rows are fields, and the items of arrays and maps.

    Raises:
        ValueError: no value can be resolved.
    """

    def __init__(self, writer: AvroType, reader: AvroType | None = None, limits: Limits = DEFAULT) -> None:
        self._node = resolved_reader(writer, reader or writer)
        self._items = limits.rows

    def load(self, value: bytes) -> Any:
        """The plain Python object of a value.

        Raises:
            ValueError, OverflowError: it does not decode.
        """
        budget = Budget(self._items)
        budget.take(self._node.weight or 1)
        try:
            loaded, end = self._node.read(value, 0, budget)
        except (IndexError, struct.error):
            raise DecodeError("the value is cut short") from None
        if left := len(value) - end:
            raise DecodeError(f"{left} bytes are left over after the value: it has another schema")
        return loaded

    def values(self, kind: Any = Any) -> Values[Any]:
        return _AvroValues(self, kind)

    def columns(self, schema: pa.Schema) -> Columns:
        return RowColumns(self.values(), schema)


class _AvroValues(ConvertedValues):
    def __init__(self, decoder: AvroDecoder, kind: Any) -> None:
        super().__init__(kind, "Avro")
        self._decoder = decoder

    def load(self, value: bytes) -> Any:
        return self._decoder.load(value)
