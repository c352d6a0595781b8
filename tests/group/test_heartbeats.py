"""A heartbeat: its content, how long it is valid, and late heartbeats."""

from __future__ import annotations

import os

import anyio
import pytest
from structlog.testing import capture_logs

from actorproc.errors import StoreUnavailable
from actorproc.group.group import Group
from actorproc.group.heartbeat import expiration_of, read_heartbeats
from actorproc.group.reports import HostReport
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.faults import Faults
from actorproc.simulation.loop import run
from actorproc.storage.backend import Stored
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from tests.group.simulated_group import SimulatedGroup, now

# A host may crash between starting a task and its first step. That is no fault of the task.
pytestmark = pytest.mark.filterwarnings("ignore:.*was never awaited")


def test_a_heartbeat_counts_from_before_its_request() -> None:
    async def main() -> None:
        slow = Faults(latency=(5, 5), slow=0, lost_request=0, lost_reply=0, late_write=0, busy=0)
        fleet = SimulatedGroup(1, faults=slow)
        group = fleet.group("a")
        assert group.fenced()
        start = now()
        await group.renew()
        assert now() - start == pytest.approx(5)
        assert group.valid_until() == pytest.approx(start + 0.8 * 60)
        await anyio.sleep(42)
        assert not group.fenced()
        await anyio.sleep(2)
        assert group.fenced()

    run(main())


def test_a_failing_heartbeat_ends_within_the_renew_interval() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(1)
        group = fleet.group("a")
        fleet.backend.outage(100)
        start = now()
        with pytest.raises(StoreUnavailable, match="no heartbeat written within 13 s"):
            await group.renew()
        assert now() - start <= 13
        assert group.fenced()

    run(main())


def test_a_heartbeat_says_who_it_is_and_differs_each_time() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(1)
        group = fleet.group("a")
        await group.renew(HostReport(partitions=3))
        await group.renew(HostReport(partitions=3))
        [(heartbeat, age)] = await read_heartbeats(fleet.reader(), fleet.layout)
        assert (heartbeat.host, heartbeat.incarnation, heartbeat.beat) == ("a", group.incarnation, 2)
        assert heartbeat.report == HostReport(partitions=3)
        assert heartbeat.pid == os.getpid()
        assert 0 <= age < 1
        await anyio.sleep(10)
        [(heartbeat, age)] = await read_heartbeats(fleet.reader(), fleet.layout)
        assert 10 <= age < 11
        await fleet.truth.put(fleet.layout.host("x", "1"), b"{}")
        with capture_logs() as logs:
            assert [beat.host for beat, _ in await read_heartbeats(fleet.reader(), fleet.layout)] == ["a"], (
                "it hides no other"
            )
        (told,) = (entry for entry in logs if entry["event"] == "heartbeat.unreadable")
        assert "x~1.json: is not a valid Heartbeat" in told["error"]

    run(main())


def test_a_late_heartbeat_of_an_earlier_incarnation_does_not_renew_the_next() -> None:
    async def main() -> None:
        slow = Faults(latency=(5, 5), slow=0, lost_request=0, lost_reply=0, late_write=0, busy=0)
        group = SimulatedGroup(1, faults=slow).group("a")
        await group.renew()
        assert not group.fenced()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(group.renew)
            await anyio.sleep(1)
            group.rejoin()
            assert group.fenced(), "no store has a heartbeat of this one"
        assert group.fenced()
        await group.renew()
        assert not group.fenced()

    run(main())


def test_a_heartbeat_is_not_written_after_its_host_has_left() -> None:
    class Slow(MemoryStore):
        async def put(self, key: str, body: bytes) -> str:
            await anyio.sleep(5)
            return await super().put(key, body)

    async def main() -> None:
        fleet, clock = SimulatedGroup(1), VirtualClock("a")
        store = Store(Slow(clock=clock), clock=clock)
        group = Group(store, fleet.layout, "a", fleet.settings, clock=clock)
        await group.renew()
        await group.look(fleet.listed)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(group.renew)
            await anyio.sleep(1)
            await group.leave()
        await anyio.sleep(30)
        assert await read_heartbeats(store, fleet.layout) == []

    run(main())


def test_a_heartbeat_that_goes_while_all_are_read_is_passed_over() -> None:
    class Goes(MemoryStore):
        async def get(self, key: str, *, unless: str | None = None, tail: int | None = None) -> Stored | None:
            if "gone" in key:
                return None
            return await super().get(key, unless=unless, tail=tail)

    async def main() -> None:
        fleet, clock = SimulatedGroup(1), VirtualClock("a")
        store = Store(Goes(clock=clock), clock=clock)
        for host in ("gone", "here"):
            await Group(store, fleet.layout, host, fleet.settings, clock=VirtualClock(host)).renew()
        assert [beat.host for beat, _ in await read_heartbeats(store, fleet.layout)] == ["here"]

    run(main())


@pytest.mark.parametrize("silence", ["inf", "nan", "0", "soon", ""])
def test_an_incarnation_without_an_expiration_gets_the_default(silence: str) -> None:
    assert expiration_of(("a", f"1f0c-{silence}s"), 60) == 60
    assert expiration_of(("a", "7"), 60) == 60
    assert expiration_of(("a", "1f0c-9.5s"), 60) == 9.5
