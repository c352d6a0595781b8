"""Columns of a table that would round values of the output: MySQL does so without a word, even in its strict mode."""

from __future__ import annotations

import math
from typing import NamedTuple

import pyarrow as pa
import pyarrow.types as pt

_NEEDED = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64, pa.float32(): 24, pa.float64(): 53}
"""Bits that a value needs in a binary number."""

_BITS = {"float": 24, "double": 53}
_DIGITS = {"float": 6, "double": 15}
"""Decimal digits that come back as they were."""

_PARTS = ("date", "time")
"""Types that keep a part of a timestamp."""

_MICROSECONDS = 6


class Column(NamedTuple):
    """As `information_schema.columns` has it."""

    data_type: str
    numeric_scale: int | None
    datetime_precision: int | None


def is_coarser(column: Column, kind: pa.DataType) -> bool:
    """Whether values of this Arrow type may be rounded in the column."""
    if pt.is_timestamp(kind):
        precision = column.datetime_precision
        return column.data_type in _PARTS or (precision is not None and precision < _MICROSECONDS)
    if column.numeric_scale is not None and column.numeric_scale < _scale(kind):
        return True
    if column.data_type not in _BITS:
        return False
    if pt.is_decimal(kind):
        return int(kind.precision) > _DIGITS[column.data_type]
    return _NEEDED.get(kind, 0) > _BITS[column.data_type]


def _scale(kind: pa.DataType) -> float:
    if pt.is_decimal(kind):
        return int(kind.scale)
    return math.inf if pt.is_floating(kind) else 0
