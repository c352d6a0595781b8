"""How long to wait before trying again: exponential back-off with jitter, as numbers only (nothing here sleeps)."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays in seconds: `first`, doubled at each attempt up to `most`, each drawn from (half of it, all of it).

    Full jitter would let a retry follow at once; half of it keeps the pause real and still spreads the crowd
    (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/, "equal jitter").
    """

    first: float = 0.1
    most: float = 30.0

    def delay(self, attempt: int, random: Random) -> float:
        """Seconds to wait after failed attempt number `attempt`, counted from 1."""
        full = min(self.most, self.first * 2 ** min(attempt - 1, 62))
        return float(full * random.uniform(0.5, 1.0))
