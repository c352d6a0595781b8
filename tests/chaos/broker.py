"""Trouble for the Kafka broker: it is killed now and then, and comes back after some seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from threading import Thread

from tests.chaos.verdict import Verdict
from tests.kafka_server import Broker

PACE = 12.0  # mean seconds between two outages
OUTAGE = (0.5, 5.0)  # seconds until it is started again
TICK = 0.05


class BrokerTrouble:
    """Kills the broker at random moments of a storm."""

    def __init__(self, broker: Broker, random: Random, say: Callable[[str], None]) -> None:
        self._broker, self._random, self._say = broker, random, say
        self._kills = 0
        self._next = time.monotonic() + random.expovariate(1 / PACE)
        self._start: Thread | None = None

    def tick(self, *, storm: bool) -> None:
        """Kill it if it is time."""
        if self._start is not None and not self._start.is_alive():
            self._start = None
            self._next = time.monotonic() + self._random.expovariate(1 / PACE)
        if storm and self._start is None and time.monotonic() > self._next:
            self._broker.stop()
            self._kills += 1
            pause = self._random.uniform(*OUTAGE)
            self._say(f"kill the broker, for {pause:.1f} s")
            self._start = Thread(target=self._come_back, args=(pause,), daemon=True)
            self._start.start()

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
