"""Hosts that cannot renew, that are considered dead, or that leave a store that hangs: `Processor` in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import anyio
import pytest
import structlog

from actorproc import Batch, Partition, PartitionContext, PartitionHandler, Processor
from actorproc.errors import Fenced, StoreError, StoreRefused, StoreUnavailable
from actorproc.group.membership import GroupDocument, read_group
from actorproc.handler.base import CloseReason
from actorproc.handler.info import PartitionInfo
from actorproc.runtime.nudge import Nudges
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.storage.backend import Listing, Stored
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource

LAYOUT = ProcessorLayout("n")


class Handler(PartitionHandler):
    """Notes the partitions that are opened and closed."""

    opened_at: ClassVar[list[float]]
    closed: ClassVar[list[CloseReason]]

    async def opened(self, ctx: PartitionInfo) -> None:
        self.opened_at.append(anyio.current_time())

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            await anyio.sleep(record.json())

    async def closing(self, ctx: PartitionInfo, reason: CloseReason) -> None:
        self.closed.append(reason)


class Trouble(MemoryStore):
    """Raises `refuse` when a heartbeat is written and `hide` when they are listed. Returns no group while `silent`."""

    refuse: StoreError | None = None
    silent: anyio.Event | None = None
    hide: StoreError | None = None
    heartbeats: int = 0

    async def put(self, key: str, body: bytes) -> str:
        if "/hosts/" in key:
            if self.refuse is not None:
                raise self.refuse
            self.heartbeats += 1
        return await super().put(key, body)

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        if "/hosts/" in prefix and self.hide is not None:
            raise self.hide
        return await super().list(prefix, after, limit)

    async def get(self, key: str, *, unless: str | None = None, tail: int | None = None) -> Stored | None:
        if key == LAYOUT.group and self.silent is not None:
            await self.silent.wait()
        return await super().get(key, unless=unless, tail=tail)


UNAVAILABLE = StoreUnavailable("no heartbeat is taken")


class Host:
    """A host that runs a partition."""

    def __init__(self, processor: Processor, backend: Trouble, clock: VirtualClock, logs: Sequence[Any]) -> None:
        self.processor, self.backend, self.clock, self._logs = processor, backend, clock, logs
        self.store = Store(backend, clock=clock)

    def told(self, event: str) -> int:
        """The number of log events about it."""
        return sum(log["event"] == event for log in self._logs)

    async def until_told(self, event: str) -> None:
        before = self.told(event)
        await until(lambda: self.told(event) > before)

    def runs(self) -> int:
        supervisor = self.processor.statistics()
        return len(supervisor.partitions) if supervisor else 0

    async def leases(self) -> GroupDocument:
        group = await read_group(self.store, LAYOUT)
        assert group is not None
        return group


@asynccontextmanager
async def host(source: MemorySource | None = None, **settings: Any) -> AsyncIterator[Host]:
    Handler.opened_at, Handler.closed = [], []
    clock = VirtualClock("a")
    backend = Trouble(clock=clock)
    with structlog.testing.capture_logs() as logs:
        async with Processor(
            Handler, name="n", source=source or MemorySource(1), container=Store(backend, clock=clock), host="a",
            clock=clock, nudges=Nudges(), **settings,
        ) as processor:  # fmt: skip
            found = Host(processor, backend, clock, logs)
            await until(lambda: len(Handler.opened_at) == 1)
            yield found


async def until(condition: Callable[[], bool], within: float = 300.0) -> None:
    with anyio.fail_after(within):
        while not condition():
            await anyio.sleep(0.01)


def test_a_heartbeat_that_failed_is_tried_again_soon() -> None:
    async def main() -> None:
        async with host() as a:
            a.backend.refuse = UNAVAILABLE
            await a.until_told("supervisor.renew_failed")
            a.backend.refuse, before = None, a.backend.heartbeats
            await until(lambda: a.backend.heartbeats > before, within=13 / 4 + 0.1)
            before = a.backend.heartbeats
            await anyio.sleep(130)
            assert 9 <= a.backend.heartbeats - before <= 10

    run(main())


def test_a_heartbeat_that_is_refused_for_a_while_ends_no_host() -> None:
    """As while credentials are renewed."""

    async def main() -> None:
        async with host() as a:
            a.backend.refuse = StoreRefused("no heartbeat is taken")
            await a.until_told("supervisor.renew_failed")
            a.backend.refuse, before = None, a.backend.heartbeats
            await until(lambda: a.backend.heartbeats > before, within=13 / 4 + 0.1)
            assert a.runs() == len(Handler.opened_at) == 1

    run(main())


def test_a_fenced_host_starts_partitions_as_soon_as_it_has_renewed() -> None:
    async def main() -> None:
        async with host() as a:
            for _ in range(3):
                before = len(Handler.opened_at)
                a.backend.refuse = UNAVAILABLE
                await a.until_told("supervisor.fenced_itself")
                await anyio.sleep(100)
                assert len(Handler.opened_at) == before, "though looks still show its lease"
                assert a.runs() == 0
                a.backend.refuse = None
                await a.until_told("supervisor.renewed")
                await until(lambda: len(Handler.opened_at) == before + 1, within=0.5)  # noqa: B023

    run(main())


def test_a_look_that_a_fencing_has_overtaken_starts_nothing() -> None:
    async def main() -> None:
        async with host(lease_acquire_interval=5) as a:
            a.backend.refuse = UNAVAILABLE
            await anyio.sleep(25)
            a.backend.silent = anyio.Event()  # a look that begins now, before the fencing, ends after it
            await a.until_told("supervisor.fenced_itself")
            a.backend.silent.set()
            await anyio.sleep(30)
            assert len(Handler.opened_at) == 1
            a.backend.refuse = None
            await until(lambda: len(Handler.opened_at) == 2)

    run(main())


def test_a_host_that_was_removed_ends_its_partitions_at_once() -> None:
    async def main() -> None:
        async with host() as a:
            group = await a.leases()
            leases = {partition: lease._replace(owner=None) for partition, lease in group.leases.items()}
            before = a.backend.heartbeats
            await until(lambda: a.backend.heartbeats > before)  # so that a fencing is far
            a.backend.refuse = UNAVAILABLE
            await a.store.put(LAYOUT.group, GroupDocument.of({}, leases, put_id="another host").to_json())
            await a.until_told("supervisor.removed_from_group")
            await until(lambda: Handler.closed == [CloseReason.LOST], within=0.5)
            assert a.runs() == 0
            assert a.told("supervisor.fenced_itself") == 0
            a.backend.refuse = None
            await until(lambda: len(Handler.opened_at) == 2)

    run(main())


def test_a_host_that_wakes_after_its_processor_was_deleted_stops() -> None:
    async def main() -> None:
        with pytest.raises(Fenced, match="deleted, renamed or begun anew"):
            async with host() as a:
                leases = {p: lease._replace(owner=None) for p, lease in (await a.leases()).leases.items()}
                await a.store.delete(LAYOUT.origin)
                await a.store.put(LAYOUT.group, GroupDocument.of({}, leases, put_id="another host").to_json())
                await anyio.sleep(60)

    run(main())


def test_a_lease_that_left_and_came_back_between_looks_restarts_its_partition() -> None:
    async def main() -> None:
        async with host() as a:
            group = await a.leases()
            leases = {partition: lease._replace(epoch=lease.epoch + 2) for partition, lease in group.leases.items()}
            await a.store.put(LAYOUT.group, GroupDocument.of(group.members, leases, put_id="to b and back").to_json())
            await until(lambda: len(Handler.opened_at) == 2, within=20)
            assert Handler.closed == [CloseReason.LOST]
            supervisor = a.processor.statistics()
            assert [p.epoch for p in supervisor.partitions] == [lease.epoch for lease in leases.values()]

    run(main())


def test_the_source_is_asked_for_its_partitions_once_in_a_refresh_interval() -> None:
    class Counts(MemorySource):
        asked = 0

        async def partitions(self) -> Sequence[str | Partition]:
            Counts.asked += 1
            return await super().partitions()

    async def main() -> None:
        async with host(Counts(1)) as a:
            before = Counts.asked
            await anyio.sleep(1_000)
            assert 2 <= Counts.asked - before <= 4
            assert a.runs() == 1

    run(main())


def test_a_source_without_partitions_is_warned_of_once() -> None:
    async def main() -> None:
        clock = VirtualClock("a")
        with structlog.testing.capture_logs() as logs:
            async with Processor(
                Handler, name="n", source=MemorySource(0), container=Store(MemoryStore(clock=clock), clock=clock),
                clock=clock, nudges=Nudges(),
            ):  # fmt: skip
                await anyio.sleep(1_000)
        assert [log["event"] for log in logs].count("processor.no_partitions") == 1

    run(main())


def test_a_host_leaves_in_time_without_reading_the_group() -> None:
    async def main() -> None:
        async with host() as a:
            a.backend.silent = anyio.Event()
            stopped = anyio.current_time()
        assert anyio.current_time() - stopped <= 30 + 5 + 5 + 1, "max_handoff_time, and what leaving takes"
        assert Handler.closed == [CloseReason.STOPPING]

    run(main())


@pytest.mark.parametrize(("takes", "finishes"), [(25, True), (100, False)])
def test_a_stopping_host_lets_its_handler_finish_the_batch(takes: int, finishes: bool) -> None:
    async def main() -> None:
        source = MemorySource(1)
        async with host(source) as a:
            source.append("0", [str(takes).encode()])
            await anyio.sleep(2)
            stopped = anyio.current_time()
        assert anyio.current_time() - stopped == pytest.approx(23 if finishes else 30, abs=1.5)
        assert Handler.closed == [CloseReason.STOPPING if finishes else CloseReason.LOST]
        assert a.told("partition.drain_timed_out") == (0 if finishes else 1)
        supervisor = a.processor.statistics()
        assert supervisor.counts.records == (1 if finishes else 0)

    run(main())


def test_only_a_handler_without_progress_is_cancelled() -> None:
    async def main() -> None:
        source = MemorySource(1)
        async with host(source, max_process_time=100) as a:
            source.append("0", [b"90"])
            await anyio.sleep(1)
            source.append("0", [b"90"])
            await anyio.sleep(200)
            assert a.told("partition.stuck") == 0
            source.append("0", [b"10000"])
            await anyio.sleep(95)
            assert a.told("partition.stuck") == 0
            await anyio.sleep(100 / 4 + 10)
            assert a.told("partition.stuck") == 1
            await until(lambda: len(Handler.opened_at) == 2)

    run(main())


def test_a_look_that_is_refused_for_a_while_ends_no_host() -> None:
    """As while credentials are renewed."""

    async def main() -> None:
        async with host() as a:
            a.backend.hide = StoreRefused("the token has expired")
            await a.until_told("supervisor.look_failed")
            await anyio.sleep(40)
            a.backend.hide = None
            await anyio.sleep(60)
            did = a.processor.statistics()
            assert did.error is None
            assert a.runs() == len(Handler.opened_at) == 1

    run(main())


def test_looks_refused_for_longer_than_the_expiration_end_the_host() -> None:
    async def main() -> None:
        began = anyio.current_time()
        with pytest.raises(StoreRefused, match="the token has expired"):
            async with host() as a:
                a.backend.hide = StoreRefused("the token has expired")
                await anyio.sleep(1000)
        assert 60 < anyio.current_time() - began < 100

    run(main())


def test_a_host_stops_without_delay_while_looks_are_refused() -> None:
    async def main() -> None:
        async with host() as a:
            a.backend.hide = StoreRefused("the token has expired")
            stopped = anyio.current_time()
        assert anyio.current_time() - stopped < 20
        assert Handler.closed == [CloseReason.STOPPING]

    run(main())
