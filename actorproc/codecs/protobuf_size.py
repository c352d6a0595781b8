"""How much Protobuf messages unpack to in columns. Two bytes of an empty message become a row of all of its fields."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import FieldDescriptor

from actorproc.codecs.limits import Limits
from actorproc.errors import DecodeError

MOST_COLUMNS = 10_000
"""Fields of a message with those of messages within it. A schema of 20 types can have a million, since each absent
message has columns, too."""

_CELL = 8
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5  # wire types
_TEXTS = {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}
_TEXTS |= {FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_GROUP}
_SKIPPED = {_FIXED64: 8, _FIXED32: 4}


class MessageSize:
    """Checks values of one type before they are unpacked.

    Args:
        message: descriptor of the type.

    Raises:
        DecodeError: it has more than `MOST_COLUMNS` columns.
    """

    def __init__(self, message: Any, limits: Limits) -> None:
        self._limits = limits
        self._columns = 0
        self._row = _Row(self, message, ())

    def count_column(self, message: Any) -> None:
        self._columns += 1
        if self._columns > MOST_COLUMNS:
            raise DecodeError(f"message {message.full_name} unpacks to more than {MOST_COLUMNS:,} columns")

    def check(self, values: pa.Array) -> None:
        """Raises DecodeError: at least one of the values unpacks to more than the limit."""
        ratio, most = self._row.ratio(), self._limits.bytes
        if (pc.max(pc.binary_length(values)).as_py() or 0) * ratio <= most:
            return
        for value in values.to_pylist():
            if len(value) * ratio > most:
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
        self._numbers: dict[int, int] = {}  # bytes of an element of other lists, which may take one byte
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
                    self._numbers[field.number] = cell

    def ratio(self) -> float:
        """No value unpacks to more than so many times its size, apart from the row itself."""
        lists = [max(row.width / 2, row.ratio()) for row in self._lists.values()]
        texts = [_CELL / 2] if self._texts else []
        within = [row.ratio() for row in self._within.values()]
        return max([1.0, *lists, *texts, *self._numbers.values(), *within])

    def unpacked(self, value: memoryview, most: int) -> int:
        """Bytes of the elements of all lists, or more than `most`. Other errors than this one are left to ptars."""
        total = at = 0
        while at < len(value) and total <= most:
            key, at = _varint(value, at)
            number, kind = key >> 3, key & 7
            if kind == _VARINT:
                _, at = _varint(value, at)
                total += self._numbers.get(number, 0)
            elif kind == _DELIMITED:
                length, at = _varint(value, at)
                part = value[at : at + length]
                at += length
                if number in self._lists:
                    total += self._lists[number].width + self._lists[number].unpacked(part, most - total)
                elif number in self._within:
                    total += self._within[number].unpacked(part, most - total)
                elif number in self._texts:
                    total += _CELL
                elif number in self._numbers:  # packed
                    total += self._numbers[number] * len(part)
            elif kind in _SKIPPED:
                at += _SKIPPED[kind]
                total += self._numbers.get(number, 0)
            else:
                break
        return total


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
