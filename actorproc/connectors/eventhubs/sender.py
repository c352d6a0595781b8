"""Sends records to a hub as events."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from azure.eventhub import EventData
from azure.eventhub.aio import EventHubProducerClient
from azure.eventhub.exceptions import EventDataSendError

from actorproc.connectors.eventhubs.columns import OWN
from actorproc.connectors.eventhubs.errors import first_line
from actorproc.connectors.shared.amqp_decoding import FIELDS
from actorproc.connectors.shared.amqp_values import text_or_bytes
from actorproc.output.letter import HISTORY
from actorproc.records import Batch, Record
from actorproc.runtime.error_text import format_error

_BUSY = ("server-busy", "timeout", "internal-error")
"""Conditions of an answer that are not about the events."""

_NUMBERS = {"absolute-expiry-time": 2**63, "creation-time": 2**63, "group-sequence": 2**32}
_SYMBOLS = ("content-type", "content-encoding")
_BINARY = ("message-id", "correlation-id", "user-id")


async def send(client: EventHubProducerClient, partition: str, records: Batch) -> dict[int, str]:
    """Send records in order: those with a key to the partition of the key, the others to `partition`.

    Returns:
        Why records are refused, by index; for example since they are larger than the hub allows.
    """
    refused = dict[int, str]()
    for key, numbered in groupby(enumerate(records), key=lambda pair: _key(pair[1])):
        where = {"partition_id": partition} if key is None else {"partition_key": key}
        await _send(client, where, numbered, refused)
    return refused


async def _send(
    client: EventHubProducerClient,
    where: dict[str, Any],
    records: Iterable[tuple[int, Record]],
    refused: dict[int, str],
) -> None:
    """Send records in as few requests as they fit into."""
    batch, added = await client.create_batch(**where), dict[int, EventData]()
    for index, record in records:
        event = to_event(record)
        if (why := _not_added(batch, event)) is not None and added:
            await _send_batch(client, where, batch, added, refused)
            batch, added = await client.create_batch(**where), {}
            why = _not_added(batch, event)
        if why is None:
            added[index] = event
        else:
            refused[index] = why
    await _send_batch(client, where, batch, added, refused)


async def _send_batch(
    client: EventHubProducerClient, where: dict[str, Any], batch: Any, added: dict[int, EventData],
    refused: dict[int, str],
) -> None:  # fmt: skip
    """If the service refuses a request, it does not say for which event: then each is sent alone."""
    if not added:
        return
    try:
        await client.send_batch(batch)
    except EventDataSendError as error:
        if error.error in _BUSY:
            raise
        if len(added) == 1:
            [index] = added
            refused[index] = first_line(error)
            return
        for index, event in added.items():
            alone = await client.create_batch(**where)
            alone.add(event)
            await _send_batch(client, where, alone, {index: event}, refused)


def _not_added(batch: Any, event: EventData) -> str | None:
    """Why the event does not fit into the batch; None: it is in it now."""
    try:
        batch.add(event)
    except (ValueError, TypeError, OverflowError, AttributeError, struct.error) as error:
        return f"it cannot be an event of this hub: {format_error(error)}"
    return None


def to_event(record: Record) -> EventData:
    """An event with the value as its body. Its headers are fields of AMQP again, or else properties of the application.

    Properties are text where they are UTF-8. If an annotation has the name of a property, the property stays.
    """
    event = EventData(record.value or b"")
    properties, fields = dict[str | bytes, Any](), dict[str, bytes]()
    for name, value in record.headers:
        if name in FIELDS and value is not None:
            if name in fields:  # of a letter of an earlier version: the first was a property
                properties[name] = text_or_bytes(fields[name])
            fields[name] = value
        elif name.startswith((OWN, HISTORY)):  # the last history is of this replay, the others may be anybody's
            properties[name.removeprefix(OWN)] = text_or_bytes(value)
        else:
            properties.setdefault(name, text_or_bytes(value))
    event.properties = properties
    for name, field in fields.items():
        setattr(event.raw_amqp_message.properties, name.replace("-", "_"), _field(name, field))
    return event


def _field(name: str, value: bytes) -> Any:
    """The field of AMQP that has this header; None: no field can have it."""
    text = text_or_bytes(value)
    if name in _NUMBERS:
        number = int(text) if isinstance(text, str) and len(text) < 20 and text.isdecimal() else -1
        return number if 0 <= number < _NUMBERS[name] else None
    if name in _SYMBOLS and not value.isascii():
        return None
    return value if name == "user-id" else text if isinstance(text, str) or name in _BINARY else None


def _key(record: Record) -> str | None:
    return None if record.key is None else record.key.decode(errors="backslashreplace")  # the service wants text
