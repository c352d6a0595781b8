"""Merged ranges: each change is read once, in the order of its half, for any numbers that the parents gave."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

pytest.importorskip("azure.cosmos", reason="azure-cosmos is not installed")

from actorproc.connectors.cosmos.merge import Merge
from actorproc.connectors.cosmos.position import Position, Span, sequences

BOUNDS = ("", "1", "2", "FF")


class Change(NamedTuple):
    """Change `n` of a half: in transaction `lsn`, as the half's parent or the merged range has numbered it."""

    lsn: int
    half: int
    n: int

    @property
    def document(self) -> dict[str, Any]:
        return {"_lsn": self.lsn, "half": self.half, "n": self.n}


class MergedRange:
    """A range that was merged of three. Its pages end between any two transactions, also of the same number."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.log = list[Change]()
        self.starts = [0, 0, 0]
        for half in range(3):
            numbers = sorted(chance.choices(range(1, 30), k=chance.randrange(12)))
            self.log += (Change(lsn, half, n) for n, lsn in enumerate(numbers))
            self.starts[half] = chance.choice([0, *numbers])
        self.log.sort()
        self.newest = max([0, *(change.lsn for change in self.log)])

    @property
    def start(self) -> Position:
        return Position(map(Span, BOUNDS, BOUNDS[1:], self.starts))

    @property
    def unread(self) -> list[Change]:
        return [change for change in self.log if change.lsn > self.starts[change.half]]

    def write(self) -> None:
        half = self.chance.randrange(3)
        self.newest += 1
        self.log.append(Change(self.newest, half, sum(change.half == half for change in self.log)))

    def page(self, span: Span) -> tuple[list[dict[str, Any]], int]:
        """Some of the transactions that come next in this span, and the number up to which it is read then."""
        found = [c for c in self.log if c.lsn > span.lsn and span.low <= BOUNDS[c.half] < span.high]
        transactions = list(dict.fromkeys(change[:2] for change in found))
        count = self.chance.randrange(1, 5)
        if count >= len(transactions):
            return [change.document for change in found], self.newest
        chosen = transactions[:count]
        return [change.document for change in found if change[:2] in chosen], chosen[-1][0]


def read(merged: MergedRange, writes: int) -> tuple[list[dict[str, Any]], list[int], Position]:
    """All documents and their sequences, with restarts in between, and the last position."""
    documents, given, reading = list[dict[str, Any]](), list[int](), Merge(merged.start)
    while True:
        if writes and merged.chance.random() < 0.3:
            merged.write()
            writes -= 1
        if merged.chance.random() < 0.2:
            reading = Merge(Position.parse(str(reading.position)))
        found: Sequence[Any] = reading.add(*merged.page(reading.next_span))
        documents += found
        given += sequences([document["_lsn"] for document in found])[0] if found else []
        if reading.at_end and not writes and reading.position.lsn == merged.newest:
            return documents, given, reading.position


@pytest.mark.parametrize("seed", [*range(60), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(60, 200))])
def test_each_change_of_a_merged_range_is_read_once_and_in_order(seed: int) -> None:
    merged = MergedRange(random.Random(seed))
    documents, given, _ = read(merged, writes=6)
    seen = [(document["half"], document["n"]) for document in documents]
    assert sorted(seen) == sorted((change.half, change.n) for change in merged.unread)
    for half in range(3):
        numbers = [n for place, n in seen if place == half]
        assert numbers == sorted(numbers)
    assert all(earlier < later for earlier, later in pairwise(given)), "sequences grow"


def test_the_halves_become_one_span_once_each_is_read_to_its_end() -> None:
    merged = MergedRange(random.Random(1))
    _, _, position = read(merged, writes=0)
    reading = Merge(position)
    for _ in range(4):
        reading.add(*merged.page(reading.next_span))
    assert reading.position == (Span("", "FF", merged.newest),)
    merged.write()
    assert [document["_lsn"] for document in reading.add(*merged.page(reading.next_span))] == [merged.newest]
