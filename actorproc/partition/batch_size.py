"""Sizes the next batch by how long the handler took for earlier ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from actorproc.config.settings import Settings
from actorproc.runtime.clock import Clock

FIRST_BATCH = 10
"""Records in the first batch. Few, because a slow handler must get through it within `max_process_time`."""

GROWTH = 4
"""Growth from one batch to the next, at most, if the next takes longer than `QUICK`."""

QUICK = 0.5
"""Seconds of work up to which a batch may be `FAR` times as large as the last one."""

FAR = 100

EXPLORE = 1.25
"""Growth from one batch to the next until two sizes have shown what a record takes."""

WORK = 5.0
"""Seconds of work in a batch, at most: commits, a stop or a move of the partition wait for it. Less, where
`max_handoff_time` or `max_process_time` leave less."""

SHARED_WORK = 1.0
"""Seconds of work in a batch of several joined reads, at most."""


class Pace:
    """Estimates seconds per batch and seconds per record from the batches that the handler has finished.

    Pauses between attempts do not count, and records that failed do not count as done.
    """

    def __init__(self, clock: Clock, settings: Settings) -> None:
        self._clock = clock
        # A drain waits for the current batch, and a batch that takes too long is cancelled: size must not cause either.
        self._work = min(WORK, settings.max_handoff_time / 2 or WORK, settings.max_process_time / 4)
        self._begun = self._paused = 0.0
        self._compared: tuple[int, float] | None = None  # good records and seconds of an earlier batch
        self._per_record = 0.0  # seconds for a record
        self._per_batch = 0.0  # seconds for a batch
        self._compared_sizes = False  # two sizes were compared, so the time per batch and per record are known
        self.records = FIRST_BATCH
        """Records that the next batch may have."""

    def begin(self) -> None:
        self._begun, self._paused = self._clock.monotonic(), 0.0

    @contextmanager
    def pause(self) -> Iterator[None]:
        began = self._clock.monotonic()
        try:
            yield
        finally:
            self._paused += self._clock.monotonic() - began

    def done(self, size: int, good: int) -> None:
        """The handler is done with a batch of `size` records, of which `good` were processed."""
        seconds = self._clock.monotonic() - self._begun - self._paused
        if good > 0:
            self._learn(good, seconds)
        else:
            self._per_record = max(self._per_record, seconds / size)
        each = max(self._per_record, 1e-9)
        most = self.records * (GROWTH if 2 * size >= self.records else 1)
        quick = min((min(QUICK, self._work) - self._per_batch) / each, FAR * size)
        fitting = self._work / each
        if not self._compared_sizes and good > 0 and seconds <= self._work:
            fitting = max(fitting, EXPLORE * size)  # perhaps most of the time is the batch's and not the records'
        self.records = int(max(1, min(most, fitting), quick))

    def _learn(self, good: int, seconds: float) -> None:
        records, before = self._compared or (good, seconds)
        if not records / 2 < good < records * 2:  # two sizes show how much of the time each record takes
            self._per_record = min(max((seconds - before) / (good - records), 0.0), seconds / good)
            self._per_batch = seconds - self._per_record * good
            self._compared_sizes = True
            self._compared = good, seconds
            return
        self._per_record = max(seconds - self._per_batch, 0.0) / good
        if abs(good - records) <= records / 8:  # else ever smaller batches would never be half as large
            self._compared = records, seconds

    def allows(self, records: int) -> bool:
        """Whether so many records take little time together. False while nothing is known."""
        return self._compared is not None and self._per_batch + self._per_record * records <= min(
            SHARED_WORK, self._work
        )
