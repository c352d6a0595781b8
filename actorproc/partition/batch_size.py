"""How large the next batch may be: by how long the handler took for those before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from actorproc.config.settings import Settings
from actorproc.runtime.clock import Clock

FIRST_BATCH = 100
"""Records in the first batch."""

GROWTH = 4
"""How many times larger than the last one a batch may be that takes longer than `QUICK`: few records do not tell what many cost."""

QUICK = 0.5
"""Seconds of work up to which a batch may be larger than that: up to `FAR` times the last one."""

FAR = 100

WORK = 5.0
"""Seconds of work for the handler in a batch, at most, as far as its size decides: commits, a stop or a move of the partition
wait for it. Less, where `max_handoff_time` or `max_process_time` leave less."""

SHARED_WORK = 1.0
"""Seconds of work in a batch of several pieces, at most: more than the pauses that they share by default, and little."""


class Pace:
    """How long the handler takes, by the batches that it is done with: some time for each, and some for each record.

    The time in which it pauses does not count, and records that fail do not count as done.
    """

    def __init__(self, clock: Clock, settings: Settings) -> None:
        self._clock = clock
        # A drain waits for the batch at hand, and one that takes too long is given up: neither is to happen by its size.
        self._work = min(WORK, settings.max_handoff_time / 2, settings.max_process_time / 4)
        self._begun = self._paused = 0.0
        self._compared: tuple[int, float] | None = None  # an earlier batch: its good records, and seconds
        self._each = 0.0  # seconds for a record
        self._once = 0.0  # seconds for a batch
        self.records = FIRST_BATCH
        """How many the next batch may have."""

    def begin(self) -> None:
        """A batch begins."""
        self._begun, self._paused = self._clock.monotonic(), 0.0

    @contextmanager
    def pause(self) -> Iterator[None]:
        began = self._clock.monotonic()
        try:
            yield
        finally:
            self._paused += self._clock.monotonic() - began

    def done(self, size: int, good: int) -> None:
        """The batch of so many records, good ones among them, is done with."""
        seconds = self._clock.monotonic() - self._begun - self._paused
        if good > 0:
            self._learn(good, seconds)
        else:
            self._each = max(self._each, seconds / size)
        each = max(self._each, 1e-9)
        most = self.records * (GROWTH if 2 * size >= self.records else 1)
        quick = min((min(QUICK, self._work) - self._once) / each, FAR * size)
        self.records = int(max(1, min(most, self._work / each), quick))

    def _learn(self, good: int, seconds: float) -> None:
        records, before = self._compared or (good, seconds)
        if not records / 2 < good < records * 2:  # two sizes tell what is each record's
            self._each = min(max((seconds - before) / (good - records), 0.0), seconds / good)
            self._once = seconds - self._each * good
            self._compared = good, seconds
            return
        self._each = max(seconds - self._once, 0.0) / good
        if abs(good - records) <= records / 20:  # or ever smaller batches would never be half of one
            self._compared = records, seconds

    def allows(self, records: int) -> bool:
        """Whether so many are done at once. Not as long as nothing is known."""
        return self._compared is not None and self._once + self._each * records <= min(SHARED_WORK, self._work)
