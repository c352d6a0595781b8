"""Protobuf values by a known schema, with ptars: from the wire format into columns, without message objects."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from ptars import HandlerPool, PtarsConfig

from actorproc.codecs.grouped import Group, GroupedDecoder, Part
from actorproc.codecs.limits import DEFAULT, Limits
from actorproc.codecs.protobuf_size import MessageSize
from actorproc.codecs.tables import TableDecoder
from actorproc.codecs.wire_format import without_first
from actorproc.errors import DecodeError

_CONFIG = PtarsConfig(
    timestamp_unit="us",
    list_value_name="element",
    enum_repr="string",
    list_value_nullable=True,  # as Spark's lists and maps
    map_value_nullable=True,
)


class ProtobufDecoder(TableDecoder):
    """Decodes messages of one type, without a header. Enums are their names, absent messages null.

    Args:
        message: descriptor of the type.

    Raises:
        DecodeError: it has too many columns (see `MessageSize`).
    """

    def __init__(self, message: Any, limits: Limits = DEFAULT) -> None:
        self._size = MessageSize(message, limits)
        self._handler = HandlerPool([message.file], config=_CONFIG).get_for_message(message)
        self.schema: pa.Schema = self._handler.schema()
        """Columns of the message."""

    def table(self, values: pa.Array) -> pa.Table:
        self._size.check(values)
        return pa.Table.from_batches([self._handler.array_to_record_batch(values)])


class ProtobufFile(GroupedDecoder):
    """Decodes values that begin with the indexes of their message type in the file, as Confluent's serializers write.

    The indexes are a count and as many numbers, zigzag varints; a single zero byte means the first type.

    Args:
        file: descriptor of the file.
    """

    def __init__(self, file: Any, limits: Limits = DEFAULT) -> None:
        self._file = file
        self._limits = limits
        self._unusable: dict[bytes, DecodeError] = {}
        self._of: dict[bytes, Part] = {}

    def split_one(self, value: bytes) -> tuple[Part, bytes]:
        header = _header(value)
        part = self._of.get(header)
        if part is None:
            if header in self._unusable:
                raise self._unusable[header]
            message = self.message(_indexes(header))
            try:
                decoder = ProtobufDecoder(message, self._limits)
            except DecodeError as error:
                self._unusable[header] = error
                raise
            part = self._of[header] = Part(f"message {message.full_name}", decoder)
        return part, value[len(header) :]

    def split(self, values: pa.Array) -> tuple[list[Group], dict[int, DecodeError]]:
        groups: list[Group] = []
        errors: dict[int, DecodeError] = {}
        where = np.arange(len(values), dtype=np.int64)
        while len(where):  # once per header
            first = values[0].as_py()
            try:
                part, payload = self.split_one(first)
            except DecodeError as error:
                errors[int(where[0])] = error
                where, values = where[1:], values[1:]
                continue
            header = first[: len(first) - len(payload)]
            alike = pc.equal(pc.binary_slice(values, 0, len(header)), header)
            chosen = alike.to_numpy(zero_copy_only=False)
            groups.append(Group(part, without_first(values.filter(alike), len(header)), where[chosen]))
            where, values = where[~chosen], values.filter(pc.invert(alike))
        return groups, errors

    def message(self, indexes: list[int]) -> Any:
        """The type at these indexes: of the file, then of the messages within messages.

        Raises:
            DecodeError: there is none.
        """
        try:
            found = list(self._file.message_types_by_name.values())[indexes[0]]
            for index in indexes[1:]:
                found = found.nested_types[index]
        except IndexError:
            raise DecodeError(f"there is no message type at {indexes} in {self._file.name}") from None
        return found


def _header(value: bytes) -> bytes:
    """The bytes of the message indexes."""
    count, at = _varint(value, 0)
    for _ in range(count):
        _, at = _varint(value, at)
    return value[:at]


def _indexes(header: bytes) -> list[int]:
    count, at = _varint(header, 0)
    indexes = []
    for _ in range(count):
        index, at = _varint(header, at)
        indexes.append(index)
    return indexes or [0]


def _varint(value: bytes, at: int) -> tuple[int, int]:
    """The zigzag varint at a place, and the place behind it."""
    number = shift = 0
    while at < len(value) and shift < 35:
        byte = value[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            if number & 1:
                break  # negative
            return number >> 1, at
    raise DecodeError("the indexes of the message type are broken")
