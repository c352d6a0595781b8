"""Columns of a table that would round values of the output without a word."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.types as pt

from actorproc.sinks.sql_precision import MICROSECONDS, rounds_as_float, scale_of

_DIGITS = {"real": 6, "double precision": 15}
"""Decimal digits that come back as they were."""


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
        return precision is not None and (precision < MICROSECONDS or column.data_type.startswith("time "))
    if column.data_type in _DIGITS:
        return rounds_as_float(kind, column.numeric_precision or 0, _DIGITS[column.data_type])
    if column.numeric_scale is None or not (is_cast or column.data_type == "numeric"):
        return False
    return column.numeric_scale < scale_of(kind)
