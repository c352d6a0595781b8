"""Hosts of two versions in one group: they write a format version that all of them read. Others are refused."""

from __future__ import annotations

import anyio
import pytest

from actorproc.errors import VersionRefused
from actorproc.group.format_versions import FormatVersions, agreed, highest_of, incarnation_name
from actorproc.group.heartbeat import expiration_of
from actorproc.simulation.loop import run
from tests.group.simulated_group import SimulatedGroup

# A host may crash between starting a task and its first step. That is no fault of the task.
pytestmark = pytest.mark.filterwarnings("ignore:.*was never awaited")

OLD, NEW, NEWER = FormatVersions(1, 2), FormatVersions(1, 3), FormatVersions(3, 4)


def test_the_name_of_an_incarnation_says_format_and_expiration() -> None:
    name = incarnation_name("1f0c-aa", NEW, 7.5)
    assert (highest_of(name), expiration_of(("h", name), 60)) == (3, 7.5)
    assert highest_of("1f0c-60s") == 1


def test_a_group_writes_a_version_that_all_read_and_never_goes_back() -> None:
    old, new = incarnation_name("a", OLD, 60), incarnation_name("b", NEW, 60)
    assert agreed(1, [old, new]) == 2
    assert agreed(2, [new, new]) == 3
    assert agreed(3, []) == 3


def test_a_rolling_upgrade_raises_the_format_with_its_last_host() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(6)
        nodes = {name: fleet.start(name, format_versions=OLD) for name in "abc"}
        await fleet.until_even("a", "b", "c", within=60)
        for name in "abc":
            assert fleet.versions[-1].document.writes == 2
            await nodes[name].stop()
            fleet.start(f"{name} of the next version", name=name, format_versions=NEW)
            await fleet.until_even("a", "b", "c", within=120)
        assert fleet.versions[-1].document.writes == 3
        fleet.check_steps()

    run(main())


def test_a_refused_host_leaves_no_trace() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(6)
        fleet.start("new", format_versions=NEW)
        await fleet.until_even("new", within=60)
        old = fleet.start("old", format_versions=OLD)
        await fleet.until(lambda: old.error is not None, 5, "is refused")
        assert isinstance(old.error, VersionRefused)
        assert "the group writes format version 3, and this actorproc" in str(old.error)
        await anyio.sleep(200)
        assert fleet.members == {"new"}
        assert await fleet.heartbeats() == ["new"]

    run(main())


def test_a_newer_host_waits_for_older_members_to_leave() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(6)
        old = fleet.start("old", format_versions=OLD)
        await fleet.until_even("old", within=60)
        newer = fleet.start("newer", format_versions=NEWER)
        await fleet.until(lambda: newer.error is not None, 5, "is refused")
        assert "which these hosts cannot read: old. Update them first" in str(newer.error)
        old.host.crash()
        await anyio.sleep(130)
        fleet.start("newer again", name="newer", format_versions=NEWER)
        await fleet.until_even("newer", within=60)
        assert fleet.versions[-1].document.writes == 4

    run(main())


def test_a_host_of_an_earlier_release_is_not_written_in_by_others() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(6)
        fleet.start("a", format_versions=NEW)
        await fleet.until_even("a", within=60)
        await fleet.group("b", OLD).renew()  # and looks no more
        await fleet.group("c", NEW).renew()
        await anyio.sleep(29)
        assert fleet.members == {"a", "c"}

    run(main())
