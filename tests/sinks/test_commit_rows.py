"""The commits of a delivery: a run of numbers without gaps, up to the most rows."""

from __future__ import annotations

import pyarrow as pa

from actorproc.sinks.commit_rows import RecentCommits


def test_a_delivery_leaves_out_no_large_commit_before_a_small_one() -> None:
    recent = RecentCommits(2**20)
    for number, rows in enumerate((15, 6, 2)):
        recent.add(number, pa.table({"n": [number] * rows}), f"put-{number}", number)
    found = recent.since(0, 20)
    assert found is not None
    assert (found.counts, found.put_id, found.begin) == ([15], "put-0", 0)
    rest = recent.since(found.next, 20)
    assert rest is not None
    assert (rest.counts, rest.put_id, rest.rows["n"].to_pylist()) == ([6, 2], "put-2", [1] * 6 + [2] * 2)
