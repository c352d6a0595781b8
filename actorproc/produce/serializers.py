"""Encodes values, keys, headers and timestamps of a producer, one by one and as columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from actorproc.errors import UsageError
from actorproc.records import RECORD_SCHEMA, binary_array, datable

Value = bytes | str | dict[str, Any] | list[Any] | None
Key = bytes | str | int | None
Headers = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]

_SIZED = frozenset({bytes, str, type(None)})
_PLAIN = frozenset({pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.null()})

VALUE_LIMIT = 512 * 2**20
"""Maximum bytes of a value, of a key, and of all headers of a record together."""

COLUMNS_LIMIT = 2**30
"""Maximum bytes of a batch. With the largest record on top, no column exceeds Arrow's 2 GiB."""

RECORD_WEIGHT = 200
"""Bytes of Python objects that a buffered record takes besides key and value. Each header takes as many."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
EARLIEST = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
LATEST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
"""Microseconds since 1970 of the first and the last moment of the years 1 to 9999."""


def value_bytes(value: object) -> bytes | None:
    """Encode a value: bytes as they are, text as UTF-8, a dict or list as JSON, None as None (a tombstone).

    Raises:
        UsageError: another type. A number or a date has no single obvious form.
    """
    match value:
        case None | bytes():
            encoded = value
        case str():
            encoded = _utf8("value", value)
        case dict() | list():
            try:
                encoded = orjson.dumps(value)
            except TypeError as error:
                raise UsageError(f"value {_shown(value)} cannot be sent as JSON: {error}") from None
        case bytearray() | memoryview():
            encoded = bytes(value)
        case _:
            raise UsageError(
                f"value {_shown(value)} is of type {type(value).__name__}: "
                "send bytes, str, None, or a dict or list (sent as JSON)"
            )
    return _bounded("value", encoded)


def key_bytes(key: object) -> bytes | None:
    """Encode a key: bytes as they are, text as UTF-8, an int as its decimal digits, None as None.

    Raises:
        UsageError: another type.
    """
    if key is None or isinstance(key, bytes):
        return _bounded("key", key)
    if isinstance(key, str):
        return _bounded("key", _utf8("key", key))
    if isinstance(key, int) and not isinstance(key, bool):
        return b"%d" % key
    raise UsageError(f"key {_shown(key)} is of type {type(key).__name__}: send bytes, str, int or None")


def header_list(headers: Headers) -> list[dict[str, Any]]:
    """Headers in the form of their column."""
    try:
        given = headers.items() if isinstance(headers, Mapping) else headers
        pairs = [() if isinstance(pair, str) else pair for pair in given]  # a string of two characters is not a pair
        listed = [{"key": name, "value": value} for name, value in pairs]
    except (TypeError, ValueError):
        raise UsageError(f"headers {_shown(headers)}: pairs of a name and a value, or a mapping") from None
    size = 0
    for header in listed:
        name, value = header["key"], header["value"]
        if not isinstance(name, str) or not isinstance(value, bytes | str | None):
            raise UsageError(f"header {_shown(header)}: the name is a str, the value bytes, str or None")
        size += len(_utf8("name of a header", name))
        if isinstance(value, str):
            header["value"] = value = _utf8("value of a header", value)
        size += len(value or b"")
    if size > VALUE_LIMIT:
        raise UsageError(f"headers {_shown(listed)} have {size} bytes: at most {VALUE_LIMIT}")
    return listed


def headers_weight(listed: list[dict[str, Any]]) -> int:
    """Bytes of the buffer that the headers of a record take."""
    return sum(RECORD_WEIGHT + len(header["key"]) + len(header["value"] or b"") for header in listed)


def microseconds(timestamp: datetime) -> int:
    """Microseconds since 1970. Raises UsageError without a time zone, or outside of the years 1 to 9999 UTC."""
    if not isinstance(timestamp, datetime) or timestamp.tzinfo is None:
        raise UsageError(f"timestamp {_shown(timestamp)}: an aware datetime, such as datetime.now(UTC)")
    time = (timestamp - _EPOCH) // _MICROSECOND
    if not EARLIEST <= time <= LATEST:
        raise UsageError(f"timestamp {_shown(timestamp)}: it lies outside of the years 1 to 9999 in UTC")
    return time


def columns(
    values: Sequence[Value] | pa.Array,
    keys: Sequence[Key] | pa.Array | None,
    headers: Sequence[Headers | None] | None,
    timestamps: Sequence[datetime] | pa.Array | datetime,
) -> pa.RecordBatch | None:
    """Records as columns, or None if they are too large for a batch."""
    count = len(values)
    try:
        made = [
            binary_column(keys, key_bytes) if keys is not None else pa.nulls(count, pa.binary()),
            binary_column(values, value_bytes),
            header_column(headers, count),
            time_column(timestamps, count),
        ]
    except pa.ArrowCapacityError:
        return None
    if any(isinstance(column, pa.ChunkedArray) for column in made):
        return None
    data = pa.record_batch(made, schema=RECORD_SCHEMA)
    return data if count == 1 or data.nbytes <= COLUMNS_LIMIT else None


def known_within(limit: int, values: Sequence[Value] | pa.Array, keys: Sequence[Key] | pa.Array) -> bool:
    """Whether the records have at most about `limit` bytes. False if they must be encoded to know."""
    return _size(values) + _size(keys) <= limit


def _size(column: Sequence[Any] | pa.Array) -> float:
    if isinstance(column, pa.Array):
        return float(column.nbytes) if column.type in _PLAIN else math.inf
    if not _SIZED.issuperset(map(type, column)):
        return math.inf
    return sum(map(len, filter(None, column)))


def binary_column(given: Sequence[Any] | pa.Array, encode: Callable[[Any], bytes | None]) -> pa.BinaryArray:
    """Values or keys as a column. `encode` is called only for types other than bytes, text and None."""
    try:
        column = given.cast(pa.binary()) if isinstance(given, pa.Array) else binary_array(given)
    except (pa.ArrowException, UnicodeEncodeError):
        return pa.array(map(encode, given.to_pylist() if isinstance(given, pa.Array) else given), pa.binary())
    if column.nbytes > VALUE_LIMIT:
        for index in np.flatnonzero(pc.greater(pc.binary_length(column), VALUE_LIMIT).fill_null(False)).tolist():
            encode(column[index].as_py())  # raises
    return column


def header_column(given: Sequence[Headers | None] | None, count: int) -> pa.ListArray:
    """Headers of `count` records as a column."""
    kind = RECORD_SCHEMA.field("headers").type
    if given is None:
        return pa.nulls(count, kind)
    return pa.array([header_list(headers) if headers else None for headers in given], kind)


def time_column(given: Sequence[datetime] | pa.Array | datetime, count: int) -> pa.TimestampArray:
    """Timestamps of `count` records as a column. A single datetime counts for all of them."""
    kind = RECORD_SCHEMA.field("timestamp").type
    if isinstance(given, datetime):
        return pa.array(np.full(count, microseconds(given)), kind)
    if isinstance(given, pa.Array):
        if given.null_count or not pa.types.is_timestamp(given.type) or given.type.tz is None:
            raise UsageError(f"timestamps of type {given.type}: timestamps with a time zone, none of them null")
        try:
            times = given.cast(kind)
        except pa.ArrowInvalid as error:
            raise UsageError(f"timestamps of type {given.type}: {error}") from None
        if not pc.all(datable(times)).as_py():
            raise UsageError("timestamps: one lies outside of the years 1 to 9999")
        return times
    return pa.array([microseconds(timestamp) for timestamp in given], kind)


def _utf8(what: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} {_shown(text)} cannot be sent as UTF-8: {error.reason}") from None


def _bounded(what: str, encoded: bytes | None) -> bytes | None:
    if encoded is not None and len(encoded) > VALUE_LIMIT:
        raise UsageError(f"{what} {_shown(encoded)} has {len(encoded)} bytes: at most {VALUE_LIMIT}")
    return encoded


def _shown(value: object) -> str:
    text = repr(value[:60] if isinstance(value, bytes | bytearray | str) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."
