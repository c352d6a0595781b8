"""Planted bugs of records that fail alone: each one is found within a few seeds, by the right check."""

from __future__ import annotations

from typing import Any

import pytest

from actorproc.handler import one_by_one
from actorproc.handler.one_by_one import OneByOne
from actorproc.partition.bisection import Parts
from tests.simulation.test_planted_bugs import first_broken


def test_keeping_the_changes_of_a_failed_record_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_by_one, "undo", lambda journal: None)
    assert "its state is not that of the rows before it" in first_broken("state, records", hours=0.2)


def test_forgetting_the_records_behind_a_failed_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Parts, "put_off", lambda self, batch: None)
    assert "ended as 0 rows and 0 dead letters" in first_broken("state, records", hours=0.2)


@pytest.mark.slow
def test_going_on_behind_a_failed_record_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its retry then sees the state of later records, and so do the rows."""
    converged = OneByOne._settled

    def going_on(self: Any, sequence: int, again: bool) -> bool:
        converged(self, sequence, again)
        self._attempt.stopped = None
        return False

    monkeypatch.setattr(OneByOne, "_settled", going_on)
    assert "its state is not that of the rows before it" in first_broken("state, records awaited", hours=0.5)
