"""What the log is to tell of dead letters: how many there are of each error since it told last, and the latest of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import orjson

_KINDS = 5  # of errors that are told, the most frequent
_SHOWN = 300  # characters of the latest error


class LetterNews:
    """Of all partitions of a host."""

    def __init__(self) -> None:
        self._errors: Counter[str] = Counter()
        self._latest = ""

    def committed(self, letters: Sequence[bytes]) -> None:
        """These are in a commit now, as `render_letter` made them."""
        for letter in map(orjson.loads, letters):
            error = letter["error"]
            self._errors[error["type"]] += 1
            self._latest = f"{letter['partition']}:{letter['sequence']} {error['type']}: {error['message']}"

    def take(self) -> tuple[dict[str, int], str]:
        """Type of error -> how many letters, and the latest of these, of what is new; from then on it is not."""
        errors = dict(self._errors.most_common(_KINDS))
        self._errors.clear()
        return errors, self._latest[:_SHOWN]
