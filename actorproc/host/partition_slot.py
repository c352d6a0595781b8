"""Supervisor-side state of one partition, kept across restarts of its actor."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import anyio

from actorproc.counts import Counts
from actorproc.errors import Fault, Fenced, HandlerMisuse, PartitionStuck, RowsLost, fault_of
from actorproc.partition.actor import PartitionActor
from actorproc.partition.dead_letter_limit import DeadLetterLimit
from actorproc.partition.statistics import PartitionState, PartitionStatistics, Trouble, TroubleKind
from actorproc.records import Cursor
from actorproc.runtime.actor import Restarts
from actorproc.runtime.clock import Clock
from actorproc.runtime.error_text import describe_error
from actorproc.runtime.stillness import Stillness

FAILURES_FOR_GOOD = 5
"""Failures in a row, with nothing committed in between, after which a run until the end gives a partition up."""


@dataclass(slots=True)
class PartitionSlot:
    """A partition whose lease this host has, or is about to hand over."""

    partition: str
    epoch: int
    restarts: Restarts
    limit: DeadLetterLimit
    clock: Clock
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """Around the task that runs the actors."""
    since: float = 0.0
    """When this host got the lease, in seconds since 1970."""
    origin: str = ""
    """Why this host got the lease."""
    actor: PartitionActor | None = None
    draining: bool = False
    released: bool = False
    """Drained and committed, but not handed over yet."""
    ended: bool = False
    """The partition has ended, and the group does not know yet."""
    error: str | None = None
    """Text of the latest failure."""
    blocked: str | None = None
    """Why no actor can be started: a call of an earlier one has not returned."""
    committed: Cursor = field(default_factory=lambda: Cursor(""))
    """Of the latest actor that has ended; empty before one has opened the partition."""
    ever: Counts | None = None
    """Counts since the first record of the partition, as its latest actor knew them."""
    handling: Stillness = field(default_factory=Stillness)
    """Of the progress of the handler."""
    reading: Stillness = field(default_factory=Stillness)
    """Of what the source yields."""
    acquired: bool = False
    """The hooks know that this host has the lease, and not yet that it has it no more."""
    _kind: TroubleKind = "failing"  # of the latest failure
    _fault: Fault = "user"
    _trouble_since: float = 0.0
    _reached: int = -1  # sequence up to which records were processed before the latest failure
    _failures: int = 0  # in a row, with nothing committed in between
    _is_misuse: bool = False  # the latest failure is a mistake in the handler itself
    _committed: int = -1  # sequence up to which everything was committed at the latest failure

    def statistics(self) -> PartitionStatistics:
        trouble, actor = self.trouble(), self.actor
        error = trouble.error if trouble else None
        if actor is None:
            state: PartitionState = "released" if self.released else "opening" if error is None else "waiting"
            return PartitionStatistics(
                self.partition, self.epoch, state, committed=self.committed, since=self.since, origin=self.origin,
                trouble=trouble, error=error, totals=self.ever,
            )  # fmt: skip
        return replace(
            actor.statistics, committed=self.committed_cursor(), lag=actor.lag.records, lag_bytes=actor.lag.bytes,
            sinks=actor.deliveries.statistics(), lag_seconds=actor.lag.seconds,
            lag_seconds_end_to_end=actor.lag.seconds_end_to_end, since=self.since, origin=self.origin,
            activity=actor.time.activity, activity_since=actor.time.since, seconds=actor.time.seconds(),
            retry=actor.retry, trouble=trouble, error=error, totals=actor.statistics.totals or self.ever,
        )  # fmt: skip

    def counts(self) -> Counts:
        """Counts of the current actor."""
        return Counts() if self.actor is None else self.actor.statistics.counts

    def drop_actor(self) -> Counts:
        """Forget the actor, which has ended. Returns its counts."""
        counts = self.counts()
        self.committed = self.committed_cursor()
        if self.actor is not None:
            self.ever = self.actor.statistics.totals or self.ever
        self.actor = None
        self.handling, self.reading = Stillness(), Stillness()
        return counts

    def committed_cursor(self) -> Cursor:
        """As far as this host knows; empty before an actor has opened the partition."""
        found = Cursor("") if self.actor is None else self.actor.statistics.committed
        return found if found.position else self.committed

    def note_failure(self, error: Exception) -> None:
        """Note that the current actor has failed. Being fenced does not count: the partition goes on elsewhere."""
        self._note_trouble(self.clock.wall())
        committed = self._committed if self.actor is None else self.actor.statistics.committed.sequence
        if not isinstance(error, Fenced):
            self._failures = self._failures + 1 if committed <= self._committed else 1
            self._committed = max(committed, self._committed)
            # After RowsLost a restart goes on behind the committed records.
            self._is_misuse = isinstance(error, HandlerMisuse) and not isinstance(error, RowsLost)
        self.error = describe_error(error)
        self._fault = fault_of(error)
        self._kind = "stuck" if isinstance(error, PartitionStuck) else "failing"

    def note_stuck(self, error: Exception, lasted: float) -> None:
        """Note that the current actor is stuck, for `lasted` seconds so far."""
        self._note_trouble(self.clock.wall() - lasted)
        self.error, self._fault = describe_error(error), fault_of(error)

    def block(self, why: str) -> None:
        """Note that no actor can be started, until `blocked` is None again."""
        self._note_trouble(self.clock.wall())
        self.blocked = why

    def _note_trouble(self, since: float) -> None:
        """Something goes wrong. If it did before, and has not got on, it is the same trouble."""
        reached = -1 if self.actor is None else self.actor.statistics.cursor.sequence
        if self._failure() is None:
            self._trouble_since, self._reached = since, reached
        else:
            self._reached = max(self._reached, reached)

    def _is_over(self, done: PartitionStatistics) -> bool:
        """Whether the actor that was started after the latest failure has got on."""
        if self._kind == "stuck" and self._fault == "user":  # the records before the one that hangs prove nothing
            return done.cursor.sequence > self._reached
        return done.counts.records > 0 if self._failures <= 1 else done.committed.sequence > self._committed

    def trouble(self) -> Trouble | None:
        """Why it fails or does not start. None once an actor has processed records after the failure.

        After several failures with nothing committed in between, processing is not enough: it must have committed.
        After a stuck handler it must have processed more than before.
        """
        if self.actor is not None and self.actor.aborted is None and self.actor.trouble is not None:
            return self.actor.trouble
        if (failure := self._failure()) is None:
            return None
        kind, error = failure
        return Trouble(kind, error, self._trouble_since, self._fault, self._reached)

    def _failure(self) -> tuple[TroubleKind, str] | None:
        """The latest failure, or why no actor can be started; None once an actor has got on."""
        if self.actor is not None and self.actor.aborted is None:
            over = self.error is None or self._is_over(self.actor.statistics)
            return None if over else (self._kind, str(self.error))
        error = self.blocked or self.error
        if error is None:
            return None
        return "stuck" if self.blocked or self.actor is not None else self._kind, error  # an aborted one may never end

    def current_error(self) -> str | None:
        """Why it fails or does not start, and whether it was started again."""
        trouble = self.trouble()
        error = trouble.error if trouble else None
        is_aborted = self.actor is not None and self.actor.aborted is not None  # it may never end
        if error is None or error is not self.error or is_aborted:
            return error
        again = "was started again" if self.actor is not None else "will be started again"
        how = "fails and is started again and again" if self._failures > 1 else f"failed, and {again}"
        return f"{how}: {error}"

    def failed_for_good(self) -> str | None:
        """Why a run until the end gives it up; it is restarted all the same.

        It failed `FAILURES_FOR_GOOD` times in a row, or by a mistake in the handler, and has committed nothing since.
        """
        if self.actor is not None and self.actor.statistics.committed.sequence > self._committed:
            return None
        if self._is_misuse:
            return f"failed, and would again until the handler is fixed: {self.error}"
        if self._failures >= FAILURES_FOR_GOOD:
            return f"failed at least {FAILURES_FOR_GOOD} times in a row without getting on: {self.error}"
        return None
