"""Tables with the column `_sequence`: copied, joined, ordered and cut by it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from actorproc.records import SEQUENCE


def owned(table: pa.Table) -> pa.Table:
    """A copy that the caller cannot change: pyarrow shares the memory of NumPy's numbers. Text is copied already."""
    columns = [
        column if _is_text(column.type) else pa.chunked_array(list(map(_copy, column.chunks)), column.type)
        for column in table.columns
    ]
    return pa.Table.from_arrays(columns, schema=table.schema)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_binary(kind) or pt.is_large_binary(kind))


def _copy(array: pa.Array) -> pa.Array:
    if not _has_dictionary(array.type):
        return pa.concat_arrays([array, array[:0]])
    sink = pa.BufferOutputStream()  # through IPC, because concatenated arrays share an equal dictionary
    batch = pa.RecordBatch.from_arrays([array], names=["copied"])
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch().column(0)


def _has_dictionary(kind: pa.DataType) -> bool:
    return bool(pt.is_dictionary(kind) or any(_has_dictionary(kind.field(at).type) for at in range(kind.num_fields)))


def in_order(rows: Any) -> Any:
    """The rows of a table or batch ordered by `_sequence`; rows of one record keep their order."""
    column = rows.column(SEQUENCE.name)
    sequences = column.to_numpy()
    if bool(np.all(sequences[1:] >= sequences[:-1])):
        return rows
    return rows.take(pc.sort_indices(pa.array(sequences)))


def joined(tables: list[pa.Table]) -> pa.Table:
    """All rows, ordered by `_sequence`, as each table is."""
    return tables[0] if len(tables) == 1 else in_order(pa.concat_tables(tables))


def rows_after(table: pa.Table, sequence: int) -> pa.Table:
    """The rows of records after `sequence`."""
    return table.filter(pc.greater(table[SEQUENCE.name], sequence))


def rows_upto(table: pa.Table, sequence: int) -> pa.Table:
    """The rows of records up to `sequence`."""
    return table.filter(pc.less_equal(table[SEQUENCE.name], sequence))
