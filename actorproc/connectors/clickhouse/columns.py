"""Columns of a ClickHouse table, and rows as it takes them. What it would change in silence is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from actorproc.rows.json_values import plain_rows, to_json
from actorproc.sinks.protocol import SinkRefused

_TYPES = {
    pa.bool_(): "Bool",
    pa.int8(): "Int8",
    pa.int16(): "Int16",
    pa.int32(): "Int32",
    pa.int64(): "Int64",
    pa.float32(): "Float32",
    pa.float64(): "Float64",
    pa.date32(): "Date32",
}
_FIRST, _LAST = date(1900, 1, 1), date(2299, 12, 31)
"""Of Date32 and DateTime64: other days are stored as one of these, or shown so."""


def column_type(field: pa.Field) -> str:
    """The type of a new column. Lists, maps and structs are JSON."""
    kind = field.type
    if pt.is_decimal(kind):
        name = f"Decimal({kind.precision}, {kind.scale})"
    elif pt.is_timestamp(kind):
        name = "DateTime64(6, 'UTC')"  # without a zone it would be read in the server's
    else:
        name = _TYPES.get(kind, "String")
    return f"Nullable({name})" if field.nullable else name


_INTEGER = re.compile(r"Int(\d+)")
_DECIMAL = re.compile(r"Decimal\((\d+), (\d+)\)")
_TIME = re.compile(r"DateTime64\((\d)(?:, .*)?\)")
_WRAPPED = re.compile(r"(?:Nullable|LowCardinality)\((.*)\)")
_OWN_RULES = re.compile(r"U?Int\d|Float|BFloat|Decimal|Bool")
"""Types that a text is not written into."""


def takes(there: str, kind: pa.DataType) -> bool:
    """Whether a column of type `there` has each value of this kind as it is. ClickHouse would cut off what it has not.

    A text may go into any type that is neither a number nor boolean, such as UUID: the server reads it.
    """
    while (inner := _WRAPPED.fullmatch(there)) is not None:
        there = inner[1]
    if there == "String":
        return True
    if pt.is_string(kind) or pt.is_nested(kind):
        return _OWN_RULES.match(there) is None
    if pt.is_integer(kind):
        wide = _INTEGER.fullmatch(there)
        return wide is not None and int(wide[1]) >= kind.bit_width
    if pt.is_decimal(kind):
        found = _DECIMAL.fullmatch(there)
        digits, scale = (int(found[1]), int(found[2])) if found else (0, 0)
        return bool(scale >= kind.scale and digits - scale >= kind.precision - kind.scale)
    if pt.is_timestamp(kind):
        return (time := _TIME.fullmatch(there)) is not None and int(time[1]) >= 6
    if kind == pa.float32():
        return there in ("Float32", "Float64")
    return there == _TYPES.get(kind)


def as_stored(rows: pa.Table, there: Mapping[str, str]) -> pa.Table:
    """The rows in one piece, with texts for columns of text. CPU-heavy.

    Args:
        there: types of the table's columns.

    Raises:
        SinkRefused: a day is none that ClickHouse has.
    """
    columns = [
        _column(column, field, is_text="String" in there.get(field.name, ""))
        for field, column in zip(rows.schema, rows.columns, strict=True)
    ]
    return pa.table(columns, names=rows.schema.names).combine_chunks()


def _column(column: pa.ChunkedArray, field: pa.Field, *, is_text: bool) -> pa.ChunkedArray | pa.Array:
    kind = field.type
    if pt.is_nested(kind):
        values = [row["v"] for batch in pa.table({"v": column}).to_batches() for row in plain_rows(batch)]
        return pa.array([None if value is None else to_json(value).decode() for value in values], pa.string())
    if pt.is_string(kind) or pt.is_binary(kind):
        return column
    if is_text:
        return column.cast(pa.string())
    if pt.is_date(kind) or pt.is_timestamp(kind):
        _check_days(column, field)
    return column


def _check_days(column: pa.ChunkedArray, field: pa.Field) -> None:
    found = pc.min_max(column)
    low, high = found["min"].as_py(), found["max"].as_py()
    if low is None:
        return
    first, last = (day.date() if isinstance(day, datetime) else day for day in (low, high))
    if first < _FIRST or last > _LAST:
        wrong = low if first < _FIRST else high
        raise SinkRefused(
            f"column {field.name} has {wrong}, and ClickHouse has days from {_FIRST} to {_LAST}: make the column a "
            "String in the table, or leave such rows out"
        )
