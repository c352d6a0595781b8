"""What a column of a database needs so that it does not round values of the output."""

from __future__ import annotations

import math

import pyarrow as pa
import pyarrow.types as pt

MICROSECONDS = 6
"""Digits of a second that a timestamp has."""

_BITS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64, pa.float32(): 24, pa.float64(): 53}
"""That a value needs in a binary number."""


def rounds_as_float(kind: pa.DataType, bits: int, digits: int) -> bool:
    """Whether a floating point column may round values of this type.

    Args:
        bits: of its significand.
        digits: decimal digits that come back from it as they were.
    """
    return int(kind.precision) > digits if pt.is_decimal(kind) else _BITS.get(kind, 0) > bits


def scale_of(kind: pa.DataType) -> float:
    """Decimal digits behind the point that values of this type have."""
    if pt.is_decimal(kind):
        return int(kind.scale)
    return math.inf if pt.is_floating(kind) else 0
