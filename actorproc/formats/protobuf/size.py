"""How much Protobuf messages unpack to in columns. Two bytes of an empty message become a row of all of its fields."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import FieldDescriptor

from actorproc.codecs.limits import MOST_COLUMNS, Limits
from actorproc.errors import DecodeError

_CELL = 8
_VARINT, _FIXED64, _DELIMITED, _START, _END, _FIXED32 = range(6)  # wire types
_TEXTS = {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}
_TEXTS |= {FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_GROUP}
_FIXED = dict.fromkeys((FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FIXED64, FieldDescriptor.TYPE_SFIXED64), 8)
_FIXED |= dict.fromkeys((FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_FIXED32, FieldDescriptor.TYPE_SFIXED32), 4)
_SKIPPED = {_FIXED64: 8, _FIXED32: 4}


class MessageSize:
    """Checks values of one type before they are unpacked.

    Args:
        message: descriptor of the type.

    Raises:
        DecodeError: it has more than `MOST_COLUMNS`, counting those of absent messages.
    """

    def __init__(self, message: Any, limits: Limits) -> None:
        self._limits = limits
        self._columns = 0
        self._row = _Row(self, message, ())
        self._ratio = self._row.ratio()

    def count_column(self, message: Any) -> None:
        self._columns += 1
        if self._columns > MOST_COLUMNS:
            raise DecodeError(f"message {message.full_name} unpacks to more than {MOST_COLUMNS:,} columns")

    def check(self, values: pa.Array) -> None:
        """Raises DecodeError: at least one of the values unpacks to more than the limit."""
        if (pc.max(pc.binary_length(values)).as_py() or 0) * self._ratio > self._limits.bytes:
            for value in values.to_pylist():
                self.check_one(value)

    def check_one(self, value: bytes) -> None:
        """The same for one value."""
        most = self._limits.bytes
        if len(value) * self._ratio > most:
            self._limits.check_bytes(len(value) + self._row.width + self._row.unpacked(memoryview(value), most))


class _Row:
    """The columns of a message type.

    Attributes:
        width: bytes of a row, without elements of its lists.
    """

    def __init__(self, size: MessageSize, message: Any, path: tuple[str, ...]) -> None:
        self.width = _CELL
        self._within: dict[int, _Row] = {}  # messages by field number: single ones are part of the row
        self._lists: dict[int, _Row] = {}
        self._texts: set[int] = set()  # lists of text, or of messages that stay bytes
        self._numbers: dict[int, tuple[int, int]] = {}  # of other lists: bytes of an element, and encoded; 0: a varint
        path = (*path, message.full_name)
        for field in message.fields:
            size.count_column(message)
            inner = None if field.message_type is None or field.message_type.full_name in path else field.message_type
            names = field.enum_type.values_by_name if field.enum_type is not None else ()
            cell = _CELL + max(map(len, names), default=0)  # enums become their names
            row = None if inner is None else _Row(size, inner, path)
            if not _is_repeated(field):
                self.width += cell if row is None else row.width
                if row is not None:
                    self._within[field.number] = row
            elif row is not None:
                self.width += _CELL
                self._lists[field.number] = row
            else:
                self.width += _CELL
                if field.type in _TEXTS:
                    self._texts.add(field.number)
                else:
                    self._numbers[field.number] = cell, _FIXED.get(field.type, 0)

    def ratio(self) -> float:
        """No value unpacks to more than so many times its size, apart from the row itself."""
        lists = [max(row.width / 2, row.ratio()) for row in self._lists.values()]
        texts = [_CELL / 2] if self._texts else []
        numbers = [cell / max(1, size) for cell, size in self._numbers.values()]
        within = [row.ratio() for row in self._within.values()]
        return max([1.0, *lists, *texts, *numbers, *within])

    def unpacked(self, value: memoryview, most: int) -> int:
        """Bytes of the elements of all lists, or more than `most`. The parser finds malformed values."""
        total = at = 0
        row: _Row | None = self  # None: a group that the message does not have
        around: list[_Row | None] = []
        while at < len(value) and total <= most:
            key, at = _varint(value, at)
            number, kind = key >> 3, key & 7
            if kind == _DELIMITED:
                length, at = _varint(value, at)
                part = value[at : at + length]
                at += length
                total += 0 if row is None else row._unpacked_part(number, part, most - total)
            elif kind == _START:
                around.append(row)
                total += row._lists[number].width if row is not None and number in row._lists else 0
                row = None if row is None else row._lists.get(number) or row._within.get(number)
            elif kind == _END:
                row = around.pop() if around else self
            else:
                at = _varint(value, at)[1] if kind == _VARINT else at + _SKIPPED.get(kind, len(value))
                total += row._numbers[number][0] if row is not None and number in row._numbers else 0
        return total

    def _unpacked_part(self, number: int, part: memoryview, most: int) -> int:
        """The same of a field that has a length."""
        if number in self._lists:
            row = self._lists[number]
            return row.width + row.unpacked(part, most)
        if number in self._within:
            return self._within[number].unpacked(part, most)
        if number in self._numbers:  # packed
            cell, size = self._numbers[number]
            ends = np.frombuffer(part, np.uint8) < 0x80
            return cell * (len(part) // size if size else int(np.count_nonzero(ends)))
        return _CELL if number in self._texts else 0


def _is_repeated(field: Any) -> bool:
    """Protobuf 7 has no `label` any more, and early versions of 6 have nothing else."""
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED)


def _varint(value: memoryview, at: int) -> tuple[int, int]:
    """The number at a place, and the place behind it. At the end, or beyond 64 bits: zero, and the end."""
    number = shift = 0
    while at < len(value) and shift < 70:
        byte = value[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
    return 0, len(value)
