"""A short story of a cluster with a sink: hosts, database, operators and trims act at once, and often."""

from __future__ import annotations

from functools import partial
from random import Random

from actorproc.runtime.clock import SYSTEM
from actorproc.simulation import LATENCY_ONLY, Cluster, Faults, Process, UnsteadySource, call_outside, run
from actorproc.simulation.loop import start_outside
from actorproc.simulation.sink_checks import SinkChecks
from tests.simulation.numbers import Numbers, judge_number
from tests.simulation.played_sink import PlayedSink

ROUGH = Faults(lost_request=0.003, lost_reply=0.003, late_write=0.003, silence=(1.0, 5.0), lateness=(5.0, 60.0))

SETTINGS = {
    "lease_acquire_interval": 3,
    "lease_renew_interval": 2,
    "lease_expiration_interval": 8,
    "rebalance_delay": 1,
    "commit_interval": 1,
    "restart_backoff_max": 5,
    "store_timeout": 3,
    "store_patience": 10,
}
PARTITIONS = 3

ACTS = 3
"""Acts on the sink for each fault of a host."""


class SinkStory:
    """A cluster whose rows go to a sink, to which bad things happen."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.source = UnsteadySource(PARTITIONS, seed=seed)
        self.cluster = Cluster(
            Numbers, self.source, check=judge_number, faults=ROUGH, seed=seed, settings=SETTINGS, sink={}
        )
        assert self.cluster.sinks is not None
        self.checks: SinkChecks = self.cluster.sinks
        self.sink = PlayedSink(self.cluster, seed=seed, trim_every=(2, 15))
        self.flowing = True

    async def play(self, periods: int = 2, rounds: int = 25) -> None:
        for name in "abc":
            self.cluster.start(name)
        start_outside(self.feed())
        for _ in range(periods):
            self.cluster.store.faults = ROUGH
            self.sink.trouble()
            for _ in range(rounds):
                await self.cluster.run_for(self.random.uniform(2, 20))
                self.act()
            self.cluster.store.faults = LATENCY_ONLY
            for process in self.cluster.processes:
                process.view.interfere = None
                self.cluster.resume(process)
            await self.sink.heal()
            self.flowing = False
            await self.cluster.converged(within=300)
            self.sink.delivered()
            self.flowing = True
        self.flowing = False
        await self.cluster.converged(within=300)
        await self.cluster.finished()

    async def feed(self) -> None:
        fed = 0
        while True:
            await SYSTEM.sleep(self.random.uniform(0, 1.5))
            if self.flowing:
                self.source.append(str(fed % PARTITIONS), [b"%d" % n for n in range(fed, fed + 3)])
                fed += 3

    def act(self) -> None:
        acts = self.sink.by_weight()
        for _ in range(ACTS):
            if self.random.random() < 0.3:
                self.random.choices(list(acts), list(acts.values()))[0]()
        if awake := [process for process in self.cluster.processes if process.host.running]:
            self.strike(self.random.choice(awake))

    def strike(self, process: Process) -> None:
        """It dies or pauses, at once or in the midst of its next commit, which arrives late."""
        kind = self.random.choice(["crash", "pause", "commit", "commit", "nothing", "nothing"])
        if kind == "crash":
            self.cluster.crash(process)
            call_outside(3, self.start_again, process.host.name)
        elif kind == "pause":
            self.pause(process)
        elif kind == "commit":
            process.view.interfere = partial(self.interfere, process)

    def start_again(self, name: str) -> None:
        if not any(process.host.name == name for process in self.cluster.processes):
            self.cluster.start(name)

    def interfere(self, process: Process, verb: str, key: str) -> str | None:
        if verb != "put_if_absent" or not key.startswith(self.cluster.layout.output) or not process.host.running:
            return None
        process.view.interfere = None
        self.pause(process)
        return "late_write"

    def pause(self, process: Process) -> None:
        self.cluster.pause(process)
        call_outside(self.random.uniform(5, 80), self.cluster.resume, process)


def play(seed: int) -> SinkChecks:
    """Play the story of a seed. Raises InvariantViolation if the sink does not hold what it must."""

    async def main() -> SinkChecks:
        story = SinkStory(seed)
        await story.play()
        story.checks.seen += story.checks.database.injected + story.cluster.events
        return story.checks

    return run(main(), seed=seed)
