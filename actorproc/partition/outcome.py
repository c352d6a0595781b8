"""What came of records: rows, dead letters, and how many were passed over."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from actorproc.rows.sequenced import rows_after, rows_upto


@dataclass(slots=True)
class Outcome:
    """Of records that follow one another. `letters`: by sequence."""

    tables: list[pa.Table] = field(default_factory=list)
    letters: dict[int, bytes] = field(default_factory=dict)
    skipped: int = 0

    def cut(self, upto: int) -> tuple[Outcome, Outcome]:
        """What belongs to records up to `upto`, and the rest; all that were passed over count with the first."""
        head = Outcome([rows_upto(table, upto) for table in self.tables], skipped=self.skipped)
        tail = Outcome([rows_after(table, upto) for table in self.tables])
        for sequence, letter in self.letters.items():
            (head if sequence <= upto else tail).letters[sequence] = letter
        return head, tail
