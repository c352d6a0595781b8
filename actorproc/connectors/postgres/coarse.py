"""Columns of a table that would round values of the output without a word."""

from __future__ import annotations

import math
from typing import NamedTuple

import pyarrow as pa
import pyarrow.types as pt

_BITS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64, pa.float32(): 24, pa.float64(): 53}
"""That a value needs in a binary number."""

_DIGITS = {"real": 6, "double precision": 15}
"""Decimal digits that come back as they were."""

_MICROSECONDS = 6


class Column(NamedTuple):
    """As `information_schema.columns` has it. A domain has the values of its type."""

    data_type: str
    numeric_precision: int | None
    numeric_scale: int | None
    datetime_precision: int | None


def is_coarser(column: Column, kind: pa.DataType, *, is_cast: bool) -> bool:
    """Whether values of this Arrow type may be rounded in the column.

    Args:
        is_cast: whether they are cast, not read from text: an integer column then rounds, which else refuses 1.5.
    """
    if pt.is_timestamp(kind):
        precision = column.datetime_precision
        return precision is not None and (precision < _MICROSECONDS or column.data_type.startswith("time "))
    if column.data_type in _DIGITS:
        if pt.is_decimal(kind):
            return int(kind.precision) > _DIGITS[column.data_type]
        return _BITS.get(kind, 0) > (column.numeric_precision or 0)
    if column.numeric_scale is None or not (is_cast or column.data_type == "numeric"):
        return False
    return column.numeric_scale < _scale(kind)


def _scale(kind: pa.DataType) -> float:
    if pt.is_decimal(kind):
        return int(kind.scale)
    return math.inf if pt.is_floating(kind) else 0
