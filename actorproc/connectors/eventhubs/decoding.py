"""Events that the client of Azure cannot decode: it hands over their bytes, and would end the connection otherwise.

The client knows no char, decimal32 and decimal64, reads a decimal128 by a formula of its own, and needs keys of maps
that Python can hash. It meets the same event after each reconnection, so one event would stop its partition for good.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from azure.eventhub import EventData
from azure.eventhub._pyamqp._decode import decode_payload
from azure.eventhub._pyamqp.aio import _receiver_async
from azure.eventhub._pyamqp.message import Message

from actorproc.connectors.shared.amqp_decoding import MESSAGE_ANNOTATIONS, ReceivedMessage

_SEQUENCE = b"x-opt-sequence-number"
_KEPT = (_SEQUENCE, b"x-opt-enqueued-time", b"x-opt-partition-key")

_BYTES = object()
"""Key of the footer under which such an event has its bytes. No sender can make it."""

_COUNTS = re.compile(rb"(?=[\xd0\xd1\xf0].{4}(.{4}))", re.DOTALL)  # list32, map32, array32: size, then count

_is_ours: ContextVar[bool] = ContextVar("_is_ours", default=False)


@contextmanager
def odd_events_handed_over() -> Iterator[None]:
    """In this block, and in tasks that it starts, the client hands over values that it cannot decode."""
    token = _is_ours.set(True)
    try:
        yield
    finally:
        _is_ours.reset(token)


def undecoded(event: EventData) -> bytes | None:
    """The bytes of an event that the client cannot decode; None: it can."""
    footer: Any = event.raw_amqp_message.footer  # a sender's may be no map
    return footer.get(_BYTES) if isinstance(footer, dict) else None


def _decode(payload: memoryview) -> Message:
    if not _is_ours.get():
        return decode_payload(payload)
    if _may_claim_too_much(payload) and (event := _handed_over(payload)) is not None:
        return event
    try:
        return decode_payload(payload)
    except Exception:
        if (event := _handed_over(payload)) is None:
            raise
        return event


def _handed_over(payload: memoryview) -> Message | None:
    """An event with its bytes, for our own decoder; None: it is no event, but an answer of the service."""
    data = bytes(payload)
    pairs = ReceivedMessage(data).pairs(MESSAGE_ANNOTATIONS)
    found = {str(key.content).encode(): value.content for key, value in pairs}
    kept: dict[Any, Any] = {name: _as_client(found[name]) for name in _KEPT if name in found}
    if not isinstance(kept.get(_SEQUENCE), int):
        return None
    footer: dict[Any, Any] = {_BYTES: data}
    return Message(message_annotations=kept, footer=footer)


def _may_claim_too_much(payload: memoryview) -> bool:
    """Whether the client might take memory for items that are not there: it does so before it reads them.

    Each item takes a byte at least, so the counts together are within the size. Bytes of a text that look like a count
    do no harm: such an event is decoded here in place of there.
    """
    return sum(int.from_bytes(found[1]) for found in _COUNTS.finditer(payload)) > len(payload)


def _as_client(content: object) -> object:
    return content.encode() if isinstance(content, str) else content


_receiver_async.decode_payload = _decode  # type: ignore[attr-defined, assignment]  # a name of its own there
