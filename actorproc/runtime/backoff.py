"""Exponential back-off with jitter, as numbers only: nothing here sleeps."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays in seconds: `first`, doubled at each attempt up to `most`; the actual delay is 50 to 100 percent of that.

    This is "equal jitter" of https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/. Full jitter
    would let a retry follow at once.
    """

    first: float = 0.1
    most: float = 30.0

    def delay(self, attempt: int, random: Random) -> float:
        """Seconds to wait after failed attempt number `attempt`, from 1."""
        full = min(self.most, self.first * 2 ** min(attempt - 1, 62))
        return float(full * random.uniform(0.5, 1.0))
