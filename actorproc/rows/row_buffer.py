"""Rows that a handler has emitted in an attempt, turned into columns, then into Arrow, as they come."""

from __future__ import annotations

import sys
import threading
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from actorproc.errors import HandlerMisuse, RowMismatch
from actorproc.rows.encoder import Row, RowEncoder
from actorproc.rows.sequence_order import joined

PIECE = 512
"""Rows kept as Python objects. They fit the CPU cache, and are too few to start Python's garbage collector (700)."""

VALUES_AT_ONCE = 50_000
"""Values that may be encoded on the event loop. They take some 5 ms; a hop to a thread would cost more."""

_TOGETHER = 4 * PIECE  # rows encoded at a time: fewer make more calls, more no longer fit the CPU cache
_TABLES_ARE_FASTER = 20  # times, at least: 50,000 values take some 0.2 ms


class RowBuffer:
    """Rows in the order in which they were emitted, each with the sequence of its record.

    Attributes:
        rows: the newest rows, as emitted. The code that makes them `PIECE` or more calls `gather`.
        sequences: the sequence of the record of each of `rows`.
        tables: rows emitted as columns.
    """

    def __init__(self, encoder: RowEncoder) -> None:
        self.rows: list[Row] = []
        self.sequences: list[int] = []
        self.tables: list[pa.Table] = []
        self._encoder = encoder
        self.is_plain = encoder.is_plain
        self._columns: list[list[object]] = [[] for _ in range(encoder.width)]
        self._gathered: list[npt.NDArray[np.int64]] = []  # sequences of the values in the columns
        self._encoded: list[tuple[pa.RecordBatch, dict[int, RowMismatch]]] = []
        self._count = 0  # rows that are no longer in `rows`
        self._alike = True  # no row had another shape so far; from the first odd one on, rows stay rows
        enough = VALUES_AT_ONCE // max(1, encoder.width)
        self._together = min(_TOGETHER, enough) if enough >= PIECE else sys.maxsize
        self._early = True  # encode while rows come
        self._busy = threading.Lock()
        self._misused = False

    def __len__(self) -> int:
        in_tables: int = sum(table.num_rows for table in self.tables)
        return self._count + len(self.sequences) + in_tables

    @property
    def values(self) -> int:
        """Values that are not encoded yet. Those of tables count little, because Arrow takes them by the column."""
        rows = sum(map(len, self._gathered)) + len(self.rows)
        in_tables: int = sum(table.num_rows * table.num_columns for table in self.tables)
        return rows * self._encoder.width + in_tables // _TABLES_ARE_FASTER

    def misfit(self, row: Row) -> RowMismatch | None:
        """Why the row does not fit; None: it does."""
        return self._encoder.misfit(row)

    def add(self, rows: Sequence[Row], sequences: pa.Int64Array) -> None:
        """Add many rows at once. Raises as `gather`."""
        if len(self.rows) + len(rows) >= PIECE:
            self.gather()
            with self._alone():
                if self._alike and self._gather(rows, sequences.to_numpy()):
                    self._encode_some()
                    return
        self.sequences.extend(sequences.to_pylist())
        self.rows.extend(rows)

    def gather(self) -> None:
        """Replace the rows by the values of their columns, and those by Arrow when there are enough.

        Raises:
            HandlerMisuse: several threads emit at once.
        """
        with self._alone():
            count = len(self.rows)  # rows that a thread adds meanwhile stay
            if not self._alike or not count:
                return
            try:
                sequences = np.frombuffer(array("q", self.sequences[:count]), np.int64)  # takes half the time of Arrow
            except (OverflowError, TypeError):
                self._alike = False  # `encode` raises it again, where no record is blamed for it
                return
            if self._gather(self.rows[:count], sequences):
                del self.rows[:count], self.sequences[:count]
                self._encode_some()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if len(self.rows) != len(self.sequences) or not self._busy.acquire(blocking=False):
            self._misused = True  # `check` raises it again: the thread may swallow this error
        self.check()
        try:
            yield
        finally:
            self._busy.release()

    def check(self) -> None:
        """Raises HandlerMisuse if several threads were found to emit at once."""
        if self._misused:
            raise HandlerMisuse(
                "rows are emitted by several threads at once: collect what they make, and emit it in one"
            )

    def _gather(self, rows: Sequence[Row], sequences: npt.NDArray[np.int64]) -> bool:
        values = self._encoder.columns(rows)
        if values is None:
            self._alike = False
            return False
        for column, its_values in zip(self._columns, values, strict=True):
            column.extend(its_values)
        self._gathered.append(sequences)
        self._count += len(sequences)
        return True

    def _encode_some(self) -> None:
        """Encode the gathered values, if they are enough and soon done."""
        enough = self._together <= len(self._columns[0]) < self._together + PIECE
        if enough and self._early and self._encoder.is_fast:
            try:
                self._encode_columns()
            except Exception:  # noqa: BLE001  # `encode` tries it again, where no record is blamed for it
                self._early = False

    def _encode_columns(self) -> None:
        if self._gathered:
            self._encoded.append(self._encoder.encode_columns(self._columns, np.concatenate(self._gathered)))
            self._gathered.clear()
            for column in self._columns:
                column.clear()

    def detach(self) -> RowBuffer:
        """Move all rows into a new buffer. This one, which the handler holds, is empty afterwards.

        Raises:
            HandlerMisuse: several threads emit at once.
        """
        taken = RowBuffer(self._encoder)
        with self._alone():
            taken.rows, taken.sequences, taken.tables = list(self.rows), list(self.sequences), list(self.tables)
            taken._columns, taken._gathered, taken._encoded = self._columns, self._gathered, self._encoded
            taken._count, taken._alike = self._count, self._alike
            self.rows.clear()
            self.sequences.clear()
            self.tables.clear()
            self._columns, self._gathered, self._encoded = [[] for _ in self._columns], [], []
            self._count, self._alike = 0, True
        return taken

    def encode(self) -> tuple[list[pa.Table], dict[int, RowMismatch]]:
        """The rows that fit, as tables, each ordered by sequence; and the first misfit of each record that has one.

        Raises:
            HandlerError: a table as a whole does not fit (`RowEncoder.encode_table`).
            HandlerMisuse: several threads emit at once.
        """
        self.gather()
        self._encode_columns()
        parts = list(self._encoded)
        if self.rows:
            parts.append(self._encoder.encode(self.rows, self.sequences))
        encoded = [self._encoder.encode_table(table) for table in self.tables]
        misfits: dict[int, RowMismatch] = {}
        for _, unfit in reversed([*parts, *encoded]):
            misfits |= unfit  # the first of a record counts
        tables = [table for table, _ in encoded]
        if parts:  # as one, mostly still in the handler's thread: each small array costs the event loop time again
            tables.insert(0, joined([pa.Table.from_batches([batch]) for batch, _ in parts]).combine_chunks())
        return tables, misfits
