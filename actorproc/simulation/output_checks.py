"""Invariants of output, dead letters and checkpoints, checked at each write."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import orjson
import pyarrow.parquet as pq

from actorproc.handler.base import CloseReason
from actorproc.handler.info import PartitionInfo
from actorproc.output.chain import Commit, letters_of
from actorproc.output.checkpoint import RESETS_KEPT, Checkpoint, Reset
from actorproc.records import Batch
from actorproc.retention.boundary import Boundary
from actorproc.storage.parquet import Footer, parse_footer

Row = Mapping[str, Any]
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RecordResult:
    """A record with its output rows and its dead letters."""

    partition: str
    sequence: int
    value: bytes
    rows: Sequence[Row]
    letters: Sequence[Row]


RecordCheck = Callable[[RecordResult], "str | None"]
"""Returns the fault in the result of a record, or None."""


class TimerRows(Protocol):
    """Checks the rows that `on_wake` has returned. They have the sequence of a record that is done."""

    def is_timer_row(self, row: Row) -> bool:
        """Whether `on_wake` has returned this row."""

    def fired(self, partition: str, sequence: int, row: Row) -> str | None:
        """Called in the order of commits and rows. Returns the fault, or None."""


class OutputChecks:
    """The chain of one partition, from its first file on.

    Args:
        records: returns (sequence, value) of the records after one sequence, up to and including another.
        check: called with each record once it has ended.
        broken: called with each invariant that does not hold.
        timers: checks the rows of timers, if the handler has timers.
        cleared: called with the partition once a reset has cleared its keyed state.
    """

    def __init__(
        self,
        partition: str,
        records: Callable[[int, int], Iterable[tuple[int, bytes]]],
        check: RecordCheck,
        broken: Report,
        timers: TimerRows | None = None,
        cleared: Report = lambda _: None,
    ) -> None:
        self.partition = partition
        self._timers = timers
        self.commits: list[Commit] = []
        self.checkpoint: Checkpoint | None = None
        self.seen: Counter[str] = Counter()
        self._records = records
        self._check = check
        self._report = broken
        self._cleared = cleared
        self._furthest = -1  # a checkpoint was there, or it was committed before the newest reset
        self._lowest = 0  # commits below are trimmed
        self._published = 0  # commits below are published, if they have anything to publish
        self._put_ids: set[str] = set()
        self._committed_letters: list[bytes] = []
        self._letters: dict[int, bytes] = {}
        self._ended = -1

    def committed_to(self) -> int:
        """Sequence up to which everything is committed."""
        return -1 if self.checkpoint is None else self._walked_to(self.checkpoint, len(self.commits))

    def was_committed_to(self) -> int:
        """Sequence up to which everything was committed at some time."""
        return max(self._furthest, self.committed_to())

    def was_reset_by(self, command: str) -> bool:
        """Whether a reset by this command is in the chain."""
        return any(commit.reset and commit.reset.id == command for commit in self.commits)

    def _walked_to(self, checkpoint: Checkpoint, number: int) -> int:
        """Where a walk from the checkpoint up to commit `number` leads."""
        reached = checkpoint.cursor.sequence
        for commit in self.commits[checkpoint.number : number]:
            goes_back = commit.reset is not None and commit.reset.back
            reached = commit.next.sequence if goes_back else max(reached, commit.next.sequence)
        return reached

    def handler_opened(self, handler: object, site: PartitionInfo) -> None:
        """Override: a handler instance was opened."""

    def handler_closing(self, handler: object, reason: CloseReason) -> None:
        """Override: a handler instance closes."""

    def handler_called(self, handler: object, batch: Batch) -> None:
        """Override: a handler instance got a batch."""

    def output_written(self, number: int, body: bytes, existed: bool) -> None:
        """Output file `number` was written."""
        if existed:
            self._broken(f"output file {number} was overwritten")
            return
        if number < self._lowest:
            self.seen["void"] += 1  # a late write below the boundary: nobody reads it
            return
        if number != len(self.commits):
            self._broken(f"output file {number} was written after {len(self.commits)} files")
            return
        if self.commits and self.commits[-1].ended:
            self._broken(f"commit {number} follows the end of the partition")
        footer = parse_footer(f"{number}", body, tag="", size=len(body))
        if not isinstance(footer, Footer):
            raise TypeError("the whole body was given")
        commit = Commit.from_footer(f"{number}", footer)
        rows = pq.read_table(io.BytesIO(body), use_threads=False).to_pylist()
        lines = letters_of(f"{number}", footer)
        self._check_commit(number, commit, rows, lines.count(b"\n"))
        letters = [orjson.loads(line) for line in lines.splitlines()]
        self._end_silently(commit.first.sequence)
        if (reset := commit.reset) is None:
            self._end(commit.next.sequence, rows, letters)
        else:
            self._furthest = self.was_committed_to()
            self._was_reset(reset)
        self.commits.append(commit)
        self._committed_letters.append(lines)
        self.seen.update(commits=1, rows=len(rows), dead_letters=len(letters))

    def _check_commit(self, number: int, commit: Commit, rows: list[Row], letters: int) -> None:
        last = self.commits[-1] if self.commits else None
        if last is not None and commit.first.sequence < last.next.sequence:
            self._broken(f"commit {number} starts at {commit.first}, before the end of the one before: {last.next}")
        if (reset := commit.reset) is not None:
            self._check_reset(number, commit, reset, bool(rows or letters))
        elif rows or letters or commit.state_size:
            self._check_step(number, commit)
        elif commit.next != commit.first and not commit.ended:  # else an exclusive handler has started
            self._broken(f"commit {number} holds nothing")
        if commit.rows != len(rows):
            self._broken(f"commit {number} says {commit.rows} rows and has {len(rows)}")
        if any(a["_sequence"] > b["_sequence"] for a, b in pairwise(rows)):
            self._broken(f"rows of commit {number} are not in the order of their records")
        expected = (
            (len(rows), letters) if last is None else (last.totals.rows + len(rows), last.totals.dead_letters + letters)
        )
        if (commit.totals.rows, commit.totals.dead_letters) != expected:
            self._broken(f"commit {number} counts {commit.totals}, not {expected} rows and dead letters")
        if commit.put_id in self._put_ids:
            self._broken(f"commit {number} repeats put-id {commit.put_id}")
        self._put_ids.add(commit.put_id)

    def _check_reset(self, number: int, commit: Commit, reset: Reset, has_results: bool) -> None:
        if has_results or (reset.first, reset.next, reset.number) != (commit.first, commit.next, number):
            self._broken(f"reset {number} has results, or goes from {commit.first} to {commit.next}: {reset}")
        resets = [before.reset.id for before in self.commits if before.reset]
        if reset.id in resets[-RESETS_KEPT:]:
            self._broken(f"command {reset.id} takes effect again, as reset {number}")
        if commit.first.sequence > self.committed_to():
            self._broken(f"reset {number} ends at {commit.first}, committed is {self.committed_to()}")
        if not reset.back and commit.next.sequence < commit.first.sequence:
            self._broken(f"reset {number} goes back from {commit.first} to {commit.next}, and was announced as forward")

    def _was_reset(self, reset: Reset) -> None:
        """A reset was made. Records that it repeats must end once more; those that it skips need not end."""
        self._ended = reset.next.sequence if reset.back else max(self._ended, reset.next.sequence)
        if reset.clears_state:
            self._cleared(self.partition)
        self.seen["resets"] += 1

    def _check_step(self, number: int, commit: Commit) -> None:
        least = commit.first.sequence + (self._timers is None)  # timers fire without a new record, too
        if commit.next.sequence < least:
            self._broken(f"commit {number} goes nowhere: from {commit.first} to {commit.next}")

    def boundary_written(self, boundary: Boundary) -> None:
        """The boundary was raised: files below it may be deleted."""
        if boundary.lowest < self._lowest:
            self._broken(f"the boundary went back from {self._lowest} to {boundary.lowest}")
        if self.checkpoint is None or boundary.lowest >= self.checkpoint.number:
            self._broken(f"the boundary is at {boundary.lowest}, the checkpoint has not passed that: {self.checkpoint}")
        self._lowest = boundary.lowest

    def output_deleted(self, number: int) -> None:
        """Output file `number` was deleted."""
        if number >= self._lowest:
            self._broken(f"output file {number} was deleted, the boundary is at {self._lowest}")
        self.seen["trimmed"] += 1

    def letters_written(self, number: int, body: bytes, existed: bool) -> None:
        """The dead letters of commit `number` were published, or purged (an empty body)."""
        if existed and not body:
            if self.checkpoint is None or number >= self.checkpoint.number:
                self._broken(f"dead-letter file {number} was purged before a checkpoint passed it")
            self.seen["purged"] += 1
            return
        if existed:
            self._broken(f"dead-letter file {number} was overwritten")
        elif number >= len(self.commits):
            self._broken(f"dead letters of {number} were published before there is such a commit")
        elif body != self._committed_letters[number]:
            self._broken(f"dead letters of {number} are not those of its commit")
        self._letters[number] = body

    def letters_refused(self, number: int, body: bytes) -> None:
        """A second attempt to publish dead letters was refused; it must have had the same body."""
        if body != self._committed_letters[number]:
            self._broken(f"dead letters that are not those of commit {number} were to be published for it")

    def checkpoint_written(self, checkpoint: Checkpoint) -> None:
        """The checkpoint moved or changed its owner."""
        before, self.checkpoint = self.checkpoint, checkpoint
        self._furthest = max(self._furthest, checkpoint.cursor.sequence)  # a reset may follow it in the chain already
        if before is not None:
            if checkpoint.epoch < before.epoch:
                self._broken(f"checkpoint of epoch {checkpoint.epoch} follows one of epoch {before.epoch}")
            reached = self._walked_to(before, checkpoint.number)
            if checkpoint.number < before.number or checkpoint.cursor.sequence < reached:
                self._broken(f"the checkpoint went back from {before} to {checkpoint}")
        if checkpoint.number > len(self.commits):
            self._broken(f"the checkpoint is at file {checkpoint.number}, there are {len(self.commits)}")
            return
        if checkpoint.ended and not (self.commits and self.commits[-1].ended):
            self._broken("the checkpoint says that the partition has ended, and its last commit does not")
        for number in range(self._published, checkpoint.number):
            if self._committed_letters[number] and number not in self._letters:
                self._broken(f"the checkpoint is at {checkpoint.number}, dead letters of {number} are not published")
        self._published = max(self._published, checkpoint.number)

    def check_ended(self) -> None:
        """Override: records of a child are checked next. If this partition has ended, check its own now."""

    def all_ended(self, end: int) -> None:
        """All hosts have stopped: all records up to `end` have a result, all dead letters are published."""
        if (reached := self.committed_to()) < end:
            self._broken(f"is committed up to {reached}, not {end}")
        self.seen["ends"] += bool(self.commits) and self.commits[-1].ended
        self._end_silently(reached)
        for number, letters in enumerate(self._committed_letters[: self._walked()]):
            if letters and number not in self._letters:
                self._broken(f"dead letters of {number} were never published")

    def _walked(self) -> int:
        """Commits below have been seen by the last owner."""
        return len(self.commits)

    def _end_silently(self, upto: int) -> None:
        """Records up to `upto` that are not in any file had no result."""
        self._end(upto, [], [])

    def _end(self, upto: int, rows: list[Row], letters: list[Row]) -> None:
        rows_of: dict[int, list[Row]] = {}
        letters_by: dict[int, list[Row]] = {}
        fired = [row for row in rows if self._timers is not None and self._timers.is_timer_row(row)]
        for row in rows:
            if row not in fired:
                rows_of.setdefault(row["_sequence"], []).append(row)
        for letter in letters:
            letters_by.setdefault(letter["sequence"], []).append(letter)
        for sequence, value in self._records(self._ended, upto):
            fired = self._fire(fired, before=sequence)
            ended = RecordResult(
                self.partition, sequence, value, rows_of.pop(sequence, []), letters_by.pop(sequence, [])
            )
            if why := self._check(ended):
                self._broken(f"record {sequence} {why}")
            self.seen["records"] += 1
        self._fire(fired, before=upto + 1)
        if strange := rows_of.keys() | letters_by.keys():
            self._broken(f"a commit up to {upto} holds records {sorted(strange)}: ended before, or not there at all")
        self._ended = max(self._ended, upto)

    def _fire(self, rows: list[Row], before: int) -> list[Row]:
        """Check the rows of timers that fired before this record. Returns the others."""
        done = [row for row in rows if row["_sequence"] < before]
        for row in done:
            if self._timers is not None and (why := self._timers.fired(self.partition, row["_sequence"], row)):
                self._broken(why)
        self.seen["timers"] += len(done)
        return rows[len(done) :]

    def _broken(self, what: str) -> None:
        self._report(f"partition {self.partition}: {what}")
