"""Counts committed dead letters by error, for one log line a minute per host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import orjson

LOG_EVERY = 60.0
"""Seconds from one log line to the next."""

_SHOWN = 300  # characters of the example


def summarize(letters: Sequence[bytes]) -> tuple[Counter[str], str]:
    """Letters (from `render_letter`) by error type, and one of them as an example. CPU-heavy if they are many."""
    errors: Counter[str] = Counter()
    example = ""
    for letter in map(orjson.loads, letters):
        error = letter["error"]
        errors[error["type"]] += 1
        example = f"{letter['partition']}:{letter['sequence']} {error['type']}: {error['message']}"[:_SHOWN]
    return errors, example


class DeadLetterSummary:
    """The letters of all partitions of a host since the last log line."""

    def __init__(self) -> None:
        self._errors: Counter[str] = Counter()
        self.example = ""
        self._logged_at = float("-inf")

    def add(self, errors: Counter[str], example: str) -> None:
        """Add committed letters, as `summarize` returns them."""
        self._errors += errors
        self.example = example or self.example

    def due(self, now: float, *, at_once: bool = False) -> Counter[str]:
        """The letters to log now, by error type; empty if the last line was less than a minute ago.

        Args:
            now: seconds on a clock that never jumps.
            at_once: the host ends, and there will be no later line.
        """
        if not self._errors or (now < self._logged_at + LOG_EVERY and not at_once):
            return Counter()
        errors, self._errors, self._logged_at = self._errors, Counter(), now
        return errors
