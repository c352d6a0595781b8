"""Records and batches, as sources read and handlers get them: columns inside, records on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import chain, count, repeat
from typing import Any, Literal, NamedTuple, TypeVar, overload

import msgspec
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

T = TypeVar("T")

Headers = tuple[tuple[str, bytes], ...]

RECORD_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(pa.struct([pa.field("key", pa.string(), False), pa.field("value", pa.binary())]))),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
    ]
)
"""Columns of a batch, and of a file of the built-in log."""

SEQUENCE = pa.field("_sequence", pa.int64(), nullable=False)
"""Column that ties an output row to its record."""


_FIRST_TIME, _LAST_TIME = (
    (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    for time in (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))
)

_parse_json = msgspec.json.Decoder().decode  # four fifths of the time of orjson

_PIECE = 512  # items of a column that are Python objects at once


class Record(msgspec.Struct, frozen=True):
    """One record of a batch. A struct made in C, because a batch makes ten thousand of them.

    Attributes:
        sequence: position in the partition; grows from record to record, with gaps.
        value: the payload, or None (a tombstone).
    """

    _index: int
    sequence: int
    value: bytes | None
    _batch: Batch

    @property
    def key(self) -> bytes | None:
        return self._batch.keys[self._index]

    @property
    def headers(self) -> Headers:
        return self._batch.headers[self._index]

    @property
    def timestamp(self) -> datetime | None:
        """When the event happened or was sent, in UTC. None: see `Batch.timestamps`."""
        return self._batch.timestamps[self._index]

    @property
    def partition(self) -> str:
        return self._batch.partition

    def json(self) -> Any:
        """The value parsed as JSON. Integers of any size stay exact.

        Raises `orjson.JSONDecodeError` (a ValueError) if it is not JSON.
        """
        try:
            return _parse_json(self.value)  # type: ignore[arg-type]  # None: an error, too
        except Exception:  # noqa: BLE001  # orjson takes a few more levels, and its errors name the place
            return orjson.loads(self.value)  # type: ignore[arg-type]

    @property
    def text(self) -> str:
        """The value as UTF-8. Raises UnicodeDecodeError if it is not, ValueError if there is no value."""
        if self.value is None:
            raise ValueError("the record has no value")
        return self.value.decode()

    def __repr__(self) -> str:
        value = self.value
        shown = repr(value) if value is None or len(value) <= 60 else f"{value[:60]!r}... ({len(value)} bytes)"
        return f"Record({self.partition}:{self.sequence}, {shown})"


class Cursor(NamedTuple):
    """How far a partition is processed: read from `position`, and skip records up to `sequence`.

    A source need only give one position per page, so the position may be before the last record. Sequences grow, so
    they also order two cursors. `sequence` is -1 before the first record.
    """

    position: str
    sequence: int = -1


class ReadCost(msgspec.Struct, frozen=True):
    """The cost of reading the records of a batch, since the batch before it.

    If a read gives several batches, the first one has its cost, and the others only have its tokens. So the costs of
    all batches add up.

    Attributes:
        seconds: for which the partition waited for its source, also for records that did not exist yet.
        bytes: that the source has fetched; the size of the columns if it gives no cost.
        requests: that the source has made for this partition, also those that found nothing; 0 if it does not know.
        charges: of the source's own, by name, such as `{"request_units": 2.9}`.
        tokens: of the source's own, by name, from its latest answer, such as `{"session": "0:-1#5"}`.
    """

    seconds: float = 0.0
    bytes: int = 0
    requests: int = 0
    charges: Mapping[str, float] = {}
    tokens: Mapping[str, str] = {}

    def __add__(self, more: ReadCost) -> ReadCost:
        names = {**self.charges, **more.charges}
        return ReadCost(
            self.seconds + more.seconds,
            self.bytes + more.bytes,
            self.requests + more.requests,
            {name: self.charges.get(name, 0.0) + more.charges.get(name, 0.0) for name in names},
            {**self.tokens, **more.tokens},
        )

    @property
    def paid(self) -> ReadCost:
        """Of further records of the same read, whose cost is counted already."""
        return ReadCost(tokens=self.tokens) if self.tokens else NO_COST


NO_COST = ReadCost()


# Not `pa.array([])`, which imports pandas.
_NO_RECORDS = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in RECORD_SCHEMA], schema=RECORD_SCHEMA)
_NO_SEQUENCES = pa.nulls(0, pa.int64())


TimestampType = Literal["CreateTime", "LogAppendTime"]
"""Kafka's words, as in the topic's setting `message.timestamp.type`."""


class Batch:
    """Records of one partition, in order; a sequence of `Record`, and columns.

    Args:
        partition: where they are from.
        data: columns `key`, `value`, `headers`, `timestamp` as in `RECORD_SCHEMA`.
        sequences: int64, growing, one for each record.
    """

    read: ReadCost = NO_COST
    """The cost of reading these records. A slice has the cost of its batch."""

    timestamp_type: TimestampType | None = None
    """Of all timestamps: when the producer made the record, or when the broker appended it. None: not known."""

    refused: pa.StringArray | None = None
    """Why a record cannot become columns as it is, one text or null for each record; None: all can. The source gives
    the readable parts of such a record, for its dead letter. A handler never sees one. See `Batch.refusing`."""

    def __init__(self, partition: str, data: pa.RecordBatch, sequences: pa.Int64Array) -> None:
        if data.num_rows != len(sequences):
            raise ValueError(f"{data.num_rows} records but {len(sequences)} sequences")
        self.partition = partition
        self.data = data
        self.sequence_array = sequences

    @classmethod
    def of(
        cls,
        partition: str,
        values: Sequence[bytes | None],
        sequences: Sequence[int] | range,
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Iterable[tuple[str, bytes | None]]] | None = None,
        timestamps: Sequence[datetime | None] | None = None,
    ) -> Batch:
        """A batch from Python values, for sources and tests. A column that is not given is null.

        Raises:
            ValueError: sequences are not integers, or a timestamp has no zone.
        """
        n = len(values)
        for time in timestamps if timestamps is not None else ():
            if isinstance(time, datetime) and time.tzinfo is None:  # Arrow would take it for UTC
                raise ValueError(f"timestamp {time!r} has no zone: give one with tzinfo, such as datetime.now(UTC)")
        given_headers = (
            [[{"key": k, "value": v} for k, v in h] or None for h in headers] if headers is not None else [None] * n
        )
        columns = [
            keys if keys is not None else [None] * n,
            values,
            given_headers,
            timestamps if timestamps is not None else [None] * n,
        ]
        data = pa.record_batch(
            [
                (binary_array(column) if field.type == pa.binary() else pa.array(column, field.type))
                for column, field in zip(columns, RECORD_SCHEMA, strict=True)
            ],
            schema=RECORD_SCHEMA,
        )
        numbers = pa.array(sequences)  # told the type, Arrow would take 1.5 for 1
        if not pt.is_integer(numbers.type) and len(numbers):
            raise ValueError(f"sequences are {numbers.type}, and must be integers")
        return cls(partition, data, numbers.cast(pa.int64()))

    @classmethod
    def empty(cls, partition: str) -> Batch:
        """Of no records."""
        return cls(partition, _NO_RECORDS, _NO_SEQUENCES)

    @classmethod
    def joined(cls, batches: Sequence[Batch]) -> Batch:
        """At least one batch of a partition, as one batch. Copies their columns."""
        sequences = pa.concat_arrays([batch.sequence_array for batch in batches])
        whole = cls(batches[0].partition, pa.concat_batches([batch.data for batch in batches]), sequences)
        types = {batch.timestamp_type for batch in batches}
        whole.timestamp_type = types.pop() if len(types) == 1 else None
        if any(batch.refused is not None for batch in batches):
            none = (pa.nulls(len(batch), pa.string()) if batch.refused is None else batch.refused for batch in batches)
            whole.refused = pa.concat_arrays(list(none))
        return whole

    def refusing(self, reasons: Mapping[int, str]) -> Batch:
        """Refuse some records of this batch: each becomes a dead letter, whatever the handler is.

        For sources. A record whose header, time or body has no place in the columns must not stop its partition: give
        null, or the bytes as they came, in place of that part, and say here why.

        Args:
            reasons: why, by the record's index in this batch, from 0 on. Records that are refused already stay refused;
                a new reason takes the place of the earlier one. Empty: nothing is refused.

        Returns:
            This batch itself, which is changed.

        Raises:
            IndexError: there is no record of that index. The batch is not changed.
        """
        if not reasons:
            return self
        texts: list[str | None] = [None] * len(self) if self.refused is None else self.refused.to_pylist()
        for index, why in reasons.items():
            if index < 0:
                raise IndexError(f"record {index} of a batch of {len(self)}")
            texts[index] = why.encode("utf-8", "backslashreplace").decode()  # may quote the record
        self.refused = pa.array(texts, pa.string())
        return self

    def without_refused(self) -> tuple[Batch, dict[int, str]]:
        """The other records, and why each refused one is refused, by sequence."""
        if self.refused is None:
            return self, {}
        kept = self.refused.is_null()
        sequences = self.sequence_array.filter(pc.invert(kept)).to_pylist()
        reasons = dict(zip(sequences, self.refused.drop_null().to_pylist(), strict=True))
        return self.take([index for index, is_kept in enumerate(kept.to_pylist()) if is_kept]), reasons

    def __reduce__(self) -> tuple[object, ...]:
        facts = {"read": self.read, "timestamp_type": self.timestamp_type, "refused": self.refused}
        return Batch, (self.partition, self.data, self.sequence_array), facts

    def __len__(self) -> int:
        return int(self.data.num_rows)

    def __iter__(self) -> Iterator[Record]:
        values = _piecewise(_objects, self.data.column("value"))
        return map(Record, count(), self.each_sequence(), values, repeat(self))

    def each_sequence(self) -> Iterator[int]:
        """The sequences in order. Cheaper than `sequences` if not all are wanted."""
        return _piecewise(_numbers, self.sequence_array)

    @overload
    def __getitem__(self, at: int) -> Record: ...
    @overload
    def __getitem__(self, at: slice) -> Batch: ...
    def __getitem__(self, at: int | slice) -> Record | Batch:
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            if step != 1:
                raise ValueError("a batch is sliced in order, step 1")
            size = max(0, stop - start)
            refused = None if self.refused is None else self.refused.slice(start, size)
            return self._part(self.data.slice(start, size), self.sequence_array.slice(start, size), refused)
        index = at if at >= 0 else at + len(self)
        if index < 0:
            raise IndexError(f"record {at} of a batch of {len(self)}")
        return Record(index, self.sequences[index], self.values[index], self)

    def take(self, indices: Sequence[int]) -> Batch:
        """The records at `indices` (growing), as a batch of their own."""
        chosen = pa.array(indices, pa.int64())
        refused = None if self.refused is None else self.refused.take(chosen)
        return self._part(self.data.take(chosen), self.sequence_array.take(chosen), refused)

    def numbered(self, sequences: pa.Int64Array) -> Batch:
        """The same records under other sequences."""
        return self._part(self.data, sequences, self.refused)

    def _part(self, data: pa.RecordBatch, sequences: pa.Int64Array, refused: pa.StringArray | None) -> Batch:
        part = Batch(self.partition, data, sequences)
        part.read = self.read
        part.timestamp_type = self.timestamp_type
        if refused is not None and refused.null_count < len(refused):
            part.refused = refused
        return part

    def after(self, sequence: int) -> Batch:
        """The records beyond `sequence`."""
        return self[start:] if (start := self.count_upto(sequence)) else self

    def count_upto(self, sequence: int) -> int:
        """How many records have this sequence or a lower one."""
        return int(self.sequence_array.to_numpy().searchsorted(sequence, side="right"))

    def has(self, sequence: int) -> bool:
        """Whether a record of the batch has this sequence."""
        sequences = self.sequence_array.to_numpy()
        index = sequences.searchsorted(sequence)
        return bool(index < len(sequences) and sequences[index] == sequence)

    def disorder(self, above: int) -> tuple[int, int] | None:
        """The first two neighbours whose sequences do not grow, after the sequence `above`; None: all grow."""
        if not len(self):
            return None
        sequences = self.sequence_array.to_numpy()
        if sequences[0] <= above:
            return above, int(sequences[0])
        falls = np.flatnonzero(sequences[1:] <= sequences[:-1])
        return (int(sequences[falls[0]]), int(sequences[falls[0] + 1])) if len(falls) else None

    @property
    def first(self) -> int:
        """Sequence of the first record."""
        return int(self.sequence_array[0].as_py())

    @property
    def last(self) -> int:
        """Sequence of the last record."""
        return int(self.sequence_array[-1].as_py())

    @property
    def oldest_time(self) -> float | None:
        """The least timestamp after 1970, in seconds since then; None if no record has one."""
        times = self.data.column("timestamp").cast(pa.int64())
        time = pc.min(times).as_py()
        if time is not None and time <= 0:
            time = pc.min(times.filter(pc.greater(times, 0))).as_py()
        return None if time is None else float(time) / 1e6

    @property
    def latest_time(self) -> float | None:
        """The greatest timestamp, in seconds since 1970; None if no record has one."""
        time = pc.max(self.data.column("timestamp")).cast(pa.int64()).as_py()
        return None if time is None else float(time) / 1e6

    def latest_time_until(self, limit: float) -> float | None:
        """`latest_time` of the records whose timestamps are not after `limit`, in seconds since 1970."""
        times = self.data.column("timestamp").cast(pa.int64())
        time = pc.max(times.filter(pc.less_equal(times, int(limit * 1e6)))).as_py()
        return None if time is None else float(time) / 1e6

    @cached_property
    def nbytes(self) -> int:
        """Bytes that the columns take in memory."""
        return int(self.data.nbytes)

    @cached_property
    def sequences(self) -> list[int]:
        return _numbers(self.sequence_array)

    @cached_property
    def values(self) -> list[bytes | None]:
        """The payloads."""
        return _objects(self.data.column("value"))

    @cached_property
    def keys(self) -> list[bytes | None]:
        return _objects(self.data.column("key"))

    @cached_property
    def timestamps(self) -> list[datetime | None]:
        """In UTC. None: the record has none, or one outside of the years 1 to 9999, which no datetime can hold."""
        times = self.data.column("timestamp").cast(pa.timestamp("us"))
        return [time and time.replace(tzinfo=UTC) for time in pc.if_else(datable(times), times, None).to_pylist()]

    @cached_property
    def headers(self) -> list[Headers]:
        column = self.data.column("headers")
        if column.null_count == len(column):
            return [()] * len(column)
        return [tuple((h["key"], h["value"]) for h in hs) if hs else () for hs in column.to_pylist()]

    def json(self) -> list[Any]:
        """The values parsed as JSON. Raises `orjson.JSONDecodeError` (a ValueError) at the first that is not JSON."""
        return [record.json() for record in self]

    def to_arrow(self) -> pa.Table:
        """The columns as a table: `_sequence`, `key`, `value`, `headers`, `timestamp`. No copy."""
        return pa.Table.from_arrays(
            [self.sequence_array, *self.data.columns], schema=pa.schema([SEQUENCE, *RECORD_SCHEMA])
        )

    def __repr__(self) -> str:
        span = f", {self.first}..{self.last}" if len(self) else ""
        return f"Batch({self.partition!r}{span}, {len(self)} records)"


def warm_up() -> None:
    """Let pyarrow import pandas, which it does with the first array of Python objects: up to a second, in a thread."""
    pa.array([None])


def binary_array(items: Sequence[Any]) -> pa.BinaryArray | pa.ChunkedArray:
    """Bytes, text and None as a column. Raises pa.ArrowException or UnicodeEncodeError where there is anything else."""
    if not hasattr(items, "dtype"):
        return pa.array(items, pa.binary())
    # NumPy's and pandas' arrays one by one: Arrow would take their memory for bytes, and cut text with an accent short.
    return pa.array(list(items), pa.binary(), from_pandas=not isinstance(items, np.ndarray))


def datable(times: pa.TimestampArray) -> pa.BooleanArray:
    """Which of these times, in microseconds, a datetime can hold; null for null."""
    numbers = times.cast(pa.int64())
    return pc.and_(pc.greater_equal(numbers, _FIRST_TIME), pc.less_equal(numbers, _LAST_TIME))


def _objects(column: pa.Array) -> list[bytes | None]:
    """A binary column as Python bytes. Through NumPy, which is about twice as fast as `to_pylist`."""
    return column.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]


def _numbers(column: pa.Int64Array) -> list[int]:
    return column.to_numpy().tolist()  # type: ignore[no-any-return]


def _piecewise(convert: Callable[[pa.Array], list[T]], column: pa.Array) -> Iterator[T]:
    """The items of a column, converted in pieces, so that the garbage collector has no long lists to walk."""
    return chain.from_iterable(convert(column.slice(at, _PIECE)) for at in range(0, len(column), _PIECE))
