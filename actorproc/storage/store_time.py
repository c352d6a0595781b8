"""The time by the store's clock, the one clock that all hosts see."""

from __future__ import annotations

from actorproc.runtime.clock import Clock

_GRAIN = 1.0  # S3 tells whole seconds


class StoreTime:
    """This host's wall clock, corrected by the store's time in the latest listing.

    Args:
        clock: this host's own.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._correction = 0.0

    def note(self, told: float, sent_at: float) -> None:
        """The store said `told`, seconds since 1970, in answer to a request sent at `sent_at` by this host's clock."""
        least, most = told - self._clock.wall(), told + _GRAIN - sent_at
        self._correction = min(max(0.0, least), most)

    def now(self) -> float:
        """Seconds since 1970. From any thread.

        A host whose clock was set wrong would otherwise expire the keys of all others. A clock that agrees with the
        store's, as far as that is known, is followed as it is. Before the first listing nothing is known.
        """
        return self._clock.wall() + self._correction
