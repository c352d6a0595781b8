"""Messages to send to Kafka, and those that copy records."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from actorproc.connectors.kafka.collector import collector_paused
from actorproc.records import Batch, Record


class KafkaMessage(NamedTuple):
    """A message to send. `topic` None: the handler's; `partition` None: by the key. `timestamp`: ms since 1970."""

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    topic: str | None = None
    partition: int | None = None
    timestamp: int | None = None


def copy_of(record: Record) -> KafkaMessage:
    """A message with key, value, headers and timestamp of the record."""
    time = record.timestamp
    milliseconds = None if time is None else round(time.timestamp() * 1000)
    return KafkaMessage(record.value, record.key, record.headers, timestamp=milliseconds)


def copies_of(batch: Batch) -> list[Numbered]:
    """The same for a whole batch, with the sequences. By column: a tenth of the time."""
    micros = batch.data.column("timestamp").cast(pa.int64())
    whole = (micros.fill_null(0).to_numpy() + 500) // 1000  # rounded down, also before 1970, as Arrow's divide is not
    milliseconds = pc.if_else(micros.is_valid(), pa.array(whole), None).to_pylist()
    none = repeat(None)
    fields = zip(batch.values, batch.keys, batch.headers, none, none, milliseconds, strict=False)
    messages = map(tuple.__new__, repeat(KafkaMessage), fields)  # without Python's call for each
    with collector_paused():
        return list(zip(batch.sequences, messages, strict=True))


Numbered = tuple[int, KafkaMessage]
"""A message and the sequence of its record."""
