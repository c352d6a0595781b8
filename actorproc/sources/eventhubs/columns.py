"""Events of Event Hubs as the columns of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import orjson
from azure.eventhub import EventData
from azure.eventhub.amqp import AmqpMessageBodyType

from actorproc.records import Batch
from actorproc.sources.refusals import each

_ELSEWHERE = frozenset((b"x-opt-sequence-number", b"x-opt-offset", b"x-opt-enqueued-time", b"x-opt-partition-key"))
"""System properties that are a record's sequence, timestamp and key, and the offset, which nothing here needs."""


def to_batch(partition: str, events: Sequence[EventData]) -> Batch:
    """A batch of these events, which must be of one partition, in order.

    Key: the partition key. Headers: the application's properties, then those that the sender's client and the service
    have set. Timestamp: when the service enqueued the event. An event that has no place in the columns is refused.
    """
    refused: dict[int, str] = {}
    headers = each(_headers, events, refused, "its headers")
    return Batch.of(
        partition,
        each(_body, events, refused, "its body"),
        [event.sequence_number or 0 for event in events],
        keys=each(_key, events, refused, "its partition key"),
        headers=[one or [] for one in headers],
        timestamps=each(_time, events, refused, "its time"),
    ).refusing(refused)


def _body(event: EventData) -> bytes:
    """The data sections. A body of AMQP values, which few senders make, becomes JSON, or its text."""
    body: Any = event.body
    if event.body_type == AmqpMessageBodyType.DATA:
        return body if isinstance(body, bytes) else b"".join(body)
    return _bytes(body if event.body_type == AmqpMessageBodyType.VALUE else list(body))


def _key(event: EventData) -> bytes | None:
    key: Any = event.partition_key
    return None if key is None else _bytes(key)


def _time(event: EventData) -> datetime | None:
    return event.enqueued_time  # made from a number when it is asked for


def _headers(event: EventData) -> list[tuple[str, bytes]]:
    return list(_pairs(event))


def _pairs(event: EventData) -> Iterator[tuple[str, bytes]]:
    for name, value in (event.properties or {}).items():
        yield _text(name), _bytes(value)
    for name, value in event.system_properties.items():
        if name not in _ELSEWHERE:
            yield _text(name), _bytes(value)


def _bytes(value: object) -> bytes:
    """Bytes and text as they are, times in ISO 8601, other values as JSON."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, datetime):
        return value.isoformat().encode()
    return orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS)


def _plain(value: object) -> object:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _text(name: object) -> str:
    text = name.decode() if isinstance(name, bytes) else str(name)
    text.encode()  # a lone surrogate has no place in a column of text
    return text
