"""Calls the hooks of an application, one event at a time, beside the partitions of the host."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, cast

import anyio

from actorproc.errors import fault_of
from actorproc.handler.hooks import Event, EventKind, Hooks
from actorproc.partition.dead_letter_summary import DeadLetterSummary
from actorproc.partition.statistics import PartitionStatistics
from actorproc.records import Cursor
from actorproc.runtime.clock import Clock
from actorproc.runtime.error_text import error_message
from actorproc.runtime.logger import LogThrottle
from actorproc.runtime.user_code import user_code

HOOK_TIME = 10.0
"""Seconds that an async hook may take, and that a plain one may take before the next events are handled."""


class HookQueue:
    """The events of one host that wait for their hooks.

    Args:
        hooks: None: events are dropped at once.
        most: events that may wait. Newer ones are dropped.
        log: bound to processor and host.
    """

    def __init__(self, hooks: Hooks | None, most: int, clock: Clock, log: Any, *, processor: str, host: str) -> None:
        self._hooks = hooks
        self._most = most
        self._clock = clock
        self._logger = log
        self._processor, self._host = processor, host
        self._waiting: deque[Event] = deque()
        self._more, self._done = anyio.Event(), anyio.Event()
        self._finishing = False
        self._dropped = 0
        self._repeats = LogThrottle()

    @property
    def wanted(self) -> bool:
        """Whether the application has hooks."""
        return self._hooks is not None

    def add(self, kind: EventKind, partition: str | None = None, epoch: int = 0, **fields: Any) -> None:
        """Let the hook of this event be called soon. Never waits. `fields`: further ones of `Event`."""
        if self._hooks is None or getattr(type(self._hooks), kind) is getattr(Hooks, kind):
            return
        if len(self._waiting) >= self._most:
            self._dropped += 1
            return
        self._waiting.append(Event(kind, self._processor, self._host, self._clock.wall(), partition, epoch, **fields))
        self._more.set()

    def add_error(self, error: Exception, partition: str | None = None, epoch: int = 0) -> None:
        """Something failed: a `user_error` or an `infrastructure_error`."""
        fault = fault_of(error)
        kind: EventKind = "user_error" if fault == "user" else "infrastructure_error"
        self.add(kind, partition, epoch, error=error, fault=fault, reason=error_message(error))

    async def run(self) -> None:
        """Call hooks until `finish`."""
        while self._waiting or not self._finishing:
            if not self._waiting:
                self._more = anyio.Event()
                await self._more.wait()
                continue
            await self._call(self._waiting.popleft())
            self._log_dropped()
        self._done.set()

    async def finish(self, limit: float) -> None:
        """Call the hooks of the events that wait, for at most `limit` seconds."""
        if not self.wanted:
            return
        self._finishing = True
        self._more.set()
        with anyio.move_on_after(limit):
            await self._done.wait()
        if self._waiting:
            self._logger.warning(
                "hook.events_dropped", events=len(self._waiting), why=f"the host ends {limit:g} s later"
            )

    async def _call(self, event: Event) -> None:
        hook = getattr(self._hooks, event.kind)
        with anyio.move_on_after(HOOK_TIME) as scope:
            try:
                with user_code(f"the hook {event.kind}"):
                    if inspect.iscoroutinefunction(hook):
                        await hook(event)
                    else:
                        await self._clock.run_in_thread(cast("Callable[[Event], Any]", hook), event, abandon=True)
            except Exception:  # it must not fail the host
                self._logger.exception("hook.failed", hook=event.kind, partition=event.partition)
        if scope.cancelled_caught:
            why = f"it has not ended within {HOOK_TIME:g} s"
            self._logger.error("hook.failed", hook=event.kind, partition=event.partition, why=why)

    def _log_dropped(self) -> None:
        if self._dropped and self._repeats.due("", self._clock.monotonic()):
            dropped, self._dropped = self._dropped, 0
            self._logger.warning("hook.events_dropped", events=dropped, why=f"hook_queue = {self._most} events wait")


class PartitionHooks:
    """Turns the course of one partition, under one epoch, into events."""

    def __init__(self, hooks: HookQueue, statistics: PartitionStatistics, letters: DeadLetterSummary) -> None:
        self._hooks = hooks
        self._statistics = statistics
        self._letters = letters
        self._letters_told = 0

    def caught_up(self, reached: Cursor) -> None:
        """Everything that the source had is processed, up to this cursor; it may not be committed yet."""
        self._add("caught_up", reached)

    def failed(self, error: Exception) -> None:
        """An attempt failed, and is followed by another one."""
        self._hooks.add_error(error, self._statistics.partition, self._statistics.epoch)

    def sink(self, kind: Literal["delivered", "sink_failed"], **fields: Any) -> None:
        """A delivery to a sink has succeeded or failed."""
        self._hooks.add(kind, self._statistics.partition, self._statistics.epoch, **fields)

    def committed(self, rows: int) -> None:
        letters = self._statistics.counts.dead_letters - self._letters_told
        self._letters_told += letters
        if letters:
            self._add("dead_letters", self._statistics.committed, dead_letters=letters, reason=self._letters.example)
        self._add("committed", self._statistics.committed, rows=rows, dead_letters=letters)

    def _add(self, kind: EventKind, cursor: Cursor, **fields: Any) -> None:
        found, (position, sequence) = self._statistics, cursor
        self._hooks.add(kind, found.partition, found.epoch, position=position, sequence=sequence, **fields)
