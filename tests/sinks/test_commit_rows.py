"""The commits of a delivery: a run of numbers without gaps, up to the most rows."""

from __future__ import annotations

import pyarrow as pa

from actorproc.runtime.budget import BufferTotal
from actorproc.sinks.commit_rows import RecentCommits


def test_a_delivery_leaves_out_no_large_commit_before_a_small_one() -> None:
    recent = RecentCommits(BufferTotal(2**20))
    for number, rows in enumerate((15, 6, 2)):
        recent.add(number, pa.table({"n": [number] * rows}), f"put-{number}", number)
    found = recent.since(0, 20)
    assert found is not None
    assert (found.counts, found.put_id, found.begin) == ([15], "put-0", 0)
    rest = recent.since(found.next, 20)
    assert rest is not None
    assert (rest.counts, rest.put_id, rest.rows["n"].to_pylist()) == ([6, 2], "put-2", [1] * 6 + [2] * 2)


def test_partitions_share_the_memory_of_a_sink() -> None:
    total = BufferTotal(1_000)
    each = [RecentCommits(total) for _ in range(5)]
    for number in range(20):
        for recent in each:
            recent.add(number, pa.table({"n": [number] * 10}), f"put-{number}", number)
            assert total.used <= 1_000
    assert sum(recent.since(19, 100) is not None for recent in each) >= 3
    for recent in each:
        recent.clear()
    assert (total.used, total.holders) == (0, 0)
