"""Operators of a chaos run: commands that pause, resume, drain, move, release and reset, some of them killed midway."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import Self

from tests.chaos.commands import give
from tests.chaos.fleet import Child, Fleet, State
from tests.chaos.place import Place
from tests.chaos.verdict import Verdict

PACE = 1.5  # mean seconds between two commands
ACTS = {"pause": 3, "resume": 4, "drain": 3, "release a host": 3, "move": 3, "release": 2, "reset": 6, "undo": 2}
"""Command -> weight."""

KILLED_SHARE = 0.25
RUN_AGAIN = 5
"""How often a command is run that does not end well without trouble."""


@dataclass
class _Order:
    """The arguments of a command, and its process."""

    arguments: Sequence[str]
    child: Child
    kill_at: float
    runs: int = 1

    @property
    def has_id(self) -> bool:
        return "--id" in self.arguments


class Operators:
    """Runs commands while the storm lasts; then repeats the killed commands, and withdraws all wishes."""

    def __init__(
        self, place: Place, processor: str, partitions: int, random: Random, say: Callable[[str], None]
    ) -> None:
        self.is_calm = False
        """Whether all that the operators had begun is done and withdrawn."""
        self._place, self._processor, self._random, self._say = place, processor, random, say
        self._partitions = partitions
        self._prefix = "" if place.broker is None else f"{place.topic}-"
        logs = place.folder / "operator-logs"
        logs.mkdir()
        self._fleet = Fleet(logs)
        self._done: Counter[str] = Counter()
        self._births = 0
        self._orders: list[_Order] = []
        self._unfinished: list[Sequence[str]] = []
        self._hosts: set[str] = set()  # that were drained
        self._placed: set[str] = set()
        self._next = time.monotonic() + PACE
        self._last_words: list[Sequence[str]] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._fleet.__exit__(kind, error, trace)

    def tick(self, *, storm: bool) -> None:
        """Give a command if it is time; after the storm, one after the other until all is withdrawn."""
        now = time.monotonic()
        for order in self._orders:
            if now > order.kill_at and order.child.state is State.UP:
                order.child.kill()
                self._done["killed"] += 1
        self._fleet.reap()
        self._settle(again=not storm)
        if storm and now > self._next:
            self._next = now + self._random.expovariate(1 / PACE)
            self._act()
        elif not storm and not self._orders:
            self._withdraw()

    def _settle(self, *, again: bool) -> None:
        """Forget the commands that have ended, but for the resets that were killed."""
        ended = [order for order in self._orders if order.child.state is State.ENDED]
        self._orders = [order for order in self._orders if order not in ended]
        for order in ended:
            if order.child.process.exitcode < 0 and order.has_id:
                self._unfinished.append(order.arguments)
            self._done["reset in full"] += order.child.process.exitcode == 0 and "reset" in order.arguments

    def _withdraw(self) -> None:
        if self._last_words is None:
            releases = [("release", "--host", host) for host in sorted(self._hosts)]
            moves = [("release", partition) for partition in sorted(self._placed)]
            self._last_words = [*self._unfinished, ("resume",), *releases, *moves]
            self._say(f"operators finish {len(self._unfinished)} resets, and withdraw what they have asked for")
        if self._last_words:
            self._give(self._last_words.pop(0))
        else:
            self.is_calm = True

    def _act(self) -> None:
        what = self._random.choices(list(ACTS), list(ACTS.values()))[0]
        partition = f"{self._prefix}{self._random.randrange(self._partitions)}"
        some = [] if self._random.random() < 0.3 else ["--partition", partition]
        command = ["--id", f"c{self._births}", "--yes"]
        match what:
            case "pause":
                self._give(["pause", "--partition", partition] if self._random.random() < 0.8 else ["pause"])
            case "resume":
                self._give(["resume"])
            case "drain":
                self._hosts.add(host := self._host())
                self._give(["drain", host])
            case "release a host":
                self._give(["release", "--host", self._random.choice(sorted(self._hosts) or ["h1"])])
            case "move":
                self._placed.add(partition)
                self._give(["move", partition, self._host()])
            case "release":
                self._give(["release", self._random.choice(sorted(self._placed) or ["0"])])
            case "reset":
                self._give(["checkpoints", "reset", "--to", self._goal(), *some, *command])
            case "undo":
                self._give(["checkpoints", "undo", *command])
        self._done[what] += 1

    def _goal(self) -> str:
        return self._random.choice(["earliest", "latest", str(-self._random.randint(1, 2000))])

    def _host(self) -> str:
        """A host that there probably is."""
        names = [path.name.partition(".")[0] for path in (self._place.folder / "logs").glob("[hs]*.log")]
        return self._random.choice(names or ["h1"])

    def _give(self, arguments: Sequence[str]) -> None:
        self._births += 1
        self._say(f"operator: {' '.join(arguments)}")
        child = give(self._fleet, self._place, self._processor, f"operator{self._births}", arguments)
        killed = self._last_words is None and self._random.random() < KILLED_SHARE
        kill_at = time.monotonic() + self._random.uniform(0.05, 0.8) if killed else float("inf")
        self._orders.append(_Order(arguments, child, kill_at))

    @property
    def had_enough(self) -> bool:
        return self._done["reset in full"] > 0 and self._done["move"] > 0

    async def finish(self) -> None:
        """Everything is withdrawn."""

    def judge(self, verdict: Verdict) -> list[str]:
        """The faults of the commands. A run without a reset is a fault, too."""
        nothing = [] if verdict.seen["resets"] else ["operators: no reset was made"]
        return [*self._fleet.faults, *nothing]

    @property
    def line(self) -> str:
        return f"{self._births} commands"

    @property
    def summary(self) -> str:
        return "operators: " + ", ".join(f"{what} {count}" for what, count in sorted(self._done.items()))
