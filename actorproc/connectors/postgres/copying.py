"""Rows as PostgreSQL's COPY takes them, and the types of their columns."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.types as pt

from actorproc.rows.json_values import plain_rows, to_json

_TYPES = {
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.string(): "text",
    pa.binary(): "bytea",
    pa.date32(): "date",
}


def column_type(kind: pa.DataType) -> str:
    """The type of a column of this Arrow type. Lists, maps and structs are JSON."""
    if pt.is_decimal(kind):
        return f"numeric({kind.precision}, {kind.scale})"
    if pt.is_timestamp(kind):
        return "timestamp with time zone" if kind.tz else "timestamp"
    return _TYPES.get(kind, "jsonb" if pt.is_nested(kind) else "text")


def csv_of(rows: pa.Table) -> bytes:
    """The rows as CSV: null is an empty field without quotes, text is always quoted. CPU-heavy."""
    table = pa.table({str(i): _column(column, rows.schema.field(i)) for i, column in enumerate(rows.columns)})
    # For a batch without rows pyarrow writes whatever is in its buffer: zeros, or the batch before once more.
    table = pa.Table.from_batches([batch for batch in table.to_batches() if batch.num_rows], table.schema)
    sink = pa.BufferOutputStream()
    csv.write_csv(table, sink, csv.WriteOptions(include_header=False, quoting_style="needed"))
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _column(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray | pa.Array:
    kind = field.type
    if pt.is_nested(kind):
        values = [row["v"] for batch in pa.table({"v": column}).to_batches() for row in plain_rows(batch)]
        return pa.array([None if value is None else to_json(value).decode() for value in values], pa.string())
    if pt.is_binary(kind):
        texts = [None if value is None else "\\x" + value.hex() for value in column.to_pylist()]
        return pa.array(texts, pa.string())
    if pt.is_timestamp(kind):
        return column.cast(pa.string())
    if pt.is_floating(kind):
        return _floats(column)
    return column


def _floats(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Infinity as PostgreSQL spells it."""
    if not pc.any(pc.is_inf(column)).as_py():
        return column
    text = column.cast(pa.string())
    return pc.replace_substring(text, "inf", "Infinity")
