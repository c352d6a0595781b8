"""Results of processed records: they grow from the attempts at a batch to the next commit."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from actorproc.counts import Counts
from actorproc.handler.keyed_state import StateChanges
from actorproc.rows.sequence_order import joined, rows_after, rows_upto


@dataclass(slots=True)
class Results:
    """Rows, dead letters and changed state of processed records, which wait for a commit."""

    tables: list[pa.Table] = field(default_factory=list)
    letters: dict[int, bytes] = field(default_factory=dict)
    """By sequence; those of timers by negative numbers, since they may have records of a parent of the partition."""
    changes: StateChanges = field(default_factory=dict)
    """Of keyed state. Once the records are processed, `PartitionState` holds them until the commit."""
    records: int = 0
    skipped: int = 0
    rows: int = 0
    row_bytes: int = 0
    """Bytes of the rows, and of the changes of state that `PartitionState` holds."""
    letter_bytes: int = 0

    @property
    def counts(self) -> Counts:
        return Counts(self.records, self.rows, len(self.letters), self.skipped)

    def add_rows(self, table: pa.Table) -> None:
        self.tables.append(table)
        self.rows += table.num_rows
        self.row_bytes += table.nbytes

    def add_letter(self, sequence: int, letter: bytes) -> None:
        self.letters[sequence] = letter
        self.letter_bytes += len(letter)

    def add(self, later: Results, records: int, state_bytes: int) -> None:
        """Add the results of the records that were processed next, without their changes of state.

        Args:
            records: how many these are.
            state_bytes: size of their changes of state.
        """
        self.tables += later.tables
        self.letters |= later.letters
        self.records += records
        self.skipped += later.skipped
        self.rows += later.rows
        self.row_bytes += later.row_bytes + state_bytes
        self.letter_bytes += later.letter_bytes

    def join(self) -> None:
        """Make one table of all, ordered by sequence."""
        if self.tables:
            self.tables = [joined(self.tables)]

    def split(self, upto: int) -> tuple[Results, Results]:
        """The results of records up to sequence `upto`, and the rest, without the changes of state.

        All skipped records count with the first: they are not known by record.
        """
        head, tail = Results(skipped=self.skipped), Results()
        for table in self.tables:
            head.add_rows(rows_upto(table, upto))
            tail.add_rows(rows_after(table, upto))
        for sequence, letter in self.letters.items():
            (head if sequence <= upto else tail).add_letter(sequence, letter)
        return head, tail
