"""Timers in stream time as an explicit-state model: every interleaving, within small bounds.

Each record has a time, and sets the timer of its key to two later: a timer that is there is replaced. Stream time is
the greatest time of the records that are processed. An owner takes a batch, processes it, and fires the timers that are
due by its stream time, between batches. It commits what it has processed, also while it has a batch in hand, as
`ctx.commit` does. It crashes at any step, and the next owner begins with the commits. The run ends once all records are
processed, no timer is due, and everything is committed. An operator resets the partition to its first record while
nobody runs it.

Checked in every state: a timer fires only if a record has been processed whose time is not before it. Once the run has
ended, no timer is left that such a record makes due. So the timers of a run that was interrupted are those of one that
was not.

Change the protocol here first, then docs/protocol.md, then the code. `python -m tests.protocol.timer_model [quick]`
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from tests.protocol.search import Found, explore, report

_AFTER = 2
"""The time from a record to the timer that it sets."""

Timers = tuple[tuple[str, int], ...]
"""Keys and times, by key."""


class At(NamedTuple):
    """The knowledge after the first `cursor` records. `stream`: stream time; 0: not known."""

    cursor: int = 0
    stream: int = 0
    timers: Timers = ()


class Owner(NamedTuple):
    """`hand`: records that the handler has and has not processed."""

    at: At
    hand: int = 0


class State(NamedTuple):
    """`checkpoint` lags behind `tip`, the commits. `early`: a timer has fired too early."""

    checkpoint: At = At()
    tip: At = At()
    owner: Owner | None = None
    early: str = ""
    ended: bool = False
    resets: int = 0


Step = tuple[str, State]


@dataclass(frozen=True, slots=True)
class Rules:
    """The protocol's rules; leave one out, and the search finds how it breaks."""

    commit: bool = True
    """Each commit says the stream time, not the checkpoint alone."""
    covered: bool = True
    """It is the time of the records that the commit covers, not of those that the handler has."""
    reset: bool = True
    """A reset back forgets it."""


@dataclass(frozen=True, slots=True)
class Model:
    """`records`: key and time of each."""

    records: tuple[tuple[str, int], ...]
    resets: int = 0
    rules: Rules = Rules()

    def broken(self, s: State) -> str | None:
        if s.early:
            return s.early
        left = [timer for timer in s.tip.timers if timer[1] <= self._latest(len(self.records))]
        return f"the run has ended, and {left[0]} has not fired" if s.ended and left else None

    def _latest(self, cursor: int) -> int:
        """The greatest time of the records before the cursor."""
        return max((time for _, time in self.records[:cursor]), default=0)

    def steps(self, s: State) -> Iterator[Step]:
        if s.ended:
            return
        if s.owner is None:
            yield "an owner opens", s._replace(owner=Owner(self._opened(s)))
            if s.resets < self.resets:
                stream = 0 if self.rules.reset else s.tip.stream
                yield "a reset to the first record", s._replace(tip=At(0, stream), resets=s.resets + 1)
            return
        yield "it crashes", s._replace(owner=None)
        yield from self._process(s, s.owner)
        if s.owner.at != s.tip:
            yield "it commits", s._replace(tip=s.owner.at)
        elif s.tip != s.checkpoint:
            yield "it writes the checkpoint", s._replace(checkpoint=s.tip)

    def _opened(self, s: State) -> At:
        """The progress by the checkpoint and the commits after it."""
        return s.tip if self.rules.commit else s.tip._replace(stream=s.checkpoint.stream)

    def _process(self, s: State, owner: Owner) -> Iterator[Step]:
        at, hand = owner
        if hand:
            yield "it has processed them", s._replace(owner=Owner(self._after(at, hand)))
            return
        due = [timer for timer in at.timers if timer[1] <= at.stream]
        for timer in due:
            yield f"{timer} fires", self._fired(s, at, timer)
        if due:
            return
        for size in range(1, len(self.records) - at.cursor + 1):
            stream = at.stream if self.rules.covered else max(at.stream, self._latest(at.cursor + size))
            yield f"it takes {size} records", s._replace(owner=Owner(at._replace(stream=stream), size))
        if at.cursor == len(self.records) and at == s.tip:
            yield "the run ends", s._replace(ended=True)

    def _after(self, at: At, count: int) -> At:
        timers, stream = dict(at.timers), at.stream
        for key, time in self.records[at.cursor : at.cursor + count]:
            timers[key] = time + _AFTER
            stream = max(stream, time)
        return At(at.cursor + count, stream, tuple(sorted(timers.items())))

    def _fired(self, s: State, at: At, timer: tuple[str, int]) -> State:
        early = "" if timer[1] <= self._latest(at.cursor) else f"{timer} fires before its time"
        left = tuple(one for one in at.timers if one != timer)
        return s._replace(owner=Owner(at._replace(timers=left)), early=early)

    def search(self) -> Found:
        return explore(State(), self.steps, self.broken)


ALL = Rules()

_FEW = (("a", 1), ("b", 4), ("a", 2), ("b", 9), ("c", 8))
_MORE = (("a", 1), ("b", 4), ("a", 2), ("c", 3), ("b", 9), ("a", 6), ("c", 8), ("b", 12))

HOLDS = {"records out of order, and a reset": Model(_MORE, resets=1)}
"""All rules kept."""

HOLDS_LONG: dict[str, Model] = {}

BREAKS = {
    "stream time in the checkpoint alone": Model(_FEW, rules=replace(ALL, commit=False)),
    "the time of records in hand": Model(_FEW, rules=replace(ALL, covered=False)),
    "a reset that keeps stream time": Model(_FEW, resets=1, rules=replace(ALL, reset=False)),
}
"""Models with one rule left out: each must break."""


if __name__ == "__main__":
    sys.exit(report(HOLDS, BREAKS))
