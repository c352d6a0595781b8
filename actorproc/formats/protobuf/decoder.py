"""Protobuf values by a known schema: parsed by Google's library, laid out as columns by ptars.

Google's library decides the meaning of a message: the last member of a oneof, merged repetitions, unknown enums, one
entry for each key of a map. ptars gets the messages as that library writes them, since it reads raw ones in other ways.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import DecodeError as NotAMessage
from google.protobuf.message_factory import GetMessageClass
from ptars import HandlerPool, PtarsConfig

from actorproc.codecs.converted_values import ConvertedValues
from actorproc.codecs.limits import DEFAULT, Limits
from actorproc.codecs.tables import TableDecoder
from actorproc.errors import DecodeError
from actorproc.formats.grouped import Group, GroupedDecoder, Part
from actorproc.formats.protobuf.objects import MessageType, reachable
from actorproc.formats.protobuf.size import MessageSize
from actorproc.formats.registry.wire_format import without_first
from actorproc.handler.decoder import Values

_CONFIG = PtarsConfig(
    timestamp_unit="us",
    time_unit="us",
    duration_unit="us",  # nanoseconds have no room for the durations that Protobuf allows
    list_value_name="element",
    enum_repr="string",
    list_value_nullable=True,  # as Spark's lists and maps
    map_value_nullable=True,
)
_MISREAD = frozenset({"google.type.Date", "google.type.TimeOfDay"})
"""Messages of which ptars makes another value if they are not complete."""


class ProtobufDecoder(TableDecoder):
    """Decodes messages of one type, without a header. Enums are their names, absent messages null.

    Args:
        message: descriptor of the type.
        limits: of one value.

    Raises:
        ValueError: the type has too many parts or columns.
    """

    format = "Protobuf"

    def __init__(self, message: Any, limits: Limits = DEFAULT) -> None:
        within = list(reachable(message))
        kind = GetMessageClass(message)
        self._parse = kind.FromString
        self._has_required = any(field.is_required for each in within for field in each.fields)
        has_maps = any(each.GetOptions().map_entry for each in within)
        self._is_to_clean = has_maps or any(_is_closed_enum(field) for each in within for field in each.fields)
        self._serialize = (
            partial(kind.SerializePartialToString, deterministic=True) if has_maps else kind.SerializeToString
        )
        self._type = MessageType(message)
        self._size = MessageSize(message, limits)
        self._lay_out = _with_ptars(message) if _is_for_ptars(message, within) else None
        self.schema: pa.Schema = self._type.schema
        """Columns of the message."""

    def values(self, kind: Any = Any) -> Values[Any]:
        return _ProtobufValues(self, kind)

    def table(self, values: pa.Array) -> pa.Table:
        self._size.check(values)
        written = values.to_pylist()
        if self._lay_out is None:
            return pa.Table.from_pylist(list(map(self.load, written)), schema=self.schema)
        serialize, parse = self._serialize, self._checked if self._has_required or self._is_to_clean else self._parse
        try:
            canonical = [serialize(parse(value)) for value in written]  # no message is kept: many start the collector
        except NotAMessage as error:
            raise DecodeError(str(error)) from None
        return pa.Table.from_batches([self._lay_out(pa.array(canonical, pa.binary()))])

    def load(self, value: bytes) -> Any:
        """The plain Python object of a value."""
        self._size.check_one(value)
        try:
            return self._type.convert(self._checked(value))
        except NotAMessage as error:
            raise DecodeError(str(error)) from None
        except OverflowError as error:
            raise DecodeError(f"a time is out of range: {error}") from None

    def _checked(self, value: bytes) -> Any:
        message = self._parse(value)
        if self._has_required and (missing := message.FindInitializationErrors()):
            raise DecodeError(f"required fields are missing: {', '.join(missing[:_SHOWN])}")
        if self._is_to_clean:
            message.DiscardUnknownFields()  # numbers that their enums do not have are among them, and some map entries
        return message


class _ProtobufValues(ConvertedValues):
    def __init__(self, decoder: ProtobufDecoder, kind: Any) -> None:
        super().__init__(kind, decoder.format)
        self._decoder = decoder

    def load(self, value: bytes) -> Any:
        return self._decoder.load(value)


def _is_closed_enum(field: Any) -> bool:
    return field.enum_type is not None and bool(field.enum_type.is_closed)


_SHOWN = 5  # names of fields in a message
_COMMON = 4
"""Headers whose values are taken from a batch together: topics have few message types."""
_MOST_INDEXES = 100
"""No library of Protobuf takes more messages within messages."""


def _with_ptars(message: Any) -> Callable[[pa.Array], pa.RecordBatch]:
    handler = HandlerPool([message.file], config=_CONFIG).get_for_message(message)
    return handler.array_to_record_batch  # type: ignore[no-any-return]


def _is_for_ptars(message: Any, within: list[Any]) -> bool:
    """Whether ptars reads the messages that Google's library writes: no groups, no editions."""
    if any(
        each.full_name in _MISREAD or any(field.type == field.TYPE_GROUP for field in each.fields) for each in within
    ):
        return False
    files, todo = {message.file.name}, [message.file]
    while todo:
        file = todo.pop()
        content = FileDescriptorProto()
        file.CopyToProto(content)
        if content.syntax == "editions":
            return False
        new = [imported for imported in file.dependencies if imported.name not in files]
        files.update(imported.name for imported in new)
        todo += new
    return True


