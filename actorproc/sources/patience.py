"""Waits between attempts to reach a service that is away, for so long and no longer."""

from __future__ import annotations

from actorproc.errors import SourceError
from actorproc.runtime.backoff import Backoff
from actorproc.runtime.clock import Clock

_BACKOFF = Backoff(0.2, 10.0)


class Patience:
    """Growing pauses while attempts fail one after another.

    Args:
        seconds: for which they may fail.
    """

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self._seconds = clock, seconds
        self._failures, self._since = 0, 0.0

    def renew(self) -> None:
        """An attempt has succeeded."""
        self._failures = 0

    async def pause(self, error: SourceError, cause: Exception) -> None:
        """An attempt has failed: wait before the next one.

        Raises:
            SourceError: `error`, if attempts have failed for too long.
        """
        if not self._failures:
            self._since = self._clock.monotonic()
        self._failures += 1
        if self._clock.monotonic() - self._since > self._seconds:
            raise error from cause
        await self._clock.sleep(_BACKOFF.delay(self._failures, self._clock.random))
