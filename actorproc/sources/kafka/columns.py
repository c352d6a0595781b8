"""Messages of one topic partition as a batch of columns."""

from __future__ import annotations

from itertools import starmap
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Message

from actorproc.records import RECORD_SCHEMA, Batch

_HEADERS = RECORD_SCHEMA.field("headers").type
_TIMESTAMP = RECORD_SCHEMA.field("timestamp").type
_MILLISECONDS = 1000  # microseconds in one
_NO_TIME = -1


def to_batch(partition: str, messages: list[Message]) -> Batch:
    """A batch of these messages, which must be of one topic partition, in order, and free of errors.

    The sequence of a record is its offset. Keys, values and headers stay bytes. A message without a timestamp has null.
    """
    n = len(messages)
    offsets = np.fromiter(map(Message.offset, messages), np.int64, n)
    columns = [
        pa.array(list(map(Message.key, messages)), pa.binary()),
        pa.array(list(map(Message.value, messages)), pa.binary()),
        _headers(messages),
        _timestamps(messages),
    ]
    return Batch(partition, pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA), pa.array(offsets))


def _timestamps(messages: list[Message]) -> pa.Array:
    n = len(messages)
    times = np.fromiter(map(itemgetter(1), map(Message.timestamp, messages)), np.int64, n)
    missing = times == _NO_TIME
    mask = missing if missing.any() else None
    return pa.array(times * _MILLISECONDS, pa.int64(), mask=mask).cast(_TIMESTAMP)


def _headers(messages: list[Message]) -> pa.Array:
    headers = list(map(Message.headers, messages))
    if not any(headers):
        return pa.nulls(len(messages), _HEADERS)
    return pa.array([list(starmap(_header, one)) if one else None for one in headers], _HEADERS)


def _header(key: str, value: bytes | None) -> dict[str, Any]:
    return {"key": key, "value": value or b""}
