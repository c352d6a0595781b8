"""Trouble for the broker of a topic or of queues: it is killed now and then, and comes back after some seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from random import Random
from typing import Protocol

from tests.chaos.verdict import Verdict

PACE = 12.0  # mean seconds between two outages
OUTAGE = (0.5, 5.0)  # seconds until it is started again
TICK = 0.05


class Broker(Protocol):
    def start(self) -> None: ...
    def stop(self) -> None: ...


class BrokerTrouble:
    """Kills the broker at random moments of a storm."""

    is_calm = True

    def __init__(self, broker: Broker, random: Random, say: Callable[[str], None]) -> None:
        self._broker, self._random, self._say = broker, random, say
        self._kills = 0
        self._next = time.monotonic() + random.expovariate(1 / PACE)
        self._starter = ThreadPoolExecutor(1)  # one thread: a broker may end with the one that has started it
        self._start: Future[None] | None = None

    def tick(self, *, storm: bool) -> None:
        """Kill it if it is time."""
        if self._start is not None and self._start.done():
            self._start.result()
            self._start = None
            self._next = time.monotonic() + self._random.expovariate(1 / PACE)
        if storm and self._start is None and time.monotonic() > self._next:
            self._broker.stop()
            self._kills += 1
            pause = self._random.uniform(*OUTAGE)
            self._say(f"kill the broker, for {pause:.1f} s")
            self._start = self._starter.submit(self._come_back, pause)

    def _come_back(self, pause: float) -> None:
        time.sleep(pause)
        self._broker.start()

    @property
    def had_enough(self) -> bool:
        return self._kills > 0

    async def finish(self) -> None:
        """It is back since the storm ended."""

    def judge(self, verdict: Verdict) -> list[str]:
        """Nothing: its records are held against the acknowledgements."""
        return []

    @property
    def line(self) -> str:
        return f"broker killed {self._kills} times"

    @property
    def summary(self) -> str:
        return self.line
