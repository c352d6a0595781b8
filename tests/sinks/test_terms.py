"""Where a sink goes on: what its row says, beside the registration of the sink."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from actorproc.retention.readers import Redo, SinkEntry, SinkPart
from actorproc.sinks.protocol import SinkRefused, SinkRow
from actorproc.sinks.terms import next_commit, row_after

HOME = "file:///state/Delays"
ENTRY = SinkEntry("db:x", 2, "t0", {"0": SinkPart(start=3, redos=(Redo("t1", 5), Redo("t2", 8)))})
ROW = SinkRow(HOME, 2, "t0", 0, 9)


@pytest.mark.parametrize(
    ("row", "position"),
    [
        (None, 3),
        (SinkRow("", 0, "", 1, 0), 3),  # only a pause
        (ROW, 5),  # both redeliveries are still to begin, and the lower one counts
        (replace(ROW, term="t1"), 8),
        (replace(ROW, term="t2"), 9),
        (replace(ROW, position=4), 4),
        (replace(ROW, life=1, term="other"), 3),  # of an earlier registration
    ],
)
def test_it_goes_on_at_the_lowest_commit_that_is_due(row: SinkRow | None, position: int) -> None:
    assert next_commit(ENTRY, "0", row, HOME) == position


@pytest.mark.parametrize("row", [replace(ROW, life=3), replace(ROW, term="unknown")])
def test_a_row_that_the_container_does_not_know_stops_it(row: SinkRow) -> None:
    with pytest.raises(SinkRefused, match="was the container restored from a backup"):
        next_commit(ENTRY, "0", row, HOME)


def test_a_row_of_another_container_stops_it() -> None:
    with pytest.raises(SinkRefused, match="from file:///other/Delays, another processor of this name"):
        next_commit(ENTRY, "0", replace(ROW, home="file:///other/Delays"), HOME)


def test_a_delivery_is_in_the_latest_term_and_keeps_the_fence() -> None:
    assert row_after(ENTRY, "0", replace(ROW, fence=4), HOME, 6, "p") == SinkRow(HOME, 2, "t2", 4, 6, "p")
