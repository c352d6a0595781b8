"""Pauses, drains and placements of a running fleet."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from actorproc import Batch, PartitionContext, PartitionHandler, Processor
from actorproc.admin.audit import read_audit
from actorproc.admin.fleet_watch import FleetWatch
from actorproc.admin.placement import Placement
from actorproc.config.settings import Settings
from actorproc.errors import UsageError
from actorproc.group.membership import read_group
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores import open_store
from actorproc.testing import MemorySource

LAYOUT = ProcessorLayout("Rows")
QUICK: dict[str, Any] = {
    "lease_acquire_interval": 0.3, "lease_renew_interval": 0.2, "lease_expiration_interval": 3,
    "rebalance_delay": 0.2, "commit_interval": 0.05, "idle_commit_interval": 0.05,
}  # fmt: skip
SETTINGS = Settings(**QUICK)


class Rows(PartitionHandler):
    output_schema = "value string"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.emit(record, {"value": record.text})


class Fleet:
    def __init__(self, store: Store, source: MemorySource, hosts: Mapping[str, Processor]) -> None:
        self.store, self.source, self.hosts = store, source, hosts
        self.acts = Placement(store, LAYOUT, SETTINGS, "ann@laptop")

    async def owners(self) -> dict[str, str | None]:
        group = await read_group(self.store, LAYOUT)
        return {name: lease.owner for name, lease in group.leases.items()} if group else {}

    async def until(self, condition: Callable[[dict[str, str | None]], bool]) -> None:
        with anyio.fail_after(15):
            while not condition(await self.owners()):
                await anyio.sleep(0.05)

    async def rows(self, partition: str) -> int:
        listing = await self.store.list(LAYOUT.output_dir(partition))
        return len(listing.entries)


@asynccontextmanager
async def fleet(folder: Path, *hosts: str) -> AsyncIterator[Fleet]:
    source = MemorySource(4)
    container = str(folder / "state")
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(container, SETTINGS))
        running = {
            host: await stack.enter_async_context(
                Processor(Rows, source=source, container=container, host=host, **QUICK)
            )
            for host in hosts
        }
        found = Fleet(store, source, running)
        await found.until(lambda owners: len(owners) == 4 and {*owners.values()} == {*hosts})
        yield found


async def test_a_paused_partition_commits_nothing_until_it_is_resumed(tmp_path: Path) -> None:
    async with fleet(tmp_path, "a", "b") as place:
        await place.acts.pause(["1"])
        await place.until(lambda owners: owners["1"] is None)
        for partition in "01":
            place.source.append(partition, [b"x"])
        with anyio.fail_after(10):
            while not await place.rows("0"):
                await anyio.sleep(0.05)
        await anyio.sleep(0.3)
        assert await place.rows("1") == 0
        await place.acts.resume()
        with anyio.fail_after(10):
            while not await place.rows("1"):
                await anyio.sleep(0.05)
        acts = [(act.who, act.what, dict(act.to), act.effect) for act in await read_audit(place.store, LAYOUT.audit)]
        assert acts == [
            ("ann@laptop", "pause", {"partitions": "1"}, "paused: 1"),
            ("ann@laptop", "resume", {}, "nothing is paused, drained or placed"),
        ]


async def test_a_pause_survives_the_restart_of_all_hosts(tmp_path: Path) -> None:
    async with fleet(tmp_path, "a") as place:
        await place.acts.pause()
        await place.until(lambda owners: not any(owners.values()))
        place.hosts["a"].stop()
        async with Processor(Rows, source=place.source, container=str(tmp_path / "state"), host="b", **QUICK):
            await anyio.sleep(1)
            assert not any((await place.owners()).values())
            await place.acts.resume()
            await place.until(lambda owners: {*owners.values()} == {"b"})


async def test_a_drained_host_has_no_partition_until_it_is_released(tmp_path: Path) -> None:
    async with fleet(tmp_path, "a", "b") as place:
        await place.acts.drain("a")
        await place.until(lambda owners: {*owners.values()} == {"b"})
        await place.acts.release_host("a")
        await place.until(lambda owners: sorted(map(str, owners.values())) == ["a", "a", "b", "b"])


async def test_partitions_of_a_fleet_that_is_drained_altogether_say_so(tmp_path: Path) -> None:
    async with fleet(tmp_path, "a") as place:
        await Placement(place.store, LAYOUT, SETTINGS, "ann@laptop", reason="kernel update").drain("a")
        await place.until(lambda owners: not any(owners.values()))
        view = (await FleetWatch(place.store, LAYOUT, 60).look()).partitions["0"]
    assert view.verdict == "unowned"
    assert "operators have drained every host that runs: a (kernel update); `actorproc release --host`" in view.reason


async def test_a_moved_partition_stays_where_it_was_moved_to(tmp_path: Path) -> None:
    async with fleet(tmp_path, "a", "b") as place:
        owners = await place.owners()
        partition = min(name for name, host in owners.items() if host == "a")
        await place.acts.move(partition, "b")
        await place.until(lambda owners: owners[partition] == "b")
        await anyio.sleep(1)
        assert sorted(map(str, (await place.owners()).values())) == ["a", "a", "b", "b"]
        assert (await place.owners())[partition] == "b"


async def test_acts_on_unknown_names_are_refused(tmp_path: Path) -> None:
    async with fleet(tmp_path, "a") as place:
        for act, said in [
            (place.acts.pause(["9"]), "no partition '9'; there are: 0, 1, 2, 3"),
            (place.acts.move("0", "x"), "no host 'x' in the group; there are: a"),
            (place.acts.release("0"), "partition '0' is not placed; placed are: none"),
            (place.acts.release_host("a"), "host 'a' is not drained; drained are: none"),
        ]:
            with pytest.raises(UsageError, match=said):
                await act
        assert await read_audit(place.store, LAYOUT.audit) == []
