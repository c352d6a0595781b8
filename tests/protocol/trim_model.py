"""Trimming and its readers as an explicit-state model: every interleaving, within small bounds.

One partition with numbered files (commits of an output, or files of a log).

Possible at any step:
- A commit.
- The checkpoint follows a commit.
- A reader registers, at a position of its own or at the oldest kept file, and reads on.
- One of two trimmers makes its next step, or dies and begins anew.
- A sleeper's create lands late, perhaps where a file was deleted.

`readers.json` holds the readers and, decided together with them, the lowest number that is kept for anybody. A trimmer
reads it, then positions and checkpoint, decides by compare-and-swap, raises the boundary, deletes.

Checked in every state:
- No file that counts is gone.
- No registered reader is below the decided number.
- The newest file exists and the checkpoint leads to it.
- A file that lands late is void.
- An undisturbed trim leaves no void file behind.

Change the protocol here first, then docs/protocol.md, then the code. `python -m tests.protocol.trim_model`
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from tests.protocol.search import Found, explore, report


class Trimmer(NamedTuple):
    """Phase 'looked' (it knows `version` and `readers` of readers.json), 'planned' (to trim below `upto`), 'decided' or
    'raised'. `since`: from where it deletes."""

    phase: str
    version: int
    readers: tuple[int, ...]
    upto: int = 0
    since: int = 0


class Reader(NamedTuple):
    """`wants`: the position that it registers with, or None to begin at `lowest`. `position`: None until it begins."""

    wants: int | None
    registered: bool = False
    refused: bool = False
    position: int | None = None


class State(NamedTuple):
    made: int = 0
    """Commits so far: numbers below it are decided."""
    files: tuple[int, ...] = ()
    void: tuple[int, ...] = ()
    """Numbers with a late file at the place of a deleted committed one."""
    checkpoint: int = 0
    version: int = 0
    """Of readers.json."""
    decided: int = 0
    """In readers.json: lower numbers are kept for no reader."""
    boundary: int = 0
    trimmers: tuple[Trimmer | None, ...] = (None, None)
    readers: tuple[Reader, ...] = ()
    sleeping: tuple[int, ...] = ()
    """Numbers of creates that are under way."""
    late_left: int = 0


Step = tuple[str, State]


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of trimming; leave one out, and the search finds how it breaks."""

    decide: bool = True
    """The decision is written into readers.json, beside the readers, before the boundary is raised."""
    swap: bool = True
    """It is written by compare-and-swap against the readers that were asked."""
    refuse: bool = True
    """A reader registers by the decided number, not by the boundary."""
    begin: bool = True
    """A reader that begins with the oldest kept file registers by the decided number, too."""
    raise_first: bool = True
    """The boundary is raised before anything is deleted."""
    grow: bool = True
    """The boundary only grows, by compare-and-swap."""
    passed: bool = True
    """Only files that the checkpoint has passed are trimmed."""
    keep_last: bool = True
    """The newest file stays."""
    sweep: bool = True
    """A trim deletes all files below the boundary, not only those that it has trimmed itself."""


