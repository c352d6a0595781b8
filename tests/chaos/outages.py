"""Outages of a server during a run: it is killed, or stopped in good order, and comes back after some seconds."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from random import Random

from tests.chaos.verdict import Verdict

PACE = 12.0  # mean seconds between two outages
AWAY = (0.2, 5.0)  # seconds until it is started again


@dataclass(frozen=True)
class Outage:
    """How a server can be ended and started again. Its data stays."""

    name: str
    ways: Mapping[str, Callable[[], None]]
    """To end it, by name, such as `killed`."""
    start: Callable[[], None]


class Outages:
    """Ends a server at random moments of a storm, and starts it again.

    Args:
        pace: mean seconds between two outages.
        enough: outages without which a run would prove nothing.
    """

    def __init__(
        self, server: Outage, random: Random, say: Callable[[str], None], *, pace: float = PACE, enough: int = 1
    ) -> None:
        self._server, self._random, self._say, self._pace, self._enough = server, random, say, pace, enough
        self.done: Counter[str] = Counter()
        self._next = self._soon()
        self._starter = ThreadPoolExecutor(1)  # one thread: a server may end with the one that has started it
        self._outage: Future[None] | None = None

    def tick(self, *, storm: bool) -> None:
        """End it if it is time."""
        if self._outage is not None and self._outage.done():
            self._outage.result()
            self._outage = None
            self._next = self._soon()
        if storm and self._outage is None and time.monotonic() > self._next:
            way = self._random.choice(sorted(self._server.ways))
            seconds = self._random.uniform(*AWAY)
            self.done[way] += 1
            self._say(f"{self._server.name} is {way}, for {seconds:.1f} s")
            self._outage = self._starter.submit(self._be_away, self._server.ways[way], seconds)

    def _soon(self) -> float:
        return time.monotonic() + self._random.expovariate(1 / self._pace)

    def _be_away(self, end: Callable[[], None], seconds: float) -> None:
        end()
        time.sleep(seconds)
        self._server.start()

    @property
    def is_calm(self) -> bool:
        return self._outage is None

    @property
    def had_enough(self) -> bool:
        return self.done.total() >= self._enough

    async def finish(self) -> None:
        """It is back: the run was not calm before."""

    def judge(self, verdict: Verdict) -> list[str]:
        """Nothing: what the server holds is compared elsewhere."""
        return []

    @property
    def line(self) -> str:
        return f"{self._server.name} {', '.join(f'{way} {times} times' for way, times in sorted(self.done.items()))}"

    @property
    def summary(self) -> str:
        return self.line
