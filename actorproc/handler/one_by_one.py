"""Records one after another, in one attempt: a failing record takes back its own changes of state, and only these.

Model: tests/protocol/record_model.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any

from actorproc.errors import RowMismatch, StateMismatch
from actorproc.handler.context import PartitionContext
from actorproc.handler.keyed_state import Change, undo
from actorproc.handler.returned_rows import fitting
from actorproc.records import Record
from actorproc.runtime.user_code import failure_of


class OneByOne:
    """The changes of state of one attempt, record by record.

    Call `begin` before each record, and `failed` if it fails. Where `failed` returns True, call no other record: the
    attempt ends there, and the processor goes on with this record, after a pause, before it calls the next one.

    Args:
        in_order: False: until the attempt uses state, a record that fails does not hold up the others.
    """

    def __init__(self, ctx: PartitionContext, *, in_order: bool = True) -> None:
        self._ctx = ctx
        self._in_order = in_order
        self._attempt = ctx._attempt
        self._journal: list[Change] = []
        self._attempt.state.journal = self._journal

    def begin(self) -> None:
        """The next record begins: the changes of those before it stay."""
        self._journal.clear()

    def failed(self, record: Record, error: Exception, *, again: bool = True) -> bool:
        """This record has failed: drop its changes. Returns whether the attempt ends here.

        Args:
            again: whether another attempt may help. It never does if a row, a key or a value does not fit.
        """
        undo(self._journal)
        again = again and not isinstance(error, RowMismatch | StateMismatch)
        self._ctx.fail(record, error, again=again)
        return self._settled(record.sequence, again)

    def fitting(self, record: Record, result: Any) -> Any:
        """The rows that were returned for the record; None: there are none, or they do not fit, and it has failed."""
        if result is None:
            return None
        try:
            return fitting(result, self._ctx)
        except BaseException as error:  # noqa: BLE001  # the user's code, in an iterator of rows
            self.failed(record, failure_of(error))
            return None

    def ends_at(self, sequence: int) -> bool:
        """Whether the attempt ends at the record that was worked on. Also sees to one that failed by `ctx.fail`."""
        attempt = self._attempt
        if sequence in attempt.failures and sequence not in attempt.traceless:
            undo(self._journal)
            return self._settled(sequence, sequence not in attempt.hopeless)
        return attempt.stopped is not None

    def _settled(self, sequence: int, again: bool) -> bool:
        attempt = self._attempt
        attempt.traceless.add(sequence)
        if again and attempt.may_stop and (self._in_order or attempt.state.used):
            attempt.stopped = sequence
        return attempt.stopped is not None

    def back_to_first_failure(self) -> bool:
        """State is used from the latest record on: go back to the first one that failed before, if any is tried again.

        Returns whether there was one. Until now no state was used, so all changes are those of the latest record.
        """
        attempt = self._attempt
        first = min(attempt.failures.keys() - attempt.hopeless, default=None)
        if first is None or not attempt.may_stop:
            return False
        undo(self._journal)
        attempt.stopped = first
        attempt.traceless.update(attempt.failures)
        return True

    def back_before(self, sequence: int) -> bool:
        """State was first used out of order: go back to the record of this sequence, and drop all changes.

        Returns whether that is possible. With at-most-once delivery the handler sees no record twice.
        """
        if not self._attempt.may_stop:
            return False
        undo(self._journal)
        self._attempt.stopped = sequence - 1
        return True


class Writers:
    """Notes which of the records that are worked on at once have changed state: their changes cannot be told apart.

    Args:
        current: the record of the task that makes a change.
    """

    def __init__(self, current: ContextVar[Record]) -> None:
        self._current = current
        self._sequences: set[int] = set()
        self._has_others = False  # a task of the user's own, which works for no record, has changed state

    def append(self, change: Change) -> None:
        """See `Journal`."""
        record = self._current.get(None)
        if record is None:
            self._has_others = True
        else:
            self._sequences.add(record.sequence)

    def without_change(self, sequences: Iterable[int]) -> set[int]:
        """Those of the records that have certainly not changed state."""
        return set() if self._has_others else set(sequences) - self._sequences
