"""The requests of a group: an idle one asks by host and timer. `actorproc cost` computes the same numbers."""

from __future__ import annotations

from collections import Counter

import pytest

from actorproc.admin.cost import Load, requests
from benchmarks.cost import JITTER, Counted, measure

INTERVALS = 40
MANY = 200
HISTORIES = 3 * INTERVALS * 13 // 300  # three hosts write theirs each `history_interval`

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def small() -> Counted:
    return measure(8, 3, INTERVALS)


@pytest.fixture(scope="module")
def large() -> Counted:
    return measure(MANY, 3, INTERVALS)


def test_an_idle_host_makes_three_requests_per_renew_interval(small: Counted, large: Counted) -> None:
    assert small.per_host_and_renewal <= 3
    assert large.per_host_and_renewal <= 3


def test_reading_an_idle_log_makes_one_request_per_host_and_poll(small: Counted, large: Counted) -> None:
    assert small.per_poll == pytest.approx(1, abs=JITTER)
    assert large.per_poll == pytest.approx(1, abs=JITTER)
    assert set(large.log) <= {"list", "get"}
    assert large.log["get"] <= 3 * 2, "each host reads log.json once per partition_refresh_interval"


def test_the_requests_of_an_idle_group_do_not_grow_with_its_partitions(small: Counted, large: Counted) -> None:
    assert large.container.total() == pytest.approx(small.container.total(), rel=JITTER)


def test_the_measured_group_has_worked_before_and_runs_everything(small: Counted, large: Counted) -> None:
    assert (small.running, large.running) == (8, MANY)
    assert small.committed >= 8
    assert large.committed >= MANY
    assert small.container["put"] == pytest.approx(3 * INTERVALS + HISTORIES, abs=3)


@pytest.mark.parametrize(
    ("records", "partitions", "hosts", "intervals"), [(0.0, 8, 3, INTERVALS), (0.5, 4, 2, 20), (30.0, 2, 1, 4)]
)
def test_the_computed_requests_are_those_of_a_counted_run(
    small: Counted, records: float, partitions: int, hosts: int, intervals: int
) -> None:
    found = measure(partitions, hosts, intervals, records) if records else small
    computed = Counter[str]()
    for each in requests(Load(hosts=hosts, partitions=partitions, records=records), found.settings):
        computed[each.verb] += round(each.rate * found.seconds)
    assert computed == pytest.approx(found.charged(), rel=0.2)