class ProtobufFile(GroupedDecoder):
    """Decodes values that begin with the indexes of their message type in the file, as Confluent's serializers write.

    The indexes are a count and as many numbers, zigzag varints; a single zero byte means the first type.

    Args:
        file: descriptor of the file.
        limits: of one value.
    """

    def __init__(self, file: Any, limits: Limits = DEFAULT) -> None:
        self._limits = limits
        self._file = file
        self._messages = list(file.message_types_by_name.values())
        self._parts: dict[str, Part | str] = {}  # by message; a text says why it cannot be used

    def split_one(self, value: bytes) -> tuple[Part, bytes]:
        indexes, size = _header(value)
        return self._part(self.message(indexes)), value[size:]

    def _part(self, message: Any) -> Part:
        name = message.full_name
        if name not in self._parts:
            try:
                self._parts[name] = Part(f"message {name}", ProtobufDecoder(message, self._limits))
            except ValueError as error:
                self._parts[name] = f"message {name} cannot be used: {error}"
        part = self._parts[name]
        if isinstance(part, str):
            raise DecodeError(part)
        return part

    def split(self, values: pa.Array) -> tuple[list[Group], dict[int, DecodeError]]:
        """All values that begin as the first one does at once, and then the others one by one: the same indexes can be
        written in many ways."""
        groups: list[Group] = []
        errors: dict[int, DecodeError] = {}
        others = np.arange(len(values), dtype=np.int64)
        for _ in range(_COMMON):
            if not len(others):
                return groups, errors
            first = values[int(others[0])].as_py()
            try:
                part, payload = self.split_one(first)
            except DecodeError as error:
                errors[int(others[0])] = error
                others = others[1:]
                continue
            left = values.take(pa.array(others))
            header = first[: len(first) - len(payload)]
            alike = pc.equal(pc.binary_slice(left, 0, len(header)), header)
            chosen = alike.to_numpy(zero_copy_only=False)
            groups.append(Group(part, without_first(left.filter(alike), len(header)), others[chosen]))
            others = others[~chosen]
        rest: dict[str, tuple[Part, list[bytes], list[int]]] = {}
        for index, value in zip(others.tolist(), values.take(pa.array(others)).to_pylist(), strict=True):
            try:
                part, payload = self.split_one(value)
            except DecodeError as error:
                errors[index] = error
                continue
            _, payloads, indexes = rest.setdefault(part.name, (part, [], []))
            payloads.append(payload)
            indexes.append(index)
        groups += [
            Group(part, pa.array(payloads, pa.binary()), np.array(indexes, np.int64))
            for part, payloads, indexes in rest.values()
        ]
        return groups, errors

    def message(self, indexes: list[int]) -> Any:
        """The type at these indexes: of the file, then of the messages within messages.

        Raises:
            DecodeError: there is none.
        """
        try:
            found = self._messages[indexes[0]]
            for index in indexes[1:]:
                found = found.nested_types[index]
        except IndexError:
            shown = f"{str(indexes[:_SHOWN])[:-1]}, ...]" if len(indexes) > _SHOWN else str(indexes)
            raise DecodeError(f"there is no message type at {shown} in {self._file.name}") from None
        return found


def _header(value: bytes) -> tuple[list[int], int]:
    """The indexes of the message type, and how many bytes they take."""
    count, at = _varint(value, 0)
    if count > _MOST_INDEXES:
        raise DecodeError(f"there is no message type with {count:,} indexes")
    indexes = []
    for _ in range(count):
        index, at = _varint(value, at)
        indexes.append(index)
    return indexes or [0], at


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
