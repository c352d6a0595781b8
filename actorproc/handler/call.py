"""`HandlerCall`: the parts of a call of a handler for records or timers: state, timers, signs of life."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cached_property

import anyio

from actorproc.handler.attempt import Attempt
from actorproc.handler.info import PartitionInfo
from actorproc.handler.keyed_state import Key, KeyedState
from actorproc.handler.timers import cancel_timer, set_timer


class HandlerCall(PartitionInfo):
    """The partition during one attempt. Changes of state and timers count only if the attempt succeeds."""

    def __init__(self, info: PartitionInfo, attempt: Attempt, draining: anyio.Event) -> None:
        self._copy(info)
        self._attempt = attempt
        self._draining = draining
        self.attempt = attempt.number
        """Number of this attempt, from 1: at these records; at a timer, on this host."""

    @cached_property
    def state(self) -> KeyedState:
        """Keyed state of the partition, committed with position and rows. `ctx.state("name")`: another one."""
        return self._attempt.state.view("")

    def wake(self, key: Key, at: datetime | None = None, *, after: float | timedelta | None = None) -> None:
        """Have `on_wake(key, ctx)` called once it is time. A key has one timer: a new one replaces it.

        Timers are keyed state: committed with rows and position, or not at all. They are looked at between batches.

        Args:
            key: as of `ctx.state`; several timers of a thing have keys such as ("car", 7, "fuel").
            at: in stream time, the greatest timestamp of the partition's processed records. If a partition has no new
                record for `stream_idle_time`, its stream time follows the wall clock.
            after: seconds from now on, by the wall clock; 0: right after this batch.

        Raises:
            StateMismatch: neither was given (`record.timestamp` may be None), `at` has no zone, `after` is negative or
                more than a hundred years, or the key cannot be stored.
            HandlerMisuse: both were given, or the handler has no `on_wake`.
        """
        set_timer(self._attempt.state, key, at, after)

    def cancel_wake(self, key: Key) -> None:
        """Remove the timer of `key`, if it has one."""
        cancel_timer(self._attempt.state, key)

    def alive(self) -> None:
        """Report progress, in a call that works for long without a row: see `max_process_time`. From any thread."""
        self._attempt.signs_of_life += 1

    @property
    def stopping(self) -> bool:
        """Whether to return soon: the partition moves or the host stops, or this attempt was cut off.

        A plain `process` looks at it from its thread. An `async def process` is cancelled by itself in the end.
        """
        return self._draining.is_set() or self._attempt.closed is not None
