"""Running until the end, where other hosts have the partitions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anyio
import pytest
import structlog

from actorproc.errors import EndNotReached
from actorproc.group.assignment import Lease, Member
from actorproc.group.heartbeat import Heartbeat
from actorproc.group.membership import GroupDocument
from actorproc.group.reports import HostReport
from actorproc.host.run_until_end import RunUntilEnd
from actorproc.output.checkpoint import Checkpoint
from actorproc.records import Cursor
from actorproc.runtime.changes import Changes
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.faults import LATENCY_ONLY, FaultyBackend
from actorproc.simulation.loop import run
from actorproc.sources.protocol import End
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource

LAYOUT = ProcessorLayout("p")


class OwnedPartitions(dict[str, Any]):
    """The partitions of this host, none of which runs."""

    changes: Changes
    rows_lost: dict[str, str]


class StubSupervisor:
    """A supervisor that runs nothing itself."""

    def __init__(self) -> None:
        self.partitions = OwnedPartitions()
        self.partitions.changes, self.partitions.rows_lost = Changes(), {}
        self.stopped = False
        self.closed = None

    def own(self, partition: str, failed: str | None = None) -> None:
        self.partitions[partition] = SimpleNamespace(actor=None, failed_for_good=lambda: failed)
        self.partitions.changes.add(partition)

    def stop(self) -> None:
        self.stopped = True


async def started(source: MemorySource, store: Store) -> tuple[RunUntilEnd, Any]:
    run_until_end = RunUntilEnd(source, store, LAYOUT, "host-1", structlog.get_logger())
    await run_until_end.ends.take()
    return run_until_end, StubSupervisor()


def test_a_corrupt_checkpoint_on_another_host_does_not_end_the_run() -> None:
    async def main() -> None:
        clock, source = VirtualClock("a"), MemorySource(2)
        memory = MemoryStore(clock=clock)
        ending, supervisor = await started(source, Store(memory, clock=clock))
        await memory.put(LAYOUT.checkpoint("0"), b"{")
        await memory.put(LAYOUT.checkpoint("1"), Checkpoint(1, 0, Cursor("0")).to_json())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ending.watch, supervisor)
            await clock.sleep(8)
            assert ending.ends.waiting == {"0"}
            await memory.put(LAYOUT.checkpoint("0"), Checkpoint(1, 0, Cursor("0")).to_json())
        assert supervisor.stopped

    run(main())


@pytest.mark.parametrize("followed", [True, False])
def test_partitions_replaced_before_they_were_begun_are_not_waited_for(followed: bool) -> None:
    async def main() -> None:
        clock, source = VirtualClock("a"), MemorySource(1)
        source.append("0", [b"1"])
        memory = MemoryStore(clock=clock)
        ending, supervisor = await started(source, Store(memory, clock=clock))
        source.unlist("0")
        if followed:
            source.add_partition("1", parents=["0"])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ending.watch, supervisor)
            await clock.sleep(2)
            assert ending.ends.waiting == ({"1"} if followed else set())
            await memory.put(LAYOUT.checkpoint("1"), Checkpoint(1, 0, Cursor("0")).to_json())
        assert supervisor.stopped
        if not followed:
            with pytest.raises(EndNotReached, match="partition 0: the source lists it no more"):
                ending.check()

    run(main())


def test_a_failure_beyond_the_end_does_not_end_the_wait() -> None:
    async def main() -> None:
        clock, source = VirtualClock("a"), MemorySource(2)
        store = Store(MemoryStore(clock=clock), clock=clock)
        ending, supervisor = await started(source, store)
        supervisor.own("0", failed="failed 5 times")
        ending.ends.waiting.discard("0")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ending.watch, supervisor)
            await clock.sleep(60)
            assert not supervisor.stopped
            await store.create(LAYOUT.checkpoint("1"), Checkpoint(1, 0, Cursor("0")).to_json())
        ending.check()

    run(main())


def test_partitions_awaited_on_other_hosts_are_logged_now_and_then() -> None:
    async def main() -> list[Any]:
        clock, source = VirtualClock("a"), MemorySource(3)
        store = Store(MemoryStore(clock=clock), clock=clock)
        with structlog.testing.capture_logs() as logs:
            ending, supervisor = await started(source, store)
            await store.put(LAYOUT.checkpoint("1"), Checkpoint(1, 0, Cursor("0")).to_json())
            with anyio.move_on_after(34):
                await ending.watch(supervisor)
        return [entry["elsewhere"] for entry in logs if entry["event"] == "processor.waiting_for_end"]

    assert run(main()) == ["partitions 0, 2"] * 3


def test_a_grown_partition_does_not_extend_the_run() -> None:
    async def main() -> None:
        clock, source = VirtualClock("a"), MemorySource(1)
        store = Store(MemoryStore(clock=clock), clock=clock)
        ending, supervisor = await started(source, store)
        assert (await source.end("0")).sequence is None
        source.append("0", [b"1", b"2"])
        await store.put(LAYOUT.checkpoint("0"), Checkpoint(1, 0, Cursor("1", 0)).to_json())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ending.watch, supervisor)
            await clock.sleep(8)
            assert not supervisor.stopped, "the second record had come by the first look"
            source.append("0", [b"3"])
            await store.put(LAYOUT.checkpoint("0"), Checkpoint(1, 0, Cursor("2", 1)).to_json())
        assert supervisor.stopped

    run(main())


@pytest.mark.parametrize("cursor", [Cursor("0", 29), Cursor("0")])
def test_a_coarse_position_does_not_prove_the_end(cursor: Cursor) -> None:
    class OnePage(MemorySource):
        """All that is there is in the page that is still growing."""

        async def end(self, partition: str) -> End:
            return End("0", 79)

        def sequence_before(self, partition: str, position: str) -> int | None:
            return None

    async def main() -> None:
        clock, source = VirtualClock("a"), OnePage(1)
        store = Store(MemoryStore(clock=clock), clock=clock)
        ending, supervisor = await started(source, store)
        await store.put(LAYOUT.checkpoint("0"), Checkpoint(1, 0, cursor).to_json())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ending.watch, supervisor)
            await clock.sleep(8)
            assert not supervisor.stopped
            await store.put(LAYOUT.checkpoint("0"), Checkpoint(1, 0, Cursor("0", 79)).to_json())
        assert supervisor.stopped

    run(main())


def test_checkpoints_of_other_hosts_are_read_with_pauses() -> None:
    async def main() -> None:
        clock, source = VirtualClock("a"), MemorySource(400)
        memory = MemoryStore(clock=clock)
        slow: Any = FaultyBackend(memory, LATENCY_ONLY)
        store = Store(slow, clock=clock)
        ending, supervisor = await started(source, store)
        for partition in ending.ends.waiting:
            await memory.put(LAYOUT.checkpoint(partition), Checkpoint(1, 0, Cursor("0")).to_json())
        late = LAYOUT.checkpoint("7")
        await memory.put(late, Checkpoint(1, 0, Cursor("-1")).to_json())
        began = clock.monotonic()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ending.watch, supervisor)
            await clock.sleep(8)
            assert ending.ends.waiting == {"7"}
            await memory.put(late, Checkpoint(1, 0, Cursor("0")).to_json())
        assert supervisor.stopped
        assert clock.monotonic() - began < 9.5
        assert sum(store.requests.values()) < 900

    run(main())


def test_a_partition_that_failed_elsewhere_is_awaited_once_it_runs_here() -> None:
    async def main() -> None:
        clock, source = VirtualClock("a"), MemorySource(2)
        store = Store(MemoryStore(clock=clock), clock=clock)
        ending, supervisor = await started(source, store)
        supervisor.own("0")
        members, leases = {"b": Member("1")}, {"0": Lease("a", 1), "1": Lease("b", 1)}
        await store.put(LAYOUT.group, GroupDocument.of(members, leases).to_json())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ending.watch, supervisor)
            for number in range(40):
                beat = Heartbeat("b", "1", None, 1, 0.0, 0.0, number, HostReport(failed_for_good=("1",)))
                await store.put(LAYOUT.host("b", "1"), beat.to_json())
                await clock.sleep(1)
            supervisor.own("1")
            ending.ends.waiting.discard("0")
            await clock.sleep(8)
            assert not supervisor.stopped
            ending.ends.waiting.discard("1")
        assert supervisor.stopped

    run(main())
