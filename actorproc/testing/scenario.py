"""Hours of trouble, by seed: hosts crash, pause, come and go, the store fails; in between the cluster must settle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from random import Random

import anyio

from actorproc.clock import SYSTEM
from actorproc.testing.cluster import Cluster, Process
from actorproc.testing.faults import CALM, Faults
from actorproc.testing.loop import START, current_loop, run, start_outside
from actorproc.testing.reference import ReferenceHandler, judge_reference, reference_value
from actorproc.testing.unsteady_source import UnsteadySource

WILD = Faults(slow=0.02, lost_request=0.01, lost_reply=0.01, late_write=0.01, busy=0.001)

TROUBLE = (600.0, 1_500.0)
"""Seconds of trouble before the cluster gets time to settle."""

BETWEEN = (2.0, 60.0)
"""Seconds between two blows."""

GRACE = 200.0
"""Seconds after which a host that was asked to stop is killed, as orchestrators do."""

SETTLING = 420.0
"""Seconds after the last fault within which the cluster must have settled: a death is noticed (60), the survivors look
(2 x 19), leases move (5 + 30 + 17), requests that hang are given up (60), failed partitions start again (60), and a
position without rows is committed (60)."""

SETTINGS = {"partition_refresh_interval": 60, "dead_letter_limit": 1}


@dataclass(frozen=True, slots=True)
class Result:
    """What one seed went through. `settled`: seconds that the cluster took to settle, each time."""

    seed: int
    seconds: float
    injected: Counter[str]
    seen: Counter[str]
    settled: list[float]
    fingerprint: int


def simulate(seed: int, *, hours: float = 0.5, hosts: int = 5, partitions: int = 6) -> Result:
    """Play one seed, for about so many hours of virtual time.

    Raises:
        SimulationError: something that must hold does not; `Broken` says what and when.
        ExceptionGroup: a task failed and nobody took note.
    """
    return run(_Scenario.play(seed, hours, hosts, partitions), seed=seed)


class _Scenario:
    def __init__(self, seed: int, hosts: int, partitions: int) -> None:
        self._random = Random(f"{seed}/scenario")  # noqa: S311
        self._source = UnsteadySource(partitions, seed=seed)
        settings = {**SETTINGS, "commit_interval": self._random.choice([2, 8, 20])}
        self._cluster = Cluster(ReferenceHandler, self._source, judge=judge_reference, settings=settings, seed=seed)
        self._most = hosts + 2
        self._partitions, self._most_partitions = partitions, partitions + 3
        self._wanted = [f"host-{number}" for number in range(hosts)]
        self._named = hosts
        self._flowing = True
        self._blows = {
            self._crash: 14,
            self._pause: 20,
            self._strike_in_a_commit: 16,
            self._stop: 12,
            self._join: 6,
            self._leave: 6,
            self._start_a_second: 3,
            self._cut: 8,
            self._cut_heartbeat: 6,
            self._cut_group: 10,
            self._outage: 4,
            self._set_the_clock: 3,
            self._add_a_partition: 2,
        }
        """What may happen, and how often in comparison."""

    @classmethod
    async def play(cls, seed: int, hours: float, hosts: int, partitions: int) -> Result:
        scenario, loop = cls(seed, hosts, partitions), current_loop()
        cluster, until = scenario._cluster, START + hours * 3600
        for name in scenario._wanted:
            cluster.start(name)
        start_outside(scenario._feed())
        settled = []
        while loop.now < until:
            await scenario._trouble()
            scenario._heal()
            settled.append(await cluster.settled(within=SETTLING))
        scenario._flowing = False
        await cluster.settled(within=SETTLING)
        await cluster.finished()
        return Result(seed, loop.now - START, cluster.injected(), cluster.seen(), settled, loop.fingerprint)

    async def _feed(self) -> None:
        """The stream grows: by bursts, with quiet times between."""
        pick = self._random
        while True:
            quiet = pick.random() < 0.02
            await SYSTEM.sleep(pick.uniform(30, 200) if quiet else pick.uniform(0, 4))
            if not self._flowing:
                return
            partition = pick.choice(list(await self._source.partitions()))
            self._source.append(partition, [reference_value(pick) for _ in range(pick.randint(1, 20))])

    async def _trouble(self) -> None:
        pick, loop = self._random, current_loop()
        late, lateness = pick.choice([0, 0.01, 0.05]), pick.choice([(1.0, 20.0), (5.0, 90.0)])
        self._cluster.store.faults = replace(WILD, late_write=late, lateness=lateness)
        self._source.failing = pick.choice([0, 0.0005])
        self._cluster.switchboard.lost = pick.choice([0, 0.1, 1])
        until = loop.now + pick.uniform(*TROUBLE)
        while loop.now < until:
            pick.choices(list(self._blows), list(self._blows.values()))[0]()
            await self._cluster.run_for(pick.uniform(*BETWEEN))

    def _heal(self) -> None:
        cluster = self._cluster
        cluster.store.faults, cluster.switchboard.lost, self._source.failing = CALM, 0.0, 0.0
        for process in cluster.processes:
            cluster.resume(process)
            process.view.heal()
            process.view.interfere = None
        for name in self._wanted:
            self._revive(name)

    # Blows

    def _some(self) -> Process | None:
        running = [process for process in self._cluster.processes if process.host.running and not process.stopping]
        return self._random.choice(running) if running else None

    def _revive(self, name: str) -> None:
        if name in self._wanted and not any(process.host.name == name for process in self._cluster.processes):
            self._cluster.start(name)

    def _later(self, least: float, most: float, call: Callable[[], None]) -> None:
        current_loop().call_later(self._random.uniform(least, most), call)

    def _crash(self) -> None:
        if process := self._some():
            self._cluster.crash(process)
            self._later(0, 150, partial(self._revive, process.host.name))

    def _pause(self) -> None:
        if process := self._some():
            self._cluster.pause(process)
            self._later(2, 200, partial(self._cluster.resume, process))

    def _strike_in_a_commit(self) -> None:
        """The next commit of a host goes wrong, and the host stands still or dies at that very moment."""
        if process := self._some():
            process.view.interfere = partial(self._strike, process)

    def _strike(self, process: Process, verb: str, key: str) -> str | None:
        if not key.startswith(self._cluster.layout.output) or verb == "get" or not process.host.running:
            return None
        process.view.interfere = None
        if self._random.random() < 0.5:
            self._cluster.pause(process)
            self._later(2, 200, partial(self._cluster.resume, process))
        else:
            self._cluster.crash(process)
            self._later(0, 20, partial(self._revive, process.host.name))  # and its leases are free at once
        return self._random.choice(["lost_request", "late_write", "lost_reply"])

    def _stop(self) -> None:
        if process := self._some():
            start_outside(self._stop_or_kill(process))

    async def _stop_or_kill(self, process: Process) -> None:
        self._cluster.ask_to_stop(process)
        with anyio.move_on_after(GRACE):
            await process.done.wait()
        if not process.done.is_set():
            self._cluster.crash(process)
        await SYSTEM.sleep(self._random.uniform(0, 60))
        self._revive(process.host.name)

    def _join(self) -> None:
        if len(self._wanted) < self._most:
            self._named += 1
            self._wanted.append(f"host-{self._named}")
            self._revive(self._wanted[-1])

    def _leave(self) -> None:
        process = self._some()
        if process and process.host.name in self._wanted and len(self._wanted) > 2:
            self._wanted.remove(process.host.name)
            if self._random.random() < 0.5:
                self._cluster.crash(process)
            else:
                start_outside(self._stop_or_kill(process))

    def _start_a_second(self) -> None:
        """Another process of the same host name, while the first one lives, perhaps paused."""
        if process := self._some():
            if self._random.random() < 0.5:
                self._cluster.pause(process)
                self._later(2, 200, partial(self._cluster.resume, process))
            self._cluster.start(process.host.name)

    def _cut(self) -> None:
        if process := self._some():
            process.view.cut(self._random.uniform(5, 150))

    def _cut_heartbeat(self) -> None:
        """A host can do everything but renew: others take its leases while it works."""
        if process := self._some():
            process.view.cut(self._random.uniform(30, 200), prefix=self._cluster.layout.hosts)

    def _cut_group(self) -> None:
        """A host renews and works, and cannot see that its leases should move: they are taken by force."""
        if process := self._some():
            process.view.cut(self._random.uniform(60, 200), prefix=self._cluster.layout.group)

    def _outage(self) -> None:
        self._cluster.store.outage(self._random.uniform(1, 90))

    def _set_the_clock(self) -> None:
        if process := self._some():
            process.clock.offset += self._random.choice([-3600.0, -1.0, 1.0, 3600.0])
            self._cluster.events["clock_set"] += 1

    def _add_a_partition(self) -> None:
        if self._partitions < self._most_partitions:
            self._source.add_partition(str(self._partitions))
            self._partitions += 1
            self._cluster.events["new_partition"] += 1
