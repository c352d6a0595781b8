"""Read-ahead chunks, cut to batches of a size that the handler takes."""

from __future__ import annotations

from actorproc.partition.read_ahead import Read
from actorproc.records import Batch, Cursor


def test_the_first_part_of_a_split_read_resumes_at_its_start() -> None:
    """Otherwise a commit between both parts would skip the second part."""
    whole = Read([Batch.of("0", [b"x"] * 10, range(10))], "before", Cursor("behind", 9), at_end=True)
    first, rest = whole.split(3)
    assert (first.cursor, first.records, first.at_end) == (Cursor("before", 2), 3, False)
    assert (rest.cursor, rest.records, rest.at_end) == (Cursor("behind", 9), 7, True)
    assert (first.nbytes, rest.nbytes) == (0, whole.nbytes), "the memory is free when all of it is done"
