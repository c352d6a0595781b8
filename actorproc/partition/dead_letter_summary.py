"""Counts committed dead letters by error, for one log line a minute per host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import orjson

LOG_EVERY = 60.0
"""Seconds from one log line to the next."""

_KINDS = 5  # the most frequent errors, which the log line names
_SHOWN = 300  # characters of the example


class Summary(NamedTuple):
    """Letters by error type, and one of them as an example."""

    errors: Counter[str]
    example: str

    @property
    def most_common(self) -> dict[str, int]:
        return dict(self.errors.most_common(_KINDS))


def summarize(letters: Sequence[bytes]) -> Summary:
    """Summarize letters as `render_letter` made them. CPU-heavy if they are many."""
    errors: Counter[str] = Counter()
    example = ""
    for letter in map(orjson.loads, letters):
        error = letter["error"]
        errors[error["type"]] += 1
        example = f"{letter['partition']}:{letter['sequence']} {error['type']}: {error['message']}"[:_SHOWN]
    return Summary(errors, example)


class DeadLetterSummary:
    """The letters of all partitions of a host since the last log line."""

    def __init__(self) -> None:
        self._errors: Counter[str] = Counter()
        self._example = ""
        self._logged_at = float("-inf")

    def add(self, committed: Summary) -> None:
        """These letters are committed."""
        self._errors += committed.errors
        self._example = committed.example or self._example

    def due(self, now: float, *, at_once: bool = False) -> Summary | None:
        """The letters to log now; None: there are none, or the last line was less than a minute ago.

        Args:
            now: seconds on a clock that never jumps.
            at_once: the host ends, and there will be no later line.
        """
        if not self._errors or (now < self._logged_at + LOG_EVERY and not at_once):
            return None
        errors, self._errors, self._logged_at = self._errors, Counter(), now
        return Summary(errors, self._example)
