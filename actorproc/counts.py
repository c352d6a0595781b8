"""Counts of records and of their results. One struct for all that is counted: see `Counts`."""

from __future__ import annotations

import msgspec


class Counts(msgspec.Struct, frozen=True):
    """Counts of a partition's records and their results: of a commit, since an actor started, or since the first
    record."""

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
