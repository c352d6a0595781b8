"""The first contact of a host with its store and its source: repeated while they are away, as a running host does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, TypeVar

import anyio

from actorproc.config.settings import Settings
from actorproc.errors import SourceError, StoreUnavailable
from actorproc.host.partition_slot import FAILURES_FOR_GOOD
from actorproc.runtime.backoff import Backoff
from actorproc.runtime.clock import Clock
from actorproc.runtime.logger import LogThrottle

T = TypeVar("T")


class StoppedBeforeStart(Exception):
    """`stop` came while the store or the source was away."""


class FirstContact:
    """Repeats each step of a start until it succeeds. Only outages are repeated; a wrong configuration ends the start.

    Args:
        until_end: a run with an end gives up as it gives partitions up: after `FAILURES_FOR_GOOD` failures of the
            source, or once the store was away for `store_patience`.
        log: bound to processor and host.
    """

    def __init__(self, settings: Settings, clock: Clock, log: Any, *, until_end: bool) -> None:
        self.error: str | None = None
        """Why the step at hand has failed."""
        self._backoff = Backoff(settings.restart_backoff, settings.restart_backoff_max)
        self._clock = clock
        self._log = log
        self._until_end = until_end
        self._repeats = LogThrottle()
        self._pause: anyio.CancelScope | None = None
        self._stopped = False

    def stop(self) -> None:
        """Repeat nothing any more."""
        self._stopped = True
        if self._pause is not None:
            self._pause.cancel()

    async def __call__(self, step: Callable[[], Awaitable[T]]) -> T:
        """Await `step()` until it succeeds.

        Raises:
            StoppedBeforeStart: it has failed, and `stop` was called.
        """
        for attempt in count(1):
            try:
                result = await step()
                self.error = None
                return result
            except (StoreUnavailable, SourceError) as error:
                if self._until_end and (isinstance(error, StoreUnavailable) or attempt >= FAILURES_FOR_GOOD):
                    raise
                self.error = str(error)
            delay = self._backoff.delay(attempt, self._clock.random)
            if times := self._repeats.due(self.error, self._clock.monotonic()):
                self._log.error("processor.start_failed", error=self.error, times=times, again_in=round(delay, 3))
            with anyio.CancelScope() as self._pause:
                if not self._stopped:
                    await self._clock.sleep(delay)
            if self._stopped:
                raise StoppedBeforeStart
        raise AssertionError("count() has no end")
