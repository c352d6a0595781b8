"""Bugs of timers that are planted into the product: each one is found within a few seeds, by the right check."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import pytest

from actorproc.partition.timers import Timers
from actorproc.partition.wakes import WakeRun, Wakes
from tests.simulation.test_planted_bugs import first_broken


def broken(style: str = "timers", stream: str = "positions", hours: float = 0.3) -> str:
    return first_broken(style, stream=stream, hours=hours, seeds=8)


@pytest.mark.slow
def test_timers_that_a_new_owner_forgets_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    init = Timers.__init__

    def forget(self: Timers, held: Mapping[bytes, bytes], *args: Any) -> None:
        init(self, {}, *args)
        self._held = held

    monkeypatch.setattr(Timers, "__init__", forget)
    assert "that have not fired, and are due" in broken(hours=0.05)


def test_timers_that_stay_in_state_after_they_fire_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next owner fires them again."""
    accept = Wakes._accept

    async def keep(self: Wakes, run: WakeRun, begun: float) -> None:
        results = run.results

        def without_removal(*args: int) -> Any:
            pending = results(*args)
            pending.changes.pop("actorproc.timers", None)
            return pending

        monkeypatch.setattr(run, "results", without_removal)
        await accept(self, run, begun)

    monkeypatch.setattr(Wakes, "_accept", keep)
    assert "fires, and none is set" in broken()


def test_stream_time_of_the_wall_clock_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = Timers.passed

    def by_wall(self: Timers, batch: Any) -> None:
        passed(self, batch)
        self._stream_time = self._clock.wall()

    monkeypatch.setattr(Timers, "passed", by_wall)
    assert "fires early: stream time is" in broken()


@pytest.mark.long
def test_timers_that_are_removed_although_their_call_failed_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Timers, "failed", lambda *_: math.inf)
    monkeypatch.setattr(Wakes, "_failed", lambda *_: None)
    assert "that have not fired, and are due" in broken(hours=0.05)


def test_changes_of_a_failed_call_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The count is deleted, and the timer is called again."""
    attempt = WakeRun.attempt

    async def keep(self: WakeRun) -> Exception | None:
        error = await attempt(self)
        if error is not None and self._made is not None:
            changes = self._made.state.changes()
            changes.pop("actorproc.timers", None)
            self._calls.committer.state.add(changes)
        return error

    monkeypatch.setattr(WakeRun, "attempt", keep)
    assert re.search("its state is not that of|has count|have not fired", broken())


@pytest.mark.long
def test_timers_left_behind_by_a_partition_that_ends_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: Wakes, goes_on: Any) -> None:
        pass

    monkeypatch.setattr(Wakes, "fire_all", nothing)
    assert "that have not fired, and are due" in broken(stream="splits")
