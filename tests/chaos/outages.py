"""Outages of a server during a run: it is killed, stopped in good order or frozen, and comes back after seconds."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from tests.chaos.verdict import Verdict

PACE = 12.0  # mean seconds between two outages
AWAY = 0.2, 5.0  # seconds until it is started again
FROZEN = 0.2, 14.0  # longer than clients wait for an answer, where they have a limit


class Outage(NamedTuple):
    """How a server goes away and comes back, and between how many seconds it is away. Its data stays."""

    go: Callable[[], None]
    come_back: Callable[[], None]
    seconds: tuple[float, float] = AWAY


@dataclass(frozen=True)
class TroubledServer:
    """A server with the outages that it may have, by name, such as `killed`."""

    name: str
    outages: Mapping[str, Outage]


class Outages:
    """Lets a server go away at random moments of a storm, and come back.

    Args:
        pace: mean seconds between two outages.
        enough: outages without which a run would prove nothing.
    """

    def __init__(
        self, server: TroubledServer, random: Random, say: Callable[[str], None], *, pace: float = PACE, enough: int = 1
    ) -> None:
        self._server, self._random, self._say, self._pace, self._enough = server, random, say, pace, enough
        self.done: Counter[str] = Counter()
        self._next = self._soon()
        self._starter = ThreadPoolExecutor(1)  # one thread: a server may end with the one that has started it
        self._outage: Future[None] | None = None

    def tick(self, *, storm: bool) -> None:
        """Let it go away if it is time."""
        if self._outage is not None and self._outage.done():
            self._outage.result()
            self._outage = None
            self._next = self._soon()
        if storm and self._outage is None and time.monotonic() > self._next:
            how = self._random.choice(sorted(self._server.outages))
            outage = self._server.outages[how]
            seconds = self._random.uniform(*outage.seconds)
            self.done[how] += 1
            self._say(f"{self._server.name} is {how}, for {seconds:.1f} s")
            self._outage = self._starter.submit(_play, outage, seconds)

    def _soon(self) -> float:
        return time.monotonic() + self._random.uniform(0, 2 * self._pace)

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
        return f"{self._server.name} {', '.join(f'{how} {times} times' for how, times in sorted(self.done.items()))}"

    @property
    def summary(self) -> str:
        return self.line


def _play(outage: Outage, seconds: float) -> None:
    outage.go()
    time.sleep(seconds)
    outage.come_back()
