"""`WakeContext`: the object that `on_wake` is given."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from actorproc.errors import HandlerMisuse
from actorproc.handler.context import PartitionContext
from actorproc.handler.info import PartitionInfo
from actorproc.handler.state import Key, KeyedState
from actorproc.handler.timers import utc
from actorproc.records import Batch

if TYPE_CHECKING:
    from actorproc.handler.attempt import Attempt


class WakeContext(PartitionInfo):
    """The partition, as `on_wake` gets it. Its changes count only if `on_wake` returns."""

    def __init__(
        self, info: PartitionInfo, ctx: PartitionContext, attempt: Attempt, exhausted: Exception | None
    ) -> None:
        self._copy(info)
        self._ctx = ctx
        self._given_up = attempt.given_up
        self.attempt = attempt.number
        """Number of this attempt at the timer on this host, from 1."""
        self.exhausted = exhausted
        """The latest error, if the timer has failed `max_attempts` times: it may give up now, or go on."""
        self.due: datetime = utc(0)
        """The time for which the timer was set."""

    @property
    def state(self) -> KeyedState:
        """See `PartitionContext.state`."""
        return self._ctx.state

    def wake(self, key: Key, at: datetime | None = None, *, after: float | timedelta | None = None) -> None:
        """See `PartitionContext.wake`."""
        self._ctx.wake(key, at, after=after)

    def cancel_wake(self, key: Key) -> None:
        """See `PartitionContext.cancel_wake`."""
        self._ctx.cancel_wake(key)

    def dead_letter(self, records: Batch, reason: str | Exception, *, kind: str | None = None) -> None:
        """Give up records that came earlier and were kept in state: they become one dead letter.

        Args:
            records: at least one, in their order. The letter has the id and the fields of the last one.
            reason: the letter's error message, or the error itself.
            kind: the letter's error type. Default: the class of the error, "DeadLetter" for a reason.
        """
        if not isinstance(records, Batch) or not len(records):
            raise HandlerMisuse("ctx.dead_letter in on_wake takes a Batch of at least one record")
        self._given_up.append((records, reason, kind))

    def alive(self) -> None:
        """See `PartitionContext.alive`."""
        self._ctx.alive()

    @property
    def stopping(self) -> bool:
        """See `PartitionContext.stopping`."""
        return self._ctx.stopping
