"""Python objects and columns of Protobuf messages, field by field, for schemas that ptars misreads.

The objects and the columns are those that ptars makes of other schemas: enums by name, absent messages null, times as
times. A message within itself stays bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import pyarrow as pa

from actorproc.codecs.limits import MOST_COLUMNS
from actorproc.errors import DecodeError

Convert = Callable[[Any], Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DEPTH = 100  # of messages within messages; the library reads no value of more


def reachable(message: Any) -> Iterator[Any]:
    """Descriptors of a message and of all messages within it."""
    found, todo = {message.full_name}, [message]
    while todo:
        current = todo.pop()
        yield current
        for field in current.fields:
            inner = field.message_type
            if inner is not None and inner.full_name not in found:
                found.add(inner.full_name)
                todo.append(inner)


class MessageType:
    """How the messages of one type become Python objects, and the columns of these.

    Raises:
        ValueError: it has too many parts or levels.
    """

    def __init__(self, message: Any) -> None:
        builder = _Builder()
        kind, self.convert = builder.of_message(message, ())
        self.schema = pa.schema(list(kind))


class _Builder:
    def __init__(self) -> None:
        self._parts = 0

    def of_message(self, message: Any, path: tuple[str, ...]) -> tuple[pa.DataType, Convert]:
        if message.full_name in _KNOWN:
            return _KNOWN[message.full_name]
        if message.full_name in path:
            return pa.binary(), lambda found: found.SerializeToString()
        if len(path) >= _DEPTH:
            raise ValueError(f"its messages are nested more than {_DEPTH} deep")
        path = (*path, message.full_name)
        fields = [self._of_field(field, path) for field in message.fields]
        kind = pa.struct([(name, kind) for name, kind, _ in fields])
        readers = [(name, read) for name, _, read in fields]
        return kind, lambda found: {name: read(found) for name, read in readers}

    def _of_field(self, field: Any, path: tuple[str, ...]) -> tuple[str, pa.DataType, Convert]:
        self._parts += 1
        if self._parts > MOST_COLUMNS:
            raise ValueError(f"it has more than {MOST_COLUMNS:,} fields within fields")
        name = field.name
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, item = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
            key_kind, convert_key = self._of_value(key, path)
            item_kind, convert = self._of_value(item, path)
            return name, pa.map_(key_kind, item_kind), _map_reader(name, convert_key, convert)
        kind, convert = self._of_value(field, path)
        if field.is_repeated:
            return name, pa.list_(pa.field("element", kind)), lambda found: list(map(convert, getattr(found, name)))
        if field.has_presence:
            return name, kind, lambda found: convert(getattr(found, name)) if found.HasField(name) else None
        return name, kind, lambda found: convert(getattr(found, name))

    def _of_value(self, field: Any, path: tuple[str, ...]) -> tuple[pa.DataType, Convert]:
        if field.message_type is not None:
            return self.of_message(field.message_type, path)
        if field.enum_type is not None:
            names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
            return pa.string(), lambda number: names.get(number) or str(number)
        if field.type == field.TYPE_BYTES:
            return pa.binary(), _same
        return _CPP_TYPES[field.cpp_type], _text if field.type == field.TYPE_STRING else _same


def _map_reader(name: str, convert_key: Convert, convert: Convert) -> Convert:
    def read(found: Any) -> dict[Any, Any]:
        entries = getattr(found, name)
        return {key: convert(entries[key]) for key in sorted(map(convert_key, entries))}

    return read


def _text(value: str | bytes) -> str:
    if isinstance(value, bytes):  # proto2 does not check it
        raise DecodeError(f"text is not UTF-8: {value[:20]!r}")
    return value


def _same(value: Any) -> Any:
    return value


_CPP_TYPES: dict[int, pa.DataType] = {  # by FieldDescriptor.cpp_type
    1: pa.int32(),
    2: pa.int64(),
    3: pa.uint32(),
    4: pa.uint64(),
    5: pa.float64(),
    6: pa.float32(),
    7: pa.bool_(),
    9: pa.string(),
}


def _timestamp(found: Any) -> datetime:
    return _EPOCH + timedelta(seconds=found.seconds, microseconds=found.nanos // 1000)


def _duration(found: Any) -> timedelta:
    return timedelta(seconds=found.seconds, microseconds=int(found.nanos / 1000))


def _date(found: Any) -> date:
    try:
        return date(found.year, found.month, found.day)
    except ValueError:
        raise DecodeError(f"{found.year}-{found.month}-{found.day} (google.type.Date) is no whole date") from None


def _time(found: Any) -> time:
    try:
        return time(found.hours, found.minutes, found.seconds, found.nanos // 1000)
    except ValueError:
        shown = f"{found.hours}:{found.minutes}:{found.seconds}.{found.nanos}"
        raise DecodeError(f"{shown} (google.type.TimeOfDay) is no time of a day") from None


def _wrapped(found: Any) -> Any:
    return found.value


_KNOWN: dict[str, tuple[pa.DataType, Convert]] = {
    "google.protobuf.Timestamp": (pa.timestamp("us", "UTC"), _timestamp),
    "google.protobuf.Duration": (pa.duration("us"), _duration),
    "google.type.Date": (pa.date32(), _date),
    "google.type.TimeOfDay": (pa.time64("us"), _time),
    **{
        f"google.protobuf.{name}Value": (kind, _wrapped)
        for name, kind in {
            "Double": pa.float64(), "Float": pa.float32(), "Int64": pa.int64(), "UInt64": pa.uint64(),
            "Int32": pa.int32(), "UInt32": pa.uint32(), "Bool": pa.bool_(), "String": pa.string(), "Bytes": pa.binary(),
        }.items()
    },
}  # fmt: skip