@dataclass(frozen=True, slots=True)
class Model:
    """`numbers`: maximal commits. `readers`: the position that each registers with. `late`: number of late creates."""

    numbers: int
    readers: tuple[int | None, ...]
    late: int = 1
    trimmers: int = 2
    rules: Rules = Rules()

    # Invariants

    def broken(self, s: State) -> str | None:
        if gone := set(range(s.boundary, s.made)) - set(s.files):
            return f"numbers {gone} count, and are gone"
        for reader in s.readers:
            if reader.position is not None and reader.position < max(s.boundary, s.decided):
                return f"a registered reader stands at {reader.position}: trimmed before it was read"
        if s.made and s.made - 1 not in s.files:
            return "the newest file is gone"
        if s.checkpoint < s.boundary:
            return f"the checkpoint leads to {s.checkpoint}, which is trimmed"
        if left := self._left_by_a_trim(s):
            return f"a trim has left {left} behind"
        return None

    def _left_by_a_trim(self, s: State) -> set[int]:
        """The files left below the boundary after an undisturbed trim."""
        s = s._replace(trimmers=(None,))
        s = next(self._trimmer(s, 0))[1]
        while s.trimmers[0] is not None:
            s = list(self._trimmer(s, 0))[-1][1]
        return {n for n in (*s.files, *s.void) if n < s.decided}

    # Steps

    def steps(self, s: State) -> Iterator[Step]:
        if s.made < self.numbers:
            yield f"commit {s.made}", s._replace(made=s.made + 1, files=(*s.files, s.made))
            if s.late_left:
                yield (
                    f"a create of {s.made} is sent, and sleeps",
                    s._replace(sleeping=(*s.sleeping, s.made), late_left=s.late_left - 1),
                )
        if s.checkpoint < s.made:
            yield f"checkpoint {s.made}", s._replace(checkpoint=s.made)
        yield from self._late(s)
        for r, reader in enumerate(s.readers):
            yield from self._reader(s, r, reader)
        for t, trimmer in enumerate(s.trimmers[: self.trimmers]):
            yield from self._trimmer(s, t)
            if trimmer is not None:
                yield f"t{t} dies", _trims(s, t, None)

    def _late(self, s: State) -> Iterator[Step]:
        for i, n in enumerate(s.sleeping):
            rest = s._replace(sleeping=s.sleeping[:i] + s.sleeping[i + 1 :])
            if n in s.files or n in s.void:
                yield f"late create of {n} refused", rest
            elif n == s.made:
                yield f"late create of {n} is the commit", rest._replace(made=n + 1, files=(*s.files, n))
            else:
                yield f"late create of {n} lands, void", rest._replace(void=tuple(sorted({*s.void, n})))

    def _reader(self, s: State, r: int, reader: Reader) -> Iterator[Step]:
        known = s.decided if self.rules.refuse else s.boundary
        if not reader.registered and not reader.refused:
            if reader.wants is not None and reader.wants < known:
                yield f"r{r} is refused", _reads(s, r, reader._replace(refused=True))
            else:
                registered = reader._replace(registered=True, position=reader.wants)
                yield f"r{r} registers at {reader.wants}", _reads(s, r, registered)._replace(version=s.version + 1)
        elif reader.registered and reader.position is None:
            first = max(s.boundary, s.decided) if self.rules.begin else s.boundary
            yield f"r{r} begins at {first}", _reads(s, r, reader._replace(position=first))
        elif reader.position is not None and reader.position < s.made:
            yield f"r{r} reads {reader.position}", _reads(s, r, reader._replace(position=reader.position + 1))

    def _trimmer(self, s: State, t: int) -> Iterator[Step]:
        trimmer = s.trimmers[t]
        match trimmer.phase if trimmer is not None else None:
            case None:
                registered = tuple(r for r, reader in enumerate(s.readers) if reader.registered)
                yield f"t{t} looks at the readers", _trims(s, t, Trimmer("looked", s.version, registered))
            case "looked":
                assert trimmer is not None
                planned = trimmer._replace(phase="planned", upto=self._limit(s, trimmer), readers=())
                yield f"t{t} plans to trim below {planned.upto}", _trims(s, t, planned)
            case "planned":
                assert trimmer is not None
                yield self._decide(s, t, trimmer)
            case "decided":
                assert trimmer is not None
                yield from self._raise(s, t, trimmer)
            case "raised":
                assert trimmer is not None
                yield from self._delete(s, t, trimmer)

    def _limit(self, s: State, trimmer: Trimmer) -> int:
        held = [s.checkpoint if self.rules.passed else s.made]
        if self.rules.keep_last:
            held = [max(0, number - 1) for number in held]
        for r in trimmer.readers:
            position = s.readers[r].position
            held.append(s.decided if position is None else position)
        return max(s.decided, min(held))

    def _decide(self, s: State, t: int, trimmer: Trimmer) -> Step:
        onward = _trims(s, t, trimmer._replace(phase="decided", version=0))
        if trimmer.upto <= s.decided or not self.rules.decide:
            return f"t{t} has nothing to decide", onward
        if trimmer.version != s.version and self.rules.swap:
            return f"t{t} finds other readers, begins anew", _trims(s, t, None)
        return f"t{t} decides {trimmer.upto}", onward._replace(decided=trimmer.upto, version=s.version + 1)

    def _raise(self, s: State, t: int, trimmer: Trimmer) -> Iterator[Step]:
        if not self.rules.raise_first:
            files = [n for n in s.files if n < trimmer.upto]
            if files:
                yield f"t{t} deletes {files[0]}", _without(s, files[0])
                return
        boundary = max(s.boundary, trimmer.upto) if self.rules.grow else trimmer.upto
        since = 0 if self.rules.sweep else s.boundary
        raised = _trims(s, t, trimmer._replace(phase="raised", since=since))
        yield f"t{t} raises the boundary to {boundary}", raised._replace(boundary=boundary)

    def _delete(self, s: State, t: int, trimmer: Trimmer) -> Iterator[Step]:
        below = sorted(n for n in (*s.files, *s.void) if trimmer.since <= n < trimmer.upto)
        if below:
            yield f"t{t} deletes {below[0]}", _without(s, below[0])
        else:
            yield f"t{t} is done", _trims(s, t, None)

    def search(self) -> Found:
        start = State(readers=tuple(Reader(wants) for wants in self.readers), late_left=self.late)
        return explore(start, self.steps, self.broken)


