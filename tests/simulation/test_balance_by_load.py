"""With `balance = "load"` simulated hosts share the load through crashes, pauses and joins, and leases come to rest."""

from __future__ import annotations

from typing import Any

import pytest

from actorproc.group import load, load_watch
from actorproc.simulation import InvariantViolation
from tests.simulation.load_story import PARTITIONS, tell


@pytest.mark.parametrize("seed", [pytest.param(n, marks=[pytest.mark.slow] if n else []) for n in range(12)])
def test_hosts_share_the_load_and_leases_come_to_rest(seed: int) -> None:
    told = tell(seed, rounds=3 if seed else 1)
    assert told.moves["quiet"] == 0
    assert 0 < told.moves["settling"] <= PARTITIONS * (len(told.others) // 2)
    assert max(told.others) <= 2  # by count there would be at least three


def test_the_balance_by_count_does_not_share_the_load() -> None:
    with pytest.raises(InvariantViolation, match="do not share the load"):
        tell(0, balance="count", rounds=0)


@pytest.mark.parametrize("value", [{"_UNEVEN": 1.0, "_BETTER": 1.0}, {"_BETTER": 1.1}])
def test_moves_that_are_not_worth_it_are_found(monkeypatch: pytest.MonkeyPatch, value: dict[str, float]) -> None:
    for name, share in value.items():
        monkeypatch.setattr(load, name, share)
    with pytest.raises(InvariantViolation, match="have moved although nothing has changed"):
        tell(0, rounds=0)


def test_loads_that_are_measured_too_briefly_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "LEAST", 1)
    monkeypatch.setattr(load_watch, "LOOKS", 1)
    with pytest.raises(InvariantViolation, match="have moved although nothing has changed"):
        tell(3, rounds=3)


def test_weights_that_say_nothing_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def equal(measured: dict[str, Any]) -> dict[str, int]:
        return dict.fromkeys(measured, load.AVERAGE)

    monkeypatch.setattr(load, "weights_of", equal)
    with pytest.raises(InvariantViolation, match="do not share the load"):
        tell(0, rounds=0)
