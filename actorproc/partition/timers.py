"""Which timers of a partition are due, and when the next one is. Nothing here waits or calls a handler."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import NamedTuple

from actorproc.config.settings import Settings
from actorproc.handler.keyed_state import TIMERS, StateChanges
from actorproc.handler.timers import unpack_timer
from actorproc.records import Batch
from actorproc.runtime.backoff import Backoff
from actorproc.runtime.clock import SHORTEST_WAIT, Clock


class _Schedule:
    """Keys by a time at which to look at their timers. A key has one entry, which may be too early, or outdated."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, bytes]] = []
        self._times: dict[bytes, float] = {}

    def put(self, key: bytes, at: float) -> None:
        """Look at `key` at this time, or earlier if that was asked for before."""
        if at < self._times.get(key, math.inf):
            self._times[key] = at
            heappush(self._heap, (at, key))

    def pop(self, now: float) -> bytes | None:
        """A key whose time has come."""
        while self._heap and self._heap[0][0] <= now:
            at, key = heappop(self._heap)
            if self._times.get(key) == at:
                del self._times[key]
                return key
        return None

    @property
    def first(self) -> float:
        """The earliest time; infinity: none."""
        return self._heap[0][0] if self._heap else math.inf


class Failure(NamedTuple):
    """How often a timer has failed, and why the last time."""

    tries: int
    error: Exception


class Timers:
    """The timers of one partition, by stream time and by wall time, and those that failed and are tried again.

    A timer that is set later keeps its earlier entry: so a key that is set with each record costs one entry, not many.

    Args:
        held: the timers in state, packed. It changes with each batch.
        latest: the greatest timestamp that has moved stream time before.
        wall: the wall clock: seconds since 1970 by the store.
    """

    def __init__(
        self,
        held: Mapping[bytes, bytes],
        latest: float | None,
        settings: Settings,
        clock: Clock,
        wall: Callable[[], float],
    ) -> None:
        self._held = held
        self._clock, self._wall = clock, wall
        self._idle, self._ahead = settings.stream_idle_time, settings.max_timestamp_ahead
        self._backoff = Backoff(settings.retry_backoff, settings.retry_backoff_max)
        self.latest = latest
        """The greatest timestamp of the processed records that moves stream time; None: there was none."""
        self._stream_time = -math.inf if latest is None else latest
        self._ended = False
        self._quiet_since = clock.monotonic()
        self._schedules = {"stream": _Schedule(), "wall": _Schedule()}
        self._again = _Schedule()  # by the clock's `monotonic`
        self.failures: dict[bytes, Failure] = {}
        """Timers that have failed since they were set, or the partition opened, by key."""
        for key in held:
            self._put(key)

    def end(self, but: Collection[bytes]) -> None:
        """The partition has ended: all timers that are set now are due. One that is set from now on does not fire here.

        Args:
            but: keys of timers that go on in other partitions.
        """
        self._ended = True
        self._again, self._schedules = _Schedule(), {"stream": _Schedule(), "wall": _Schedule()}
        for key in self._held:
            if key not in but:
                self._put(key)

    def _put(self, key: bytes) -> None:
        if (packed := self._held.get(key)) is not None:
            at, clock = unpack_timer(packed)
            self._schedules[clock].put(key, at)

    def changed(self, changes: StateChanges) -> None:
        """Keyed state has changed."""
        if (timers := changes.get(TIMERS)) is not None:
            for key in timers.values:
                self.failures.pop(key, None)
                if not self._ended:
                    self._put(key)

    def passed(self, batch: Batch) -> float | None:
        """These records are processed. Returns the latest timestamp if it is too far ahead to move stream time."""
        self._quiet_since = self._clock.monotonic()
        limit, too_far, time = self._wall() + self._ahead, None, batch.latest_time
        if time is not None and time > limit:
            too_far, time = time, batch.latest_time_until(limit)
        if time is not None:
            self.latest = time if self.latest is None else max(self.latest, time)
            self._stream_time = max(self._stream_time, time)
        return too_far

    def due(self, most: int, but: Collection[bytes], *, at_end: bool) -> list[bytes]:
        """Up to `most` keys whose timers are due, each once: call `failed` or `put_back`, or they are forgotten.

        Args:
            but: keys that wait for the next call.
            at_end: the source has nothing more for now.
        """
        if at_end and self._clock.monotonic() - self._quiet_since >= self._idle:
            self._stream_time = max(self._stream_time, self._wall() - self._idle)
        found: dict[bytes, None] = {}
        later: list[bytes] = []
        times = ((self._again, self._clock.monotonic()), *zip(self._schedules.values(), self._now(), strict=True))
        for schedule, now in times:
            while len(found) < most and (key := schedule.pop(now)) is not None:
                if key in but:
                    later.append(key)
                elif self.is_due(self._held.get(key)):
                    found[key] = None
                else:
                    self._put(key)
        self.put_back(later)
        return list(found)

    def is_due(self, packed: bytes | None) -> bool:
        """Whether this timer exists and its time has come."""
        if packed is None or self._ended:
            return packed is not None
        at, clock = unpack_timer(packed)
        return at <= (self._stream_time if clock == "stream" else self._wall())

    @contextmanager
    def wall_clock_stopped(self) -> Iterator[None]:
        """Within the block no other timer becomes due because time goes on."""
        wall, now = self._wall, self._wall()
        self._wall = lambda: now
        try:
            yield
        finally:
            self._wall = wall

    def _now(self) -> tuple[float, float]:
        return (math.inf, math.inf) if self._ended else (self._stream_time, self._wall())

    def put_back(self, keys: Collection[bytes]) -> None:
        """These were due and not called."""
        for key in keys:
            self._put(key)

    def failed(self, key: bytes, error: Exception) -> float:
        """Look at the timer again after a back-off. Returns its seconds."""
        before = self.failures.get(key)
        tries = before.tries + 1 if before else 1
        self.failures[key] = Failure(tries, error)
        delay = self._backoff.delay(tries, self._clock.random)
        self._again.put(key, self._clock.monotonic() + delay)
        return delay

    def next_in(self, *, at_end: bool) -> float:
        """Seconds until the next timer may be due, unless a record comes before; infinity: none will be. At least
        `SHORTEST_WAIT`: a timer that is due by one sum of seconds may not be due by another."""
        wall, monotonic = self._wall(), self._clock.monotonic()
        stream, by_wall = self._schedules.values()
        waits = [by_wall.first - wall, self._again.first - monotonic]
        if stream.first <= self._stream_time:
            waits.append(0.0)
        elif at_end:
            waits.append(max(self._quiet_since + self._idle - monotonic, stream.first + self._idle - wall))
        return max(SHORTEST_WAIT, min(waits))
