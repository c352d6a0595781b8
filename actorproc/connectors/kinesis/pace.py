"""The limits of a shard, which all its readers share: reads and bytes a second."""

from __future__ import annotations

from actorproc.runtime.clock import Clock

BYTES_PER_SECOND = 2 * 2**20
"""That a shard gives. https://docs.aws.amazon.com/streams/latest/dev/service-sizes-and-limits.html"""


class Pace:
    """Lets this host's requests to one shard through, no faster than allowed.

    Args:
        interval: seconds from one request to the next.
    """

    def __init__(self, clock: Clock, interval: float) -> None:
        self._clock, self._interval = clock, interval
        self._free_at = 0.0

    async def turn(self) -> None:
        """Wait until a request may be sent."""
        now = self._clock.monotonic()
        at = max(now, self._free_at)
        self._free_at = at + self._interval
        if at > now:
            await self._clock.sleep(at - now)

    def spent(self, size: int) -> None:
        """A read has given so many bytes."""
        self._free_at = max(self._free_at, self._clock.monotonic() + size / BYTES_PER_SECOND)
