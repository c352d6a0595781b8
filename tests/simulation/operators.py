"""Operators of a simulated cluster. They pause, resume, drain, move, release and reset at random, and die meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from msgspec.structs import replace

from actorproc.admin.placement import Placement
from actorproc.admin.resets import Resets, ResetTarget
from actorproc.errors import SourceError, StoreError, UsageError
from actorproc.group.membership import GroupDocument
from actorproc.group.wishes import NO_WISHES
from actorproc.runtime.clock import SYSTEM
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.cluster import Cluster
from actorproc.simulation.loop import call_outside, current_loop, start_outside
from actorproc.simulation.process import Process
from actorproc.sources.queue_protocol import QueueSource
from actorproc.storage.document import SharedDocument
from actorproc.storage.store import Conflict, Store

BETWEEN = (3.0, 70.0)
"""Seconds between two commands."""

LANDED = 100.0
"""Seconds after the last fault within which every late write is applied."""


@dataclass(eq=False, slots=True)
class _Command:
    """One command, which is run again with its id if it was cut short."""

    id: str
    run: Callable[[Process, str], Awaitable[None]]
    done: bool = False


class Operators:
    """Gives commands to the cluster while they are `at_work`.

    Each command is a process: it may be killed, or paused between its dry run and its acts.
    """

    def __init__(self, cluster: Cluster, *, seed: object) -> None:
        self.at_work = False
        self._cluster = cluster
        self._random = Random(f"{seed}/operators")
        self._births = 0
        self._cut_short: list[_Command] = []
        self._processes: list[Process] = []
        acts = {
            self._pause: 4, self._resume: 4, self._drain: 3, self._release_hosts: 3, self._move: 4, self._release: 2,
        }  # fmt: skip
        if not isinstance(cluster.source, QueueSource):
            acts |= {self._reset: 8, self._undo: 3}
        self._acts = acts
        start_outside(self._command_now_and_then())

    async def _command_now_and_then(self) -> None:
        pick = self._random
        while True:
            await SYSTEM.sleep(pick.uniform(*BETWEEN))
            if self.at_work:
                act = pick.choices(list(self._acts), list(self._acts.values()))[0]
                start_outside(self._carry_out(_Command(f"command-{current_loop().now}", act())))

    async def withdraw(self) -> None:
        """Kill all processes, repeat interrupted commands, and withdraw all wishes. There must be no faults."""
        self.at_work = False
        for process in self._processes:
            self._kill(process)
        if self._cut_short:
            await self._cluster.run_for(LANDED)
        for command in [*self._cut_short]:
            await self._carry_out(command, faultless=True)
            if not command.done:
                self._cluster.report(f"{command.id} does not come to its end")
        document = SharedDocument(self._store(), self._cluster.layout.group, GroupDocument)
        while (found := await document.read()) is not None:
            try:
                await document.swap(replace(found, wishes=NO_WISHES))  # always a write: it refuses late ones
            except Conflict:
                continue
            return

    # How

    def _store(self) -> Store:
        self._births += 1
        return Store(self._cluster.store.view("operator"), clock=VirtualClock(f"operator-{self._births}"))

    async def _carry_out(self, command: _Command, *, faultless: bool = False) -> None:
        """Run the command in a process of its own."""
        self._births += 1
        name = f"operator-{self._births}"
        host = current_loop().host(name)
        process = Process(host, self._cluster.store.view(name), VirtualClock(f"{self._random.random()}", delay=0.02))
        self._processes.append(process)
        self._cut_short.append(command)
        host.start(self._run(command, process), name=name)
        if not faultless:
            self._trouble(process)
        await process.done.wait()
        self._processes.remove(process)
        if command.done:
            self._cut_short = [other for other in self._cut_short if other is not command]

    async def _run(self, command: _Command, process: Process) -> None:
        try:
            await command.run(process, command.id)
            command.done = True
        except UsageError:  # the partition or host is gone, or there is nothing to undo
            command.done = True
        except (StoreError, SourceError) as error:
            self._cluster.events[f"command cut short: {type(error).__name__}"] += 1
        process.done.set()

    def _trouble(self, process: Process) -> None:
        lot = self._random.random()
        if lot < 0.25:
            process.view.interfere = partial(self._kill_at_a_reset, process)
        elif lot < 0.35:
            call_outside(self._random.uniform(0, 2), self._kill, process)
        elif lot < 0.55:
            call_outside(self._random.uniform(0, 2), self._put_to_sleep, process)

    def _kill_at_a_reset(self, process: Process, verb: str, key: str) -> str | None:
        """Kill it at its first reset of a partition."""
        if verb != "put_if_absent" or not key.startswith(self._cluster.layout.output):
            return None
        process.view.interfere = None
        self._kill(process)
        return self._random.choice(["lost_request", "late_write", "lost_reply"])

    def _kill(self, process: Process) -> None:
        if process.host.alive and not process.done.is_set():
            process.host.crash()
            process.done.set()
            self._cluster.events["command_killed"] += 1

    def _put_to_sleep(self, process: Process) -> None:
        if process.host.running and not process.done.is_set():
            process.host.pause()
            call_outside(self._random.uniform(2, 100), self._wake, process)

    def _wake(self, process: Process) -> None:
        if process.host.alive and not process.host.running:
            process.host.resume()

    # Commands

    def _partition(self) -> str:
        return self._random.choice(list(self._cluster.group.document.leases) or ["0"])

    def _host(self) -> str:
        return self._random.choice(list(self._cluster.group.document.members) or ["nobody"])

    def _placed(self, event: str, act: Callable[[Placement], Awaitable[object]]) -> Callable[..., Awaitable[None]]:
        async def run(process: Process, _: str) -> None:
            cluster, settings = self._cluster, self._cluster.settings
            nudges = cluster.nudge_network.connect()
            await act(Placement(process.connect(settings), cluster.layout, settings, "operator", nudges))
            cluster.events[event] += 1

        return run

    def _pause(self) -> Callable[..., Awaitable[None]]:
        partitions = [] if self._random.random() < 0.2 else [self._partition()]
        return self._placed("pause_act", lambda placement: placement.pause(partitions))

    def _resume(self) -> Callable[..., Awaitable[None]]:
        return self._placed("resume_act", lambda placement: placement.resume())

    def _drain(self) -> Callable[..., Awaitable[None]]:
        host = self._host()
        return self._placed("drain", lambda placement: placement.drain(host))

    def _release_hosts(self) -> Callable[..., Awaitable[None]]:
        async def act(placement: Placement) -> None:
            for host in self._cluster.group.document.wishes.drained:
                await placement.release_host(host)

        return self._placed("release", act)

    def _move(self) -> Callable[..., Awaitable[None]]:
        partition, host = self._partition(), self._host()
        return self._placed("move", lambda placement: placement.move(partition, host))

    def _release(self) -> Callable[..., Awaitable[None]]:
        partition = self._random.choice(list(self._cluster.group.document.wishes.placed) or ["0"])
        return self._placed("release", lambda placement: placement.release(partition))

    def _reset(self) -> Callable[..., Awaitable[None]]:
        goal, partitions = self._goal(), [self._partition() for _ in range(self._random.randint(0, 3))]
        return self._planned("reset", str(goal), goal, partitions)

    def _undo(self) -> Callable[..., Awaitable[None]]:
        return self._planned("undo", "undo", None, [])

    def _goal(self) -> ResetTarget:
        lot = self._random.random()
        if lot < 0.4:
            return "earliest"
        if lot < 0.55:
            return "latest"
        far = self._random.randint(1, 200)
        return -far if lot < 0.85 else far

    def _planned(
        self, event: str, text: str, goal: ResetTarget | None, partitions: list[str]
    ) -> Callable[..., Awaitable[None]]:
        think = self._random.choice([0.0, 0.0, 2.0, 20.0])

        async def run(process: Process, command: str) -> None:
            cluster, settings = self._cluster, self._cluster.settings
            store, source = process.connect(settings), cluster.source.read_by(process, settings)
            nudges = cluster.nudge_network.connect()
            await source.open()
            resets = Resets(store, cluster.layout, settings, source, "operator", nudges=nudges, command=command)
            planned = await (resets.plan_undo() if goal is None else resets.plan(goal, partitions))
            await SYSTEM.sleep(think)
            done = await resets.carry_out(planned, {"to": text})
            cluster.note_resets(command, done)
            cluster.events[event] += 1

        return run
