"""What an idle group asks of its store: by host and timer, not by partition. Default timers, virtual time."""

from __future__ import annotations

import pytest

from benchmarks.cost import JITTER, Idle, measure

INTERVALS = 40
MANY = 500

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def small() -> Idle:
    return measure(8, 3, INTERVALS)


@pytest.fixture(scope="module")
def large() -> Idle:
    return measure(MANY, 3, INTERVALS)


def test_an_idle_host_makes_three_requests_per_renew_interval(small: Idle, large: Idle) -> None:
    assert small.per_host_and_renewal <= 3
    assert large.per_host_and_renewal <= 3


def test_reading_an_idle_log_makes_one_request_per_host_and_poll(small: Idle, large: Idle) -> None:
    assert small.per_poll == pytest.approx(1, abs=JITTER)
    assert large.per_poll == pytest.approx(1, abs=JITTER)
    assert set(large.log) == {"list"}


def test_the_requests_of_an_idle_group_do_not_grow_with_its_partitions(small: Idle, large: Idle) -> None:
    assert large.container.total() == pytest.approx(small.container.total(), rel=JITTER)


def test_the_measured_group_has_worked_before_and_runs_everything(small: Idle, large: Idle) -> None:
    assert (small.running, large.running) == (8, MANY)
    assert small.committed >= 8
    assert large.committed >= MANY
    assert small.container["put"] == pytest.approx(3 * INTERVALS, abs=3)
