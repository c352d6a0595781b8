"""AMQP messages as records: body, group id, properties and delivery count; and the identity of a message."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from proton import Message

from actorproc.errors import SourceError
from actorproc.records import Batch, Record

DELIVERY_COUNT = "amqp.delivery-count"
"""Header: how often the message was delivered before, by the broker's count."""

AGAIN = "/replay"
"""End of the id of a message that was sent again."""

_PROPERTIES = {
    "amqp.message-id": "id", "amqp.correlation-id": "correlation_id", "amqp.subject": "subject",
    "amqp.to": "address", "amqp.reply-to": "reply_to", "amqp.content-type": "content_type",
}  # fmt: skip
"""Headers for the properties of a message, by their names in proton."""

_ENQUEUED = "x-opt-enqueued-time"  # annotation of Azure Service Bus: milliseconds since 1970
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def batch_of(queue: str, messages: Sequence[Message]) -> Batch:
    """The records of messages, numbered from 0."""
    return Batch.of(
        queue,
        [_bytes(message.body) for message in messages],
        range(len(messages)),
        keys=[_bytes(message.group_id) for message in messages],
        headers=[list(_headers(message)) for message in messages],
        timestamps=[_time(message) for message in messages],
    )


def to_message(record: Record) -> Message:
    """A message that a queue brought before, as a new one.

    Its id is another one, or the processor would take it for the message that it has committed. It is the same each
    time, so that a copy from a repeated attempt is recognized.
    """
    headers = {name: value for name, value in record.headers if value is not None}
    kept = {at: _text(headers[name]) for name, at in _PROPERTIES.items() if name in headers and at != "address"}
    if "id" in kept:
        kept["id"] = f"{kept['id']}{AGAIN}"
    properties = {name: _text(value) for name, value in headers.items() if not name.startswith("amqp.")}
    message = Message(body=record.value, durable=True, properties=properties, **kept)
    if record.key is not None:
        message.group_id = _text(record.key)
    if record.timestamp is not None:
        message.creation_time = record.timestamp.timestamp()
    return message


def _text(value: bytes) -> Any:
    """Text where it is UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _bytes(value: Any) -> bytes | None:
    """Binary and text as they are, and anything else as JSON."""
    if value is None:
        return None
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS)


def _headers(message: Message) -> Iterator[tuple[str, bytes]]:
    properties: Mapping[Any, Any] = message.properties or {}
    for key, value in properties.items():
        yield str(key), _bytes(value) or b""
    for name, attribute in _PROPERTIES.items():
        if (text := str(getattr(message, attribute))) not in ("", "None"):  # a symbol that is not set is "None"
            yield name, text.encode()
    yield DELIVERY_COUNT, str(message.delivery_count).encode()


def _time(message: Message) -> datetime | None:
    if message.creation_time:
        return _EPOCH + timedelta(seconds=message.creation_time)
    enqueued = _named(message.annotations, _ENQUEUED)
    return None if enqueued is None else _EPOCH + timedelta(milliseconds=int(enqueued))


def _named(values: Mapping[Any, Any] | None, name: str) -> Any:
    return (values or {}).get(name)


_LIKE_ANOTHER = re.compile("(str|int|UUID|bytes|bool|float|timestamp):")
"""Text that looks like the identity of a value of another type: the number 7 is `int:7`."""


def identity_by(kind: str, queue: str) -> Callable[[Message], str]:
    """The function that names a message. It raises SourceError if a message has no name.

    Args:
        kind: `message-id`, `annotation:NAME`, `property:NAME` or `body`.
    """
    where, _, name = kind.partition(":")
    readers: dict[str, Callable[[Message], Any]] = {
        "message-id": lambda message: message.id,
        "annotation": lambda message: _named(message.annotations, name),
        "property": lambda message: _named(message.properties, name),
        "body": lambda message: hashlib.sha256(_bytes(message.body) or b"").hexdigest(),
    }
    read = readers[where]

    def identity(message: Message) -> str:
        value = read(message)
        if value is None or value == "":
            raise SourceError(
                f"a message of queue {queue} has no {kind}, by which it would be recognized when it comes again: let "
                "its sender set one, or say with the source option identity what names a message"
            )
        if isinstance(value, str):
            return f"str:{value}" if _LIKE_ANOTHER.match(value) else value
        return f"{type(value).__name__}:{value}"

    return identity
