"""Events of Event Hubs as the columns of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from azure.eventhub import EventData
from azure.eventhub.amqp import AmqpMessageBodyType

from actorproc.connectors.eventhubs.decoding import undecoded
from actorproc.connectors.shared.amqp_decoding import (
    APPLICATION_PROPERTIES,
    FIELDS,
    MESSAGE_ANNOTATIONS,
    ReceivedMessage,
)
from actorproc.connectors.shared.amqp_values import DEEPEST, NoPlace, Value, to_bytes, to_key
from actorproc.records import Batch
from actorproc.sources.refusals import RecordParts

_ELSEWHERE = frozenset((b"x-opt-sequence-number", b"x-opt-offset", b"x-opt-enqueued-time", b"x-opt-partition-key"))
"""Message annotations that are a record's sequence, timestamp and key, and the offset, which nothing here needs."""

OWN = "amqp.property."
"""Stands before the name of an application property that is also a field's, so that none is taken for the other."""

_DIGITS = (
    8  # of a decimal that the client reads rightly: from the 33rd bit of the coefficient on it gives another number
)


def to_batch(partition: str, events: Sequence[EventData]) -> Batch:
    """A batch of these events, which must be of one partition, in order. An event that cannot be read is refused.

    Key: the partition key. Headers: the application's properties, then those that the sender's client and the service
    have set. Timestamp: when the service enqueued the event. An event that has no place in the columns is refused.
    """
    read = [_Columns.of(event) for event in events]
    batch = Batch.of(
        partition,
        [columns.value for columns in read],
        [event.sequence_number or 0 for event in events],
        keys=[columns.key for columns in read],
        headers=[columns.headers for columns in read],
        timestamps=[columns.time for columns in read],
    )
    return batch.refusing({n: columns.refused for n, columns in enumerate(read) if columns.refused is not None})


class _Columns(NamedTuple):
    """The columns of an event. A part that cannot be read leaves the other columns as they are."""

    value: bytes | None
    key: bytes | None
    headers: list[tuple[str, bytes | None]]
    time: datetime | None
    refused: str | None

    @classmethod
    def of(cls, event: EventData) -> _Columns:
        parts = RecordParts()
        if (data := undecoded(event)) is None:
            value = parts.read("the body", None, _body, event)
            headers = list(_headers(event, parts))
        else:
            message = ReceivedMessage(data)
            value = parts.read("the body", message.encoded_body(), lambda: to_bytes(message.body()))
            headers = list(_headers_of(message, parts))
        key = parts.read("the partition key", None, lambda: _bytes(event.partition_key))
        time = parts.read("the enqueued time", None, lambda: event.enqueued_time)
        return cls(value, key, headers, time, parts.reason)


def _headers_of(message: ReceivedMessage, parts: RecordParts) -> Iterator[tuple[str, bytes | None]]:
    """Of an event that the client cannot decode."""
    for section in (APPLICATION_PROPERTIES, MESSAGE_ANNOTATIONS):
        for key, value in parts.read("properties", None, message.pairs, section) or ():
            name = parts.read("the name of a property", None, to_key, key)
            if name is not None and (section == APPLICATION_PROPERTIES or name.encode() not in _ELSEWHERE):
                header = _own(name) if section == APPLICATION_PROPERTIES else name
                yield header, parts.read(f"property {name!r:.100}", None, to_bytes, value)
    for name in FIELDS:
        field = parts.read(f"the {name}", None, message.field, name)
        if field is not None and field.content:
            yield name, parts.read(f"the {name}", None, to_bytes, field)


def _body(event: EventData) -> bytes | None:
    """The data sections, joined. A body of AMQP values, which few senders make, becomes JSON, or its text."""
    body: Any = event.body
    match event.body_type:
        case AmqpMessageBodyType.DATA:
            return body if isinstance(body, bytes) else b"".join(body)
        case AmqpMessageBodyType.SEQUENCE:
            return _bytes([item for section in body for item in section])
    return _bytes(body)


def _headers(event: EventData, parts: RecordParts) -> Iterator[tuple[str, bytes | None]]:
    properties = parts.read("application properties", None, lambda: list((event.properties or {}).items()))
    system = parts.read("properties", None, lambda: list(event.system_properties.items()))
    others = [pair for pair in system or () if pair[0] not in _ELSEWHERE]
    for pairs, header in ((properties or (), _own), (others, str)):
        for key, value in pairs:
            name = parts.read("the name of a property", None, _name, key)
            if name is not None:
                yield header(name), parts.read(f"property {name!r:.100}", None, _bytes, value)


def _own(name: str) -> str:
    """The header of an application property."""
    return f"{OWN}{name}" if name in FIELDS or name.startswith(OWN) else name


def _name(key: object) -> str:
    name = key.decode() if isinstance(key, bytes) else to_key(_value(key, 0))
    name.encode()  # a lone surrogate has no place in a column of text
    return name


def _bytes(value: object) -> bytes | None:
    """Bytes and text as they are, other values as JSON."""
    return value if isinstance(value, bytes) else to_bytes(_value(value, 0))


def _value(value: object, depth: int) -> Value:
    """The value of AMQP that the client gives as this. It gives strings, symbols and binary as bytes.

    Raises:
        NoPlace: the client does not give the type of the value.
    """
    if depth > DEEPEST:
        raise NoPlace(f"more than {DEEPEST} lists and maps are in each other")
    match value:
        case bytes():
            try:
                return Value("string", value.decode())
            except UnicodeDecodeError:
                raise NoPlace(f"{value!r:.60} is not UTF-8, and the client does not say whether it is binary") from None
        case list() | tuple():
            return Value("list", [_value(item, depth + 1) for item in value])
        case dict():
            return Value("map", [(_value(key, depth + 1), _value(item, depth + 1)) for key, item in value.items()])
        case Decimal() if value.is_finite() and len(value.as_tuple().digits) > _DIGITS:
            raise NoPlace(f"the client reads decimals of more than {_DIGITS} digits wrongly")
    for kind, name in _TYPES.items():
        if isinstance(value, kind):
            return Value(name, value)
    raise NoPlace(f"the client gives a {type(value).__name__}")


_TYPES: dict[type, str] = {
    type(None): "null", bool: "boolean", int: "long", float: "double", str: "string", UUID: "uuid",
    Decimal: "decimal128",
}  # fmt: skip
"""Order matters: a bool is an int, too."""
