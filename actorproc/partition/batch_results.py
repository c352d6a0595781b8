"""Collects the results of one batch over its attempts: rows, dead letters, skipped records and changes of state."""

from __future__ import annotations

from actorproc.handler.attempt import Attempt
from actorproc.handler.base import Decision
from actorproc.handler.state import StateChanges
from actorproc.output.dead_letters import render_letter, was_dead
from actorproc.partition.dead_letter_limit import DeadLetterLimit
from actorproc.partition.opened_handler import OpenedHandler
from actorproc.partition.pending import Pending
from actorproc.records import Batch
from actorproc.rows.sequence_order import joined, rows_after, rows_upto


class BatchResults:
    """Results of the records that are done and that the handler has not committed itself."""

    def __init__(self, batch: Batch, opened: OpenedHandler, limit: DeadLetterLimit) -> None:
        self._batch = batch
        self._on = opened
        self._limit = limit
        self._done = Pending()
        self.given_up: set[int] = set()
        """Sequences of the records that will not be tried again, committed ones included."""
        limit.begin(batch)

    @property
    def changes(self) -> StateChanges:
        """Keyed state that the attempts so far have changed."""
        return self._done.changes

    def add(self, attempt: Attempt) -> None:
        """The handler has returned: its good rows and its changes of state count."""
        self._done.changes = attempt.state.changes()
        if (table := attempt.good_rows()) is not None:
            self._done.tables.append(table)

    def give_up(
        self, attempts: int, sequence: int, error: Exception | str, decision: Decision, kind: str | None = None
    ) -> None:
        """The record is skipped, or becomes a dead letter.

        Args:
            attempts: at this record; 0 if the handler was never called for it.

        Raises:
            TooManyDeadLetters: the limit is exceeded.
        """
        self.given_up.add(sequence)
        if decision is Decision.SKIP:
            self._done.skipped += 1
            self._on.retries.log_skipped(sequence, error)
            return
        index = int(self._batch.sequence_array.to_numpy().searchsorted(sequence))
        (record,) = self._batch[index : index + 1]
        self._done.letters[sequence] = render_letter(record, error, attempts, self._on.info, self._on.clock, kind=kind)
        if not was_dead(record):  # a replay before the cause is fixed must not stop the partition
            self._limit.failed(sequence, error, kind)

    def take_upto(self, attempt: Attempt, upto: int) -> Pending:
        """Take the results of records up to `upto`, of this attempt and of earlier ones, for the handler's commit.

        Raises:
            TooManyDeadLetters: the limit is exceeded.
        """
        for sequence, (reason, kind) in attempt.letters.items():
            if attempt.committed < sequence <= upto:
                self.give_up(attempt.number, sequence, reason, Decision.DEAD_LETTER, kind)
        now, self._done = self._done.split(upto)
        now.changes = attempt.state.take()
        if (table := attempt.good_rows()) is not None:
            now.tables.append(rows_upto(table, upto))
            attempt.encoded = [rows_after(table, upto)]
        return _in_order(now)

    def take(self) -> Pending:
        """Take all. A traceback may keep this object alive, but not its rows."""
        done, self._done = self._done, Pending()
        return _in_order(done)


def _in_order(results: Pending) -> Pending:
    if results.tables:
        results.tables = [joined(results.tables)]
    return results
