"""The price of processing: seconds of a partition actor by activity, and what reading has cost the host."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, get_args

from actorproc.records import ReadCost
from actorproc.runtime.clock import Clock

Activity = Literal["read", "handle", "commit", "wait"]
"""- `read`: waits for records that the source has.
- `handle`: the handler works on a batch.
- `commit`: writes rows, dead letters and position.
- `wait`: the source has nothing more, or a failed batch waits for its next attempt.
"""

ACTIVITIES: tuple[Activity, ...] = get_args(Activity)

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of a histogram of durations, in seconds. A batch is sized to take some five seconds."""


@dataclass(slots=True)
class Durations:
    """A histogram of durations in seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    """Durations by bucket; the last are longer than every bound."""
    sum: float = 0.0

    def copy(self) -> Durations:
        return Durations(self.counts.copy(), self.sum)

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.sum += seconds


class HostTimes:
    """The times of all partition actors that a host has run."""

    def __init__(self) -> None:
        self.seconds: dict[Activity, float] = dict.fromkeys(ACTIVITIES, 0.0)
        self.durations: dict[Activity, Durations] = {"handle": Durations(), "commit": Durations()}
        """Of a batch from its first attempt to its last, and of a commit."""


class TimeSpent:
    """The time of one partition actor. An activity may interrupt another one, which goes on afterwards."""

    def __init__(self, clock: Clock, host: HostTimes) -> None:
        self._clock = clock
        self._host = host
        self._seconds: dict[Activity, float] = dict.fromkeys(ACTIVITIES, 0.0)
        self.activity: Activity = "wait"
        self.since = self._counted = clock.wall()
        """When the activity of the moment began, in seconds since 1970."""
        self._began: float | None = None  # nothing is counted before the first activity

    @contextmanager
    def at(self, activity: Activity) -> Iterator[None]:
        """While the block runs, the actor is at this activity."""
        before, since = self.activity, self.since
        self._switch(activity, None)
        began = self._clock.monotonic()
        try:
            yield
        finally:
            self._switch(before, since)
            if (durations := self._host.durations.get(activity)) is not None:
                durations.add(self._clock.monotonic() - began)

    def _switch(self, activity: Activity, since: float | None) -> None:
        now = self._clock.monotonic()
        if self._began is not None:
            self._seconds[self.activity] += now - self._began
            self._host.seconds[self.activity] += now - self._began
        self._began, self._counted = now, self._clock.wall()
        self.activity, self.since = activity, self._counted if since is None else since

    def seconds(self) -> dict[Activity, float]:
        """Seconds by activity, those of the moment included. May be called from any thread."""
        seconds = self._seconds.copy()
        if self._began is not None:
            seconds[self.activity] += max(0.0, self._clock.wall() - self._counted)
        return seconds


class ReadCosts:
    """The sum over all partitions that a host has read."""

    def __init__(self) -> None:
        self.requests = self.bytes = 0
        self.charges: Counter[str] = Counter()
        """By name, such as `request_units`."""

    def add(self, cost: ReadCost) -> None:
        """Add the cost of one read."""
        self.requests += cost.requests
        self.bytes += cost.bytes
        for name, charge in cost.charges.items():
            self.charges[name] += charge  # type: ignore[assignment]  # charges are fractions
