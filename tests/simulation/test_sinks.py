"""A simulated database follows clusters: it holds each committed row once, under all faults."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.scenario import simulate
from tests.simulation.sink_story import play


@pytest.mark.slow
def test_a_sink_gets_each_committed_row_once_in_a_short_story() -> None:
    seen = sum((play(seed).seen for seed in range(2)), Counter[str]())
    assert seen["sink_commits"] > 200
    for what in ("sink_trims", "sink_fenced", "sink_redeliver", "sink_restored", "sink_moved", "sink_outage"):
        assert seen[what] > 0, what


@pytest.mark.long
@pytest.mark.parametrize("stream", ["positions", "splits", "queues", "log"])
def test_a_sink_gets_each_committed_row_once_beside_every_other_fault(stream: str) -> None:
    seen = simulate(3, hours=0.3, stream=stream, operators=True, sink=True).seen
    assert seen["sink_commits"] > 50
