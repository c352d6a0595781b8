"""The paragraph of `actorproc explain`."""

from __future__ import annotations

from typing import Any

import pytest

from actorproc.admin.explain import explain
from actorproc.admin.fleet import PartitionView


def explained(**facts: Any) -> str:
    return explain(PartitionView(partition="3", **facts), [], 1000.0)


@pytest.mark.parametrize(
    "facts",
    [
        {"verdict": "moving", "reason": "b has not reported it yet"},
        {"state": "opening"},
        {"state": "waiting", "verdict": "failing", "reason": "StoreRefused"},
    ],
    ids=["not reported yet", "not opened yet", "never opened"],
)
def test_a_position_that_is_not_known_is_not_called_uncommitted(facts: dict[str, Any]) -> None:
    text = explained(owner="b", epoch=2, **facts)
    assert "Its owner has not reported yet how far it is committed." in text
    assert "Nothing is committed" not in text


@pytest.mark.parametrize("facts", [{"owner": "b", "state": "running"}, {}], ids=["running", "without an owner"])
def test_a_partition_without_a_commit_is_called_uncommitted(facts: dict[str, Any]) -> None:
    assert "Nothing is committed yet" in explained(**facts)


def test_the_advice_for_a_silent_source_is_not_that_for_a_handler() -> None:
    stuck = {"owner": "b", "state": "running", "verdict": "stuck", "reason": "it hangs"}
    assert "The handler does not return" in explained(**stuck, fault="user")
    assert "The source does not answer b" in explained(**stuck, fault="infrastructure")
    assert "The handler" not in explained(**stuck, fault="infrastructure").split("at fault.")[1]
