"""Checks of a handler with timers: each fires once, with the count of its key, and by stream time not too early."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from actorproc.simulation.output_checks import RecordCheck, RecordResult, Row
from actorproc.simulation.streams import KnownStream
from tests.simulation.reference_records import CYCLE, CountCheck, count_key

_PRECISION = 0.002
"""Seconds: rows have milliseconds."""


def gap_of(key: str) -> float:
    """Seconds between the last record of a key and its timer."""
    return 15.0 + int(key.removeprefix("key-"))


def timer_row(key: str, count: int, due: datetime) -> dict[str, Any]:
    """The row of a timer. `parts` is 0 in no other row."""
    number = int(key.removeprefix("key-"))
    return {"id": number, "part": 0, "parts": 0, "attempt": f"{due.timestamp():.3f}#{count}"}


class TimerCheck(CountCheck):
    """`CountCheck` for a handler that sets a timer with each count, and ends the count when it fires.

    Args:
        idle: whether stream time follows the wall clock in idle partitions. Then timers may be early.
    """

    def __init__(self, check: RecordCheck, stream: KnownStream, *, idle: bool) -> None:
        super().__init__(check, stream.parents)
        self._stream = stream
        self._idle = idle
        self.timers: dict[tuple[str, str], float | None] = {}
        """When each timer is due, in seconds since 1970, by partition and key. None: unknown."""

    def __call__(self, ended: RecordResult) -> str | None:
        wrong = super().__call__(ended)
        if ended.rows:
            key = count_key(ended.rows[0]["id"])
            if self.counts.get((ended.partition, key)) == CYCLE:
                self.timers.pop((ended.partition, key), None)
            else:
                time = self._stream.time_of(ended.partition, ended.sequence)
                self.timers[ended.partition, key] = None if time is None else time + gap_of(key)
        return wrong

    def cleared(self, partition: str) -> None:
        super().cleared(partition)
        self.timers = {place: due for place, due in self.timers.items() if place[0] != partition}

    def is_timer_row(self, row: Row) -> bool:
        """Whether `on_wake` has returned this row."""
        return bool(row["parts"] == 0)

    def fired(self, partition: str, sequence: int, row: Row) -> str | None:
        """The fault in a row of `on_wake`, which came after the record of this sequence, or None."""
        place = partition, count_key(row["id"])
        text, _, count = row["attempt"].partition("#")
        if place not in self.timers:
            return f"the timer of {place[1]} fires, and none is set"
        expected, due, counted = self.timers.pop(place), float(text), self.counts[place]
        self.counts[place] = CYCLE  # the key is not there any more
        if int(count) != counted:
            return f"the timer of {place[1]} has count {count}, not {counted}"
        if expected is not None and abs(due - expected) > _PRECISION:
            return f"the timer of {place[1]} is due at {due:.3f}, and was set to {expected:.3f}"
        time = self._stream.stream_time(partition, sequence)
        if expected is not None and time is not None and due > time + _PRECISION and not self._idle:
            return f"the timer of {place[1]}, due at {due:.3f}, fires early: stream time is {time:.3f}"
        return None

    def wrong_timers(self, partition: str, found: Mapping[Any, tuple[float, str]]) -> str | None:
        """The fault in the timers in the state of a partition after the run, or None."""
        expected = {key: due for (where, key), due in self.timers.items() if where == partition}
        if expected.keys() != found.keys():
            return f"has timers for {sorted(found)}, not {sorted(expected)}"
        time = self._stream.stream_time(partition, self._stream.last(partition))
        late = [key for key, due in expected.items() if due is not None and time is not None and due <= time]
        return f"has timers that have not fired, and are due: {late}" if late else None
