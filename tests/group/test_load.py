"""Balance by load: hosts share the time that partitions take, with few moves and without wavering."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import anyio
import pytest

from actorproc import Batch, PartitionContext, PartitionHandler, Processor
from actorproc.group.assignment import Lease, Member, plan
from actorproc.group.load import Sample, loads, worthwhile
from actorproc.group.membership import GroupDocument, read_group
from actorproc.group.wishes import NO_WISHES, Wishes
from actorproc.runtime.nudge import Nudges
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource


def even(hosts: int, partitions: int) -> tuple[dict[str, Member], dict[str, Lease]]:
    members = {f"h{n}": Member("1") for n in range(hosts)}
    return members, {f"{p:03}": Lease(f"h{p % hosts}", 1) for p in range(partitions)}


def carried(leases: dict[str, Lease], measured: dict[str, float]) -> Counter[str]:
    found: Counter[str] = Counter()
    for name, lease in leases.items():
        found[lease.next or lease.owner or ""] += measured[name]  # type: ignore[assignment]
    return found


def test_a_partition_with_ten_times_the_records_has_fewer_neighbours() -> None:
    members, leases = even(3, 30)
    measured = dict.fromkeys(leases, 0.02) | {"000": 0.2}
    weights = worthwhile(members, leases, NO_WISHES, measured)
    assert weights is not None
    after = plan(members, leases, Wishes(weights=weights)).leases
    load = carried(after, measured)
    assert max(load.values()) <= 1.1 * sum(load.values()) / 3
    assert Counter(x.next or x.owner for x in after.values())["h0"] <= 5
    moved = sum(1 for x in after.values() if x.next)
    assert moved <= 7


@pytest.mark.parametrize(
    "measured",
    [
        dict.fromkeys("abcd", 0.2),  # even
        dict.fromkeys("abcd", 0.0) | {"a": 0.04},  # hardly anything to do
        dict.fromkeys("bcd", 0.2),  # one is not measured
        {},
    ],
)
def test_nothing_moves_without_a_good_reason(measured: dict[str, float]) -> None:
    leases = {name: Lease("h" + str(n % 2), 1) for n, name in enumerate("abcd")}
    assert worthwhile({"h0": Member("1"), "h1": Member("1")}, leases, NO_WISHES, measured) is None


def test_one_giant_partition_is_left_alone_and_nothing_wavers() -> None:
    members, leases = even(3, 9)
    measured = dict.fromkeys(leases, 0.001) | {"000": 0.9}
    weights = worthwhile(members, leases, NO_WISHES, measured)
    assert weights is None  # no move makes the busiest host less busy


def test_any_loads_become_more_even_and_stay() -> None:
    random = Random(3)
    for _ in range(200):
        members, leases = even(random.randint(2, 6), random.randint(2, 40))
        measured = {name: random.choice([0.0, 0.01, 0.1, 0.3]) * random.random() for name in leases}
        before = max(carried(leases, measured).values())
        weights = worthwhile(members, leases, NO_WISHES, measured)
        if weights is None:
            continue
        wishes = Wishes(weights=weights)
        planned = plan(members, leases, wishes).leases
        assert max(carried(planned, measured).values()) <= 0.9 * before
        arrived = {name: Lease(x.next or x.owner, x.epoch) for name, x in planned.items()}
        assert not plan(members, arrived, wishes).changed
        noisy = {name: load * random.uniform(0.95, 1.05) for name, load in measured.items()}
        again = worthwhile(members, arrived, wishes, noisy)
        assert again is None or max(carried(plan(members, arrived, Wishes(weights=again)).leases, noisy).values()) < (
            0.91 * max(carried(arrived, noisy).values())
        )


def test_a_load_counts_only_where_one_host_has_run_the_partition_all_the_time() -> None:
    first = {"a": Sample(1, 10.0, 3.0), "b": Sample(1, 10.0, 3.0), "c": Sample(1, 10.0, 3.0), "d": Sample(1, 10.0, 3)}
    then = {"a": Sample(1, 70.0, 3.0), "b": Sample(2, 70.0, 3.0), "c": Sample(1, 70.0, 1.0), "e": Sample(1, 70.0, 1)}
    now = {"a": Sample(1, 130.0, 15.0), "b": Sample(2, 130.0, 9.0), "c": Sample(1, 130.0, 9.0), "e": Sample(1, 130, 9)}
    assert loads([first, then], now) == {"a": 0.1}


def test_a_load_is_measured_over_all_looks() -> None:
    looks = [{"a": Sample(1, 60.0 * n, busy)} for n, busy in enumerate((0.0, 0.0, 30.0, 30.0))]
    assert loads(looks, {"a": Sample(1, 240.0, 60.0)}) == {"a": 0.25}
    assert loads(looks[-1:], {"a": Sample(1, 240.0, 60.0)}) == {}


class Slow(PartitionHandler):
    """Takes longer for each record of partition 0."""

    output_schema = "n long"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            await anyio.sleep(0.2 if ctx.partition == "0" else 0.02)
            ctx.emit(record, {"n": record.json()})


def owners(document: GroupDocument | None) -> dict[str, list[str]]:
    assert document is not None
    found: dict[str, list[str]] = {}
    for name, lease in document.leases.items():
        found.setdefault(lease.owner or "", []).append(name)
    return {host: sorted(names) for host, names in found.items()}


@pytest.mark.parametrize("balance", ["count", "load"])
def test_hosts_share_the_load_of_a_running_group(balance: str) -> None:
    async def main() -> None:
        source, clock = MemorySource(8), VirtualClock("store")
        store = Store(MemoryStore(clock=clock), clock=clock)
        settings: dict[str, Any] = {"balance": balance, "commit_interval": 1, "max_batch_records": 5}

        async def feed() -> None:
            n = 0
            while True:
                for partition in range(8):
                    source.append(str(partition), [str(n).encode()] * 6)
                n += 1
                await anyio.sleep(2)

        def host(name: str) -> Processor:
            return Processor(
                Slow, source=source, container=store, name="Slow", host=name, clock=VirtualClock(name),
                nudges=Nudges(), **settings,
            )  # fmt: skip

        async with anyio.create_task_group() as tasks, host("a"), host("b"):
            tasks.start_soon(feed)
            await anyio.sleep(320)
            found = owners(await read_group(store, ProcessorLayout("Slow")))
            heavy = next(names for names in found.values() if "0" in names)
            assert len(heavy) == (4 if balance == "count" else 1)
            await anyio.sleep(130)
            assert owners(await read_group(store, ProcessorLayout("Slow"))) == found, "it wavers"
            tasks.cancel_scope.cancel()

    run(main())
