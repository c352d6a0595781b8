"""Batches of a producer, and the deliveries by which its caller awaits the records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import anyio
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from actorproc.produce.serializers import RECORD_WEIGHT
from actorproc.records import RECORD_SCHEMA
from actorproc.runtime.logger import get_logger

_FEW = 32
"""Fewer records than this are kept one by one, because Arrow columns take some thousand bytes more."""

_PIECE_WEIGHT = 5_000


def weight_of(piece: pa.RecordBatch) -> int:
    """Bytes of memory that these records take in a batch, about."""
    rows: int = piece.num_rows
    return int(piece.nbytes) + (RECORD_WEIGHT * rows if rows < _FEW else _PIECE_WEIGHT)


class DeliveryReport(NamedTuple):
    """The position of a record in the log."""

    partition: str
    sequence: int


class Part(NamedTuple):
    """Records of a batch that are in the log together, from sequence `base` on. `rows`: which; None: all of them."""

    partition: str
    base: int
    rows: npt.NDArray[np.int64] | None = None


_Columns = tuple[list[bytes | None], list[bytes | None], list[list[dict[str, Any]] | None], list[int]]
"""Keys, values, headers and timestamps (microseconds since 1970) of records that were added one by one."""

Callback = Callable[[DeliveryReport | None, Exception | None], object]
"""Called with the report of a record, or with the error."""

logger = get_logger(__name__)


class ProducerBatch:
    """Records for one partition that are appended together. `weight`: bytes of the buffer that they take.

    If the partition ends before, because the log grows, they go to several that follow it.
    """

    __slots__ = (
        "_apart",
        "_base",
        "_callbacks",
        "_columns",
        "_pieces",
        "born",
        "done",
        "error",
        "partition",
        "placed",
        "ripe",
        "rows",
        "weight",
    )

    def __init__(self, partition: str, born: float) -> None:
        self.partition = partition
        self.born = born
        self.rows = self.weight = 0
        self.ripe = anyio.Event()
        """Set when the batch should be sent. No record is added any more."""
        self.done = anyio.Event()
        self.error: Exception | None = None
        """Error of the append, which failed or has an unknown outcome."""
        self.placed: list[int] = []
        """Rows for which the user has named the partition."""
        self._pieces: list[pa.RecordBatch | _Columns] = []
        self._columns: _Columns | None = None  # the last piece, while records are added one by one
        self._base = -1
        self._apart: tuple[npt.NDArray[np.object_], npt.NDArray[np.int64]] | None = None  # partitions, sequences
        self._callbacks: list[tuple[int, Callback]] = []  # with the index of the record

    def add(
        self, value: bytes | None, key: bytes | None, headers: list[dict[str, Any]] | None, time: int, weight: int
    ) -> Delivery:
        """Add one record. `time`: microseconds since 1970."""
        if self._columns is None:
            self._columns = ([], [], [], [])
            self._pieces.append(self._columns)
        keys, values, all_headers, times = self._columns
        keys.append(key)
        values.append(value)
        all_headers.append(headers)
        times.append(time)
        self.weight += weight
        self.rows += 1
        return Delivery(self, self.rows - 1)

    def add_columns(self, data: pa.RecordBatch, weight: int) -> int:
        """Add many records; `weight` by `weight_of`. Returns the index of the first one within the batch."""
        first = self.rows
        if data.num_rows < _FEW:
            columns = (*data.columns[:3], data.column("timestamp").cast(pa.int64()))
            for key, value, headers, time in zip(*(column.to_pylist() for column in columns), strict=True):
                self.add(value, key, headers, time, 0)
        else:
            self._columns = None
            self._pieces.append(data)
            self.rows += data.num_rows
        self.weight += weight
        return first

    @property
    def cost(self) -> int:
        """Cost of calling `table`, as a size: bytes of a single piece that takes the same time."""
        return self.weight + 512 * len(self._pieces)

    def table(self) -> pa.Table:
        """The records, as columns. CPU-heavy: run it off the loop."""
        pieces = [_to_arrow(piece) if isinstance(piece, tuple) else piece for piece in self._pieces]
        return pa.Table.from_batches(pieces, RECORD_SCHEMA)

    def settle(self, parts: Sequence[Part]) -> None:
        """The records are in the log."""
        if len(parts) == 1:
            self.partition, self._base, _ = parts[0]
        else:
            partitions, sequences = self._apart = np.empty(self.rows, object), np.empty(self.rows, np.int64)
            for partition, base, rows in parts:
                partitions[rows] = partition
                sequences[rows] = np.arange(base, base + (0 if rows is None else len(rows)))
        self._end()

    def fail(self, error: Exception) -> None:
        """The append failed, or has an unknown outcome."""
        self.error = error
        self._end()

    def _end(self) -> None:
        self._pieces, self._columns, self.placed = [], None, []  # a Delivery that is kept must not keep the records
        self.done.set()
        callbacks, self._callbacks = self._callbacks, []
        for index, callback in callbacks:
            try:
                callback(None if self.error else self._report(index), self.error)
            except Exception:  # the user's code must not end the producer
                logger.exception("producer.callback_failed", partition=self.partition)

    def call_back(self, callback: Callback) -> None:
        """Call `callback` once the record that was added last is in the log, or has failed."""
        self._callbacks.append((self.rows - 1, callback))

    async def confirmed(self) -> None:
        """Wait for the append. Raises its error."""
        await self.done.wait()
        if self.error is not None:
            raise self.error.with_traceback(None)

    async def report(self, index: int) -> DeliveryReport:
        """Wait for the append. Returns the place of a record, or raises the error of the append."""
        await self.confirmed()
        return self._report(index)

    def _report(self, index: int) -> DeliveryReport:
        if self._apart is None:
            return DeliveryReport(self.partition, self._base + index)
        partitions, sequences = self._apart
        return DeliveryReport(partitions[index], int(sequences[index]))

    def places(self, first: int, count: int) -> tuple[str | npt.NDArray[np.object_], npt.NDArray[np.int64]]:
        """The partitions, or the one partition, and the sequences of `count` records from index `first` on."""
        if self._apart is None:
            return self.partition, np.arange(self._base + first, self._base + first + count)
        partitions, sequences = self._apart
        return partitions[first : first + count], sequences[first : first + count]


def _to_arrow(columns: _Columns) -> pa.RecordBatch:
    arrays = [pa.array(column, field.type) for column, field in zip(columns, RECORD_SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=RECORD_SCHEMA)


class Delivery:
    """A record that was sent. Awaiting it returns a `DeliveryReport` once the record is durable.

    Raises (when awaited):
        StoreUnavailable: not confirmed within the delivery timeout. The record may be in the log.
        StoreRefused: the store refused; the record is not in the log.
    """

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: ProducerBatch, index: int) -> None:
        self._batch = batch
        self._index = index

    def __await__(self) -> Generator[Any, Any, DeliveryReport]:
        return self._wait().__await__()

    async def _wait(self) -> DeliveryReport:
        return await self._batch.report(self._index)

    @property
    def done(self) -> bool:
        """Whether awaiting returns or raises at once."""
        return self._batch.done.is_set()


class Deliveries:
    """Records that were sent together. Awaiting them returns a list of reports, or raises as `Delivery` does."""

    __slots__ = ("_count", "_parts")

    def __init__(self) -> None:
        self._count = 0
        self._parts: list[tuple[ProducerBatch, int, npt.NDArray[np.int64]]] = []

    def add(self, batch: ProducerBatch, first: int, indices: npt.NDArray[np.int64]) -> None:
        """The records at `indices` of the input are in `batch`, one after the other from index `first` on."""
        self._parts.append((batch, first, indices))
        self._count += len(indices)

    def __len__(self) -> int:
        return self._count

    def counts(self) -> dict[str, int]:
        """Number of confirmed records by the partition that holds them."""
        counts = Counter[str]()
        for batch, first, indices in self._parts:
            if batch.done.is_set() and batch.error is None:
                where, _ = batch.places(first, len(indices))
                counts.update({where: len(indices)} if isinstance(where, str) else where.tolist())
        return counts

    def __await__(self) -> Generator[Any, Any, list[DeliveryReport]]:
        return self._wait().__await__()

    async def _wait(self) -> list[DeliveryReport]:
        partitions = np.empty(self._count, object)
        sequences = np.empty(self._count, np.int64)
        for batch, first, indices in self._parts:
            await batch.confirmed()
            partitions[indices], sequences[indices] = batch.places(first, len(indices))
        return [DeliveryReport(*pair) for pair in zip(partitions.tolist(), sequences.tolist(), strict=True)]

    def known(self) -> npt.NDArray[np.int64]:
        """Indices of the records that are confirmed by now, in no order."""
        parts = [indices for batch, _, indices in self._parts if batch.done.is_set() and batch.error is None]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    async def confirmed(self) -> None:
        """Wait until all records are durable. Cheaper than awaiting their reports."""
        for batch, _, _ in self._parts:
            await batch.confirmed()
