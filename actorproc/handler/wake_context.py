"""`WakeContext`: the object that `on_wake` is given."""

from __future__ import annotations

from datetime import datetime

import anyio

from actorproc.errors import HandlerMisuse
from actorproc.handler.attempt import Attempt
from actorproc.handler.call import HandlerCall
from actorproc.handler.info import PartitionInfo
from actorproc.handler.timers import utc
from actorproc.records import Batch


class WakeContext(HandlerCall):
    """The partition, as `on_wake` gets it. Its changes count only if `on_wake` returns."""

    def __init__(
        self, info: PartitionInfo, attempt: Attempt, draining: anyio.Event, exhausted: Exception | None
    ) -> None:
        super().__init__(info, attempt, draining)
        self.exhausted = exhausted
        """The latest error, if the timer has failed `max_attempts` times: it may give up now, or go on."""
        self.due: datetime = utc(0)
        """The time for which the timer was set."""

    def dead_letter(self, records: Batch, reason: str | Exception, *, kind: str | None = None) -> None:
        """Give up records that came earlier and were kept in state: they become one dead letter.

        Args:
            records: at least one, in their order. The letter has the id and the fields of the last one.
            reason: the letter's error message, or the error itself.
            kind: the letter's error type. Default: the class of the error, "DeadLetter" for a reason.
        """
        if not isinstance(records, Batch) or not len(records):
            raise HandlerMisuse("ctx.dead_letter in on_wake takes a Batch of at least one record")
        self._attempt.given_up.append((records, reason, kind))
