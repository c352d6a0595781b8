"""What a handler has emitted so far: rows, kept as columns of values as soon as there are a few, then as Arrow."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from actorproc.errors import HandlerMisuse, RowMismatch
from actorproc.records import SEQUENCE
from actorproc.rows.encoder import Row, RowEncoder

PIECE = 512
"""Rows that wait as they came: the cache holds them, and they are fewer than what sets Python looking for garbage (700)."""

VALUES_AT_ONCE = 50_000
"""Values that may be encoded on the event loop: some 5 ms, and a hop to a thread would cost more."""

_TOGETHER = 4 * PIECE  # rows encoded at a time: fewer make more calls, and of more the caches no longer hold the values


class Emitted:
    """Rows, each with the sequence of the record that it came from.

    Attributes:
        rows: the newest, as they came; whoever adds `PIECE` of them calls `gather`.
        sequences: of those.
    """

    def __init__(self, encoder: RowEncoder) -> None:
        self.rows: list[Row] = []
        self.sequences: list[int] = []
        self._encoder = encoder
        self._columns: list[list[object]] = [[] for _ in range(encoder.width)]
        self._gathered: list[npt.NDArray[np.int64]] = []  # sequences of the values in the columns
        self._encoded: list[tuple[pa.RecordBatch, dict[int, RowMismatch]]] = []
        self._count = 0  # of rows that are no longer in `rows`
        self._alike = True  # up to now; one odd row, and that one and those behind it stay rows
        enough = VALUES_AT_ONCE // max(1, encoder.width)
        self._together = min(_TOGETHER, enough) if enough >= PIECE else sys.maxsize
        self._still = False
        self._at_work = threading.Lock()
        self._misused = False

    def __len__(self) -> int:
        return self._count + len(self.sequences)

    def counted(self) -> Counter[int]:
        """How many rows each record has, by sequence; of those that are encoded and do not fit, one counts."""
        counts = Counter(self.sequences)
        for gathered in self._gathered:
            counts.update(gathered.tolist())
        for batch, misfits in self._encoded:
            counts.update(batch.column(SEQUENCE.name).to_pylist())
            counts.update(misfits.keys())
        return counts

    @property
    def waiting(self) -> int:
        """How many of the rows are not encoded yet."""
        return sum(map(len, self._gathered)) + len(self.rows)

    def add(self, rows: Sequence[Row], sequences: pa.Int64Array) -> None:
        """Add many rows at once. Raises as `gather`."""
        if len(self.rows) + len(rows) >= PIECE:
            self.gather()
            with self._alone():
                if self._alike and self._gather(rows, sequences):
                    self._encode_some()
                    return
        self.sequences.extend(sequences.to_pylist())
        self.rows.extend(rows)

    def gather(self) -> None:
        """Keep only the values of the rows, and those as Arrow when there are enough.

        Raises:
            HandlerMisuse: several threads emit at once.
        """
        with self._alone():
            count = len(self.rows)  # by which they go: nothing that a thread adds meanwhile is lost
            if not self._alike or not count:
                return
            try:
                sequences = pa.array(self.sequences[:count], pa.int64())
            except (pa.ArrowException, OverflowError, TypeError, ValueError):
                self._alike = False  # `encode` raises it again, where it is no fault of the record at hand
                return
            if self._gather(self.rows[:count], sequences):
                del self.rows[:count], self.sequences[:count]
                self._encode_some()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if len(self.rows) != len(self.sequences) or not self._at_work.acquire(blocking=False):
            self._misused = True  # for whoever asks in the end: the thread that is told may keep it to itself
        self.check()
        try:
            yield
        finally:
            self._at_work.release()

    def check(self) -> None:
        """Raises HandlerMisuse if several threads were found to emit at once."""
        if self._misused:
            raise HandlerMisuse(
                "rows are emitted by several threads at once: collect what they make, and emit it in one"
            )

    def _gather(self, rows: Sequence[Row], sequences: pa.Int64Array) -> bool:
        values = self._encoder.columns(rows)
        if values is None:
            self._alike = False
            return False
        for column, its_values in zip(self._columns, values, strict=True):
            column.extend(its_values)
        self._gathered.append(sequences.to_numpy())
        self._count += len(sequences)
        return True

    def _encode_some(self) -> None:
        """Encode what is gathered, if it is enough and soon done."""
        enough = self._together <= len(self._columns[0]) < self._together + PIECE
        if enough and self._encoder.is_fast and not self._still:
            try:
                self._encode_columns()
            except Exception:  # noqa: BLE001  # `encode` tries it again, and it is no fault of the record at hand
                self._still = True

    def _encode_columns(self) -> None:
        if self._gathered:
            self._encoded.append(self._encoder.encode_columns(self._columns, np.concatenate(self._gathered)))
            self._gathered.clear()
            for column in self._columns:
                column.clear()

    def copy(self) -> Emitted:
        """As it is now: the handler may go on while it is encoded."""
        copy = Emitted(self._encoder)
        copy.rows, copy.sequences, copy._alike = list(self.rows), list(self.sequences), self._alike
        copy._columns = [list(column) for column in self._columns]
        copy._gathered, copy._encoded, copy._count = list(self._gathered), list(self._encoded), self._count
        return copy

    def encode(self) -> tuple[list[pa.Table], dict[int, RowMismatch]]:
        """The rows that fit, as tables each in order, and why others do not, by sequence."""
        self.gather()
        self._encode_columns()
        parts = list(self._encoded)
        if self.rows:
            parts.append(self._encoder.encode(self.rows, self.sequences))
        misfits: dict[int, RowMismatch] = {}
        for _, unfit in reversed(parts):
            misfits |= unfit  # the first of a record counts
        return [pa.Table.from_batches([batch]) for batch, _ in parts], misfits

    @contextmanager
    def still(self) -> Iterator[None]:
        """While inside, `forget` knows which rows are the first so many."""
        before, self._still = self._still, True
        try:
            yield
        finally:
            self._still = before

    def forget(self, upto: int, count: int) -> None:
        """Drop those of the first `count` rows whose record is at or before `upto`, and which all fit.

        To be called within `still`, in which they have been counted.
        """
        total, in_columns = self._count, sum(map(len, self._gathered))
        encoded, self._encoded = self._encoded, []
        for batch, misfits in encoded:
            kept = batch.filter(pc.greater(batch.column(SEQUENCE.name), upto))
            self._count -= len(batch) - len(kept)
            if len(kept) or misfits:
                self._encoded.append((kept, misfits))
        if in_columns:
            gathered = np.concatenate(self._gathered)
            keep = np.flatnonzero((np.arange(total - in_columns, total) >= count) | (gathered > upto))
            for column in self._columns:
                column[:] = [column[index] for index in keep.tolist()]
            self._gathered = [gathered[keep]]
            self._count -= in_columns - len(keep)
        left = [index for index, sequence in enumerate(self.sequences) if total + index >= count or sequence > upto]
        self.rows[:] = [self.rows[index] for index in left]
        self.sequences[:] = [self.sequences[index] for index in left]
