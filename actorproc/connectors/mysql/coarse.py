"""Columns of a table that would round values of the output: MySQL does so without a word, even in its strict mode."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.types as pt

from actorproc.sinks.sql_precision import MICROSECONDS, rounds_as_float, scale_of

_FLOATS = {"float": (24, 6), "double": (53, 15)}
"""Bits, and decimal digits that come back as they were."""

_PARTS = ("date", "time")
"""Types that keep a part of a timestamp."""


class Column(NamedTuple):
    """As `information_schema.columns` has it."""

    data_type: str
    numeric_scale: int | None
    datetime_precision: int | None


def is_coarser(column: Column, kind: pa.DataType) -> bool:
    """Whether values of this Arrow type may be rounded in the column."""
    if pt.is_timestamp(kind):
        precision = column.datetime_precision
        return column.data_type in _PARTS or (precision is not None and precision < MICROSECONDS)
    if column.numeric_scale is not None and column.numeric_scale < scale_of(kind):
        return True
    return column.data_type in _FLOATS and rounds_as_float(kind, *_FLOATS[column.data_type])
