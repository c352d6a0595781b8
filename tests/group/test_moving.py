"""Leases move: when, how many, and how logger and owners are notified."""

from __future__ import annotations

from collections import Counter

import anyio
import pytest
import structlog

from actorproc.group.assignment import Lease
from actorproc.simulation.loop import run
from tests.group.simulated_group import SimulatedGroup, now

# A host may crash between starting a task and its first step. That is no fault of the task.
pytestmark = pytest.mark.filterwarnings("ignore:.*was never awaited")


def test_a_second_host_has_its_half_soon_after_the_delay() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(256)
        first = fleet.start("a", drain=0.1)
        await fleet.until_even("a", within=2)
        await anyio.sleep(20)
        fleet.start("b")
        joined = now()
        await fleet.until(lambda: "b" in fleet.members, 1, "joined")
        took = await fleet.until_even("a", "b", within=10)
        assert 5 <= took <= 5 + 2
        for version in fleet.versions:
            if version.at < joined + 5:
                assert all(lease.owner == "a" and not lease.next for lease in version.document.leases.values())
        stayed = [lease.epoch for p, lease in fleet.leases.items() if lease.owner == "a"]
        moved = [lease.epoch for p, lease in fleet.leases.items() if lease.owner == "b"]
        assert Counter(stayed) == {1: 128}
        assert Counter(moved) == {2: 128}
        await anyio.sleep(1)
        assert set(first.holds()) == fleet.of("a")
        fleet.check_steps()

    run(main())


def test_the_owner_gets_the_reason_why_a_lease_moves() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(4, nudging=False)
        seen: set[str] = set()
        fleet.start("a")
        await fleet.until_even("a", within=2)
        fleet.start("b")
        while not fleet.is_even("a", "b"):
            await anyio.sleep(0.01)
            for node in fleet.nodes.values():
                seen |= {move.reason for move in node.view.moves} if node.view else set()
        assert seen >= {"it has no owner", "a holds 4, b holds 0"}

    run(main())


def test_one_log_line_says_why_leases_move() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(256)
        fleet.start("a")
        await fleet.until_even("a", within=2)
        fleet.start("b")
        await fleet.until_even("a", "b", within=10)

    with structlog.testing.capture_logs() as logs:
        run(main())
    told = [log for log in logs if log["log_level"] != "debug"]
    assert [(log["event"], log["moves"], log["why"]) for log in told] == [
        ("group.written", 256, {"it has no owner": 256}),
        ("group.written", 0, {}),  # b is in
        ("group.written", 128, {"a holds 256, b holds 0": 128}),
        ("group.written", 128, {"a handed it over": 128}),
    ]


def test_a_retiring_host_may_hand_over_before_anybody_has_marked_its_leases() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(4)
        a, b = fleet.group("a"), fleet.group("b")
        for group in (a, b):
            await group.renew()
        await a.look(fleet.listed)
        assert fleet.of("a") == {"0000", "0002"}
        a.retire()
        await a.hand_over(["0000"])
        assert fleet.leases["0000"] == Lease("b", 2)
        assert fleet.leases["0002"] == Lease("a", 1, "b")
        assert fleet.versions[-1].document.members["a"].leaving

    run(main())


def test_leases_of_others_and_leases_that_shall_stay_are_not_handed_over() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(4)
        a, b = fleet.group("a"), fleet.group("b")
        for group in (a, b):
            await group.renew()
        await a.look(fleet.listed)
        versions = len(fleet.versions)
        await a.hand_over(fleet.partitions)
        await b.hand_over(fleet.partitions)  # it has never looked
        assert len(fleet.versions) == versions

    run(main())


def test_a_late_handover_is_forced_in_time_and_not_before() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(4)
        fleet.start("a", drain=None)
        await fleet.until_even("a", within=2)
        fleet.start("b")
        await fleet.until(lambda: any(lease.next for lease in fleet.leases.values()), 10, "marked")
        marked = now()
        await fleet.until_even("a", "b", within=30 + 17 + 17 * 1.1 + 1)
        assert now() - marked > 30 + 17
        assert {lease.epoch for lease in fleet.leases.values() if lease.owner == "b"} == {2}
        fleet.check_steps()

    run(main())


def test_unrelated_changes_do_not_extend_a_handover() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(4)
        fleet.start("a", drain=None)
        await fleet.until_even("a", within=2)
        fleet.start("b")
        await fleet.until(lambda: any(lease.next for lease in fleet.leases.values()), 10, "marked")
        marked = {p for p, lease in fleet.leases.items() if lease.next}

        async def grow() -> None:
            for number in range(6):
                await anyio.sleep(12)
                fleet.partitions.append(f"more {number}")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(grow)
            await fleet.until(lambda: marked <= fleet.of("b"), 30 + 17 + 17 * 1.1 + 1, "taken by force")

    run(main())


def test_leases_move_only_after_quiet_membership() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(4)
        a, b = fleet.group("a"), fleet.group("b")
        await a.renew()
        assert (await a.look(fleet.listed)).look_again_in is None
        await anyio.sleep(20)
        await b.renew()
        await b.look(fleet.listed)
        joined = now()
        while now() - joined < 4.9:
            for group in (a, b):
                view = await group.look(fleet.listed)
                assert not any(lease.next for lease in view.leases.values())
                assert view.look_again_in is not None
                assert 0 <= view.look_again_in - (5 - (now() - joined)) <= 0.5 + 0.3
            await anyio.sleep(0.3)
        await anyio.sleep(0.5)
        view = await a.look(fleet.listed)
        assert [lease.next for lease in view.leases.values()] == [None, None, "b", "b"]
        assert view.look_again_in is None

    run(main())


def test_marks_for_a_host_that_dies_are_called_off() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(4, max_handoff_time=300)
        a = fleet.start("a", drain=None)
        await fleet.until_even("a", within=2)
        b = fleet.start("b")
        await fleet.until(lambda: any(lease.next for lease in fleet.leases.values()), 10, "marked")
        b.host.crash()
        await fleet.until_even("a", within=60 + 20)
        assert fleet.leases == {p: Lease("a", 1) for p in fleet.partitions}
        assert set(a.holds()) == set(fleet.partitions)

    run(main())


def test_a_rolling_restart_moves_each_lease_only_because_its_own_host_stops() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(12)
        nodes = {name: fleet.start(name) for name in "abc"}
        await fleet.until_even(*"abc", within=60)
        before = {p: lease.epoch for p, lease in fleet.leases.items()}
        for name in "abc":
            await nodes[name].stop()
            fleet.start(f"{name} again", name=name)
            await anyio.sleep(15)
        assert fleet.is_even(*"abc")
        moves = sum(lease.epoch - before[p] for p, lease in fleet.leases.items())
        assert moves <= 2 * 12 + 4, "away and back, with little that was not needed"
        fleet.check_steps()

    run(main())


def test_new_partitions_are_given_away_at_once() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(4)
        fleet.start("a")
        fleet.start("b")
        await fleet.until_even("a", "b", within=60)
        fleet.partitions += ["more", "and more"]
        await fleet.until_even("a", "b", within=20)
        fleet.check_steps()

    run(main())
