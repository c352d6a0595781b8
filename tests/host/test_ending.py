"""Running until the end, where other hosts have the partitions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
import structlog

from actorproc.group.assignment import Lease, Member
from actorproc.group.heartbeat import Heartbeat
from actorproc.group.membership import GroupDocument
from actorproc.host.end_progress import UntilEnd
from actorproc.host.run_until_end import Ending
from actorproc.host.supervisor import Supervisor
from actorproc.output.checkpoint import Checkpoint
from actorproc.records import Cursor
from actorproc.runtime.logger import get_logger
from actorproc.sources.protocol import End
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource
from actorproc.testing.simulation.clock import VirtualClock
from actorproc.testing.simulation.faults import LATENCY_ONLY, FaultyBackend
from actorproc.testing.simulation.loop import run

LAYOUT = ProcessorLayout("p")


class RemoteProgress:
    """A supervisor whose partitions all run on other hosts."""

    partitions: frozenset[str] = frozenset()

    def __init__(self, until_end: UntilEnd) -> None:
        self.until_end = until_end
        self.stopped = False

    def hopeless(self) -> dict[str, str]:
        return {}

    def statistics(self) -> Any:
        return SimpleNamespace(partitions=[])

    def stop(self) -> None:
        self.stopped = True


def test_a_damaged_checkpoint_of_another_hosts_partition_does_not_end_the_run_of_this_one() -> None:
    async def main() -> None:
        clock, source = VirtualClock("a"), MemorySource(2)
        memory = MemoryStore(clock=clock)
        ending = Ending(source, Store(memory, clock=clock), LAYOUT, get_logger(__name__))
        supervisor = RemoteProgress(await ending.find())
        await memory.put(LAYOUT.checkpoint("0"), b"{")
        await memory.put(LAYOUT.checkpoint("1"), Checkpoint(1, 0, Cursor("0")).to_json())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ending.watch, cast(Supervisor, supervisor))
            await clock.sleep(8)
            assert supervisor.until_end.reached == {"1"}
            await memory.put(LAYOUT.checkpoint("0"), Checkpoint(1, 0, Cursor("0")).to_json())
        assert supervisor.stopped

    run(main())


def test_a_partition_that_fails_beyond_its_end_keeps_nobody_from_waiting_for_those_of_other_hosts() -> None:
    class Failing(RemoteProgress):
        partitions = frozenset({"0"})

        def hopeless(self) -> dict[str, str]:
            return {"0": "failed 5 times"}

    async def main() -> None:
        clock, source = VirtualClock("a"), MemorySource(2)
        store = Store(MemoryStore(clock=clock), clock=clock)
        ending = Ending(source, store, LAYOUT, get_logger(__name__))
        supervisor = Failing(await ending.find())
        supervisor.until_end.note_reached("0")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ending.watch, cast(Supervisor, supervisor))
            await clock.sleep(60)
            assert not supervisor.stopped
            await store.create(LAYOUT.checkpoint("1"), Checkpoint(1, 0, Cursor("0")).to_json())
        ending.check(cast(Supervisor, supervisor))

    run(main())


def test_what_is_waited_for_elsewhere_is_told_now_and_then() -> None:
    async def main() -> list[Any]:
        clock, source = VirtualClock("a"), MemorySource(3)
        store = Store(MemoryStore(clock=clock), clock=clock)
        with structlog.testing.capture_logs() as logs:
            ending = Ending(source, store, LAYOUT, structlog.get_logger())
            supervisor = RemoteProgress(await ending.find())
            await store.put(LAYOUT.checkpoint("1"), Checkpoint(1, 0, Cursor("0")).to_json())
            with anyio.move_on_after(34):
                await ending.watch(cast(Supervisor, supervisor))
        return [entry["waiting_for"] for entry in logs if entry["event"] == "processor.waiting_for_end"]

    assert run(main()) == ["partitions 0, 2"] * 3


def test_a_partition_that_was_empty_and_has_grown_since_is_not_waited_for_for_ever() -> None:
    async def main() -> None:
        clock, source = VirtualClock("a"), MemorySource(1)
        store = Store(MemoryStore(clock=clock), clock=clock)
        ending = Ending(source, store, LAYOUT, get_logger(__name__))
        supervisor = RemoteProgress(await ending.find())
        assert supervisor.until_end.ends["0"].sequence is None
        source.append("0", [b"1", b"2"])
        await store.put(LAYOUT.checkpoint("0"), Checkpoint(1, 0, Cursor("1", 0)).to_json())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ending.watch, cast(Supervisor, supervisor))
            await clock.sleep(8)
            assert not supervisor.stopped, "the second record had come by the first look"
            source.append("0", [b"3"])
            await store.put(LAYOUT.checkpoint("0"), Checkpoint(1, 0, Cursor("2", 1)).to_json())
        assert supervisor.stopped

    run(main())


@pytest.mark.parametrize("cursor", [Cursor("0", 29), Cursor("0")])
def test_a_coarse_position_alone_is_no_sign_that_another_host_is_at_the_end(cursor: Cursor) -> None:
    class OnePage(MemorySource):
        """All that is there is in the page that is still growing."""

        async def end(self, partition: str) -> End:
            return End("0", 79)

        def sequence_before(self, partition: str, position: str) -> int | None:
            return None

    async def main() -> None:
        clock, source = VirtualClock("a"), OnePage(1)
        store = Store(MemoryStore(clock=clock), clock=clock)
        ending = Ending(source, store, LAYOUT, get_logger(__name__))
        supervisor = RemoteProgress(await ending.find())
        await store.put(LAYOUT.checkpoint("0"), Checkpoint(1, 0, cursor).to_json())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ending.watch, cast(Supervisor, supervisor))
            await clock.sleep(8)
            assert not supervisor.stopped
            await store.put(LAYOUT.checkpoint("0"), Checkpoint(1, 0, Cursor("0", 79)).to_json())
        assert supervisor.stopped

    run(main())


def test_what_other_hosts_have_reached_is_seen_soon_and_not_asked_without_pause_though_there_are_many() -> None:
    async def main() -> None:
        clock, source = VirtualClock("a"), MemorySource(400)
        memory = MemoryStore(clock=clock)
        slow: Any = FaultyBackend(memory, LATENCY_ONLY)
        store = Store(slow, clock=clock)
        ending = Ending(source, store, LAYOUT, get_logger(__name__))
        run_until = await ending.find()
        for partition in run_until.ends:
            await memory.put(LAYOUT.checkpoint(partition), Checkpoint(1, 0, Cursor("0")).to_json())
        late = LAYOUT.checkpoint("7")
        await memory.put(late, Checkpoint(1, 0, Cursor("-1")).to_json())
        supervisor = RemoteProgress(run_until)
        began = clock.monotonic()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ending.watch, cast(Supervisor, supervisor))
            await clock.sleep(8)
            assert len(supervisor.until_end.reached) == 399
            await memory.put(late, Checkpoint(1, 0, Cursor("0")).to_json())
        assert supervisor.stopped
        assert clock.monotonic() - began < 9.5
        assert sum(store.requests.values()) < 900

    run(main())


def test_what_has_failed_elsewhere_is_waited_for_once_it_has_come_here() -> None:
    async def main() -> None:
        clock, source = VirtualClock("a"), MemorySource(2)
        store = Store(MemoryStore(clock=clock), clock=clock)
        ending = Ending(source, store, LAYOUT, get_logger(__name__))
        supervisor = RemoteProgress(await ending.find())
        supervisor.partitions = frozenset("0")
        members, leases = {"b": Member("1")}, {"0": Lease("a", 1), "1": Lease("b", 1)}
        await store.put(LAYOUT.group, GroupDocument(members, leases).to_json())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ending.watch, cast(Supervisor, supervisor))
            for number in range(40):
                beat = Heartbeat("b", "1", None, 1, 0.0, 0.0, number, {"failing": {}, "hopeless": ["1"]})
                await store.put(LAYOUT.host("b", "1"), beat.to_json())
                await clock.sleep(1)
            assert ending._elsewhere.hopeless.keys() == {"1"}
            supervisor.partitions = frozenset("01")
            supervisor.until_end.note_reached("0")
            await clock.sleep(8)
            assert not supervisor.stopped
            supervisor.until_end.note_reached("1")
        assert supervisor.stopped

    run(main())
