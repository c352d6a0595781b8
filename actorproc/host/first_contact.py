"""The first contact of a host with its store and its source: repeated while they are away, as a running host does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import count
from math import inf
from typing import Any, TypeVar

from actorproc.config.settings import Settings
from actorproc.errors import SourceError, StoreUnavailable
from actorproc.host.partition_slot import FAILURES_FOR_GOOD
from actorproc.runtime.backoff import Backoff
from actorproc.runtime.clock import Clock
from actorproc.runtime.logger import LogThrottle

T = TypeVar("T")


class StoppedBeforeStart(Exception):
    """`stop` came before the host had started."""


class FirstContact:
    """Repeats each step of a start until it succeeds. Only outages are repeated; a wrong configuration ends the start.

    Args:
        until_end: a run with an end gives up: after `FAILURES_FOR_GOOD` failures of the source, as it gives partitions
            up, or once store or source were away for `store_patience`.
        log: bound to processor and host.
        stopped: `stop` was called already.
    """

    def __init__(self, settings: Settings, clock: Clock, log: Any, *, until_end: bool, stopped: bool) -> None:
        self.error: str | None = None
        """Why the step at hand has failed."""
        self._backoff = Backoff(settings.restart_backoff, settings.restart_backoff_max)
        self._clock = clock
        self._logger = log
        self._patience = settings.store_patience if until_end else inf
        self._until_end = until_end
        self._repeats = LogThrottle()
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Task[Any] | None = None
        self._stopped = stopped

    def stop(self) -> None:
        """End the start: cancel what it waits for. Also for other threads and signal handlers."""
        self._stopped = True
        self._loop.call_soon_threadsafe(self._interrupt)

    def _interrupt(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    async def __call__(self, step: Callable[[], Awaitable[T]]) -> T:
        """Await `step()` until it succeeds.

        Raises:
            StoppedBeforeStart: `stop` was called.
            StoreUnavailable, SourceError: a run with an end gives up. It says after how long, and which setting counts.
        """
        began = self._clock.monotonic()
        for attempt in count(1):
            try:
                with self.stoppable():
                    result = await step()
                self.error = None
                return result
            except (StoreUnavailable, SourceError) as error:
                lasted = self._clock.monotonic() - began
                if self._until_end and (
                    isinstance(error, StoreUnavailable) or attempt >= FAILURES_FOR_GOOD or lasted >= self._patience
                ):
                    error.args = (f"{error} ({self._given_up(attempt, lasted)})", *error.args[1:])
                    raise
                self.error = str(error)
            delay = self._backoff.delay(attempt, self._clock.random)
            if times := self._repeats.due(self.error, self._clock.monotonic()):
                limit = round(self._patience - lasted, 3) if self._until_end else None
                self._logger.error(
                    "processor.start_failed", error=self.error, times=times, again_in=round(delay, 3), gives_up_in=limit
                )
            with self.stoppable():
                await self._clock.sleep(delay)
        raise AssertionError("count() has no end")

    def _given_up(self, attempts: int, seconds: float) -> str:
        tried = f"{attempts} attempt{'s' if attempts > 1 else ''}"
        return (
            f"given up after {seconds:.0f} s and {tried}: a run until the end waits for store and source for "
            f"store_patience = {self._patience:g} s, and for {FAILURES_FOR_GOOD} attempts at most"
        )

    @contextmanager
    def stoppable(self, waiting_for: str = "store or source") -> Iterator[None]:
        """Let `stop` cancel the block: once and without a scope, as the block may leave scopes open, and as what was
        opened before must close.

        Raises:
            StoppedBeforeStart: `stop` was called, before the block or in it.
        """
        if self._stopped:
            raise self._ended()
        task: Any = asyncio.current_task()
        self._waiting = task
        before = task.cancelling()
        try:
            yield
        except asyncio.CancelledError:
            if self._waiting is None and task.cancelling() == before + 1:
                raise self._ended(f", while it waited for {waiting_for}") from None
            raise
        finally:
            if self._waiting is None and task.cancelling() > before:
                task.uncancel()
            self._waiting = None

    def _ended(self, at: str = "") -> StoppedBeforeStart:
        return StoppedBeforeStart(f"stopped before it had started{at}{f': {self.error}' if self.error else ''}")
