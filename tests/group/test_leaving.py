"""Hosts that leave: what they hand over and remove, and that nothing they left behind brings them back."""

from __future__ import annotations

import anyio
import pytest

from actorproc.errors import RemovedFromGroup
from actorproc.group.heartbeat import read_heartbeats
from actorproc.storage.backend import Listing
from actorproc.testing.simulation.loop import run
from tests.group.site import now

from .site import PartitionInfo

# A host may crash between starting a task and its first step. That is no fault of the task.
pytestmark = pytest.mark.filterwarnings("ignore:.*was never awaited")


def test_nothing_is_renewed_after_leaving_not_even_what_is_being_tried() -> None:
    async def main() -> None:
        site = PartitionInfo(1)
        group = site.group("a")
        await group.renew()
        await group.look(site.listed)
        site.backend.outage(10)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(group.renew)
            await anyio.sleep(0.1)
            tasks.start_soon(group.leave)
        await group.renew()
        await anyio.sleep(30)
        assert site.members == set()
        [(heartbeat, _)] = await read_heartbeats(site.reader(), site.layout)  # the outage saved it from removal
        assert heartbeat.beat == 1
        assert group.fenced()

    run(main())


def test_a_stop_leaves_a_gap_of_less_than_a_second() -> None:
    async def main() -> None:
        site = PartitionInfo(9)
        nodes = {name: site.start(name, drain=0.1) for name in "abc"}
        await site.until_even(*"abc", within=60)
        await anyio.sleep(60)
        moving = site.of("b")
        start = now()
        await nodes["b"].stop()
        assert now() - start < 1
        assert site.is_even("a", "c")
        await site.until(
            lambda: moving <= {p for name in "ac" for p in nodes[name].holds()}, start + 1 - now(), "taken over"
        )
        assert sorted(await site.heartbeats()) == ["a", "c"]
        owners = [v.document.leases[p].owner for v in site.versions if v.at > start for p in moving]
        assert None not in owners, "never without an owner"
        site.check_steps()

    run(main())


def test_after_the_last_host_has_stopped_the_next_one_starts_at_once() -> None:
    async def main() -> None:
        site = PartitionInfo(4)
        node = site.start("a")
        await site.until_even("a", within=2)
        await node.stop()
        assert site.members == set()
        assert {lease.owner for lease in site.leases.values()} == {None}
        assert await site.heartbeats() == []
        site.start("b")
        assert await site.until_even("b", within=2) < 1
        assert {lease.epoch for lease in site.leases.values()} == {2}

    run(main())


def test_a_late_heartbeat_does_not_bring_a_host_back() -> None:
    async def main() -> None:
        site = PartitionInfo(4)
        a, b = site.start("a"), site.start("b")
        await site.until_even("a", "b", within=60)
        assert b.group is not None
        key = site.layout.host("b", b.group.incarnation)
        late = await site.truth.get(key)
        assert late is not None
        await b.stop()
        await site.truth.put(key, late.body)
        versions = len(site.versions)
        await anyio.sleep(20)
        assert site.members == {"a"}
        assert len(site.versions) == versions
        assert len(a.holds()) == 4

    run(main())


def test_a_host_that_leaves_before_it_was_in_is_not_written_in() -> None:
    async def main() -> None:
        site = PartitionInfo(4)
        stays, leaves = site.group("a"), site.group("b")
        await stays.renew()
        await stays.look(site.listed)
        await leaves.renew()
        listed = site.truth.list

        async def leave_once_listed(prefix: str, after: str = "", limit: int | None = None) -> Listing:
            found = await listed(prefix, after, limit)
            site.truth.list = listed  # type: ignore[method-assign]
            await leaves.leave()
            return found

        site.truth.list = leave_once_listed  # type: ignore[method-assign]
        view = await stays.look(site.listed)
        assert view.members.keys() == {"a"}
        assert all("b" not in version.document.members for version in site.versions)

    run(main())


@pytest.mark.parametrize("others", ["", "c"])
def test_nor_by_a_newcomer_who_never_saw_it_in_the_group(others: str) -> None:
    async def main() -> None:
        site = PartitionInfo(4)
        for name in others:
            site.start(name)
        gone = site.start("a")
        await site.until_even("a", *others, within=60)
        assert gone.group is not None
        key = site.layout.host("a", gone.group.incarnation)
        late = await site.truth.get(key)
        assert late is not None
        await gone.stop()
        await site.truth.put(key, late.body)
        for name in others:
            await site.nodes[name].stop()
        stopped = len(site.versions)
        await anyio.sleep(2)
        site.start("b")
        await site.until_even("b", within=2)
        await anyio.sleep(100)
        assert all("a" not in version.document.members for version in site.versions[stopped:])

    run(main())


def test_a_host_that_left_stays_out_though_its_heartbeat_remains() -> None:
    async def main() -> None:
        site = PartitionInfo(4)
        a = site.group("a")
        await a.renew()
        await a.look(site.listed)
        removed = site.truth.delete

        async def lost(key: str) -> None:
            await anyio.sleep(100)

        site.truth.delete = lost  # type: ignore[method-assign]
        await a.leave()
        site.truth.delete = removed  # type: ignore[method-assign]
        assert await site.heartbeats() == ["a"]
        site.start("b")
        await site.until_even("b", within=2)

    run(main())


def test_a_leaving_host_removes_its_earlier_incarnations() -> None:
    async def main() -> None:
        site = PartitionInfo(2)
        a, b = site.group("a"), site.group("b")
        await a.renew()
        await a.look(site.listed)
        for _ in range(10):
            await b.renew()
            await b.look(site.listed)
            await anyio.sleep(13)
        await a.renew()  # it was only paused
        with pytest.raises(RemovedFromGroup):
            await a.look(site.listed)
        a.rejoin()
        await a.renew()
        await a.look(site.listed)
        assert sorted(await site.heartbeats()) == ["a", "a", "b"]
        await a.leave()
        assert await site.heartbeats() == ["b"]

    run(main())
