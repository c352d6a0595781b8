"""The sink of a scenario: faults of its database, operators of the sink, backups, and trims that ask it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from random import Random

import anyio

from actorproc.admin import sinks as operate
from actorproc.admin.retained import RetainedOutput
from actorproc.admin.trim import trim
from actorproc.config.settings import Settings
from actorproc.errors import StoreError, UsageError
from actorproc.runtime.clock import SYSTEM
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.cluster import Cluster
from actorproc.simulation.database import NAME, Everything
from actorproc.simulation.faults import Faults
from actorproc.simulation.loop import call_outside, current_loop, start_outside
from actorproc.simulation.sink_checks import SinkChecks
from actorproc.storage.store import Store
from tests.simulation.aged import Aged

FAULTS = Faults(lost_request=0.02, lost_reply=0.03, late_write=0.03, lateness=(1.0, 60.0), silence=(2.0, 30.0))

LANDED = 100.0
"""Seconds after which every late write has landed."""

Act = Callable[[Store], Awaitable[object]]


class PlayedSink:
    """Strikes the sink of a cluster, and operates it.

    Args:
        trim_every: seconds between two trims, least and most.

    Attributes:
        at_work: whether operators and trims act.
    """

    def __init__(self, cluster: Cluster, *, seed: object, trim_every: tuple[float, float] = (20, 120)) -> None:
        if cluster.sinks is None:
            raise ValueError("the cluster has no sink")
        self.at_work = False
        self._cluster = cluster
        self._checks: SinkChecks = cluster.sinks
        self._database = cluster.sinks.database
        self._random = Random(f"{seed}/sink")
        self._births = 0
        self._holds_trims = False
        self._trim_every = trim_every
        start_outside(self._trim_over_and_over())

    def by_weight(self) -> Mapping[Callable[[], None], int]:
        """The acts and their relative frequency."""
        return {
            self._stop: 5,
            self._pause: 5,
            self._resume: 10,
            self._redeliver: 8,
            self._delete: 1,
            self._go_back: 3,
        }

    def trouble(self) -> None:
        """Faults begin."""
        self.at_work = True
        self._database.faults = replace(FAULTS, late_write=self._random.choice([0.0, 0.03, 0.1]))
        self._database.refusing = self._random.choice([0.0, 0.02])

    async def heal(self) -> None:
        """End all faults and pauses, and register the sink again if it was deleted."""
        self.at_work = False
        self._database.heal()
        await self._cluster.run_for(LANDED)
        await operate_once(self._cluster, lambda store: operate.resume(store, self._cluster.layout, NAME))
        if self._checks.entry is None:  # a host that starts registers it
            process = self._cluster.processes[0]
            self._cluster.crash(process)
            self._cluster.start(process.host.name)

    def delivered(self) -> None:
        """The sink has everything: whatever a restored backup has replaced is seen."""
        self._database.former.clear()
        self._holds_trims = False

    # Acts

    def _stop(self) -> None:
        self._database.away(self._random.uniform(1, 60))

    def _pause(self) -> None:
        self._operate("sink_pause", lambda store: operate.pause(store, self._cluster.layout, NAME))

    def _resume(self) -> None:
        self._operate("sink_resume", lambda store: operate.resume(store, self._cluster.layout, NAME))

    def _redeliver(self) -> None:
        partition = self._random.choice(list(self._cluster.expected()) or ["0"])
        row = self._database.read(partition)
        start = self._random.randint(0, row.position + 1) if row is not None else 0
        start = max(start, self._checks.lowest.get(partition, 0), (row.position if row else 0) - 30)
        self._operate(
            "sink_redeliver",
            lambda store: operate.deliver_again(store, self._cluster.layout, NAME, start, [partition]),
        )

    def _delete(self) -> None:
        self._operate("sink_delete", lambda store: operate.delete(store, self._cluster.layout, NAME))

    def _go_back(self) -> None:
        """Back up the database, and restore it later. Nothing is trimmed from then on until all hosts have seen it.

        A trim between backup and restore would take what the sink needs again: it would stop for ever, and rightly.
        """
        if not self._holds_trims:
            self._holds_trims = True
            backup = self._database.backup()
            call_outside(self._random.uniform(LANDED, 2 * LANDED), self._restore, backup)

    def _restore(self, backup: Everything) -> None:
        entry = self._checks.entry
        if not self.at_work or entry is None:
            return
        for partition, lowest in self._checks.lowest.items():
            row = backup.contents[partition].row if partition in backup.contents else None
            if lowest > (row.position if row is not None and row.life == entry.life else entry.part(partition).start):
                return
        self._database.restore(backup)

    def _operate(self, event: str, act: Act) -> None:
        async def run() -> None:
            await operate_once(self._cluster, act)
            self._cluster.events[event] += 1

        self._births += 1
        start_outside(run())

    async def _trim_over_and_over(self) -> None:
        """A trim may be given up at any step, as if it died there."""
        pick = self._random
        while True:
            await SYSTEM.sleep(pick.uniform(*self._trim_every))
            if not self.at_work or self._holds_trims:
                continue
            self._births += 1
            store = Store(Aged(self._cluster.store.view("trim")), clock=VirtualClock(f"trim-{self._births}"))
            with anyio.move_on_after(pick.uniform(0.5, 20)), suppress(StoreError):
                await trim(RetainedOutput(store, self._cluster.layout), Settings())


async def operate_once(cluster: Cluster, act: Act) -> None:
    """An operator acts once, over a store without faults, as far as there is such a sink."""
    store = Store(cluster.store.view("sink operator"), clock=VirtualClock(f"sink operator {current_loop().now}"))
    with suppress(UsageError, StoreError):
        await act(store)
