"""Requests of a group to its store: their number, and few writes when many hosts join at once."""

from __future__ import annotations

from random import Random
from typing import Any

import anyio
import pytest

from actorproc.group.assignment import Plan, plan
from actorproc.simulation.loop import run
from tests.group.simulated_group import SimulatedGroup

# A host may crash between starting a task and its first step. That is no fault of the task.
pytestmark = pytest.mark.filterwarnings("ignore:.*was never awaited")


def test_the_first_host_takes_everything_at_once_with_four_requests() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(8)
        node = fleet.start("a")
        took = await fleet.until_even("a", within=2)
        assert took < 0.5
        await anyio.sleep(0.2)
        assert node.store.requests == {"put": 1, "get": 1, "list": 1, "put_if_absent": 1}
        assert node.holds() == dict.fromkeys(fleet.partitions, 1)

    run(main())


@pytest.mark.parametrize("partitions", [8, 2_000])
def test_an_idle_group_costs_one_put_one_list_and_one_get(partitions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = 0

    def counted(*args: Any, **options: Any) -> Plan:
        nonlocal planned
        planned += 1
        return plan(*args, **options)

    monkeypatch.setattr("actorproc.group.group.plan", counted)

    async def main() -> None:
        nonlocal planned
        fleet = SimulatedGroup(partitions)
        nodes = [fleet.start(name) for name in "abc"]
        await fleet.until_even(*"abc", within=60)
        await anyio.sleep(30)
        assert planned > 0
        planned = 0
        versions, before = len(fleet.versions), [node.store.requests.copy() for node in nodes]
        await anyio.sleep(1_000)
        assert len(fleet.versions) == versions, "an idle group writes nothing"
        assert planned == 0, "nor does it think again"
        for node, requests in zip(nodes, before, strict=True):
            spent = node.store.requests - requests
            assert spent["put"] <= 1_000 / 13 + 1
            assert spent["list"] == spent["get"] <= 1_000 / (17 * 0.9) + 1
            assert sum(spent.values()) == spent["put"] + spent["list"] + spent["get"]

    run(main())


@pytest.mark.slow
def test_a_hundred_hosts_that_start_at_once_need_few_writes() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(200)
        random = Random(1)
        names = [f"h{i:03}" for i in range(100)]
        for name in names:
            fleet.start(name, offset=random.uniform(-300, 300), rate=random.uniform(0.98, 1.02))
            await anyio.sleep(random.uniform(0, 0.02))
        took = await fleet.until_even(*names, within=60)
        tries = sum(
            node.store.requests[verb] for node in fleet.nodes.values() for verb in ("put_if_absent", "put_if_match")
        )
        print(f"even after {took:.1f} s, {len(fleet.versions)} writes, {tries} tries, {fleet.nudges} nudges")
        assert took < 20
        assert len(fleet.versions) < 50
        assert tries < 1_000
        fleet.check_steps()

    run(main())
