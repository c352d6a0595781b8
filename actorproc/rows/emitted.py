"""What a handler has emitted so far: rows, kept as columns of values as soon as there are a few."""

from __future__ import annotations

import pyarrow as pa

from actorproc.errors import Misfit
from actorproc.rows.encoder import Row, RowEncoder

PIECE = 512
"""Rows that wait as they came: the cache holds them, and they are fewer than what sets Python looking for garbage (700)."""


class Emitted:
    """Rows, each with the sequence of the record that it came from.

    Attributes:
        rows: the newest, as they came; whoever adds `PIECE` of them calls `gather`.
        sequences: of all rows.
    """

    def __init__(self, encoder: RowEncoder) -> None:
        self.rows: list[Row] = []
        self.sequences: list[int] = []
        self._encoder = encoder
        self._columns: list[list[object]] = [[] for _ in range(encoder.width)]
        self._alike = True  # up to now; one odd row, and that one and those behind it stay rows

    def __len__(self) -> int:
        return len(self.sequences)

    def gather(self) -> None:
        """Keep only the values of the rows."""
        values = self._encoder.columns(self.rows) if self._alike else None
        if values is None:
            self._alike = False
            return
        for column, its_values in zip(self._columns, values, strict=True):
            column.extend(its_values)
        self.rows.clear()

    def copy(self) -> Emitted:
        """As it is now: the handler may go on while it is encoded."""
        copy = Emitted(self._encoder)
        copy.rows, copy.sequences, copy._alike = list(self.rows), list(self.sequences), self._alike
        copy._columns = [list(column) for column in self._columns]
        return copy

    def encode(self) -> tuple[list[pa.Table], dict[int, Misfit]]:
        """The rows that fit, as tables in order, and why others do not, by sequence."""
        self.gather()
        gathered = len(self.sequences) - len(self.rows)
        parts = []
        if gathered:
            parts.append(self._encoder.encode_columns(self._columns, self.sequences[:gathered]))
        if self.rows:
            parts.append(self._encoder.encode(self.rows, self.sequences[gathered:]))
        misfits: dict[int, Misfit] = {}
        for _, unfit in reversed(parts):
            misfits |= unfit  # the first of a record counts
        return [pa.Table.from_batches([batch]) for batch, _ in parts], misfits

    def forget(self, upto: int, count: int) -> None:
        """Drop those of the first `count` rows whose record is at or before `upto`."""
        gathered = len(self.sequences) - len(self.rows)
        keep = [index for index, sequence in enumerate(self.sequences) if index >= count or sequence > upto]
        for column in self._columns:
            column[:] = [column[index] for index in keep if index < gathered]
        self.rows[:] = [self.rows[index - gathered] for index in keep if index >= gathered]
        self.sequences[:] = [self.sequences[index] for index in keep]
