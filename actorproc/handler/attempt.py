"""One attempt at a batch: what the handler has emitted, failed and given up so far."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TypeVar

import anyio
import pyarrow as pa
import pyarrow.compute as pc

from actorproc.errors import HandlerError, HandlerMisuse, RowMismatch, RowsLost
from actorproc.handler.keyed_state import AttemptState
from actorproc.records import SEQUENCE, Batch
from actorproc.rows.row_buffer import RowBuffer
from actorproc.rows.sequence_order import joined, rows_upto

T = TypeVar("T")

RETURNED = "process() has returned: await the work before it returns (ctx.map does)"
FAILED = "process() has failed: the records that it had not committed are tried again"
CUT_OFF = "this attempt was cut off: the partition no longer runs here, or process() took too long"

_MAP_CUT_OFF = (
    "ctx.map was cut off before its call for this record had ended: set the time limit within the function that "
    "ctx.map calls, or give the record up with ctx.dead_letter"
)


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
    letters: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Reason and kind of the dead letter of each record that the handler gave up, by sequence."""
    given_up: list[tuple[Batch, str | Exception, str | None]] = field(default_factory=list)
    """Of `on_wake`: records of earlier batches that become one dead letter, with its reason and kind."""
    failures: dict[int, Exception] = field(default_factory=dict)
    """Records that failed alone, by sequence."""
    hopeless: set[int] = field(default_factory=set)
    """Sequences of the failed records that another attempt would not help."""
    traceless: set[int] = field(default_factory=set)
    """Sequences of the failed records that have left no trace in state, so that the others need no new attempt."""
    may_stop: bool = False
    """Whether the attempt may end at a record that failed, so that it is tried again before the next one."""
    stopped: int | None = None
    """Sequence of the failed record at which the attempt has ended: nothing counts of the records after it."""
    mapping: Counter[int] = field(default_factory=Counter)
    """How many calls of `map` work on a record, by sequence."""
    cut_off: set[int] = field(default_factory=set)
    """Sequences of records whose `map` was cancelled before its call for them had ended."""
    signs_of_life: int = 0
    """Calls of `ctx.alive`."""
    maps: int = 0
    """Calls of `map` that have not ended, awaited or not."""
    closed: str | None = None
    """Why the attempt takes nothing more; None while it is open."""
    late: threading.Event = field(default_factory=threading.Event)
    """Set when the handler emits after `process` has returned."""
    encoding_error: Exception | None = None
    """Why rows that a commit was to encode are gone."""
    in_thread: tuple[list[pa.Table], dict[int, RowMismatch]] | None = None
    """Rows that the handler's thread has encoded, and misfits, which `add_encoded` has not taken yet."""
    committing: anyio.Lock = field(default_factory=anyio.Lock)
    """Held by a commit of the handler: one at a time."""
    fatal: Exception | None = None
    """The error with which the partition has to stop: a commit was cut short, or rows were lost."""
    state: AttemptState = field(default_factory=AttemptState)
    """Keyed state, with the changes of this attempt."""

    @property
    def progress(self) -> tuple[int, ...]:
        """Changes with each thing that the handler does."""
        encoded = sum(table.num_rows for table in self.encoded)
        return (
            len(self.rows) + encoded,
            len(self.letters),
            len(self.failures),
            len(self.state),
            self.mapping.total(),
            self.committed,
            self.signs_of_life,
        )

    def uncommitted(self, by_sequence: dict[int, T]) -> dict[int, T]:
        """Those of the records that the handler has not committed."""
        return {sequence: item for sequence, item in by_sequence.items() if sequence > self.committed}

    def failed(self) -> dict[int, Exception]:
        """Errors of the records that failed, by sequence; without those that are committed, and without rows that do
        not fit of records that the handler gave up: these rows are dropped."""
        failures = self.uncommitted(self.failures)
        if self.stopped is not None:
            failures = {sequence: error for sequence, error in failures.items() if self.counts(sequence)}
        if not self.letters:
            return failures
        return {s: e for s, e in failures.items() if s not in self.letters or not isinstance(e, RowMismatch)}

    def counts(self, sequence: int) -> bool:
        """Whether the attempt has come to the end of this record."""
        return self.stopped is None or sequence <= self.stopped

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

    # Encoded rows

    def add_encoded(self, tables: list[pa.Table], misfits: dict[int, RowMismatch]) -> None:
        """Add encoded rows to the attempt. A record with a row that does not fit has failed, and would fail again.

        Raises:
            HandlerMisuse: a row belongs to a record that is not at hand.
            RowsLost: a row belongs to a record that was committed without it.
        """
        if misfits:
            self._check_records(pa.array(sorted(misfits), pa.int64()))
        for table in tables:
            self._check_records(table[SEQUENCE.name])
        self.hopeless |= misfits.keys() - self.failures.keys()
        self.failures = misfits | self.failures
        self.encoded += tables

    def good_rows(self) -> pa.Table | None:
        """The encoded rows, ordered by sequence, of the records that are done."""
        if not self.encoded:
            return None
        table = joined(self.encoded)
        if self.stopped is not None:
            table = rows_upto(table, self.stopped)
        if dropped := self.failures.keys() | self.letters.keys():
            unwanted = pc.is_in(table[SEQUENCE.name], value_set=pa.array(sorted(dropped), pa.int64()))
            table = table.filter(pc.invert(unwanted))
        return table

    def _check_records(self, sequences: pa.Array | pa.ChunkedArray) -> None:
        """`sequences` are ordered."""
        if len(sequences) == 0:
            return
        batch = self.batch
        first, last = sequences[0].as_py(), sequences[-1].as_py()
        has_gaps = batch.last - batch.first >= len(batch)
        if first < batch.first or last > batch.last or has_gaps:
            foreign = sequences.filter(pc.invert(pc.is_in(sequences, value_set=batch.sequence_array)))
            if len(foreign):
                raise HandlerMisuse(
                    f"a row was emitted for record {foreign[0]}, which is not among those at hand ({batch.first} to "
                    f"{batch.last}): it was done before, or is tried apart from them. A row belongs to a record of the "
                    "batch; a row for records of several batches is emitted for the last of them"
                )
        if first <= self.committed:
            raise RowsLost(
                f"a row was emitted for a record up to {self.committed}, which ctx.commit had committed already, and "
                "is lost: emit first, or commit up to an earlier record with ctx.commit(record)"
            )
