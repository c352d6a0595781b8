"""Faults of hosts at random: crashes, pauses, cuts, second processes, upgrades, and an operator who purges letters."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random

import anyio

from actorproc.errors import StoreError
from actorproc.output.checkpoint import read_checkpoint
from actorproc.output.letter import letter_files, purge
from actorproc.runtime.clock import SYSTEM
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.cluster import Cluster, NextVersion
from actorproc.simulation.loop import call_outside, current_loop, start_outside
from actorproc.simulation.process import Process
from actorproc.storage.names import partition_of
from actorproc.storage.store import Store

GRACE = 200.0
"""Seconds after which a host that does not stop is killed, as orchestrators do."""

FATES = ("lost_request", "late_write", "lost_reply")
"""The fate of a request whose process fails with it."""

Fault = Callable[[], None]


class HostFaults:
    """Strikes the hosts of a cluster.

    Args:
        hosts: that run at the start.
    """

    def __init__(self, cluster: Cluster, random: Random, hosts: int) -> None:
        self.cluster = cluster
        self.random = random
        self.wanted = [f"host-{number}" for number in range(hosts)]
        """Names of the hosts that should run."""
        self.starters: dict[str, Callable[[], object]] = {}
        """How to start a process that is no host, by its name."""
        self._most = hosts + 2
        self._named = hosts

    def by_weight(self) -> dict[Fault, int]:
        """The faults and their relative frequency."""
        return {
            self.crash: 14,
            self.pause: 20,
            self._fail_in_a_commit: 24,
            self._stop: 12,
            self._join: 6,
            self._leave: 6,
            self._start_a_second: 3,
            self._cut: 8,
            self._cut_heartbeat: 6,
            self._cut_group: 10,
            self._outage: 4,
            self._set_the_clock: 3,
            self._purge: 3,
            self._upgrade: 6,
            self._install_this_version: 1,
        }

    def some(self, processes: list[Process] | None = None) -> Process | None:
        """One of these processes, by default of all hosts, that runs; None if none does."""
        processes = self.cluster.processes if processes is None else processes
        running = [process for process in processes if process.host.running and not process.stopping]
        return self.random.choice(running) if running else None

    def revive(self, name: str) -> None:
        """Start a process if it should run and does not."""
        if name in self.starters:
            self.starters[name]()
        elif name in self.wanted and not any(process.host.name == name for process in self.cluster.processes):
            self.cluster.start(name)

    def later(self, least: float, most: float, call: Callable[[], object]) -> None:
        """Call it in `least` to `most` seconds."""
        call_outside(self.random.uniform(least, most), call)  # in the world, as a host's own timers pause with it

    def crash(self, processes: list[Process] | None = None) -> None:
        if process := self.some(processes):
            self.cluster.crash(process)
            self.later(0, 150, partial(self.revive, process.host.name))

    def pause(self, processes: list[Process] | None = None) -> None:
        if process := self.some(processes):
            self.cluster.pause(process)
            self.later(2, 200, partial(self.cluster.resume, process))

    def _fail_in_a_commit(self) -> None:
        """The next commit of a host fails, and the host pauses or crashes at that moment."""
        if process := self.some():
            process.view.interfere = partial(self.fail, process, self.cluster.layout.output)

    def fail(self, process: Process, prefix: str, verb: str, key: str) -> str | None:
        """Crash or pause the process if it writes below `prefix`. Returns the fate of the request."""
        if not key.startswith(prefix) or verb in ("get", "list") or not process.host.running:
            return None
        process.view.interfere = None
        name, lot = process.host.name, self.random.random()
        if lot < 0.4:
            self.cluster.crash(process)
            self.later(0, 5, partial(self.revive, name))  # its restart frees its leases at once
        else:
            self.cluster.pause(process)
            if lot < 0.7 or name in self.starters:
                self.later(2, 200, partial(self.cluster.resume, process))
            else:  # when it wakes up, a second process has taken over its work
                self.later(0, 5, partial(self.cluster.start, name))
                self.later(10, 60, partial(self.cluster.resume, process))
        return self.random.choice(FATES)

    def _stop(self) -> None:
        if process := self.some():
            start_outside(self._stop_or_kill(process))

    async def _stop_or_kill(self, process: Process) -> None:
        self.cluster.ask_to_stop(process)
        with anyio.move_on_after(GRACE):
            await process.done.wait()
        if not process.done.is_set():
            self.cluster.crash(process)
        await SYSTEM.sleep(self.random.uniform(0, 60))
        self.revive(process.host.name)

    def _upgrade(self) -> None:
        """Stop a host, and start it again with the next version."""
        behind = [process for process in self.cluster.processes if process.version is not NextVersion]
        if process := self.some(behind):
            self.cluster.versions[process.host.name] = NextVersion
            self.cluster.events["upgrade"] += 1
            start_outside(self._stop_or_kill(process))

    def _install_this_version(self) -> None:
        """The next process of a host runs this version, even if the group has gone on to the next one."""
        self.cluster.versions.pop(self.random.choice(self.wanted), None)

    def _join(self) -> None:
        if len(self.wanted) < self._most:
            self._named += 1
            self.wanted.append(f"host-{self._named}")
            self.revive(self.wanted[-1])

    def _leave(self) -> None:
        process = self.some()
        if process and process.host.name in self.wanted and len(self.wanted) > 2:
            self.wanted.remove(process.host.name)
            if self.random.random() < 0.5:
                self.cluster.crash(process)
            else:
                start_outside(self._stop_or_kill(process))

    def _start_a_second(self) -> None:
        """Start a second process of a host while the first one runs or is paused."""
        if process := self.some():
            if self.random.random() < 0.5:
                self.cluster.pause(process)
                self.later(2, 200, partial(self.cluster.resume, process))
            self.cluster.start(process.host.name)

    def _cut(self) -> None:
        if process := self.some():
            process.view.cut(self.random.uniform(5, 150))

    def _cut_heartbeat(self) -> None:
        """A host can do everything but renew, so others take its leases while it works."""
        if process := self.some():
            process.view.cut(self.random.uniform(30, 200), prefix=self.cluster.layout.hosts)

    def _cut_group(self) -> None:
        """A host renews and works but cannot read the group, so its leases are taken by force."""
        if process := self.some():
            process.view.cut(self.random.uniform(60, 200), prefix=self.cluster.layout.group)

    def _outage(self) -> None:
        self.cluster.store.outage(self.random.uniform(1, 90))

    def _set_the_clock(self) -> None:
        if process := self.some():
            process.clock.offset += self.random.choice([-3600.0, -1.0, 1.0, 3600.0])
            self.cluster.events["clock_set"] += 1

    def _purge(self) -> None:
        """An operator purges all dead letters that may be purged."""
        start_outside(self._purge_letters())

    async def _purge_letters(self) -> None:
        cluster = self.cluster
        store = Store(cluster.store.view("operator"), clock=VirtualClock(f"operator/{current_loop().now}"))
        with suppress(StoreError):
            for key in await letter_files(store, cluster.layout):
                checkpoint = await read_checkpoint(store, cluster.layout, partition_of(key))
                if checkpoint is not None:
                    await purge(store, key, below=checkpoint.number)
