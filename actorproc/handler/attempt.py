"""One attempt at a batch: what the handler has emitted, failed and given up so far."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import pyarrow as pa

from actorproc.errors import HandlerError
from actorproc.records import Batch
from actorproc.rows.row_buffer import RowBuffer

T = TypeVar("T")

RETURNED = "process() has returned: await the work before it returns (ctx.map does)"
FAILED = "process() has failed: the records that it had not committed are tried again"
CUT_OFF = "this attempt was cut off: the partition no longer runs here, or process() took too long"

_MAP_CUT_OFF = (
    "ctx.map was cut off before its call for this record had ended: set the time limit within the function that "
    "ctx.map calls, or give the record up with ctx.dead_letter"
)


class GivenUp(NamedTuple):
    """Why the handler gave a record up, and the kind of its dead letter."""

    reason: str
    kind: str


@dataclass(slots=True)
class Attempt:
    """State that a `PartitionContext` fills and the partition reads."""

    batch: Batch
    rows: RowBuffer
    number: int = 1
    committed: int = -1
    """Sequence up to which the handler has committed the batch."""
    encoded: list[pa.Table] = field(default_factory=list)
    """Rows that a commit has encoded and not taken, each table ordered by sequence."""
    letters: dict[int, GivenUp] = field(default_factory=dict)
    """Records that the handler gave up, by sequence."""
    failures: dict[int, Exception] = field(default_factory=dict)
    """Records that failed alone, by sequence."""
    hopeless: set[int] = field(default_factory=set)
    """Sequences of the failed records that another attempt would not help."""
    mapping: Counter[int] = field(default_factory=Counter)
    """How many calls of `map` work on a record, by sequence."""
    cut_off: set[int] = field(default_factory=set)
    """Sequences of records whose `map` was cancelled before its call for them had ended."""
    maps: int = 0
    """Calls of `map` that have not ended, awaited or not."""
    closed: str | None = None
    """Why the attempt takes nothing more; None while it is open."""
    late: threading.Event = field(default_factory=threading.Event)
    """Set when the handler emits after `process` has returned."""
    broken: Exception | None = None
    """Why rows that a commit was to encode are gone."""

    @property
    def progress(self) -> tuple[int, ...]:
        """Changes with each thing that the handler does."""
        encoded = sum(table.num_rows for table in self.encoded)
        return len(self.rows) + encoded, len(self.letters), len(self.failures), self.mapping.total(), self.committed

    def uncommitted(self, by_sequence: dict[int, T]) -> dict[int, T]:
        """Those of the records that the handler has not committed."""
        return {sequence: item for sequence, item in by_sequence.items() if sequence > self.committed}

    def unfinished(self) -> set[int]:
        """Sequences of the records that the handler may not be done with."""
        return self.mapping.keys() | (self.cut_off - self.letters.keys())

    def map_ended(self, sequence: int, *, done: bool) -> None:
        """A call of `map` for this record has ended, or will never be made."""
        self.mapping[sequence] -= 1
        if not self.mapping[sequence]:
            del self.mapping[sequence]
        if done:
            self.cut_off.discard(sequence)
        else:
            self.cut_off.add(sequence)

    def fail_cut_off(self) -> None:
        """Fail the records that a `map` left unfinished and that the handler has neither failed nor given up."""
        for sequence in self.cut_off - self.letters.keys() - self.failures.keys():
            if sequence > self.committed:
                self.failures[sequence] = HandlerError(_MAP_CUT_OFF)
