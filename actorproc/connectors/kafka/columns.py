"""Messages of the Kafka client, which come mixed, as columns of one topic partition each.

A message costs some 30 ns for each of its attributes, so whole columns are fetched by `map` over the methods, and
attributes that are known are not fetched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain, pairwise, starmap
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, Message

from actorproc.records import RECORD_SCHEMA, Batch, TimestampType
from actorproc.sources.refusals import each

Key = tuple[str, int]
"""Topic and number of a partition."""

_HEADERS = RECORD_SCHEMA.field("headers").type
_TIMESTAMP = RECORD_SCHEMA.field("timestamp").type
_MILLISECONDS = 1000  # microseconds in one
_MOST_TIME = (2**63 - 1) // _MILLISECONDS  # the largest that the column can hold
_NO_TIME = -1

_TIMESTAMP_TYPES: dict[int, TimestampType] = {
    TIMESTAMP_CREATE_TIME: "CreateTime",
    TIMESTAMP_LOG_APPEND_TIME: "LogAppendTime",
}
"""By the client's numbers. It is a setting of the topic, so two messages that agree stand for those between them."""


def by_partition(messages: list[Message], topics: Collection[str]) -> Iterator[tuple[Key, list[Message]]]:
    """The messages of each partition, in their order.

    Args:
        topics: all topics that the messages may be of. A message is asked for its own only if there are several.
    """
    if len(topics) == 1:
        names = [*topics]
        topic_codes = np.zeros(len(messages), np.int64)
    else:
        given = [message.topic() or "" for message in messages]
        names = list(dict.fromkeys(given))
        codes = {name: code for code, name in enumerate(names)}
        topic_codes = np.fromiter(map(codes.__getitem__, given), np.int64, len(messages))
    numbers = np.fromiter(map(Message.partition, messages), np.int64, len(messages))
    starts = [0, *(np.flatnonzero(np.diff(numbers) | np.diff(topic_codes)) + 1).tolist(), len(messages)]
    runs: dict[Key, list[list[Message]]] = {}  # the client gives all fetched messages of a partition in one piece
    for start, stop in pairwise(starts):
        runs.setdefault((names[topic_codes[start]], int(numbers[start])), []).append(messages[start:stop])
    for key, pieces in runs.items():
        yield key, pieces[0] if len(pieces) == 1 else list(chain.from_iterable(pieces))


def to_batch(partition: str, messages: list[Message]) -> Batch:
    """A batch of these messages, which must be of one topic partition, in order, and free of errors.

    The sequence of a record is its offset. Keys, values and headers stay bytes. A message without a timestamp has null.
    A message whose headers or timestamp have no place in the columns is refused, with null in their place.
    """
    refused: dict[int, str] = {}
    columns = [
        pa.array(list(map(Message.key, messages)), pa.binary()),
        pa.array(list(map(Message.value, messages)), pa.binary()),
        _headers(messages, refused),
        _timestamps(messages, refused),
    ]
    batch = Batch(partition, pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA), pa.array(_offsets(messages)))
    first, last = messages[0].timestamp()[0], messages[-1].timestamp()[0]
    batch.timestamp_type = _TIMESTAMP_TYPES.get(first) if first == last else None
    return batch.refusing(refused)


def _offsets(messages: list[Message]) -> np.ndarray[Any, np.dtype[np.int64]]:
    first, last, n = messages[0].offset() or 0, messages[-1].offset() or 0, len(messages)
    if last - first == n - 1:  # offsets only grow, so there are no gaps
        return np.arange(first, last + 1)
    return np.fromiter(map(Message.offset, messages), np.int64, n)


def _timestamps(messages: list[Message], refused: dict[int, str]) -> pa.Array:
    n = len(messages)
    times = np.fromiter(map(itemgetter(1), map(Message.timestamp, messages)), np.int64, n)
    missing, beyond = times == _NO_TIME, (times > _MOST_TIME) | (times < -_MOST_TIME)
    for index in np.flatnonzero(beyond).tolist():
        refused[index] = f"its timestamp is out of range: {times[index]} ms since 1970"
    mask = missing | beyond
    return pa.array(np.where(mask, 0, times) * _MILLISECONDS, pa.int64(), mask=mask).cast(_TIMESTAMP)


def _headers(messages: list[Message], refused: dict[int, str]) -> pa.Array:
    found = each(Message.headers, messages, refused, "its headers")  # a name that is not UTF-8 makes the client raise
    if not any(found):
        return pa.nulls(len(messages), _HEADERS)
    return pa.array([list(starmap(_header, one)) if one else None for one in found], _HEADERS)


def _header(key: str, value: bytes | None) -> dict[str, Any]:
    return {"key": key, "value": value or b""}
