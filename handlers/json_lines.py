"""JSON objects as lines of one buffer, for parsers that take many at once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from actorproc.rows.casting import check_text

_NEWLINE, _OPEN, _CLOSE = b"\n{}"


def join_lines(values: pa.Array) -> pa.Buffer | None:
    """The values (binary) as lines, if it is certain that a parser sees where each ends.

    Each must start with '{', end with '}' and be a single line. Then neighbours cannot merge, since '}', a line end and
    '{' in a row are nowhere allowed within JSON. Arrow does not look whether text is UTF-8, so that is done here.
    """
    if not len(values) or values.null_count:
        return None
    bounds = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
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
