"""Tells quickly, by the types of its values, that a row fits a schema. Rows that it does not know may fit, too."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa

_FITS = {
    pa.bool_(): "type({v}) is bool",
    pa.int8(): "type({v}) is int and -0x80 <= {v} <= 0x7F",
    pa.int16(): "type({v}) is int and -0x8000 <= {v} <= 0x7FFF",
    pa.int32(): "type({v}) is int and -0x80000000 <= {v} <= 0x7FFFFFFF",
    pa.int64(): "type({v}) is int and -0x8000000000000000 <= {v} <= 0x7FFFFFFFFFFFFFFF",
    pa.float64(): "type({v}) is float",
    pa.string(): "type({v}) is str and {v}.isascii()",
    pa.binary(): "type({v}) is bytes",
    pa.date32(): "type({v}) is date",
    pa.timestamp("us", "UTC"): "type({v}) is datetime and {v}.tzinfo is UTC",
}
"""Whether the value `v` is a plain one, by the type of the column."""

_FUNCTION = """
def fit(row):
    if type(row) is dict:
        if len(row) != {width}:
            return False
        try:
            {values} = {items}
        except KeyError:
            return False
    elif type(row) is tuple and len(row) == {width}:
        {values} = row
    else:
        return False
    return {fits}
"""


def plain_rows(schema: pa.Schema) -> Callable[[object], bool]:
    """A test of rows, dicts by column or tuples, that is true only for those that fit the schema.

    It is made of text, as the standard library makes dataclasses: a loop over the columns takes three times as long.
    Nothing from outside is in the text: the names of the columns are values.
    """
    columns = range(len(schema))
    if not columns:
        return lambda row: False
    source = _FUNCTION.format(
        width=len(schema),
        values="".join(f"v{column}, " for column in columns),
        items="".join(f"row[names[{column}]], " for column in columns),
        fits=" and ".join(f"({_fits(schema.field(column), f'v{column}')})" for column in columns),
    )
    namespace: dict[str, Any] = {"names": tuple(schema.names), "date": date, "datetime": datetime, "UTC": UTC}
    exec(source, namespace)  # noqa: S102  # the text is ours
    fit: Callable[[object], bool] = namespace["fit"]
    return fit


def _fits(column: pa.Field, value: str) -> str:
    plain = _FITS.get(column.type, "False").format(v=value)
    return f"{value} is None or {plain}" if column.nullable else plain
