"""Joins JSON objects into lines of one buffer, for parsers that read many at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from actorproc.rows.casting import check_text

_NEWLINE, _OPEN, _CLOSE = b"\n{}"


def join_lines(values: pa.Array) -> pa.Buffer | None:
    """The values (binary) as lines, or None if neighbours could merge into one document.

    Each value must be a single line from '{' to '}': JSON nowhere allows '}', a line end and '{' in a row. Text must be
    UTF-8, which Arrow's parser does not check.
    """
    if not len(values) or values.null_count:
        return None
    bounds = _bounds(values)
    starts, ends = bounds[:-1], bounds[1:]
    if np.any(starts == ends):
        return None
    content = np.frombuffer(values.buffers()[2], np.uint8)
    if np.any(content.take(starts) != _OPEN) or np.any(content.take(ends - 1) != _CLOSE):
        return None
    inside = content[bounds[0] : bounds[-1]]
    if inside.min() <= _NEWLINE and np.any(inside == _NEWLINE):
        return None
    try:
        check_text(values.view(pa.string()))
    except pa.ArrowInvalid:
        return None
    return pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values), b"\n").buffers()[2]


def _bounds(values: pa.Array) -> npt.NDArray[np.int32]:
    """Where the buffer of a binary column has the start of each value, and the end of the last one."""
    return np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
