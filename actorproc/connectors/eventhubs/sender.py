"""Sends records to a hub as events."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from azure.eventhub import EventData
from azure.eventhub.aio import EventHubProducerClient

from actorproc.errors import SourceError
from actorproc.records import Batch, Record


async def send(client: EventHubProducerClient, partition: str, records: Batch) -> None:
    """Send records in order: those with a key to the partition of the key, the others to `partition`.

    Raises:
        SourceError: a record is larger than the hub allows.
    """
    for key, events in groupby(records, key=_key):
        where = {"partition_id": partition} if key is None else {"partition_key": key}
        await _send(client, where, map(_to_event, events))


async def _send(client: EventHubProducerClient, where: dict[str, Any], events: Iterable[EventData]) -> None:
    """Send events in as few requests as they fit into."""
    batch = await client.create_batch(**where)
    for event in events:
        if not _added(batch, event):
            await client.send_batch(batch)
            batch = await client.create_batch(**where)
            if not _added(batch, event):
                most = batch.max_size_in_bytes
                raise SourceError(f"a record with its headers is larger than the hub allows ({most:,} bytes)")
    await client.send_batch(batch)


def _added(batch: Any, event: EventData) -> bool:
    """Whether the event fits into the batch, and is in it now."""
    try:
        batch.add(event)
    except ValueError:
        return False
    return True


def _to_event(record: Record) -> EventData:
    """An event with the value as its body and the headers as properties: text where they are UTF-8."""
    event = EventData(record.value or b"")
    event.properties = {name: _text(value) for name, value in record.headers}
    return event


def _key(record: Record) -> str | None:
    return None if record.key is None else record.key.decode(errors="backslashreplace")  # the service wants text


def _text(value: bytes | None) -> Any:
    try:
        return value if value is None else value.decode()
    except UnicodeDecodeError:
        return value
