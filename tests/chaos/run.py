"""A whole run: the storm, calm until every record is processed, an orderly stop, the checks."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

import anyio

from actorproc.admin.fleet import Fleet as FleetView
from actorproc.admin.fleet_watch import FleetWatch
from actorproc.errors import SourceError, StoreError, UsageError
from actorproc.sources import open_source
from actorproc.sources.protocol import Source
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores import open_store
from tests.chaos import programs
from tests.chaos.count_check import check_counts
from tests.chaos.fleet import STOP_PATIENCE, TICK, Child, Fleet, State
from tests.chaos.journal import Journal, read_journal
from tests.chaos.objects import Objects
from tests.chaos.place import Place
from tests.chaos.storm import Storm
from tests.chaos.truth import Acks, Sent, check_log, read_acks, read_log
from tests.chaos.upgrade import LATER, Release, Upgrade
from tests.chaos.verdict import Verdict, judge
from tests.connectors.amqp.servers import AmqpBroker

PROCESSOR = "Chaos"
LOOK_EVERY = 1.0  # seconds
QUIET = 5.0  # seconds without a commit after which queues have no message left that was accepted without an answer
STUBBORN_SHARE = 0.15  # of the hosts
OVERTIME = 300.0
"""Seconds by which a storm may exceed its ordered length, until each program beside it was struck often enough."""
CALM_PATIENCE = 180.0
"""Seconds in which everything must be processed, and shared evenly, once the trouble is over."""


@dataclass(frozen=True)
class Orders:
    """The orders for a run. `rate`: records a second, over all producers; `pace`: mean seconds between two strikes."""

    seconds: float = 120
    hosts: int = 10
    partitions: int = 32
    producers: int = 2
    rate: float = 600
    pace: float = 0.8
    seed: int = 0
    upgrade: bool = False
    """Hosts of an earlier version begin, and are replaced meanwhile."""


class Beside(Protocol):
    """A program that reads the output during a run, with its own faults."""

    def tick(self, *, storm: bool) -> None:
        """A moment has passed, and something is committed. After the storm there must be no more trouble."""

    @property
    def is_calm(self) -> bool:
        """Whether its own trouble is over, once the storm is."""

    @property
    def had_enough(self) -> bool:
        """Whether it has had the trouble without which a run would prove nothing."""

    async def finish(self) -> None:
        """Everything is committed and no host commits any more: read the rest and end."""

    def judge(self, verdict: Verdict) -> list[str]:
        """The faults of the records that were read."""

    @property
    def line(self) -> str:
        """How it goes."""

    @property
    def summary(self) -> str:
        """How it went."""


@dataclass
class Report:
    """The result of a run."""

    faults: list[str]
    verdict: Verdict
    journal: Journal
    troubles: dict[str, int]
    converged_in: float
    """Seconds from the end of the trouble until everything was processed and shared evenly."""
    starts: int
    beside: Sequence[str]


@dataclass
class Scene:
    """The state of a run that is displayed while it goes on."""

    orders: Orders
    fleet: Fleet
    phase: str = "warming up"
    began: float = field(default_factory=time.monotonic)
    status: FleetView | None = None
    troubles: dict[str, int] = field(default_factory=dict)
    beside: Sequence[Beside] = ()


async def run(
    orders: Orders,
    place: Place,
    say: Callable[[str], None],
    show: Callable[[Scene], None],
    beside: Sequence[Beside] = (),
) -> Report:
    """One run, from the first start to the verdict. No process of hosts and producers outlives it."""
    with Fleet(place.folder / "logs") as fleet:
        if orders.upgrade:
            beside = [*beside, Upgrade(fleet, place, PROCESSOR, orders.hosts, orders.seconds, say)]
        play = _Play(orders, place, fleet, say, show, beside)
        async with (
            open_store(place.container, place.settings) as store,
            _source(place) as source,
        ):
            storm, converged_in = await play.run(store, source)
    for other in beside:
        say("hosts have ended; what they left is read to its end")
        await other.finish()
    say("everything has ended; reading all files")
    faults = fleet.faults
    container, acks = await place.read_output(), read_acks(place.folder / "acks")
    records = await _read_records(place, container, acks, faults)
    faults += check_log(records, acks)
    verdict = judge(container, PROCESSOR, records)
    async with open_store(place.container, place.settings) as store:
        verdict.faults += await check_counts(store, ProcessorLayout(PROCESSOR), records, verdict)
    journal = read_journal(sorted((place.folder / "logs").glob("*.log")))
    faults += [*verdict.faults, *journal.bugs, *journal.storms]
    for other in beside:
        faults += other.judge(verdict)
    summary = [other.summary for other in beside]
    return Report(faults, verdict, journal, dict(storm.done), converged_in, len(fleet.ended), summary)


@asynccontextmanager
async def _source(place: Place) -> AsyncIterator[Source]:
    """The log as a source, not yet open."""
    source = open_source(place.log, settings=place.settings)
    try:
        yield source
    finally:
        await source.close()


async def _read_records(
    place: Place, container: Objects, acks: dict[str, Acks], faults: list[str]
) -> dict[str, list[Sent]]:
    """The records of the log. The places in `acks` are those in it afterwards."""
    if place.broker is None:
        return read_log(await place.read(place.log), faults)
    if isinstance(place.broker, AmqpBroker):
        from tests.chaos import queues

        return queues.read_records(container, PROCESSOR, acks, place.folder / "acks", faults)
    from tests.chaos import topic

    return topic.read_records(place.broker.address, place.topic, faults)


async def _open(source: Source) -> None:
    """Open it once its first producer has created it."""
    while True:
        try:
            return await source.open()
        except UsageError:
            await source.close()
            await anyio.sleep(TICK)


class _Play:
    """The course of events."""

    def __init__(
        self,
        orders: Orders,
        place: Place,
        fleet: Fleet,
        say: Callable[[str], None],
        show: Callable[[Scene], None],
        beside: Sequence[Beside],
    ) -> None:
        self._orders, self._place, self._fleet, self._say = orders, place, fleet, say
        self._show = show
        self._scene = Scene(orders, fleet, beside=beside)
        self._hosts = range(orders.hosts)
        self._producers = range(orders.hosts, orders.hosts + orders.producers)
        self._names = 0
        self._committed, self._grew_at = 0, 0.0
        self._random = Random(orders.seed)

    async def run(self, store: Store, source: Source) -> tuple[Storm, float]:
        """Run until the last process has ended. Returns the storm, and how long calm took."""
        orders = self._orders
        self._show(self._scene)
        for slot in self._producers:
            self._start(slot, None)
        await _open(source)
        for slot in self._hosts:
            self._start(slot, None)
        storm = Storm(
            self._fleet, self._hosts, self._producers, self._start, random=self._random, pace=orders.pace,
            expiration=self._place.settings.lease_expiration_interval, say=self._say,
        )  # fmt: skip
        self._scene.troubles = storm.done
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._look, store, source)
            await self._rage(storm)
            converged_in = await self._calm_down(storm)
            await self._stop(self._hosts)
            tasks.cancel_scope.cancel()
        return storm, converged_in

    def _start(self, slot: int, name: str | None) -> Child:
        """A host or producer in its slot. A producer never has the name of an earlier one: its numbers start over."""
        place = self._place
        if slot in self._producers or name is None:
            self._names += 1
            kind = "p" if slot in self._producers else "s" if self._random.random() < STUBBORN_SHARE else "h"
            name = f"{kind}{self._names}"
        if slot in self._producers:
            acks = place.folder / "acks" / f"{name}.acks"
            acks.touch()
            rate = self._orders.rate / len(self._producers)
            return self._fleet.start(
                slot, name, programs.producer, place.folder, place.environment(), place.log, self._orders.partitions,
                name, str(acks), rate,
            )  # fmt: skip
        release = self._release()
        handler = f"{release.handler.__module__}:{release.handler.__name__}"
        arguments = ["--log-level", "debug", "serve", handler, "--name", PROCESSOR]
        arguments += ["--host", name, "--source", place.log, "--container", place.container]
        arguments += [argument for other in self._scene.beside for argument in getattr(other, "arguments", ())]
        environment = place.environment(stubborn=name.startswith("s"))
        return self._fleet.start(slot, name, release.program, place.folder, environment, arguments, kind=release.kind)

    def _release(self) -> Release:
        """The version of a host that is started now."""
        upgrades = [other.release() for other in self._scene.beside if isinstance(other, Upgrade)]
        return upgrades[0] if upgrades else LATER

    async def _rage(self, storm: Storm) -> None:
        self._scene.phase = "storm"
        began, beside = time.monotonic(), self._scene.beside
        while (age := time.monotonic() - began) < self._orders.seconds or not (
            all(other.had_enough for other in beside) or age > self._orders.seconds + OVERTIME
        ):
            storm.tick()
            await self._tick()

    async def _calm_down(self, storm: Storm) -> float:
        """Everybody well; producers stop; wait until all is processed."""
        self._scene.phase, began = "calm", time.monotonic()
        self._say("calm: everybody goes on, nobody sends")
        storm.end()
        await self._stop(self._producers)
        for slot in self._hosts:
            if not self._fleet.living([slot]):
                self._start(slot, None)
        while (left := self._unsettled()) is not None:
            if time.monotonic() - began > CALM_PATIENCE:
                self._fleet.faults.append(f"not converged {CALM_PATIENCE:g} s after the last trouble: {left}")
                break
            for child in self._fleet.reap():
                if child.slot in self._hosts and not self._fleet.living([child.slot]):
                    self._start(child.slot, None)
            await self._tick()
        seconds = time.monotonic() - began
        self._say(f"converged after {seconds:.1f} s")
        return seconds

    def _unsettled(self) -> str | None:
        """The condition that is still missing at the end. None: all is processed and evenly shared among live hosts."""
        if not all(other.is_calm for other in self._scene.beside):
            return "operators or the upgrade have not ended"
        status, names = self._scene.status, sorted(child.name for child in self._fleet.children)
        if status is None:
            return "nothing was seen yet"
        members = {member.host: member.leases for member in status.hosts if member.in_group}
        late = [p for p in status.partitions.values() if p.lag != 0]
        if isinstance(self._place.broker, AmqpBroker):
            if (left := self._left_in_queues(status)) is not None:
                return left
        elif late:
            p = max(late, key=lambda p: p.lag or 0)
            lagging = f"{p.partition} of {p.owner} (next: {p.next_owner}) at {p.sequence}, end {p.end}, {p.error or ''}"
            return f"{len(late)} partitions lag, such as {lagging}"
        if any(p.next_owner for p in status.partitions.values()):
            return f"leases are on their way: {[p.partition for p in status.partitions.values() if p.next_owner]}"
        if sorted(members) != names:
            return f"members are {sorted(members)}, processes {names}"
        if max(members.values()) - min(members.values()) > 1:
            return f"leases are not even: {members}"
        return None

    def _left_in_queues(self, status: FleetView) -> str | None:
        """The sign that queues are not empty: too few messages are committed, or the last commit was just now."""
        committed = sum(p.sequence + 1 for p in status.partitions.values() if p.sequence is not None)
        accepted = sum(len(acks.places) for acks in read_acks(self._place.folder / "acks").values())
        if committed != self._committed:
            self._committed, self._grew_at = committed, time.monotonic()
        if committed < accepted or time.monotonic() - self._grew_at < QUIET:
            return f"{committed} messages are committed, {accepted} were accepted"
        return None

    async def _stop(self, slots: range) -> None:
        """Ask them to end, and wait for it."""
        for child in self._fleet.living(slots, State.UP):
            child.stop()
        end = time.monotonic() + STOP_PATIENCE + 5
        while self._fleet.living(slots) and time.monotonic() < end:
            self._fleet.reap()
            await self._tick()

    async def _tick(self) -> None:
        await anyio.sleep(TICK)
        status, beside = self._scene.status, self._scene.beside
        if status and status.counts.rows:
            for other in beside:
                other.tick(storm=self._scene.phase == "storm")
        self._show(self._scene)

    async def _look(self, store: Store, source: Source) -> None:
        """See how the processor is, again and again."""
        layout, expiration = ProcessorLayout(PROCESSOR), self._place.settings.lease_expiration_interval
        while True:
            try:
                self._scene.status = await FleetWatch(store, layout, expiration).read_all(source)
            except (StoreError, SourceError) as error:
                self._say(f"cannot look: {error}")
            await anyio.sleep(LOOK_EVERY)
