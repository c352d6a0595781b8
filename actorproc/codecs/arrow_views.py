"""Checks the views of text that nulls hide: pyarrow's `validate(full=True)` passes over them, and its casts do not."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from actorproc.errors import DecodeError

_VIEW = np.dtype([("length", "<i4"), ("prefix", "<i4"), ("buffer", "<i4"), ("offset", "<i4")])
_INLINE = 12
"""Bytes of a text that its view holds itself. A longer one is in a buffer."""


def is_view(kind: pa.DataType) -> bool:
    return bool(pt.is_string_view(kind) or pt.is_binary_view(kind))


def view_lengths(array: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Bytes of each text of a column of views, those of nulls included."""
    return _views(array)["length"].astype(np.int64)


def check_views(column: pa.Array | pa.ChunkedArray) -> None:
    """Raises DecodeError: a view, at any depth, of a null too, points outside of the column's buffers."""
    for array in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        if is_view(array.type):
            _check(array)
        for part in parts(array):
            check_views(part)


def parts(array: pa.Array) -> Iterator[pa.Array]:
    """The arrays of which a nested one, a dictionary, runs or an extension type consist, whole."""
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        yield array.storage
    elif pt.is_dictionary(kind):
        yield array.dictionary
    elif pt.is_struct(kind) or pt.is_union(kind):
        yield from (array.field(at) for at in range(kind.num_fields))
    elif pt.is_map(kind):
        yield from (array.keys, array.items)
    elif pt.is_nested(kind) or pt.is_run_end_encoded(kind):
        yield array.values


def _views(array: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    content = array.buffers()[1]
    if content is None:
        return np.empty(0, _VIEW)
    return np.frombuffer(content, _VIEW, array.offset + len(array))[array.offset :]


def _check(array: pa.Array) -> None:
    lengths, views = view_lengths(array), _views(array)
    if lengths.min(initial=0) < 0:
        raise DecodeError(f"a view has a length of {lengths.min()}")
    outside = lengths > _INLINE
    if not outside.any():
        return
    sizes = np.array([0 if buffer is None else buffer.size for buffer in array.buffers()[2:]], np.int64)
    buffers, offsets = views["buffer"][outside], views["offset"][outside].astype(np.int64)
    if buffers.min() < 0 or buffers.max() >= len(sizes):
        raise DecodeError("a view points to a buffer that the column does not have")
    if offsets.min() < 0 or (offsets + lengths[outside] > sizes[buffers]).any():
        raise DecodeError("a view points outside of its buffer")
