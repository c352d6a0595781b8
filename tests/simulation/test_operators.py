"""Operators act on a simulated cluster, under every fault; rules of resets and placements, left out, are found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from actorproc.admin.resets import Resets
from actorproc.group.wishes import Wishes
from actorproc.output.chain import ChainEnd, Commit
from actorproc.records import Cursor
from actorproc.state.partition_state import PartitionState
from tests.simulation.scenario import simulate
from tests.simulation.test_planted_bugs import OUTDATED, first_broken


def broken(style: str, seeds: int = 8) -> str:
    return first_broken(style, stream="positions", hours=0.2, operators=True, seeds=seeds)


@pytest.mark.slow
@pytest.mark.parametrize(
    "style",
    [pytest.param("columns", marks=pytest.mark.long), "state", pytest.param("at most once", marks=pytest.mark.long)],
)
def test_resets_repeat_and_skip_the_announced_records_under_every_fault(style: str) -> None:
    result = simulate(1, hours=0.2, style=style, stream="positions", operators=True)
    assert result.seen["resets"] > 1
    assert result.injected["command_killed"] > 0
    assert result.seen["paused"] > 0


def test_a_walk_that_takes_the_furthest_cursor_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def furthest(self: Commit, cursor: Cursor) -> Cursor:
        return self.next if self.next.sequence >= cursor.sequence else cursor

    monkeypatch.setattr(Commit, "cursor_after", furthest)
    assert "ended as 0 rows and 0 dead letters" in broken("columns")


@pytest.mark.long
def test_a_command_that_takes_effect_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    tip = Resets._tip

    async def forgetful(self: Resets, partition: str) -> ChainEnd | None:
        found = await tip(self, partition)
        return found and replace(found, resets=())

    monkeypatch.setattr(Resets, "_tip", forgetful)
    assert "takes effect again" in broken("columns")


def test_state_that_stays_at_a_reset_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    follow = PartitionState.follow

    async def without_clearing(self: PartitionState, number: int, commit: Commit) -> None:
        if commit.reset is None:
            await follow(self, number, commit)

    monkeypatch.setattr(PartitionState, "follow", without_clearing)
    assert OUTDATED in broken("state")


def test_running_a_paused_partition_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(self: Wishes, partition: str) -> Any:
        return False

    monkeypatch.setattr(Wishes, "pauses", never)
    assert "which is paused" in broken("columns")
