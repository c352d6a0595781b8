"""Hosts that crash or are paused: when they are replaced, and which leases a host still holds that wakes up."""

from __future__ import annotations

from random import Random

import anyio
import pytest

from actorproc.config.settings import Settings
from actorproc.simulation.faults import Faults
from actorproc.simulation.loop import run
from tests.group.simulated_group import SimulatedGroup, now

# A host may crash between starting a task and its first step. That is no fault of the task.
pytestmark = pytest.mark.filterwarnings("ignore:.*was never awaited")


def test_each_host_expires_by_its_own_setting() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(8, seed=3)
        patient = fleet.start("a")
        fleet.settings = Settings(lease_acquire_interval=1, lease_renew_interval=1, lease_expiration_interval=5)
        hasty = fleet.start("b")
        await fleet.until_even("a", "b", within=60)
        versions = len(fleet.versions)
        await anyio.sleep(600)
        assert (patient.times_removed, hasty.times_removed) == (0, 0)
        assert len(fleet.versions) == versions, "nothing moves"
        died = now()
        patient.host.crash()
        await fleet.until(lambda: fleet.members == {"b"}, 100, "the dead one is out")
        assert 60 - 13 <= now() - died <= 70, "it had announced a minute"

    run(main())


def test_a_crashed_host_is_replaced_after_the_expiration_and_not_before() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(9)
        nodes = [fleet.start(name) for name in "abc"]
        await fleet.until_even(*"abc", within=60)
        await anyio.sleep(60)
        victim = nodes[1]
        assert victim.group is not None
        trusted = victim.group.valid_until() + 12 - victim.host.offset  # 0.8 of the expiration and the rest of it
        victim.host.crash()
        lost = {p: lease.epoch for p, lease in fleet.leases.items() if lease.owner == "b"}
        took = await fleet.until_even("a", "c", within=60 + 17 * 1.1 + 2)
        assert now() > trusted, "the last heartbeat was still good"
        assert took > 60 - 13
        assert all(fleet.leases[p].epoch == epoch + 1 for p, epoch in lost.items())
        assert all(lease.epoch == 1 for p, lease in fleet.leases.items() if p not in lost and lease.owner == "a")
        await anyio.sleep(1)
        assert "b" not in await fleet.heartbeats()
        fleet.check_steps()

    run(main())


def test_a_pause_shorter_than_the_expiration_moves_nothing() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(9)
        nodes = [fleet.start(name) for name in "abc"]
        await fleet.until_even(*"abc", within=60)
        await anyio.sleep(60)
        versions = len(fleet.versions)
        for node in nodes:
            node.host.pause()
            await anyio.sleep(40)
            node.host.resume()
            await anyio.sleep(60)
        assert len(fleet.versions) == versions
        assert sum(node.times_removed for node in nodes) == 0

    run(main())


def test_a_host_that_was_paused_for_too_long_joins_as_another_incarnation() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(8)
        fleet.start("a")
        b = fleet.start("b")
        await fleet.until_even("a", "b", within=60)
        await anyio.sleep(20)
        assert b.group is not None
        first = b.group.incarnation
        b.host.pause()
        await fleet.until_even("a", within=80)
        assert b.holds() == {}, "it has fenced itself, although nothing of it has run"
        await anyio.sleep(30)
        b.host.resume()
        await fleet.until_even("a", "b", within=30)
        assert b.times_removed == 1
        assert b.group.incarnation != first
        await anyio.sleep(40)
        assert sorted(await fleet.heartbeats()) == ["a", "b"], "nothing is left of the old incarnation"
        assert set(b.holds()) == fleet.of("b")
        fleet.check_steps()

    run(main())


def test_a_look_that_was_paused_for_long_reads_again() -> None:
    async def main() -> None:
        slow = Faults(latency=(1, 1), slow=0, lost_request=0, lost_reply=0, late_write=0, busy=0)
        fleet = SimulatedGroup(4, faults=slow)
        a, b = fleet.start("a"), fleet.start("b")
        await fleet.until_even("a", "b", within=60)
        await anyio.sleep(30)
        lists, looks = b.store.requests["list"], b.looks
        await fleet.until(lambda: b.store.requests["list"] > lists, 20, "b has read the document and lists")
        b.host.pause()
        await fleet.until_even("a", within=100)
        b.host.resume()
        await fleet.until(lambda: b.times_removed == 1, 5, "noticed")
        assert b.looks == looks, "by that very look"
        await fleet.until(lambda: set(a.holds()) == set(fleet.partitions), 3, "a has them all")

    run(main())


@pytest.mark.parametrize("seed", range(20))
def test_a_host_that_wakes_up_declares_no_host_dead(seed: int) -> None:
    async def main() -> None:
        faults = Faults(latency=(0.5, 3), slow=0, lost_request=0, lost_reply=0, late_write=0, busy=0)
        fleet = SimulatedGroup(9, faults=faults, seed=seed)
        a, b, c = [fleet.start(name) for name in "abc"]
        await fleet.until_even(*"abc", within=90)
        random = Random(seed)
        for _ in range(4):
            await anyio.sleep(random.uniform(60, 80))
            a.host.pause()  # in the middle of any step
            await anyio.sleep(random.uniform(100, 200))
            a.host.resume()
            await anyio.sleep(random.uniform(60, 80))
        assert a.times_removed == 4
        assert b.times_removed == c.times_removed == 0
        fleet.check_steps()

    run(main(), seed=seed)


def test_after_a_full_stop_dead_members_are_replaced_in_one_write() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(6)
        for name in "abc":
            fleet.start(name)
        await fleet.until_even(*"abc", within=60)
        for node in fleet.nodes.values():
            node.host.crash()
        await anyio.sleep(200)
        versions = len(fleet.versions)
        fleet.start("d")
        assert await fleet.until_even("d", within=2) < 1
        assert len(fleet.versions) == versions + 1
        fleet.check_steps()

    run(main())


def test_a_newcomer_waits_for_the_silence_of_those_that_may_live() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(6)
        for name in "ab":
            fleet.start(name)
        await fleet.until_even(*"ab", within=60)
        for node in fleet.nodes.values():
            node.host.crash()
        await anyio.sleep(20)
        fleet.start("c")
        started = now()
        await fleet.until_even("c", within=60 + 20)
        assert now() - started > 60

    run(main())


def test_a_host_never_writes_itself_out() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(2)
        group = fleet.group("a")
        await group.renew()
        await group.look(fleet.listed)
        await anyio.sleep(300)  # suspended, say
        assert group.fenced()
        view = await group.look(fleet.listed)
        assert set(view.mine) == {"0000", "0001"}
        assert len(fleet.versions) == 1
        await group.renew()
        assert not group.fenced()

    run(main())
