"""What a handler has emitted so far: rows, kept as columns of values as soon as there are a few, then as Arrow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from actorproc.errors import Misfit
from actorproc.records import SEQUENCE
from actorproc.rows.encoder import Row, RowEncoder

PIECE = 512
"""Rows that wait as they came: the cache holds them, and they are fewer than what sets Python looking for garbage (700)."""

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
        self._encoded: list[tuple[pa.RecordBatch, dict[int, Misfit]]] = []
        self._count = 0  # of rows that are no longer in `rows`
        self._alike = True  # up to now; one odd row, and that one and those behind it stay rows

    def __len__(self) -> int:
        return self._count + len(self.sequences)

    @property
    def waiting(self) -> int:
        """How many of the rows are not encoded yet."""
        return sum(map(len, self._gathered)) + len(self.rows)

    def add(self, rows: Sequence[Row], sequences: pa.Int64Array) -> None:
        """Add many rows at once."""
        if len(self.rows) + len(rows) >= PIECE:
            self.gather()
            if self._alike and self._gather(rows, sequences):
                return
        self.sequences.extend(sequences.to_pylist())
        self.rows.extend(rows)

    def gather(self) -> None:
        """Keep only the values of the rows."""
        if self._alike and self.rows and self._gather(self.rows, pa.array(self.sequences, pa.int64())):
            self.rows.clear()
            self.sequences.clear()

    def _gather(self, rows: Sequence[Row], sequences: pa.Int64Array) -> bool:
        values = self._encoder.columns(rows)
        if values is None:
            self._alike = False
            return False
        for column, its_values in zip(self._columns, values, strict=True):
            column.extend(its_values)
        self._gathered.append(sequences.to_numpy())
        self._count += len(sequences)
        if len(self._columns[0]) >= _TOGETHER:
            self._encode_columns()
        return True

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

    def encode(self) -> tuple[list[pa.Table], dict[int, Misfit]]:
        """The rows that fit, as tables each in order, and why others do not, by sequence."""
        self.gather()
        self._encode_columns()
        parts = list(self._encoded)
        if self.rows:
            parts.append(self._encoder.encode(self.rows, self.sequences))
        misfits: dict[int, Misfit] = {}
        for _, unfit in reversed(parts):
            misfits |= unfit  # the first of a record counts
        return [pa.Table.from_batches([batch]) for batch, _ in parts], misfits

    def mark(self) -> tuple[int, int]:
        """What there is now, for `forget`."""
        self.gather()
        self._encode_columns()
        return len(self._encoded), len(self.rows)

    def forget(self, upto: int, mark: tuple[int, int]) -> None:
        """Drop those of the rows up to `mark` whose record is at or before `upto`, which all fit."""
        encoded, rows = mark
        for index, (batch, misfits) in enumerate(self._encoded[:encoded]):
            kept = batch.filter(pc.greater(batch.column(SEQUENCE.name), upto))
            self._encoded[index] = kept, misfits
            self._count -= len(batch) - len(kept)
        keep = [index for index, sequence in enumerate(self.sequences) if index >= rows or sequence > upto]
        self.rows[:] = [self.rows[index] for index in keep]
        self.sequences[:] = [self.sequences[index] for index in keep]
