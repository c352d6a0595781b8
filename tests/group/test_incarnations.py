"""Several incarnations of one host name: the newest stays, and the older ones cannot harm it."""

from __future__ import annotations

import anyio
import pytest

from actorproc.errors import Fenced, RemovedFromGroup
from actorproc.simulation.loop import run
from tests.group.simulated_group import SimulatedGroup

# A host may crash between starting a task and its first step. That is no fault of the task.
pytestmark = pytest.mark.filterwarnings("ignore:.*was never awaited")


def test_a_host_that_is_started_again_takes_its_leases_back_at_once() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(6)
        fleet.start("a")
        b = fleet.start("b")
        await fleet.until_even("a", "b", within=60)
        had = {p: fleet.leases[p].epoch for p in fleet.of("b")}
        b.host.crash()
        await anyio.sleep(5)
        again = fleet.start("b again", name="b")
        await fleet.until(lambda: len(again.holds()) == 3, 1, "holds its leases again")
        assert again.holds() == {p: epoch + 1 for p, epoch in had.items()}
        await anyio.sleep(1)
        assert (await fleet.heartbeats()).count("b") == 1
        fleet.check_steps()

    run(main())


def test_the_later_of_two_hosts_with_one_name_stays() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(6)
        earlier = fleet.start("a")
        fleet.start("b")
        await fleet.until_even("a", "b", within=60)
        await anyio.sleep(60)
        later = fleet.start("the other a", name="a")
        await fleet.until(lambda: earlier.error is not None, 1, "the earlier one stops")
        assert isinstance(earlier.error, Fenced)
        assert "another host named 'a'" in str(earlier.error)
        assert "name of its own" in str(earlier.error)
        await anyio.sleep(100)
        assert later.error is None
        assert len(later.holds()) == 3
        assert fleet.is_even("a", "b")

    run(main())


def test_a_host_that_was_replaced_and_removed_leaves_its_successor_in() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(6)
        earlier = fleet.start("a")
        fleet.start("b")
        await fleet.until_even("a", "b", within=60)
        earlier.host.pause()
        await fleet.until_even("b", within=90)
        later = fleet.start("the other a", name="a")
        await fleet.until_even("a", "b", within=30)
        earlier.host.resume()
        await fleet.until(lambda: earlier.error is not None, 30, "the earlier one stops")
        assert later.error is None

    run(main())


def test_a_removed_host_does_not_push_its_successor_out() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(2)
        earlier, later = fleet.group("a"), fleet.group("a")
        await earlier.renew()
        await earlier.look(fleet.listed)
        other = fleet.group("b")
        for _ in range(10):
            await other.renew()
            await other.look(fleet.listed)
            await anyio.sleep(13)
        await earlier.renew()
        with pytest.raises(RemovedFromGroup, match="considered host a dead"):
            await earlier.look(fleet.listed)
        earlier.rejoin()
        await earlier.renew()
        await later.renew()
        await later.look(fleet.listed)
        with pytest.raises(Fenced):
            await earlier.look(fleet.listed)

    run(main())


def test_a_host_removed_before_its_first_look_joins_as_another_incarnation() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(2)
        a, b = fleet.group("a"), fleet.group("b")
        await a.renew()
        first = a.incarnation
        for _ in range(10):
            await b.renew()
            await b.look(fleet.listed)
            await anyio.sleep(13)
        assert ("a", first) in fleet.versions[-1].document.out
        await a.renew()
        with pytest.raises(RemovedFromGroup):
            await a.look(fleet.listed)
        a.rejoin()
        await a.renew()
        await a.look(fleet.listed)
        assert fleet.members == {"a", "b"}
        assert a.incarnation != first

    run(main())
