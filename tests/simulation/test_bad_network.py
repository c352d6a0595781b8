"""A cluster whose store fails a third of all requests, from the first one on."""

from __future__ import annotations

import pytest

from actorproc.admin.fleet_watch import FleetWatch
from actorproc.simulation import Cluster, Faults, run
from actorproc.simulation.clock import VirtualClock
from actorproc.storage.store import Store
from tests.simulation.numbers import Numbers, judge_number, numbers, owners

THIRD = Faults(lost_request=0.11, lost_reply=0.12, late_write=0.02, busy=0.2, busy_time=(1e-6, 1e-6))
"""35 % of all requests fail: 16 % are answered with 503. The others break, half at once, half after a timeout."""


@pytest.mark.parametrize("seed", range(3))
def test_hosts_start_run_and_stop_while_a_third_of_all_requests_fail(seed: int) -> None:
    async def story() -> None:
        cluster = Cluster(Numbers, numbers(4), check=judge_number, faults=THIRD, seed=seed)
        for name in "abc":
            cluster.start(name)
        await cluster.converged(within=3600)
        assert set(owners(cluster)) == {"a", "b", "c"}
        assert not [event for event in cluster.events if event.startswith("ended")], "no host died of it"
        clock = VirtualClock("d")
        store = Store(cluster.store.view("d"), clock=clock)
        status = await FleetWatch(store, cluster.layout, 60).read_all()
        assert [partition.error for partition in status.partitions.values()] == [None] * 4
        assert {member.host for member in status.hosts} == {"a", "b", "c"}
        await cluster.finished()

    run(story())
