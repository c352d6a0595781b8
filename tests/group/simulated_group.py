"""Hosts that share one group in virtual time, each with its own clock, store connection and timers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

import anyio

from actorproc.config.settings import Settings
from actorproc.errors import Fenced, RemovedFromGroup, StoreError, VersionRefused
from actorproc.group.assignment import Lease
from actorproc.group.format_versions import FORMAT_VERSIONS, FormatVersions
from actorproc.group.group import Group, GroupView
from actorproc.group.membership import GroupDocument, read_group
from actorproc.runtime.nudge import Nudges
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.faults import LATENCY_ONLY, Faults, FaultyBackend
from actorproc.simulation.loop import Host, current_loop, start_outside
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore

T = TypeVar("T")


def now() -> float:
    return current_loop().now


@dataclass(frozen=True)
class Version:
    """The group document after a write. `at`: seconds of virtual time."""

    at: float
    document: GroupDocument


class Recorder(MemoryStore):
    """Keeps every version of the group document, so that each step can be judged, not the end alone."""

    def __init__(self, group_key: str) -> None:
        super().__init__(clock=VirtualClock("store"))
        self._group_key = group_key
        self.versions: list[Version] = []

    async def put_if_absent(self, key: str, body: bytes) -> str:
        tag = await super().put_if_absent(key, body)
        self._record(key, body)
        return tag

    async def put_if_match(self, key: str, body: bytes, tag: str) -> str:
        new = await super().put_if_match(key, body, tag)
        self._record(key, body)
        return new

    def _record(self, key: str, body: bytes) -> None:
        if key == self._group_key:
            self.versions.append(Version(current_loop().now, GroupDocument.from_json(key, body)))


class Mail(Nudges):
    """Nudges between the hosts of one group, with a moment on the way."""

    def __init__(self, fleet: SimulatedGroup, address: str) -> None:
        self.address = address
        self._site = fleet

    async def open(self, on_nudge: Callable[[], None]) -> None:
        pass

    async def close(self) -> None:
        pass

    def send(self, address: str) -> None:
        start_outside(self._deliver(address))

    async def _deliver(self, address: str) -> None:
        await anyio.sleep(0.002)
        self._site.nudges += 1
        node = self._site.nodes.get(address)
        if node is not None and node.host.alive:
            node.host.start(node.poke())


class Node:
    """One host: renews, looks, and hands marked leases over after `drain` seconds. None: it never hands over."""

    def __init__(
        self,
        fleet: SimulatedGroup,
        label: str,
        name: str,
        drain: float | None,
        rate: float,
        offset: float,
        format_versions: FormatVersions,
    ) -> None:
        self.fleet = fleet
        self.label = label
        self.drain = drain
        self.settings = fleet.settings  # as they are when it starts
        self.host: Host = current_loop().host(label, rate=rate, offset=offset)
        self.clock = VirtualClock(f"{fleet.seed}/{label}", offset=offset)
        self.store = Store(fleet.backend.view(label), clock=self.clock)
        self.view: GroupView | None = None
        self.error: Exception | None = None
        self.looks = self.times_removed = 0
        self._poked = anyio.Event()
        self._stop = anyio.Event()
        self._draining: set[tuple[str, int]] = set()
        self._drained: set[tuple[str, int]] = set()

        async def make() -> Group:  # on the host: it asks the host's clock
            mail = Mail(fleet, label) if fleet.nudging else None
            return Group(
                self.store,
                fleet.layout,
                name,
                self.settings,
                clock=self.clock,
                nudges=mail,
                format_versions=format_versions,
            )

        self._make = make
        self.group: Group | None = None
        self.task = self.host.start(self._run())

    async def poke(self) -> None:
        self._poked.set()

    async def on(self, work: Callable[[Group], Awaitable[T]]) -> T:
        """Do something with the group, on this host."""

        async def call() -> T:
            assert self.group is not None
            return await work(self.group)

        return await self.host.start(call())

    def holds(self) -> dict[str, int]:
        """Partitions that this host would be running now -> epoch."""
        if self.view is None or self.group is None or self.host.time() >= self.group.valid_until():
            return {}
        return {p: lease.epoch for p, lease in self.view.mine.items() if (p, lease.epoch) not in self._drained}

    async def stop(self) -> None:
        """Leave in good order. Returns once the host has left."""
        self._stop.set()
        self._poked.set()
        await self.task

    async def _run(self) -> None:
        self.group = group = await self._make()
        await self._renew(group)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._renew_for_ever, group)
            try:
                await self._look_for_ever(group, tasks)
            except (Fenced, VersionRefused) as error:
                self.error, self.view = error, None
            if self._stop.is_set():
                await self._leave(group)
            tasks.cancel_scope.cancel()

    async def _renew(self, group: Group) -> None:
        relied_until = group.valid_until()
        try:
            await group.renew()
        except StoreError:
            await self.clock.sleep(1)
        if self.clock.monotonic() >= relied_until:  # it had fenced itself: look before running anything again
            self.view = None
            self._poked.set()

    async def _renew_for_ever(self, group: Group) -> None:
        while True:
            await self.clock.sleep(self.settings.lease_renew_interval)
            await self._renew(group)

    async def _look_for_ever(self, group: Group, tasks: Any) -> None:
        while not self._stop.is_set():
            self._poked = anyio.Event()
            pause = await self._look(group, tasks)
            with anyio.move_on_after(pause):
                await self._poked.wait()

    async def _look(self, group: Group, tasks: Any) -> float:
        interval = self.clock.jitter(self.settings.lease_acquire_interval)
        try:
            self.view = view = await group.look(self.fleet.listed)
            self.looks += 1
        except RemovedFromGroup:
            self.times_removed += 1
            self.view = None
            group.rejoin()
            await self._renew(group)
            return 0
        except StoreError:
            return interval / 4
        self._drained &= {(p, lease.epoch) for p, lease in view.mine.items() if lease.next}  # else it was called off
        marked = {(p, lease.epoch) for p, lease in view.mine.items() if lease.next} - self._draining
        if marked and self.drain is not None:
            self._draining |= marked
            tasks.start_soon(self._hand_over, group, marked, self.drain)
        return interval if view.look_again_in is None else view.look_again_in

    async def _hand_over(self, group: Group, marked: set[tuple[str, int]], after: float) -> None:
        await self.clock.sleep(after)
        self._drained |= marked
        try:
            await group.hand_over(sorted(p for p, _ in marked))
        except StoreError:
            pass
        finally:
            self._draining -= marked

    async def _leave(self, group: Group) -> None:
        group.retire()
        view = await group.look(self.fleet.listed)
        await self.clock.sleep(self.drain or 0)
        self.view = None
        await group.hand_over(list(view.mine))
        await group.leave()


class SimulatedGroup:
    """The hosts, their store, and the writes to it."""

    def __init__(
        self,
        partitions: int,
        *,
        faults: Faults = LATENCY_ONLY,
        seed: object = 0,
        nudging: bool = True,
        **settings: Any,
    ) -> None:
        self.partitions = [f"{p:04}" for p in range(partitions)]
        self.layout = ProcessorLayout("p")
        self.settings = Settings(**settings)
        self.truth = Recorder(self.layout.group)
        self.backend = FaultyBackend(self.truth, faults, seed=seed)
        self.seed = seed
        self.nudging = nudging
        self.nodes: dict[str, Node] = {}
        self.nudges = 0
        self._numbers = count()

    async def listed(self, since: float) -> dict[str, tuple[str, ...]]:
        return dict.fromkeys(self.partitions, ())

    @property
    def versions(self) -> list[Version]:
        return self.truth.versions

    @property
    def leases(self) -> dict[str, Lease]:
        return dict(self.versions[-1].document.leases)

    @property
    def members(self) -> set[str]:
        return set(self.versions[-1].document.members)

    def start(
        self,
        label: str,
        *,
        name: str = "",
        drain: float | None = 0.0,
        rate: float = 1.0,
        offset: float = 0.0,
        format_versions: FormatVersions = FORMAT_VERSIONS,
    ) -> Node:
        """A host that starts now. `label` is its own; `name` is its host name, by default the label."""
        node = self.nodes[label] = Node(self, label, name or label, drain, rate, offset, format_versions)
        return node

    def of(self, host: str) -> set[str]:
        """Partitions whose lease the host has, by the document."""
        return {p for p, lease in self.leases.items() if lease.owner == host}

    def is_even(self, *hosts: str) -> bool:
        """Exactly these hosts are members, own everything, and nothing is on its way."""
        if not self.versions or self.members != set(hosts) or any(lease.next for lease in self.leases.values()):
            return False
        owners = Counter(lease.owner for lease in self.leases.values())
        counts = [owners[host] for host in hosts]
        return sum(counts) == len(self.partitions) and max(counts) - min(counts) <= 1

    async def until(self, reached: Callable[[], bool], within: float, why: str) -> float:
        """Wait; how many seconds it took."""
        start = current_loop().now
        while not reached():
            assert current_loop().now - start <= within, f"not within {within} s: {why}; {self.describe()}"
            await anyio.sleep(0.05)
        return current_loop().now - start

    async def until_even(self, *hosts: str, within: float) -> float:
        return await self.until(lambda: self.is_even(*hosts), within, f"even over {hosts}")

    async def heartbeats(self) -> list[str]:
        """Hosts that have a heartbeat object, once for each."""
        listing = await self.truth.list(self.layout.hosts)
        return [entry.key.removeprefix(self.layout.hosts).partition("~")[0] for entry in listing.entries]

    def group(self, name: str, format_versions: FormatVersions = FORMAT_VERSIONS) -> Group:
        """A host's part without a host around it: nothing happens that the test does not do."""
        clock = VirtualClock(f"{name} {next(self._numbers)}")
        store = Store(self.backend, clock=clock)
        return Group(store, self.layout, name, self.settings, clock=clock, format_versions=format_versions)

    def reader(self) -> Store:
        """The store for those who only look."""
        return Store(self.truth, clock=VirtualClock("reader"))

    async def document(self) -> GroupDocument | None:
        return await read_group(self.reader(), self.layout)

    def describe(self) -> str:
        if not self.versions:
            return "no document"
        return f"members {sorted(self.members)}, { ({host: len(self.of(host)) for host in sorted(self.members)}) }"

    def check_steps(self) -> None:
        """Each step from version to version keeps the rules: an epoch grows with each new owner, and only then."""
        for before, after in zip(self.versions, self.versions[1:], strict=False):
            for p, lease in after.document.leases.items():
                old = before.document.leases.get(p, Lease(None, 0))
                was, now = (version.document.members.get(lease.owner or "") for version in (before, after))
                reborn = was is not None and now is not None and was.incarnation != now.incarnation
                changed = lease.owner is not None and (lease.owner != old.owner or reborn)
                assert lease.epoch == old.epoch + changed, f"{p} at {after.at}: {old} became {lease}"
            assert set(before.document.leases) <= set(after.document.leases)
