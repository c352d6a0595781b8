"""An answer to GetRecords as the columns of a batch.

botocore's own parser takes some 15 microseconds for a record, on the event loop; this takes one, in a thread.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import dropwhile
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from actorproc.connectors.kinesis.aggregation import HashRange, TooLarge, user_records
from actorproc.connectors.kinesis.position import Position, sequences
from actorproc.records import RECORD_SCHEMA, Batch, binary_array
from actorproc.runtime.error_text import error_message
from actorproc.sources.refusals import reason

NUMBER = "sequence-number"
"""Header with Kinesis' sequence number, and behind a dot that of the record within an aggregated one."""

_MICROSECONDS = 1_000  # of a millisecond
_HEADERS = RECORD_SCHEMA.field("headers").type
_TIMESTAMP = RECORD_SCHEMA.field("timestamp").type


class _Record(msgspec.Struct, rename="pascal"):
    sequence_number: str
    data: bytes
    partition_key: str
    approximate_arrival_timestamp: float = 0.0


class _Answer(msgspec.Struct, rename="pascal"):
    records: list[_Record]
    next_shard_iterator: str | None = None
    millis_behind_latest: int = 0


class Decoded(NamedTuple):
    """Records of a shard.

    Attributes:
        place: after them.
        next: iterator of the next records; None: the shard has ended.
        behind: milliseconds from here to the newest record.
        records: of Kinesis; a batch has more where they are aggregated, and may have none.
    """

    batch: Batch
    place: Position
    next: str | None
    behind: int
    records: int


_decoder = msgspec.json.Decoder(_Answer)


def decode(body: bytes, shard: str, place: Position, hashes: HashRange) -> Decoded:
    """The records of an answer that begins at `place`. At a time, earlier ones may come first.

    Raises:
        msgspec.DecodeError: it is no answer to GetRecords.
    """
    refused: dict[str, str] = {}
    try:
        answer = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        answer = _decoded_one_by_one(body, refused)
    records = list(dropwhile(lambda record: _arrival(record) < place.time, answer.records))
    batch = _to_batch(shard, records, place.sequence, hashes, refused)
    if records:
        place = place.after(records[-1].sequence_number, batch.last if len(batch) else place.sequence)
    return Decoded(batch, place, answer.next_shard_iterator, answer.millis_behind_latest, len(answer.records))


def _decoded_one_by_one(body: bytes, refused: dict[str, str]) -> _Answer:
    """The answer, in which at least one record is not of its form. A text may have half a surrogate.

    Args:
        refused: is given why, by sequence number.
    """
    try:
        given = json.loads(body.decode(errors="surrogateescape"))
        answer = msgspec.convert(given | {"Records": []}, _Answer)
        for one in given["Records"]:
            try:
                answer.records.append(msgspec.convert(one, _Record))
            except msgspec.ValidationError as error:
                number, arrived = one["SequenceNumber"], one.get("ApproximateArrivalTimestamp")
                refused[number] = f"it is not of its form: {error}"
                # Sequences are made from times.
                answer.records.append(_Record(number, b"", "", msgspec.convert(arrived or 0.0, float)))
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise msgspec.DecodeError(f"no answer to GetRecords: {error_message(error)}") from None
    return answer


def _to_batch(shard: str, records: list[_Record], before: int, hashes: HashRange, refused: Mapping[str, str]) -> Batch:
    """Key: the partition key. Timestamp: of the arrival. Header: see `NUMBER`.

    Args:
        refused: why records are refused, by sequence number.
    """
    keys, values, numbers, times = list[bytes | None](), list[bytes](), list[str](), list[int]()
    reasons: dict[int, str] = {}
    for record in records:
        try:
            taken_apart = user_records(record.data, hashes)
        except TooLarge as error:
            taken_apart, reasons[len(keys)] = None, str(error)
        if taken_apart is None:
            try:
                keys.append(record.partition_key.encode())
            except UnicodeEncodeError as error:
                keys.append(None)
                reasons[len(values)] = reason("its partition key", error)
            if (why := refused.get(record.sequence_number)) is not None:
                reasons[len(values)] = why
            values.append(record.data)
            numbers.append(record.sequence_number)
            times.append(_arrival(record))
            continue
        for index, key, value in taken_apart:
            keys.append(key)
            values.append(value)
            numbers.append(f"{record.sequence_number}.{index}")
            times.append(_arrival(record))
    if not keys:
        return Batch.empty(shard)
    arrived = np.array(times, np.int64)
    columns = [binary_array(keys), binary_array(values), _headers(numbers), _timestamps(arrived)]
    data = pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)
    return Batch(shard, data, pa.array(sequences(arrived, before))).refusing(reasons)


def _arrival(record: _Record) -> int:
    return round(record.approximate_arrival_timestamp * 1_000)


def _headers(numbers: list[str]) -> pa.Array:
    one_each = pa.array(np.arange(len(numbers) + 1, dtype=np.int32))
    names = pa.repeat(NUMBER, len(numbers))
    pairs = pa.StructArray.from_arrays([names, pa.array(numbers).cast(pa.binary())], fields=list(_HEADERS.value_type))
    return pa.ListArray.from_arrays(one_each, pairs, type=_HEADERS)


def _timestamps(arrived: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Array:
    return pa.array(arrived * _MICROSECONDS).cast(_TIMESTAMP)
