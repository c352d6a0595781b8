"""How many hosts are useful, from two looks at a fleet."""

from __future__ import annotations

from pathlib import Path

import pytest

from actorproc.admin.fleet_watch import FleetWatch
from actorproc.admin.scaling import Progress, useful_hosts
from actorproc.config.settings import Settings
from actorproc.storage.names import ProcessorLayout
from actorproc.stores import open_store
from tests.server.fleet import NAME, FakeFleet
from tests.server.test_fleet_routes import client


def look(time: float, *, lag: int, done: int, busy: float = 0.0, hosts: int = 3, partitions: int = 8) -> Progress:
    names = [str(number) for number in range(partitions)]
    return Progress(time, hosts, partitions, lag, dict.fromkeys(names, done), dict.fromkeys(names, busy))


def test_a_lagging_group_gets_enough_hosts_to_catch_up() -> None:
    before = look(0, lag=100_000, done=0)
    now = look(100, lag=120_000, done=1_250)  # 100 per second are processed, 300 arrive
    found = useful_hosts(before, now, catch_up=600)
    assert (found.per_second, found.arriving) == (100, 300)
    assert found.hosts == 8  # 15 would catch up
    assert "3 hosts process 100 per second; 15 catch up in 600 s, but there are only 8 partitions" in found.reason
    slower = useful_hosts(before, look(100, lag=100_000, done=1_250), catch_up=1_000)
    assert slower.hosts == 6  # (100 + 100) / 100 * 3


def test_where_nothing_is_processed_more_hosts_do_not_help() -> None:
    found = useful_hosts(look(0, lag=10, done=5), look(60, lag=1_000, done=5))
    assert found.hosts == 3
    assert "more hosts do not help" in found.reason


@pytest.mark.parametrize(("busy", "hosts"), [(6.0, 1), (30.0, 3), (60.0, 3), (20.0, 2)])
def test_a_group_that_keeps_up_needs_hosts_by_how_busy_it_is(busy: float, hosts: int) -> None:
    found = useful_hosts(look(0, lag=10, done=0), look(60, lag=10, done=1_000, busy=busy))
    assert found.hosts == hosts
    assert "it keeps up" in found.reason


def test_a_partition_that_has_moved_counts_as_busy() -> None:
    found = useful_hosts(look(0, lag=0, done=0, busy=500.0), look(60, lag=0, done=1_000, busy=1.0))
    assert found.hosts == 3


def test_without_an_earlier_look_or_without_hosts_the_answer_is_safe() -> None:
    assert useful_hosts(None, look(0, lag=1_000_000, done=0)).hosts == 3
    assert useful_hosts(None, look(0, lag=5, done=0, hosts=0)).hosts == 1


async def test_partitions_that_have_ended_need_no_host(tmp_path: Path) -> None:
    fleet = FakeFleet(tmp_path, partitions=16, ended=[str(number) for number in range(8, 16)])
    await fleet.write(lag=1_000_000)
    async with open_store(fleet.container, Settings()) as store:
        now = Progress.of(await FleetWatch(store, ProcessorLayout(NAME), 60.0).look())
    before = now._replace(time=now.time - 60, lag=0, sequences=dict.fromkeys(now.sequences, 0))
    assert useful_hosts(before, now).hosts == 8


async def test_the_autoscaler_gets_a_number_and_a_reason(tmp_path: Path) -> None:
    fleet = FakeFleet(tmp_path)
    await fleet.write()
    async with client(fleet) as http:
        answer = (await http.get(f"{NAME}/scale")).json()
        assert (answer["hosts"], answer["running"]) == (2, 2)
        assert "two looks" in answer["reason"]
        refused = await http.get(f"{NAME}/scale", params={"catch_up": "0"})
    assert (refused.status_code, refused.json()["error"]) == (400, "catch_up = 0: 1 to 86,400 seconds")
