"""A partition on this host as its supervisor sees it, whichever actor runs it just now: failures, progress, what was done."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import anyio

from actorproc.errors import Fenced, HandlerMisuse, RowsLost
from actorproc.partition.actor import PartitionActor
from actorproc.partition.dead_letter_limit import DeadLetterLimit
from actorproc.partition.statistics import PartitionState, PartitionStatistics
from actorproc.runtime.actor import Restarts
from actorproc.runtime.error_text import describe_error
from actorproc.runtime.logger import LogThrottle

HOPELESS = 5
"""Failures in a row, with nothing committed in between, after which a run until the end does not wait for a partition."""


@dataclass(frozen=True, slots=True)
class Done:
    """`records`: handled, again after a failure counts again; `rows`, `dead_letters` and `skipped`: committed."""

    records: int = 0
    rows: int = 0
    dead_letters: int = 0
    skipped: int = 0

    def __add__(self, other: Done) -> Done:
        return Done(
            self.records + other.records,
            self.rows + other.rows,
            self.dead_letters + other.dead_letters,
            self.skipped + other.skipped,
        )


@dataclass(slots=True)
class Running:
    """A partition on this host."""

    partition: str
    epoch: int
    scope: anyio.CancelScope
    restarts: Restarts
    limit: DeadLetterLimit
    actor: PartitionActor | None = None
    draining: bool = False
    released: bool = False
    """Drained, committed, and not handed over yet."""
    error: str | None = None
    blocked: str | None = None
    """What has kept it from starting for long."""
    repeats: LogThrottle = field(default_factory=LogThrottle)
    """Of failures, for the log."""
    _failures: int = 0  # in a row, with nothing committed in between
    _misused: bool = False  # the last of them is a mistake in the handler itself
    _got_to: int = -1  # sequence up to which everything was committed when it last failed
    _progress: tuple[object, ...] | None = None
    _progress_at: float = 0.0

    def statistics(self) -> PartitionStatistics:
        """What the actor that runs now has done; where there is none, why."""
        if self.actor is None:
            error = self.blocked or self.error
            state: PartitionState = "released" if self.released else "opening" if error is None else "waiting"
            return PartitionStatistics(self.partition, self.epoch, state, error=error)
        return replace(self.actor.statistics, error=self.actor.trouble or self.error)

    def done(self) -> Done:
        """What the actor that runs now has done."""
        if self.actor is None:
            return Done()
        did = self.actor.statistics
        return Done(did.records, did.rows, did.dead_letters, did.skipped)

    def let_go(self) -> Done:
        """The actor has ended. Returns what it has done."""
        done, self.actor, self._progress = self.done(), None, None
        return done

    def failed(self, error: Exception) -> None:
        """The actor that runs now has ended with `error`. A fencing is no failure of the partition's."""
        committed = self._got_to if self.actor is None else self.actor.statistics.committed.sequence
        if not isinstance(error, Fenced):
            self._failures = self._failures + 1 if committed <= self._got_to else 1
            self._got_to = max(committed, self._got_to)
            # After RowsLost a restart goes on behind the committed records.
            self._misused = isinstance(error, HandlerMisuse) and not isinstance(error, RowsLost)
        self.error = describe_error(error)

    @property
    def open_error(self) -> str | None:
        """Why it fails now, or does not start; or why it failed, until an actor after that has got on."""
        if self.blocked is not None:
            return self.blocked
        if self.actor is not None:
            if self.actor.aborted is not None:
                return self.error  # it was told to end, and may never do so
            if self.actor.trouble is not None:
                return self.actor.trouble
            if self.actor.statistics.records > 0:
                return None
        if self.error is None:
            return None
        how = "fails and is started again and again" if self._failures > 1 else "failed, and was started again"
        return f"{how}: {self.error}"

    def hopeless(self) -> str | None:
        """Why it need not be waited for, if so: it failed at least `HOPELESS` times in a row, or by a mistake in the handler, which
        would fail whatever the record; and has committed nothing since."""
        if self.actor is not None and self.actor.statistics.committed.sequence > self._got_to:
            return None
        if self._misused:
            return f"failed, and would again until the handler is mended: {self.error}"
        return (
            f"failed at least {HOPELESS} times in a row without getting on: {self.error}"
            if self._failures >= HOPELESS
            else None
        )

    def stuck(self, most: float, now: float) -> bool:
        """Whether the handler has not got on for `most` seconds, as far as was seen; says so once. To be asked often."""
        progress = None if self.actor is None else self.actor.progress
        if progress is None or progress != self._progress:
            self._progress, self._progress_at = progress, now
            return False
        if now - self._progress_at < most:
            return False
        self._progress = None
        return True
