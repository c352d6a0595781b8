"""Stops a partition that has too many dead letters, so that a broken handler does not turn its stream into them."""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple

import numpy as np

from actorproc.config.settings import Settings
from actorproc.errors import TooManyDeadLetters
from actorproc.partition.delivery_mode import DeliveryMode
from actorproc.records import Batch
from actorproc.runtime.error_text import error_message

_FEW = 100  # the share is taken of at least so many records: one bad record among the first two is no alarm
_SHOWN = 200  # characters of an error in the message
_NONE = np.array([], np.int64)


class _Failure(NamedTuple):
    sequence: int
    kind: str
    text: str


class DeadLetterLimit:
    """Counts dead letters among the latest records of one partition, across restarts by the same host process.

    Records are numbered from the first one seen here. A failure counts in every window of `dead_letter_window` records
    that contains it. So the order in which failures are found does not matter: retried records fail last.
    """

    def __init__(self, settings: Settings) -> None:
        self._share = DeliveryMode.of(settings).dead_letter_share(settings)
        self._window = settings.dead_letter_window
        self._sequences = _NONE  # of the current batch
        self._before = 0  # number of its first record
        # Sequence and number of the first record of batches; not of batches that follow without a gap.
        self._begun: deque[tuple[int, int]] = deque()
        self._failed = _NONE  # numbers, growing
        self._errors: dict[int, _Failure] = {}  # by number

    def begin(self, batch: Batch) -> None:
        """The next batch begins; a restart may go back to earlier ones. Later failures are forgotten."""
        first = batch.first
        self._before = self._number(first)
        self._sequences = batch.sequence_array.to_numpy()
        self._note_begun(first)
        if not len(self._failed):
            return
        oldest = self._before - self._window + 1
        self._errors = {n: f for n, f in self._errors.items() if n >= oldest and f.sequence < first}
        self._failed = np.array(sorted(self._errors), np.int64)

    def _number(self, first: int) -> int:
        """The number of the first record of a batch."""
        if not len(self._sequences) or first >= self._sequences[0]:
            return self._before + self._place(first)
        most = self._before
        while self._begun and self._begun[-1][0] > first:
            _, most = self._begun.pop()
        if not self._begun:
            return most
        sequence, number = self._begun[-1]
        return min(most, number + first - sequence)

    def _note_begun(self, first: int) -> None:
        begun = self._begun
        if not begun or first - begun[-1][0] != self._before - begun[-1][1]:
            begun.append((first, self._before))
        while len(begun) > 1 and begun[1][1] <= self._before - self._window:
            begun.popleft()

    def failed(self, sequence: int, error: Exception | str, kind: str | None = None) -> None:
        """A record of the batch is a dead letter.

        Args:
            kind: of the letter, if it is not that of the error. `ctx.dead_letter` without one: "DeadLetter".

        Raises:
            TooManyDeadLetters: there are more than allowed.
        """
        if self._share >= 1:
            return
        number = self._before + self._place(sequence)
        at = int(np.searchsorted(self._failed, number))
        if number not in self._errors:
            self._failed = np.insert(self._failed, at, number)
        name, text = (
            (type(error).__name__, error_message(error))
            if isinstance(error, Exception)
            else ("ctx.dead_letter" if kind in (None, "DeadLetter") else kind or "", error)
        )
        self._errors[number] = _Failure(sequence, name, text[:_SHOWN])
        # The windows that contain it, each ending at a failure.
        ends = self._failed[at : np.searchsorted(self._failed, number + self._window)]
        starts = np.searchsorted(self._failed, ends - self._window + 1)
        counts = np.arange(at, at + len(ends)) + 1 - starts
        sizes = np.minimum(self._window, np.maximum(ends + 1, _FEW))
        over = np.flatnonzero(counts > self._share * sizes)
        if len(over):
            window = self._failed[starts[over[0]] : at + over[0] + 1].tolist()
            raise TooManyDeadLetters(
                f"{len(window)} of the latest {sizes[over[0]]} records failed, more than dead_letter_limit = "
                f"{self._share:g} allows; no more of this batch is committed. {self._most_frequent(window)}\n"
                "Fix the cause and start again. To let them become dead letters, raise dead_letter_limit (1 switches "
                "it off); to pass over records that raise, let on_error return Decision.SKIP"
            ) from (error if isinstance(error, Exception) else None)

    def _most_frequent(self, failed: list[int]) -> str:
        errors = [self._errors[number] for number in failed]
        kind, often = Counter(error.kind for error in errors).most_common(1)[0]
        text = next(error.text for error in reversed(errors) if error.kind == kind)
        return f"{often} of them with {kind}, such as: {text}"

    def _place(self, sequence: int) -> int:
        """How many records of the batch come before that one."""
        return int(self._sequences.searchsorted(sequence))
