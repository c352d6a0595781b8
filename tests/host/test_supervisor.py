"""The supervisor of a host in trouble, seen through `Processor`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, MutableMapping, Sequence
from contextlib import asynccontextmanager
from itertools import groupby
from typing import Any, ClassVar

import anyio
import pytest
import structlog

from actorproc import Batch, Partition, PartitionContext, PartitionHandler, Processor
from actorproc.errors import CorruptObject, StoreUnavailable
from actorproc.group.assignment import Member
from actorproc.group.heartbeat import read_heartbeats
from actorproc.group.membership import GroupDocument, read_group
from actorproc.handler.base import CloseReason
from actorproc.handler.info import PartitionInfo
from actorproc.records import warm_up
from actorproc.runtime.clock import Clock
from actorproc.runtime.nudge import Nudges
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.sources.protocol import Chunk
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource

QUICK: dict[str, Any] = {
    "lease_acquire_interval": 0.2,
    "lease_renew_interval": 0.1,
    "lease_expiration_interval": 1.0,
}


class Nothing(PartitionHandler):
    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        pass


class HeartbeatsRefused(MemoryStore):
    """A store that takes no heartbeat while `refusing`."""

    refusing = False

    async def put(self, key: str, body: bytes) -> str:
        if self.refusing and "/hosts/" in key:
            raise StoreUnavailable("no heartbeat is taken")
        return await super().put(key, body)


async def until_it_runs(processor: Processor, partitions: int) -> None:
    def running() -> int:
        supervisor = processor.statistics()
        return len(supervisor.partitions) if supervisor else 0

    with anyio.fail_after(60):
        while running() != partitions:
            await anyio.sleep(0.01)


async def test_a_host_that_was_removed_joins_again_once_it_can_renew() -> None:
    backend = HeartbeatsRefused()
    store, layout = Store(backend), ProcessorLayout("Nothing")
    with structlog.testing.capture_logs() as logs:
        async with Processor(Nothing, source=MemorySource(3), container=store, host="a", **QUICK) as processor:
            await until_it_runs(processor, 3)
            backend.refusing = True
            group = await read_group(store, layout)
            assert group is not None
            leases = {partition: lease._replace(owner=None) for partition, lease in group.leases.items()}
            await store.put(layout.group, GroupDocument.of({}, leases, put_id="another host").to_json())
            with anyio.fail_after(60):
                while "supervisor.renew_failed" not in (events := [log["event"] for log in logs])[removed(events) :]:
                    await anyio.sleep(0.01)
            await until_it_runs(processor, 0)
            backend.refusing = False
            await until_it_runs(processor, 3)


def removed(events: list[str]) -> int:
    """Index of the event that says so; the end if there is none."""
    return events.index("supervisor.removed_from_group") if "supervisor.removed_from_group" in events else len(events)


class SlowImports(Clock):
    """The imports that are made at the start take until `imported`."""

    imported: anyio.Event

    async def run_in_thread(self, work: Callable[..., Any], *args: object, **how: Any) -> Any:
        if work is warm_up:
            await self.imported.wait()
        return await super().run_in_thread(work, *args, **how)


async def test_a_host_joins_the_group_while_it_still_imports() -> None:
    clock, store, layout = SlowImports(), Store(MemoryStore()), ProcessorLayout("Nothing")
    clock.imported = anyio.Event()
    opened: list[str] = []

    class Opens(Nothing):
        async def opened(self, ctx: PartitionInfo) -> None:
            opened.append(ctx.partition)

    async with Processor(
        Opens, name="Nothing", source=MemorySource(3), container=store, host="a", clock=clock, **QUICK
    ):
        try:
            with anyio.fail_after(10):
                while (group := await read_group(store, layout)) is None or len(group.leases) < 3:
                    await anyio.sleep(0.01)
            await anyio.sleep(0.2)
            assert not opened
        finally:
            clock.imported.set()
        with anyio.fail_after(60):
            while len(opened) < 3:
                await anyio.sleep(0.01)


class SlowToClose(PartitionHandler):
    """Takes its time for `closing`."""

    alive = 0
    most_alive = 0
    closing_now = 0
    closed = 0

    async def opened(self, ctx: PartitionInfo) -> None:
        kind = type(self)
        kind.alive += 1
        kind.most_alive = max(kind.alive, kind.most_alive)

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        pass

    async def closing(self, ctx: PartitionInfo, reason: CloseReason) -> None:
        type(self).closing_now += 1
        await anyio.sleep(9)
        type(self).closing_now -= 1
        type(self).alive -= 1
        type(self).closed += 1


@asynccontextmanager
async def slow_to_close(backend: MemoryStore, clock: VirtualClock) -> AsyncIterator[type[SlowToClose]]:
    """A host with one partition, in virtual time."""

    class Handler(SlowToClose):
        pass

    store, nudges = Store(backend, clock=clock), Nudges()
    async with Processor(
        Handler, name="slow", source=MemorySource(1), container=store, host="a", clock=clock, nudges=nudges
    ):
        await until(lambda: Handler.alive == 1)
        yield Handler


async def until(condition: Callable[[], bool], within: float = 300.0) -> None:
    with anyio.fail_after(within):
        while not condition():
            await anyio.sleep(0.01)


def test_a_partition_whose_closing_outlasts_a_fencing_restarts_at_once() -> None:
    async def main() -> None:
        clock = VirtualClock("a")
        backend = HeartbeatsRefused(clock=clock)
        with structlog.testing.capture_logs() as logs:
            async with slow_to_close(backend, clock) as handler:
                for _ in range(3):
                    closed = handler.closed
                    logs.clear()
                    backend.refusing = True
                    await until(lambda: "supervisor.fenced_itself" in [log["event"] for log in logs])
                    backend.refusing = False
                    await until(lambda: "supervisor.renewed" in [log["event"] for log in logs])
                    assert handler.closed == closed
                    await until(lambda: handler.closed == closed + 1)  # noqa: B023
                    await until(lambda: handler.alive == 1, within=1.0)
                assert handler.most_alive == 1

    run(main())


def test_a_returning_partition_waits_for_its_old_instance() -> None:
    async def main() -> None:
        clock = VirtualClock("a")
        backend = MemoryStore(clock=clock)
        store, layout = Store(backend, clock=clock), ProcessorLayout("slow")
        async with slow_to_close(backend, clock) as handler:
            group = await read_group(store, layout)
            assert group is not None
            leases = {partition: lease._replace(owner=None) for partition, lease in group.leases.items()}
            await store.put(layout.group, GroupDocument.of({}, leases, put_id="another host").to_json())
            await until(lambda: handler.closed == 1)
            await until(lambda: handler.alive == 1, within=1.0)
            assert handler.most_alive == 1

    run(main())


def test_a_partition_whose_move_is_called_off_restarts_at_once() -> None:
    async def main() -> None:
        clock = VirtualClock("a")
        backend = MemoryStore(clock=clock)
        store, layout = Store(backend, clock=clock), ProcessorLayout("slow")
        async with slow_to_close(backend, clock) as handler:
            before = await read_group(store, layout)
            assert before is not None
            marked = {partition: lease._replace(next="b") for partition, lease in before.leases.items()}
            members = {**before.members, "b": Member("of b")}
            await store.put(layout.group, GroupDocument.of(members, marked, put_id="b has come").to_json())
            await until(lambda: handler.closing_now == 1)
            await store.put(
                layout.group, GroupDocument.of(before.members, before.leases, put_id="b has gone").to_json()
            )
            await until(lambda: handler.closed == 1)
            await until(lambda: handler.alive == 1, within=1.0)

    run(main())


def test_statistics_show_a_partition_until_its_handover() -> None:
    class TakesItsTime(PartitionHandler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            await anyio.sleep(5)

        async def closing(self, ctx: PartitionInfo, reason: CloseReason) -> None:
            await anyio.sleep(2 if ctx.partition == "0" else 8)

    async def main() -> None:
        clock = VirtualClock("a")
        source = MemorySource(2)
        source.append("0", [b"1"])
        states: list[str] = []
        async with Processor(
            TakesItsTime, name="slow", source=source, container=Store(MemoryStore(clock=clock), clock=clock), host="a",
            clock=clock, nudges=Nudges(),
        ) as processor:  # fmt: skip
            for second in range(1200):
                await anyio.sleep(0.01)
                if second == 200:
                    processor.stop()
                supervisor = processor.statistics()
                states += [p.state for p in supervisor.partitions if p.partition == "0"] if supervisor else []
        assert [state for state, _ in groupby(states)] == ["running", "closing", "released"]

    run(main())


def test_a_host_joins_after_its_first_heartbeat_has_hung() -> None:
    class Hangs(MemoryStore):
        async def put(self, key: str, body: bytes) -> str:
            if "/hosts/" in key and clock.monotonic() < free[0]:
                await anyio.sleep(free[0] - clock.monotonic())
            return await super().put(key, body)

    async def main() -> None:
        free.append(clock.monotonic() + 30)
        store = Store(Hangs(clock=clock), clock=clock)
        async with Processor(
            Nothing, name="n", source=MemorySource(1), container=store, host="a", clock=clock, nudges=Nudges()
        ) as processor:
            await until(lambda: bool((did := processor.statistics()) and did.partitions))
            assert clock.monotonic() >= free[0]

    free: list[float] = []
    clock = VirtualClock("a")
    run(main())


def test_a_host_joins_once_the_store_takes_its_heartbeat() -> None:
    async def main() -> None:
        clock = VirtualClock("a")
        backend = HeartbeatsRefused(clock=clock)
        backend.refusing = True
        async with Processor(
            Nothing, name="n", source=MemorySource(1), container=Store(backend, clock=clock), host="a", clock=clock,
            nudges=Nudges(),
        ) as processor:  # fmt: skip
            await clock.sleep(600)
            assert processor.statistics().error == "requests to the store fail: no heartbeat is taken"
            backend.refusing = False
            await until(lambda: bool(own(processor)))
            assert processor.statistics().error is None

    run(main())


def test_a_host_that_cannot_join_stops_when_asked() -> None:
    async def main() -> None:
        clock = VirtualClock("a")
        backend = HeartbeatsRefused(clock=clock)
        backend.refusing = True
        with anyio.fail_after(120):
            async with Processor(
                Nothing, name="n", source=MemorySource(1), container=Store(backend, clock=clock), host="a",
                clock=clock, nudges=Nudges(),
            ):  # fmt: skip
                await clock.sleep(30)

    run(main())


def own(processor: Processor) -> int:
    """How many partitions are there."""
    supervisor = processor.statistics()
    return len(supervisor.partitions) if supervisor else 0


class Away(MemorySource):
    """It cannot list its partitions while it is `away`, for a reason that is `why`."""

    away = True
    why = "db away"

    async def partitions(self) -> Sequence[str | Partition]:
        if self.away:
            raise ConnectionError(self.why)
        return await super().partitions()


def test_a_failing_listing_of_partitions_is_reported_until_it_works() -> None:
    async def main() -> None:
        clock, source = VirtualClock("a"), Away(1)
        store, layout = Store(MemoryStore(clock=clock), clock=clock), ProcessorLayout("Nothing")
        async with Processor(Nothing, source=source, container=store, clock=clock, nudges=Nudges()) as processor:

            def error() -> str | None:
                supervisor = processor.statistics()
                return supervisor.error if supervisor else None

            async def told() -> object:
                ((beat, _),) = await read_heartbeats(store, layout)
                return beat.report.error

            await until(lambda: error() is not None)
            assert (error() or "").startswith("partitions() of the source Away failed: ConnectionError: db away (in ")
            await anyio.sleep(30)
            assert await told() == error()
            source.away = False
            await until(lambda: error() is None)
            await anyio.sleep(30)
            assert await told() is None
            source.away, source.why = True, "x" * 10_000  # known partitions go on
            await anyio.sleep(1_000)
            assert error() is None

    run(main())


def test_a_moving_lease_that_does_not_run_is_handed_over_at_once() -> None:
    """As if the same look that would have started the partition found the mark."""

    async def main() -> None:
        clock = VirtualClock("a")
        store, layout = Store(MemoryStore(clock=clock), clock=clock), ProcessorLayout("slow")
        both: dict[str, Any] = {"source": MemorySource(2), "container": store, "nudges": Nudges(), "name": "slow"}
        async with (
            Processor(Nothing, host="a", clock=clock, **both) as a,
            Processor(Nothing, host="b", clock=VirtualClock("b"), **both) as b,
        ):
            await until(lambda: (own(a), own(b)) == (1, 1))
            before = await read_group(store, layout)
            assert before is not None
            [mine] = (partition for partition, lease in before.leases.items() if lease.owner == "b")
            (other,) = set(before.leases) - {mine}
            swapped = {
                mine: before.leases[mine]._replace(owner="a", epoch=before.leases[mine].epoch + 1, next="b"),
                other: before.leases[other],
            }
            began = clock.monotonic()
            await store.put(
                layout.group, GroupDocument.of(before.members, swapped, put_id="given and taken back").to_json()
            )
            with anyio.fail_after(120):
                while True:
                    now = await read_group(store, layout)
                    assert now is not None
                    if now.leases[mine].owner == "b":
                        break
                    await anyio.sleep(0.1)
            assert clock.monotonic() - began < 25, "a look later, not max_handoff_time"

    run(main())


def test_failing_looks_are_errors_only_after_the_expiration() -> None:
    async def main() -> None:
        clock, source = VirtualClock("a"), Away(1)
        store = Store(MemoryStore(clock=clock), clock=clock)
        with structlog.testing.capture_logs() as logs:
            async with Processor(Nothing, source=source, container=store, clock=clock, nudges=Nudges()):
                await anyio.sleep(200)
                source.why = "no such table"
                await anyio.sleep(10)
                source.away = False
                await anyio.sleep(100)
        told = [log for log in logs if log["event"] == "supervisor.look_failed"]
        assert {log["log_level"] for log in told if log["seconds"] <= 60} == {"warning"}
        assert {log["log_level"] for log in told if log["seconds"] > 60} == {"error"}
        assert told[0]["seconds"] == 0
        assert told[-1]["seconds"] > 190
        assert 15 < len(told) < 22, "at most every ten seconds, and at once where the level or the error is another"
        assert 40 < sum(log["times"] for log in told) < 60, "each is counted: one in about four seconds"
        assert any("no such table" in log["error"] for log in told)

    run(main())


def test_a_source_whose_partitions_hangs_is_reported_and_leases_still_move() -> None:
    class Hangs(MemorySource):
        hanging = False

        async def partitions(self) -> Sequence[str | Partition]:
            if self.hanging:
                await anyio.sleep_forever()
            return await super().partitions()

    async def main() -> None:
        clock, source = VirtualClock("a"), Hangs(2)
        store = Store(MemoryStore(clock=clock), clock=clock)
        both: dict[str, Any] = {
            "source": source,
            "container": store,
            "nudges": Nudges(),
            "partition_refresh_interval": 1,
        }
        with structlog.testing.capture_logs() as logs:
            source.hanging = True
            async with Processor(Nothing, host="a", clock=clock, **both) as first:
                await anyio.sleep(60)
                told = first.statistics()
                assert told.error == "partitions() of the source has not answered within 15 s (store_timeout)"
                source.hanging = False
                await until(lambda: own(first) == 2)
                source.hanging = True
                await anyio.sleep(60)
                source.hanging = False
                async with Processor(Nothing, host="b", clock=VirtualClock("b"), **both) as second:
                    await anyio.sleep(1)
                    source.hanging = True
                    with anyio.fail_after(90):
                        await until(lambda: (own(first), own(second)) == (1, 1))
        events = {log["event"] for log in logs}
        assert {"supervisor.look_failed", "supervisor.partitions_failed"} <= events

    run(main())


def test_a_repeated_failure_is_logged_every_ten_seconds_with_its_count() -> None:
    class Fails(Nothing):
        why = "no database"
        failed = 0

        async def opened(self, ctx: PartitionInfo) -> None:
            Fails.failed += 1
            raise RuntimeError(self.why)

    async def main() -> None:
        clock = VirtualClock("a")
        store = Store(MemoryStore(clock=clock), clock=clock)
        with structlog.testing.capture_logs() as logs:
            async with Processor(
                Fails, source=MemorySource(1), container=store, clock=clock, nudges=Nudges(), restart_backoff_max=0.5
            ):
                await anyio.sleep(100)
                failed, told = Fails.failed, [log for log in logs if log["event"] == "partition.failed"]
                assert failed > 150
                assert 8 <= len(told) <= 11
                assert all("no database" in log["error"] for log in told)
                assert [bool(log["exc_info"]) for log in told] == [True] + [False] * (len(told) - 1)
                assert told[0]["times"] == 1
                assert failed - 40 < sum(log["times"] for log in told) <= failed
                Fails.why = "no such table"
                await anyio.sleep(1)
                assert "no such table" in [log for log in logs if log["event"] == "partition.failed"][-1]["error"]

    run(main())


@pytest.mark.parametrize("stop", [False, True])
def test_a_damaged_group_document_is_reported_and_ends_no_host(stop: bool) -> None:
    async def main() -> None:
        clock = VirtualClock("a")
        store, layout = Store(MemoryStore(clock=clock), clock=clock), ProcessorLayout("n")
        source = MemorySource(1)
        processor = Processor(Counts, name="n", source=source, container=store, host="a", clock=clock, nudges=Nudges())
        async with processor:
            await until_it_runs(processor, 1)
            whole = await store.get(layout.group)
            assert whole is not None
            await store.put(layout.group, b"{}")
            await anyio.sleep(100)
            source.append("0", [b"1"])
            did = processor.statistics()
            assert did.error is not None
            assert "n/group.json" in did.error
            await anyio.sleep(20)
            if not stop:
                await store.put(layout.group, whole.body)
                await anyio.sleep(100)
                did = processor.statistics()
                assert (did.error, [p.state for p in did.partitions]) == (None, ["running"])
            stopped = clock.monotonic()
        assert clock.monotonic() - stopped < 20, "nobody need wait for who mends it"
        assert Counts.records == 1
        assert Counts.closed == [CloseReason.STOPPING]

    class Counts(PartitionHandler):
        records = 0
        closed: ClassVar[list[CloseReason]] = []

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            Counts.records += len(batch)

        async def closing(self, ctx: PartitionInfo, reason: CloseReason) -> None:
            self.closed.append(reason)

    run(main())


def test_a_damaged_group_document_is_named_where_a_host_begins() -> None:
    async def main() -> None:
        clock = VirtualClock("a")
        store = Store(MemoryStore(clock=clock), clock=clock)
        await store.put(ProcessorLayout("n").group, b"{}")
        with pytest.raises(CorruptObject, match=r"n/group\.json"):
            await Processor(
                Nothing, name="n", source=MemorySource(1), container=store, host="a", clock=clock, nudges=Nudges()
            ).run()

    run(main())


async def logged(source: MemorySource, memory: type[MemoryStore], seconds: float) -> list[MutableMapping[str, Any]]:
    """The log events of a host that is stopped `seconds` after its one partition runs."""
    clock = VirtualClock("a")
    container = Store(memory(clock=clock), clock=clock)
    with structlog.testing.capture_logs() as logs:
        async with Processor(Nothing, source=source, container=container, clock=clock, nudges=Nudges()) as processor:
            await until_it_runs(processor, 1)
            await anyio.sleep(seconds)
    return logs


def test_a_drain_that_waits_for_the_source_blames_no_handler() -> None:
    class Blocked(MemorySource):
        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            async for chunk in super().read(partition, position):
                yield chunk
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(100)

    async def main() -> None:
        source = Blocked(1)
        source.append("0", [b"1"])
        logs = await logged(source, MemoryStore, 50)
        (told,) = (entry["why"] for entry in logs if entry["event"] == "partition.drain_timed_out")
        assert told == "the source's read() has not ended: a thread of it may be blocked"

    run(main())


@pytest.mark.parametrize("stop_after", [47.0, 47.5])
def test_a_stop_that_takes_its_time_is_no_lost_lease(stop_after: float) -> None:
    class Slow(MemoryStore):
        async def delete(self, key: str) -> None:
            await anyio.sleep(2)
            await super().delete(key)

    async def main() -> None:
        logs = await logged(MemorySource(1), Slow, stop_after)
        assert "supervisor.fenced_itself" not in [entry["event"] for entry in logs]

    run(main())
