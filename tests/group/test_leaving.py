"""Hosts that leave hand their leases over and remove themselves. No remains bring them back."""

from __future__ import annotations

import anyio
import pytest
import structlog

from actorproc.errors import RemovedFromGroup
from actorproc.group.heartbeat import read_heartbeats
from actorproc.simulation.loop import run
from actorproc.storage.backend import Listing
from tests.group.simulated_group import SimulatedGroup, now

# A host may crash between starting a task and its first step. That is no fault of the task.
pytestmark = pytest.mark.filterwarnings("ignore:.*was never awaited")


def test_a_pending_renewal_ends_when_the_host_leaves() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(1)
        group = fleet.group("a")
        await group.renew()
        await group.look(fleet.listed)
        fleet.backend.outage(10)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(group.renew)
            await anyio.sleep(0.1)
            tasks.start_soon(group.leave)
        await group.renew()
        await anyio.sleep(30)
        assert fleet.members == set()
        [(heartbeat, _)] = await read_heartbeats(fleet.reader(), fleet.layout)  # the outage saved it from removal
        assert heartbeat.beat == 1
        assert group.fenced()

    run(main())


def test_a_stop_leaves_a_gap_of_less_than_a_second() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(9)
        nodes = {name: fleet.start(name, drain=0.1) for name in "abc"}
        await fleet.until_even(*"abc", within=60)
        await anyio.sleep(60)
        moving = fleet.of("b")
        start = now()
        await nodes["b"].stop()
        assert now() - start < 1
        assert fleet.is_even("a", "c")
        await fleet.until(
            lambda: moving <= {p for name in "ac" for p in nodes[name].holds()}, start + 1 - now(), "taken over"
        )
        assert sorted(await fleet.heartbeats()) == ["a", "c"]
        owners = [v.document.leases[p].owner for v in fleet.versions if v.at > start for p in moving]
        assert None not in owners, "never without an owner"
        fleet.check_steps()

    run(main())


def test_a_stop_is_one_log_line_with_all_that_was_handed_over() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(9)
        a, b = fleet.group("a"), fleet.group("b")
        await b.renew()
        mine = sorted((await b.look(fleet.listed)).mine)
        assert len(mine) == 9
        await a.renew()
        await a.look(fleet.listed)
        before = len(logs)
        b.retire()
        await b.look(fleet.listed)
        for partition in mine[:6]:
            await b.hand_over([partition])
        await b.leave()
        told = [log for log in logs[before:] if log["event"] == "group.written"]
        assert [log["log_level"] for log in told] == ["debug"] * 7 + ["info"]
        assert [host for host, _ in told[-1]["out"]] == ["b"]
        assert (told[-1]["moves"], told[-1]["why"]) == (9, {"b handed it over": 6, "b left": 3})

    with structlog.testing.capture_logs() as logs:
        run(main())


def test_after_the_last_host_has_stopped_the_next_one_starts_at_once() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(4)
        node = fleet.start("a")
        await fleet.until_even("a", within=2)
        await node.stop()
        assert fleet.members == set()
        assert {lease.owner for lease in fleet.leases.values()} == {None}
        assert await fleet.heartbeats() == []
        fleet.start("b")
        assert await fleet.until_even("b", within=2) < 1
        assert {lease.epoch for lease in fleet.leases.values()} == {2}

    run(main())


def test_a_late_heartbeat_does_not_bring_a_host_back() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(4)
        a, b = fleet.start("a"), fleet.start("b")
        await fleet.until_even("a", "b", within=60)
        assert b.group is not None
        key = fleet.layout.host("b", b.group.incarnation)
        late = await fleet.truth.get(key)
        assert late is not None
        await b.stop()
        await fleet.truth.put(key, late.body)
        versions = len(fleet.versions)
        await anyio.sleep(20)
        assert fleet.members == {"a"}
        assert len(fleet.versions) == versions
        assert len(a.holds()) == 4

    run(main())


def test_a_host_that_leaves_before_it_was_in_is_not_written_in() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(4)
        stays, leaves = fleet.group("a"), fleet.group("b")
        await stays.renew()
        await stays.look(fleet.listed)
        await leaves.renew()
        listed = fleet.truth.list

        async def leave_once_listed(prefix: str, after: str = "", limit: int | None = None) -> Listing:
            found = await listed(prefix, after, limit)
            fleet.truth.list = listed  # type: ignore[method-assign]
            await leaves.leave()
            return found

        fleet.truth.list = leave_once_listed  # type: ignore[method-assign]
        view = await stays.look(fleet.listed)
        assert view.members.keys() == {"a"}
        assert all("b" not in version.document.members for version in fleet.versions)

    run(main())


@pytest.mark.parametrize("others", ["", "c"])
def test_nor_by_a_newcomer_who_never_saw_it_in_the_group(others: str) -> None:
    async def main() -> None:
        fleet = SimulatedGroup(4)
        for name in others:
            fleet.start(name)
        gone = fleet.start("a")
        await fleet.until_even("a", *others, within=60)
        assert gone.group is not None
        key = fleet.layout.host("a", gone.group.incarnation)
        late = await fleet.truth.get(key)
        assert late is not None
        await gone.stop()
        await fleet.truth.put(key, late.body)
        for name in others:
            await fleet.nodes[name].stop()
        stopped = len(fleet.versions)
        await anyio.sleep(2)
        fleet.start("b")
        await fleet.until_even("b", within=2)
        await anyio.sleep(100)
        assert all("a" not in version.document.members for version in fleet.versions[stopped:])

    run(main())


def test_a_host_that_left_stays_out_though_its_heartbeat_remains() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(4)
        a = fleet.group("a")
        await a.renew()
        await a.look(fleet.listed)
        removed = fleet.truth.delete

        async def lost(key: str) -> None:
            await anyio.sleep(100)

        fleet.truth.delete = lost  # type: ignore[method-assign]
        await a.leave()
        fleet.truth.delete = removed  # type: ignore[method-assign]
        assert await fleet.heartbeats() == ["a"]
        fleet.start("b")
        await fleet.until_even("b", within=2)

    run(main())


def test_a_leaving_host_removes_its_earlier_incarnations() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(2)
        a, b = fleet.group("a"), fleet.group("b")
        await a.renew()
        await a.look(fleet.listed)
        for _ in range(10):
            await b.renew()
            await b.look(fleet.listed)
            await anyio.sleep(13)
        await a.renew()  # it was only paused
        with pytest.raises(RemovedFromGroup):
            await a.look(fleet.listed)
        a.rejoin()
        await a.renew()
        await a.look(fleet.listed)
        assert sorted(await fleet.heartbeats()) == ["a", "a", "b"]
        await a.leave()
        assert await fleet.heartbeats() == ["b"]

    run(main())
