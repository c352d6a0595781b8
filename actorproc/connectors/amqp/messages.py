"""AMQP messages as records: body, group id, properties and delivery count; and the identity of a message."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any, NamedTuple
from uuid import UUID

from proton import Message, ProtonException, ulong

from actorproc.connectors.shared.amqp_decoding import APPLICATION_PROPERTIES, MESSAGE_ANNOTATIONS, ReceivedMessage
from actorproc.connectors.shared.amqp_values import WHOLE, NoPlace, Value, text_or_bytes, to_bytes, to_key, to_text
from actorproc.output.letter import HISTORY
from actorproc.records import Batch, Record
from actorproc.runtime.error_text import format_error
from actorproc.sources.queue_protocol import Deliveries
from actorproc.sources.refusals import RecordParts

DELIVERY_COUNT = "amqp.delivery-count"
"""Header: how often the message was delivered before, by the broker's count."""

CREATION_TIME = "amqp.creation-time"
"""Header: milliseconds since 1970, for a creation time that no timestamp can be."""

_FIELD = "amqp."
"""Begins the name of each header that is no application property."""

_OWN = f"{_FIELD}property."
"""Stands before the name of an application property that begins so itself. So no sender can name a field."""

_DUPLICATES = "_AMQ_DUPL_ID"
"""Application property by which Artemis drops a message that it has had before."""

_IDS = ("message-id", "correlation-id")
_PROPERTIES = (*_IDS, "subject", "to", "reply-to", "content-type")

_ENQUEUED = "x-opt-enqueued-time"  # annotation of Azure Service Bus: milliseconds since 1970
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Identity = Callable[[ReceivedMessage], str]
"""Names a message. Raises ValueError: the message has no name."""


def deliveries_of(queue: str, messages: Sequence[bytes], identity: Identity) -> Deliveries:
    """The records and identities of messages. One that cannot be read, or has no identity, is refused."""
    read = [_Columns.of(ReceivedMessage(message), identity) for message in messages]
    batch = Batch.of(
        queue,
        [columns.value for columns in read],
        range(len(read)),
        keys=[columns.key for columns in read],
        headers=[columns.headers for columns in read],
        timestamps=[columns.time for columns in read],
    )
    reasons = {index: columns.refused for index, columns in enumerate(read) if columns.refused is not None}
    return Deliveries(batch.refusing(reasons), [columns.identity for columns in read])


class _Columns(NamedTuple):
    """The columns of a message. A part that cannot be read leaves the other columns as they are."""

    identity: str | None
    value: bytes | None
    key: bytes | None
    headers: list[tuple[str, bytes | None]]
    time: datetime | None
    refused: str | None

    @classmethod
    def of(cls, message: ReceivedMessage, identity: Identity) -> _Columns:
        parts = RecordParts()
        name = parts.read("", None, identity, message)
        value = parts.read("the body", message.encoded_body(), _body, message)
        key = parts.read("the group id", None, _key, message)
        headers = list(_headers(message, parts))
        created = parts.read("the creation time", None, _created, message)
        time = None if created is None else _datetime(created)
        if created is not None and time is None:
            headers.append((CREATION_TIME, b"%d" % created))
        return cls(name, value, key, headers, time, parts.reason)


def _headers(message: ReceivedMessage, parts: RecordParts) -> Iterator[tuple[str, bytes | None]]:
    for key, value in parts.read("application properties", None, message.pairs, APPLICATION_PROPERTIES) or ():
        name = parts.read("the name of a property", None, to_key, key)
        if name is not None:
            header = f"{_OWN}{name}" if name.startswith(_FIELD) else name
            yield header, parts.read(f"property {name!r:.100}", None, to_bytes, value)
    for name in _PROPERTIES:
        if text := parts.read(f"the {name}", None, _header, message, name):
            yield f"{_FIELD}{name}", text
    yield DELIVERY_COUNT, parts.read("the delivery count", None, _delivery_count, message)


def _body(message: ReceivedMessage) -> bytes | None:
    return to_bytes(message.body())


def _key(message: ReceivedMessage) -> bytes | None:
    return None if (group := message.field("group-id")) is None else to_bytes(group)


def _header(message: ReceivedMessage, name: str) -> bytes | None:
    value = message.field(name)
    if value is None or value.content in ("", b""):
        return None
    if name in _IDS and value.type in _ID_TYPES:  # its type too: another type's id is another id
        return to_text(value, "ulong").encode()
    return to_bytes(value)


def _delivery_count(message: ReceivedMessage) -> bytes | None:
    return b"0" if (count := message.delivery_count) is None else to_bytes(count)


def _created(message: ReceivedMessage) -> int | None:
    """Milliseconds since 1970."""
    created = message.field("creation-time")
    if created is None or created.content == 0:
        created = _named(message, MESSAGE_ANNOTATIONS, _ENQUEUED)
    return None if created is None or created.type not in (*WHOLE, "timestamp") else int(created.content)


def _datetime(milliseconds: int) -> datetime | None:
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None


