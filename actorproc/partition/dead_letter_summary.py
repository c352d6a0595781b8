"""What the log is to tell of dead letters: how many there are of each error since it told last, and the latest of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import orjson

_KINDS = 5  # of errors that are told, the most frequent
_SHOWN = 300  # characters of the latest error


class Summary(NamedTuple):
    """Of some letters: how many of each type of error, and the last of them."""

    errors: Counter[str]
    last: str


def summed_up(letters: Sequence[bytes]) -> Summary:
    """Of letters as `render_letter` made them. CPU-heavy, if they are many."""
    errors: Counter[str] = Counter()
    last = ""
    for letter in map(orjson.loads, letters):
        error = letter["error"]
        errors[error["type"]] += 1
        last = f"{letter['partition']}:{letter['sequence']} {error['type']}: {error['message']}"[:_SHOWN]
    return Summary(errors, last)


class DeadLetterSummary:
    """Of all partitions of a host."""

    def __init__(self) -> None:
        self._errors: Counter[str] = Counter()
        self._latest = ""

    def add(self, committed: Summary) -> None:
        """These letters are in a commit now."""
        self._errors += committed.errors
        self._latest = committed.last or self._latest

    def take(self) -> tuple[dict[str, int], str]:
        """Type of error -> how many letters, and the latest of these, of what is new; from then on it is not."""
        errors = dict(self._errors.most_common(_KINDS))
        self._errors.clear()
        return errors, self._latest
