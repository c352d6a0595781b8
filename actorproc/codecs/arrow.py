"""Values that are Arrow IPC streams of any number of rows each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from actorproc.codecs.converted_values import ConvertedValues
from actorproc.codecs.tables import TableColumns
from actorproc.handler.decoder import Columns, Decoder, Values
from actorproc.records import SEQUENCE


class ArrowDecoder(Decoder):
    """Decodes IPC streams: a value is a list of dicts, or as columns all of its rows.

    Values of one batch may have different columns: one that a value lacks is null.
    """

    def values(self, kind: Any = Any) -> Values[Any]:
        return _StreamValues(kind)

    def columns(self, schema: pa.Schema) -> Columns:
        return TableColumns(_read_streams, schema)


class _StreamValues(ConvertedValues):
    def load(self, value: bytes) -> Any:
        return _read_stream(value).to_pylist(maps_as_pydicts="strict")


def _read_streams(values: pa.Array, sequences: pa.Int64Array) -> pa.Table:
    tables = [_read_stream(value) for value in values.to_pylist()]
    rows = np.repeat(sequences.to_numpy(), [table.num_rows for table in tables])
    table = pa.concat_tables(tables, promote_options="default")
    return table.append_column(SEQUENCE, pa.array(rows, pa.int64()))


def _read_stream(value: bytes) -> pa.Table:
    """Raises pa.ArrowException: it is not an IPC stream."""
    with pa.ipc.open_stream(pa.BufferReader(value)) as stream:
        return stream.read_all()
