"""A cluster with `balance = "load"`, of whose partitions one is ten times as busy as each other one.

Hosts crash, pause, join and leave, and another partition becomes the busy one. After each change the hosts must share
the load, and no lease may move from then on.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from random import Random

import anyio

from actorproc.handler.base import PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.records import Batch
from actorproc.simulation import LATENCY_ONLY, Cluster, InvariantViolation, UnsteadySource
from actorproc.simulation.loop import run
from tests.simulation.numbers import judge_number
from tests.simulation.scenario import HEAVY_FAULTS

PARTITIONS = 12
BUSY = 10
"""Load of the busy partition, in those of others."""

STEP = 10.0
"""Seconds between two appends."""

COST = 0.1
"""Seconds that a record takes."""

SETTLING = 1_200.0
"""Seconds after which leases are where they stay: a dead host is noticed, loads are measured for five minutes, and for
two more after each of a few moves."""

QUIET = 1_200.0
"""Seconds in which nothing happens, and nothing may move."""

NOISE = 1.15
"""Factor by which a load that is measured for a minute may differ from the real one."""


class Working(PartitionHandler):
    """Takes some time for each record."""

    output_schema = "n long"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        await anyio.sleep(COST * len(batch))
        for record in batch:
            ctx.emit(record, {"n": record.json()})


@dataclass(frozen=True, slots=True)
class Told:
    """What happened. `moves`: leases that changed hands, by what was going on."""

    moves: Counter[str]
    others: list[int]
    """Partitions that the host of the busy one has besides, at each look."""
    injected: Counter[str]


def tell(seed: int, *, balance: str = "load", rounds: int = 3) -> Told:
    """Play it.

    Raises:
        InvariantViolation: hosts do not share the load, a lease moves without need, or the cluster has a fault.
    """
    return run(_LoadStory(seed, balance).play(rounds), seed=seed)


class _LoadStory:
    def __init__(self, seed: int, balance: str) -> None:
        self._seed, self._balance = seed, balance
        self._random = Random(f"{seed}/load")
        self._busy = "0"
        self._number = 0
        self._moves: Counter[str] = Counter()
        self._others: list[int] = []

    async def play(self, rounds: int) -> Told:
        source = UnsteadySource(PARTITIONS, seed=self._seed)
        settings = {"balance": self._balance, "commit_interval": 20, "max_batch_records": 50, "poll_interval": 4}
        self._source = source
        self._cluster = cluster = Cluster(Working, source, check=judge_number, settings=settings, seed=self._seed)
        for name in ("a", "b", "c"):
            cluster.start(name)
        await self._calm()
        for _ in range(rounds):
            await self._random.choice([self._crash, self._pause, self._join, self._leave, self._shift])()
            await self._calm()
        await cluster.converged(within=SETTLING)
        await cluster.finished()
        return Told(self._moves, self._others, cluster.injected())

    # What happens

    async def _crash(self) -> None:
        process = self._random.choice(self._cluster.processes)
        self._cluster.crash(process)
        await self._trouble("crash")
        self._cluster.start(process.host.name)

    async def _pause(self) -> None:
        process = self._random.choice(self._cluster.processes)
        self._cluster.pause(process)
        await self._trouble("pause")
        self._cluster.resume(process)

    async def _join(self) -> None:
        self._cluster.start(f"j{len(self._cluster.processes)}{self._number}")
        await self._trouble("join")

    async def _leave(self) -> None:
        if len(processes := self._cluster.processes) > 2:
            self._cluster.ask_to_stop(self._random.choice(processes))
        await self._trouble("leave")

    async def _shift(self) -> None:
        self._busy = self._random.choice([str(n) for n in range(PARTITIONS) if str(n) != self._busy])
        await self._trouble("shift")

    async def _trouble(self, what: str) -> None:
        self._cluster.store.faults = replace(HEAVY_FAULTS, late_write=0.01)
        await self._work(self._random.uniform(30, 240), what)
        self._cluster.store.faults = LATENCY_ONLY

    async def _calm(self) -> None:
        """Leases move to where they belong, and then stay there."""
        await self._work(SETTLING, "settling")
        self._look()
        await self._work(QUIET, "quiet")
        if moved := self._moves["quiet"]:
            raise InvariantViolation(f"{moved} leases have moved although nothing has changed for {SETTLING:g} s")
        self._look()

    async def _work(self, seconds: float, what: str) -> None:
        before = self._cluster.group.seen["moves"]
        for _ in range(round(seconds / STEP)):
            for name in self._source.names():
                count = self._random.randint(1, 3) * (BUSY if name == self._busy else 1)
                self._source.append(name, [b"%d" % (self._number + n) for n in range(count)])
                self._number += count
            await self._cluster.run_for(STEP)
        self._moves[what] += self._cluster.group.seen["moves"] - before

    # What must hold

    def _look(self) -> None:
        """No host has noticeably more of the load than it must have."""
        leases = self._cluster.group.document.leases
        hosts = {process.host.name for process in self._cluster.processes}
        loads: Counter[str] = Counter(dict.fromkeys(hosts, 0))
        for name, lease in leases.items():
            loads[lease.owner or "nobody"] += BUSY if name == self._busy else 1
        least = max(loads.total() / len(hosts), BUSY)  # no plan has a busiest host with less
        if max(loads.values()) > max(1.25 * loads.total() / len(hosts), least / 0.9) * NOISE:
            raise InvariantViolation(f"hosts do not share the load: {dict(loads)}")
        owner = leases[self._busy].owner
        self._others.append(sum(lease.owner == owner for lease in leases.values()) - 1)
