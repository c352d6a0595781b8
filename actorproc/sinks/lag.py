"""How far a sink is behind its partition, in commits, rows and seconds, from memory alone."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import NamedTuple

_MOST_MARKS = 4096
"""Commits whose place is kept. Beyond, every second one is dropped, and the lag may be a little too high."""

_RATE_SECONDS = 30
"""The rate is the mean of so many seconds."""


class SinkLag(NamedTuple):
    """What a sink lacks. None: not known."""

    commits: int | None = None
    rows: int | None = None
    seconds: float | None = None
    """Age of the oldest commit."""


class _Mark(NamedTuple):
    number: int
    rows: int
    """Of the partition before this commit."""
    time: float
    """Of the commit, in seconds since 1970."""


class LagMeter:
    """Knows the place of the commits that a sink may lack."""

    def __init__(self) -> None:
        self._tip, self._rows = 0, 0  # the end of the chain: the next commit, and the rows before it
        self._marks: list[_Mark] = []

    def begin(self, tip: int, rows: int) -> None:
        """The chain ends before commit `tip`, with so many rows before it."""
        self._tip, self._rows = tip, rows
        self._marks.clear()

    def committed(self, number: int, rows: int, time: float) -> None:
        """Commit `number` was made with so many rows."""
        self._marks.append(_Mark(number, self._rows, time))
        self._tip, self._rows = number + 1, self._rows + rows
        if len(self._marks) > _MOST_MARKS:
            self._marks = self._marks[::2]

    def knows(self, position: int) -> bool:
        """Whether the lag of a sink that gets commit `position` next is known in full."""
        return position >= self._tip or self._before(position) is not None

    def place(self, number: int, rows: int, time: float) -> None:
        """Commit `number`, made by an earlier owner, has so many rows before it."""
        at = bisect_right(self._marks, number, key=lambda mark: mark.number)
        if not at or self._marks[at - 1].number != number:
            self._marks.insert(at, _Mark(number, rows, time))

    def delivered(self, position: int) -> None:
        """The sink gets commit `position` next."""
        at = bisect_right(self._marks, position, key=lambda mark: mark.number)
        del self._marks[: max(0, at - 1)]

    def lag(self, position: int | None, now: float) -> SinkLag:
        """The lag of a sink that gets commit `position` next. `now`: seconds since 1970."""
        if position is None:
            return SinkLag()
        if position >= self._tip:
            return SinkLag(0, 0, 0.0)
        commits, mark = self._tip - position, self._before(position)
        if mark is None:
            return SinkLag(commits)
        return SinkLag(commits, self._rows - mark.rows, max(0.0, now - mark.time))

    def _before(self, position: int) -> _Mark | None:
        """The latest known commit up to `position`."""
        at = bisect_right(self._marks, position, key=lambda mark: mark.number)
        return self._marks[at - 1] if at else None


class RowRate:
    """Rows a second, as the mean of the last half minute."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, int]] = deque()  # second, rows in it
        self._began: float | None = None

    def add(self, rows: int, now: float) -> None:
        """`now`: monotonic seconds."""
        if self._began is None:
            self._began = now
        second = int(now)
        if self._seconds and self._seconds[-1][0] == second:
            rows += self._seconds.pop()[1]
        self._seconds.append((second, rows))
        self._drop(now)

    def per_second(self, now: float) -> float:
        """`now`: monotonic seconds."""
        self._drop(now)
        if self._began is None:
            return 0.0
        return sum(rows for _, rows in self._seconds) / min(_RATE_SECONDS, max(1.0, now - self._began))

    def _drop(self, now: float) -> None:
        while self._seconds and self._seconds[0][0] <= now - _RATE_SECONDS:
            self._seconds.popleft()