def _trims(s: State, t: int, trimmer: Trimmer | None) -> State:
    return s._replace(trimmers=(*s.trimmers[:t], trimmer, *s.trimmers[t + 1 :]))


def _reads(s: State, r: int, reader: Reader) -> State:
    return s._replace(readers=(*s.readers[:r], reader, *s.readers[r + 1 :]))


def _without(s: State, n: int) -> State:
    return s._replace(files=tuple(m for m in s.files if m != n), void=tuple(m for m in s.void if m != n))


ALL = Rules()

HOLDS = {
    "a reader with a position": Model(3, (0,), late=0),
    "a reader that begins with what there is": Model(3, (None,), late=0),
    "no reader, a late write": Model(3, ()),
}
"""All rules kept, small enough for every run."""

HOLDS_LONG = {
    "a reader and a late write": Model(3, (None,)),
    "both kinds of readers": Model(3, (0, None), late=0),
    "two late writes": Model(3, (), late=2),
}

BREAKS = {
    "trimming without a decision beside the readers": Model(3, (0,), rules=replace(ALL, decide=False)),
    "deciding over a reader that came meanwhile": Model(3, (0,), rules=replace(ALL, swap=False)),
    "registering by what is done, not by what is decided": Model(3, (0,), rules=replace(ALL, refuse=False)),
    "beginning at what is done, not at what is decided": Model(3, (None,), rules=replace(ALL, begin=False)),
    "deleting before the boundary is raised": Model(3, (), rules=replace(ALL, raise_first=False)),
    "a boundary that may fall": Model(3, (), rules=replace(ALL, grow=False)),
    "trimming beyond the checkpoint": Model(3, (), rules=replace(ALL, passed=False)),
    "trimming the newest file": Model(3, (), rules=replace(ALL, keep_last=False)),
    "deleting only what one has trimmed oneself": Model(3, (), rules=replace(ALL, sweep=False)),
}
"""Models with one rule left out: each must break."""

if __name__ == "__main__":
    sys.exit(report({**HOLDS, **({} if "quick" in sys.argv else HOLDS_LONG)}, BREAKS))
