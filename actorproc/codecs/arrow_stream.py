"""How much an Arrow IPC stream unpacks to, from its metadata alone: nothing is decompressed.

A stream is a row of messages, each with a flatbuffer that describes its buffers. pyarrow has checked that it is a valid
one. https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format, and Message.fbs
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct, unpack_from
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from actorproc.codecs.arrow_views import is_view, view_lengths
from actorproc.errors import DecodeError

CELL = 8
"""Bytes that a cell takes at least: columns of nulls have no buffers, and a list of Python has a pointer for each."""

_DICTIONARY, _RECORDS = 2, 3  # kinds of messages
_INT, _UINT, _USHORT = Struct("<i").unpack_from, Struct("<I").unpack_from, Struct("<H").unpack_from
_BYTE, _LONG = Struct("<B").unpack_from, Struct("<q").unpack_from
_MOST = 2**62
_PLAIN = {kind.id for kind in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary(), pa.bool_(), pa.null())}
_PLAIN |= {kind.id for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.date32())}
_PLAIN |= {pa.timestamp("us").id, pa.decimal128(1).id}


class Extent(NamedTuple):
    """The contents of a stream, by its metadata.

    Attributes:
        bytes: of all buffers, decompressed, or `CELL` for each cell, if that is more.
    """

    rows: int
    bytes: int


def extent(value: bytes) -> Extent:
    """Raises DecodeError, or an error of pyarrow: the value is not a stream, or its metadata cannot be true."""
    rows = size = 0
    reader = pa.ipc.MessageReader.open_stream(pa.BufferReader(value))
    while (message := _next(reader)) is not None:
        metadata = memoryview(message.metadata)
        root = _Table(metadata, _UINT(metadata)[0])
        kind, header = root.number(_BYTE, 1), root.table(2)
        if kind == _DICTIONARY and header is not None:
            header = header.table(1)
        if kind not in (_DICTIONARY, _RECORDS) or header is None:
            continue
        if kind == _RECORDS:
            rows += _count(header.number(_LONG, 0))
        compressed = header.table(3) is not None
        cells = sum(map(_count, header.pairs(1)[::2]))
        size += max(CELL * cells, _unpacked(header, memoryview(message.body) if compressed else None))
    return Extent(rows, size)


def _next(reader: Any) -> Any:
    try:
        return reader.read_next_message()
    except StopIteration:
        return None


def _unpacked(header: _Table, body: memoryview | None) -> int:
    """Bytes of the buffers of a record batch. A compressed one begins with its size, or with -1 if it is as it was."""
    places = header.pairs(2)
    starts, lengths = places[::2], list(map(_count, places[1::2]))
    if body is None:
        return sum(lengths)
    for index, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        if length < 8:
            continue
        if not 0 <= start <= len(body) - 8:
            raise DecodeError("a buffer of the stream lies outside of it")
        unpacked = _LONG(body, start)[0]
        lengths[index] = length if unpacked == -1 else _count(unpacked)
    return sum(lengths)


def _count(number: int) -> int:
    if not 0 <= number < _MOST:
        raise DecodeError(f"the stream has a length of {number}")
    return number


class _Table:
    """A table of a flatbuffer: its fields are at offsets that its vtable has."""

    def __init__(self, content: memoryview, at: int) -> None:
        self.content = content
        self._at = at
        self._vtable = at - _INT(content, at)[0]
        self._fields = (_USHORT(content, self._vtable)[0] - 4) // 2

    def _field(self, index: int) -> int | None:
        """Where a field is; None if it has its default."""
        offset = _USHORT(self.content, self._vtable + 4 + 2 * index)[0] if index < self._fields else 0
        return self._at + offset if offset else None

    def number(self, read: Callable[[memoryview, int], tuple[int]], index: int) -> int:
        at = self._field(index)
        return 0 if at is None else read(self.content, at)[0]

    def _target(self, index: int) -> int | None:
        at = self._field(index)
        return None if at is None else at + _UINT(self.content, at)[0]

    def table(self, index: int) -> _Table | None:
        at = self._target(index)
        return None if at is None else _Table(self.content, at)

    def pairs(self, index: int) -> tuple[int, ...]:
        """The numbers of a vector whose structs are two numbers of 64 bits each."""
        at = self._target(index)
        if at is None:
            return ()
        count = _UINT(self.content, at)[0]
        if 16 * count > len(self.content):
            raise DecodeError("a vector of the stream lies outside of it")
        return unpack_from(f"<{2 * count}q", self.content, at + 4)


def repeated_bytes(array: pa.Array | pa.ChunkedArray) -> int:
    """Bytes of the cells of a column, if each were written out, in which types let cells share a value; else 0."""
    if array.type.id in _PLAIN:
        return 0
    if isinstance(array, pa.ChunkedArray):
        return sum(map(repeated_bytes, array.chunks))
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return repeated_bytes(array.storage)
    if pt.is_dictionary(kind):
        return _shared(array.dictionary, array.indices.drop_null())
    if pt.is_run_end_encoded(kind):
        return len(array) * _largest(array.values)
    if is_view(kind):
        return int(view_lengths(array).sum())
    if pt.is_union(kind):
        return sum(len(array) * _largest(array.field(at)) for at in range(kind.num_fields))
    if kind.id in (pa.lib.Type_LIST_VIEW, pa.lib.Type_LARGE_LIST_VIEW):
        return int(pc.sum(pc.list_value_length(array)).as_py() or 0) * _largest(array.values)
    if pt.is_struct(kind):
        return sum(repeated_bytes(array.field(at)) for at in range(kind.num_fields))
    if pt.is_map(kind):
        return repeated_bytes(array.keys) + repeated_bytes(array.items)
    if pt.is_nested(kind):
        return repeated_bytes(array.values)
    return 0


def _shared(values: pa.Array, indices: pa.Array) -> int:
    """Bytes of the values at these indices."""
    if pt.is_string(values.type) or pt.is_binary(values.type):
        return int(pc.sum(pc.binary_length(values).take(indices)).as_py() or 0)
    return len(indices) * _largest(values)


def _largest(values: pa.Array) -> int:
    """No value has more bytes."""
    return max(CELL, int(values.nbytes) + repeated_bytes(values))
