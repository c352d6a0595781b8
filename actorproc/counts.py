"""Counts of records and of their results. One struct for all that is counted: see `Counts`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of records and their results: of one commit, since an actor or a host started, or since the first record
    of a partition. Heartbeats store them as an array, so only append fields."""

    records: int = 0
    rows: int = 0
    dead_letters: int = 0
    skipped: int = 0
    resets: int = 0
    """By operators: only in counts since the first record."""

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.records + other.records,
            self.rows + other.rows,
            self.dead_letters + other.dead_letters,
            self.skipped + other.skipped,
            self.resets + other.resets,
        )