def _named(message: ReceivedMessage, section: int, name: str) -> Value | None:
    found = [value for key, value in message.pairs(section) if key.content == name]
    return found[-1] if found else None


def identity_by(kind: str) -> Identity:
    """The function that names a message.

    Args:
        kind: `message-id`, `annotation:NAME`, `property:NAME` or `body`.
    """
    where, _, name = kind.partition(":")
    if where == "body":
        return _body_identity
    readers: dict[str, Callable[[ReceivedMessage], Value | None]] = {
        "message-id": lambda message: message.field("message-id"),
        "annotation": lambda message: _named(message, MESSAGE_ANNOTATIONS, name),
        "property": lambda message: _named(message, APPLICATION_PROPERTIES, name),
    }
    read, integer = readers[where], "ulong" if where == "message-id" else "long"

    def identity(message: ReceivedMessage) -> str:
        value = read(message)
        try:
            if value is not None:
                return to_text(value, integer)
            why = f"the message has no {kind}"
        except NoPlace as error:
            why = f"the {kind} {error}"
        raise NoPlace(
            f"{why}, by which the message would be recognized when it comes again: let its sender set one, or say with "
            "the source option identity what names a message"
        )

    return identity


def _body_identity(message: ReceivedMessage) -> str:
    try:
        body = _body(message)
    except ValueError:  # it is refused, but recognized
        return f"encoded:{hashlib.sha256(message.encoded_body()).hexdigest()}"
    return "null" if body is None else hashlib.sha256(body).hexdigest()


def encoded(records: Batch, transaction: str) -> tuple[dict[int, bytes], dict[int, str]]:
    """The messages to send, see `to_message`; and why records cannot be messages. Both by index."""
    messages, refused = dict[int, bytes](), dict[int, str]()
    for index, record in enumerate(records):
        try:
            messages[index] = to_message(record, transaction).encode()
        except (ValueError, TypeError, OverflowError, AssertionError, ProtonException) as error:  # proton asserts
            refused[index] = f"it cannot be an AMQP message: {format_error(error)}"
    return messages, refused


def to_message(record: Record, transaction: str) -> Message:
    """A message that a queue brought before, as a new one.

    Its id is another one, or the processor would take it for the message that it has committed. It is the same each
    time, so that a copy from a repeated attempt is recognized. No sender can know it, or his message could come first.
    """
    headers = {name: text_or_bytes(value) for name, value in record.headers}
    properties = {
        name.removeprefix(_OWN): value
        for name, value in headers.items()
        if (name.startswith(_OWN) or not name.startswith(_FIELD)) and name != _DUPLICATES
    }
    message = Message(body=record.value, durable=True, properties=properties)
    texts = {name: text for name in _PROPERTIES if isinstance(text := headers.get(f"{_FIELD}{name}"), str)}
    names = (texts.get("message-id"), transaction, headers.get(f"{HISTORY}sequence"))
    message.id = "/".join(name for name in names if name)
    if "correlation-id" in texts:
        message.correlation_id = _to_id(texts["correlation-id"])
    if "subject" in texts:
        message.subject = texts["subject"]
    if "reply-to" in texts:
        message.reply_to = texts["reply-to"]
    if texts.get("content-type", "").isascii():
        message.content_type = texts.get("content-type", "")
    key = None if record.key is None else text_or_bytes(record.key)
    if isinstance(key, str):
        message.group_id = key
    if (created := _milliseconds(record.timestamp, headers.get(CREATION_TIME))) is not None:
        message.creation_time = Fraction(created, 1000)  # type: ignore[assignment]  # seconds: a float is not exact
    return message


def _milliseconds(time: datetime | None, header: Any) -> int | None:
    """The creation time since 1970; None: there is none that a message can have."""
    if time is not None:
        return (time - _EPOCH) // timedelta(milliseconds=1)
    found = int(header) if isinstance(header, str) and _WHOLE_NUMBER.fullmatch(header) else None
    return found if found is not None and -(2**63) <= found < 2**63 else None


def _to_id(text: str) -> Any:
    """The id that has this text, see `to_text`."""
    found = _ID.fullmatch(text)
    if found is None:
        return text
    to_value, to_text_again = _FROM_TEXT[found[1]]
    try:
        value = to_value(found[2])
    except (ValueError, AssertionError):  # proton asserts that a ulong is positive
        return text
    return value if to_text_again(value) == found[2] and (not isinstance(value, int) or value < 2**64) else text


_WHOLE_NUMBER = re.compile("-?[0-9]{1,19}")
_ID_TYPES = ("ulong", "uuid", "binary", "string")
_ID = re.compile("(int|UUID|bytes|str):(.*)", re.DOTALL)
_FROM_TEXT: dict[str, tuple[Callable[[str], Any], Callable[[Any], str]]] = {
    "int": (lambda text: ulong(int(text)), lambda value: str(int(value))),
    "UUID": (UUID, str),
    "bytes": (bytes.fromhex, bytes.hex),
    "str": (str, str),
}
"""By the word before the colon: the value of a text, and its text."""
