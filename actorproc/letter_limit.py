"""How many dead letters a partition may write before it stops, loudly, instead of draining a stream into them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

import numpy as np

from actorproc.errors import TooManyDeadLetters, text_of
from actorproc.records import Batch
from actorproc.settings import Settings

_FEW = 100  # records of which the share is taken at least: one bad record of the first two is no alarm
_SHOWN = 200  # characters of an error that a message shows
_NONE = np.array([], np.int64)


class LetterLimit:
    """Counts dead letters over the latest records of one partition, restarts by the same host process included.

    Records are numbered from the first one seen here. A failure counts in every window of `dead_letter_window` records
    that it lies in, so it does not matter in which order failures are found: what was tried again comes last.
    """

    def __init__(self, settings: Settings) -> None:
        # At most once: nothing is shown to the handler again, so what fails is given up, and a limit could only lose it.
        self._share = 1.0 if settings.delivery == "at-most-once" else settings.dead_letter_limit
        self._window = settings.dead_letter_window
        self._sequences = _NONE  # of the batch at hand
        self._before = 0  # number of its first record
        self._failed: list[int] = []  # numbers, growing
        self._errors: dict[int, tuple[str, str]] = {}  # number -> type and text

    def begin(self, batch: Batch) -> None:
        """The next batch, or what is left of the last one; whatever had failed in that is judged anew."""
        self._before += self._place(batch.first)
        self._sequences = batch.sequence_array.to_numpy()
        still = slice(
            bisect_left(self._failed, self._before - self._window + 1), bisect_left(self._failed, self._before)
        )
        self._failed = self._failed[still]
        self._errors = {number: self._errors[number] for number in self._failed}

    def failed(self, sequence: int, error: Exception | str) -> None:
        """A record of the batch is a dead letter.

        Raises:
            TooManyDeadLetters: there are more than allowed.
        """
        if self._share >= 1:
            return
        number = self._before + self._place(sequence)
        at = bisect_left(self._failed, number)
        if number not in self._errors:
            self._failed.insert(at, number)
        self._errors[number] = _told(error)
        for last in range(at, bisect_left(self._failed, number + self._window)):
            self._check(last, error)

    def _check(self, last: int, error: Exception | str) -> None:
        """The window that ends at a failure."""
        end = self._failed[last]
        first = bisect_left(self._failed, end - self._window + 1)
        count, latest = last + 1 - first, min(self._window, max(end + 1, _FEW))
        if count > self._share * latest:
            errors = [self._errors[number] for number in self._failed[first : last + 1]]
            kind, often = Counter(kind for kind, _ in errors).most_common(1)[0]
            text = next(text for its_kind, text in reversed(errors) if its_kind == kind)
            raise TooManyDeadLetters(
                f"{count} of the latest {latest} records failed, more than dead_letter_limit = {self._share:g} allows; "
                f"nothing of this batch was committed. {often} of them with {kind}, such as: {text}\n"
                "Mend the cause and start again. To let them become dead letters, raise dead_letter_limit (1 switches it "
                "off); to pass over them, let on_error return Decision.SKIP"
            ) from (error if isinstance(error, Exception) else None)

    def _place(self, sequence: int) -> int:
        """How many records of the batch come before that one."""
        return int(np.searchsorted(self._sequences, sequence))


def _told(error: Exception | str) -> tuple[str, str]:
    if isinstance(error, Exception):
        return type(error).__name__, text_of(error)[:_SHOWN]
    return "ctx.dead_letter", str(error)[:_SHOWN]
