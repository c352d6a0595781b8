"""Results of processed records that wait for a commit."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from actorproc.handler.state import StateChanges
from actorproc.rows.sequence_order import rows_after, rows_upto


@dataclass(slots=True)
class Pending:
    """Results of processed records: rows, dead letters by sequence, changed state, and a count of skipped records."""

    tables: list[pa.Table] = field(default_factory=list)
    letters: dict[int, bytes] = field(default_factory=dict)
    """By sequence; those of timers by negative numbers, since they may have records of a parent of the partition."""
    skipped: int = 0
    changes: StateChanges = field(default_factory=dict)
    """Of keyed state."""

    @property
    def rows(self) -> int:
        return sum(table.num_rows for table in self.tables)

    @property
    def row_bytes(self) -> int:
        return sum(table.nbytes for table in self.tables)

    @property
    def letter_bytes(self) -> int:
        return sum(map(len, self.letters.values()))

    def split(self, upto: int) -> tuple[Pending, Pending]:
        """The results of records up to sequence `upto`, and the rest, but for changes of state.

        All skipped records count with the first: they are not known by record.
        """
        head = Pending([rows_upto(table, upto) for table in self.tables], skipped=self.skipped)
        tail = Pending([rows_after(table, upto) for table in self.tables])
        for sequence, letter in self.letters.items():
            (head if sequence <= upto else tail).letters[sequence] = letter
        return head, tail
