"""Tells quickly, from its type, that a Python value fits a column. Values that it does not know may fit, too."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa

Fits = Callable[[Any], bool]


def _between(least: int, most: int) -> Fits:
    return lambda value: type(value) is int and least <= value <= most


_SURE: dict[pa.DataType, Fits] = {
    pa.bool_(): lambda value: type(value) is bool,
    pa.int8(): _between(-(2**7), 2**7 - 1),
    pa.int16(): _between(-(2**15), 2**15 - 1),
    pa.int32(): _between(-(2**31), 2**31 - 1),
    pa.int64(): _between(-(2**63), 2**63 - 1),
    pa.float64(): lambda value: type(value) is float,
    pa.string(): lambda value: type(value) is str and value.isascii(),
    pa.binary(): lambda value: type(value) is bytes,
    pa.date32(): lambda value: type(value) is date,
    pa.timestamp("us", "UTC"): lambda value: type(value) is datetime and value.tzinfo is UTC,
}


def plain_values(column: pa.Field) -> Fits:
    """A test that is true only for values that fit the column."""
    sure = _SURE.get(column.type)
    if sure is None:
        return (lambda value: value is None) if column.nullable else (lambda value: False)
    return (lambda value: value is None or sure(value)) if column.nullable else sure
