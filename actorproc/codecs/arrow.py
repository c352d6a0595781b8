"""Values that are Arrow IPC streams of any number of rows each."""

from __future__ import annotations

import struct
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from actorproc.codecs.arrow_stream import extent, repeated_bytes
from actorproc.codecs.arrow_views import check_views
from actorproc.codecs.converted_values import ConvertedValues
from actorproc.codecs.limits import DEFAULT, Limits
from actorproc.codecs.tables import TableColumns
from actorproc.errors import DecodeError
from actorproc.handler.decoder import Columns, Decoder, Values
from actorproc.records import SEQUENCE

_FORMAT = "Arrow"


class ArrowDecoder(Decoder):
    """Decodes IPC streams: a value is a list of dicts, or as columns all of its rows.

    Values of one batch may have different columns: one that a value lacks is null.

    Args:
        limits: of a value. They are checked before anything is decompressed.
    """

    def __init__(self, limits: Limits = DEFAULT) -> None:
        self._limits = limits

    def values(self, kind: Any = Any) -> Values[Any]:
        return _StreamValues(kind, self._limits)

    def columns(self, schema: pa.Schema) -> Columns:
        return TableColumns(partial(_read_streams, limits=self._limits), schema, _FORMAT)


class _StreamValues(ConvertedValues):
    def __init__(self, kind: Any, limits: Limits) -> None:
        super().__init__(kind, _FORMAT)
        self._limits = limits

    def load(self, value: bytes) -> Any:
        return _read_stream(value, self._limits).to_pylist(maps_as_pydicts="strict")


def _read_streams(values: pa.Array, sequences: pa.Int64Array, limits: Limits) -> list[pa.Table]:
    """A table for neighbours of one schema, so that how a value is read does not depend on the others."""
    streams = zip([_read_stream(value, limits) for value in values.to_pylist()], sequences.to_pylist(), strict=True)
    tables = []
    for _, run in groupby(streams, key=lambda stream: stream[0].schema):
        read, numbers = zip(*run, strict=True)
        rows = np.repeat(np.array(numbers, np.int64), [table.num_rows for table in read])
        tables.append(pa.concat_tables(read).append_column(SEQUENCE, pa.array(rows)))
    return tables


def _read_stream(value: bytes, limits: Limits) -> pa.Table:
    """Raises ValueError: it is not an IPC stream, or beyond the limits. pyarrow's errors are ValueErrors."""
    try:
        found = extent(value)
        limits.check_rows(found.rows)
        limits.check_bytes(found.bytes)
        with pa.ipc.open_stream(pa.BufferReader(value)) as stream:
            table = stream.read_all()
    except (pa.ArrowException, OSError, KeyError, TypeError, struct.error) as error:
        raise DecodeError(str(error)) from None
    table.validate(full=True)  # who uses columns that were damaged on the way can end the process
    for column in table.columns:
        check_views(column)
    limits.check_bytes(found.bytes + sum(map(repeated_bytes, table.columns)))
    if len(set(table.column_names)) < table.num_columns:  # a dict would keep the last one
        raise DecodeError(f"two columns have the same name: {', '.join(table.column_names)}")
    return table.drop_columns([name for name in table.column_names if name == SEQUENCE.name])
