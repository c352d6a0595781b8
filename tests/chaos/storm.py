"""The faults: which process is killed, paused, stopped, duplicated or started, and when; drawn from a seed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

from tests.chaos.fleet import Child, Fleet, State

HOST_TROUBLE = {
    "kill": 8,
    "pause": 6,  # for longer than the expiration
    "blink": 4,  # for less
    "stop": 6,
    "stop and kill": 3,  # in the middle of leaving
    "pause and kill": 1,
    "double": 2,  # another process of the same name
    "pause and double": 2,
    "massacre": 1,  # half of all at once
    "coma": 1,  # half of all paused at once
}
"""Kind of trouble -> weight."""

PRODUCER_TROUBLE = {"kill": 3, "pause": 1, "stop": 1}


class Storm:
    """Strikes at random moments. Processes that are gone are started again after a while, under the same name or a new
    one.

    Args:
        hosts, producers: slots of the fleet.
        start: starts a process in a slot; with `new_name` under a name that was never there.
        pace: mean seconds between two strikes.
        expiration: of a lease, in seconds.
        say: called with a line about each strike.
    """

    def __init__(
        self,
        fleet: Fleet,
        hosts: Sequence[int],
        producers: Sequence[int],
        start: Callable[[int, str | None], Child],
        *,
        random: Random,
        pace: float,
        expiration: float,
        say: Callable[[str], None],
    ) -> None:
        self.done: Counter[str] = Counter()
        self._fleet = fleet
        self._hosts, self._producers = hosts, producers
        self._start = start
        self._random = random
        self._pace = pace
        self._expiration = expiration
        self._say = say
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._awaited: set[int] = set()  # slots whose next process is on its way
        self._next_strike = time.monotonic() + random.expovariate(1 / pace)

    def tick(self) -> None:
        """Run the actions that are due, and strike if it is time."""
        self._do_due(time.monotonic())
        self._fleet.reap()
        for slot in (*self._hosts, *self._producers):
            if slot not in self._awaited and not self._fleet.living([slot]):
                self._awaited.add(slot)
                self._later(self._random.uniform(0.1, 3.0), lambda slot=slot: self._refill(slot))  # type: ignore[misc]
        if time.monotonic() >= self._next_strike:
            self._next_strike = time.monotonic() + self._random.expovariate(1 / self._pace)
            self._strike()

    def end(self) -> None:
        """No more trouble: paused processes go on, and missing ones start again."""
        for _, what in self._due:
            what()
        self._due.clear()
        for child in self._fleet.living((*self._hosts, *self._producers), State.PAUSED):
            child.resume()

    def _later(self, seconds: float, what: Callable[[], None]) -> None:
        self._due.append((time.monotonic() + seconds, what))

    def _do_due(self, now: float) -> None:
        ready = [what for at, what in self._due if at <= now]
        self._due = [(at, what) for at, what in self._due if at > now]
        for what in ready:
            what()

    def _refill(self, slot: int) -> None:
        self._awaited.discard(slot)
        if not self._fleet.living([slot]):
            child = self._start(slot, None if self._random.random() < 0.4 else self._last_name(slot))
            self._say(f"start {child.name}")

    def _last_name(self, slot: int) -> str | None:
        return next((child.name for child in reversed(self._fleet.ended) if child.slot == slot), None)

    def _strike(self) -> None:
        producer = self._random.random() < 0.12
        targets = self._fleet.living(self._producers if producer else self._hosts, State.UP)
        if not targets:
            return
        trouble = PRODUCER_TROUBLE if producer else HOST_TROUBLE
        what = self._random.choices(list(trouble), list(trouble.values()))[0]
        if what in ("massacre", "coma"):
            targets = self._random.sample(targets, (len(targets) + 1) // 2)
        else:
            targets = [self._random.choice(targets)]
        self.done[f"{what} a producer" if producer else what] += 1
        self._say(f"{what} {', '.join(child.name for child in targets)}")
        for child in targets:
            self._hit(child, what)

    def _hit(self, child: Child, what: str) -> None:
        long = self._random.uniform(1.2, 3.0) * self._expiration
        match what:
            case "kill" | "massacre":
                child.kill()
            case "pause" | "coma":
                self._pause(child, long)
            case "blink":
                self._pause(child, self._random.uniform(0.1, 0.8) * self._expiration)
            case "stop":
                child.stop()
            case "stop and kill":
                child.stop()
                self._later(self._random.uniform(0.0, 1.0), child.kill)
            case "pause and kill":
                child.pause()
                self._later(long, child.kill)
            case "double":
                self._double(child)
            case "pause and double":
                self._pause(child, long)
                self._later(self._random.uniform(0.0, 1.0) * long, lambda: self._double(child))

    def _pause(self, child: Child, seconds: float) -> None:
        child.pause()
        self._later(seconds, child.resume)

    def _double(self, child: Child) -> None:
        if child.state in (State.UP, State.PAUSED):
            child.contested = True
            other = self._start(child.slot, child.name)
            other.contested = True
            self._say(f"start another {other.name}")
