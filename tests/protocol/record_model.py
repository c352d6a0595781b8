"""Records that fail alone in a batch with keyed state, as an explicit-state model: every order of failures.

A handler works record by record. An attempt calls it for the records of a part, from the first on. Each record changes
the state or not, and emits a row. A call may fail before or after its change. Then the record is tried again or becomes
a dead letter. The owner may crash at any step; then the batch begins again from the last commit.

A handler that takes a batch as a whole (`apart=False`) keeps no journal: its attempt calls all records of the part, and
counts as a whole.

Each record has a kind: S changes state, N does not; M changes state and its row does not fit; D does not decode.

Checked once the batch is committed: the state is the one of an ordered run over the records without a dead letter;
each of them has one row, each other record one dead letter. Checked always: if the handler is known to use state, a
record is called again only if it has failed itself; with a handler of whole batches, once more for each other record
that has failed, however often that one fails.

Change the protocol here first, then docs/protocol.md, then the code. `python -m tests.protocol.record_model`
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from tests.protocol.search import Found, explore, report

MOST_TRIES = 2


class Attempt(NamedTuple):
    """The attempt at the first part. `place`: of the record in the part that is called next.

    `began`: the state that it began with. `failed`: records to be tried again. `dead`: records that are given up.
    `used`: whether it has used state. `stopped`: the record at which it ends.
    """

    began: tuple[int, ...]
    place: int = 0
    state: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()
    dead: tuple[int, ...] = ()
    used: bool = False
    stopped: int | None = None


class State(NamedTuple):
    """`parts`: the records that wait, by part. `state`, `rows` and `letters` are those of the records that are done.

    `known`: whether the handler is known to use state. `calls`: how often it was called for each record since the
    batch began, `failures`: how often that failed.
    """

    parts: tuple[tuple[int, ...], ...]
    attempt: Attempt | None = None
    state: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    letters: tuple[int, ...] = ()
    known: bool = False
    calls: tuple[int, ...] = ()
    failures: tuple[int, ...] = ()
    committed: bool = False
    failures_left: int = 0
    crashes_left: int = 0


Step = tuple[str, State]


@dataclass(frozen=True, slots=True)
class Rules:
    """The protocol's rules; leave one out, and the search finds how it breaks."""

    undo: bool = True
    """A record that fails takes its changes of state back, before the next one is called."""
    stop: bool = True
    """The attempt ends at a record that is tried again."""
    rest: bool = True
    """The records after it wait until it is settled."""
    rows: bool = True
    """Rows that a record has emitted before it failed do not count."""
    fit: bool = True
    """A row is tried on the schema before the next record is called."""
    back: bool = True
    """If state is used for the first time after a failure, the attempt goes back to that record."""
    carried: bool = True
    """The next attempt begins with the state of the records that are done."""
    whole: bool = True
    """Of a handler of whole batches: if a record fails, nothing counts of an attempt that has used state."""
    cut: bool = True
    """The part is cut at each failed record before its next attempt: those before it, it alone, those behind it."""
    order: bool = True
    """These parts are processed in the order of their records."""


@dataclass(frozen=True, slots=True)
class Model:
    """`kinds`: one letter per record. `declared`: the handler is known to use state from the start. `apart`: it works
    record by record, and keeps a journal.
    """

    kinds: str
    failures: int = 3
    crashes: int = 1
    declared: bool = True
    apart: bool = True
    rules: Rules = Rules()

    def start(self) -> State:
        none = (0,) * len(self.kinds)
        return State(
            (tuple(range(len(self.kinds))),), known=self.declared, calls=none, failures=none,
            failures_left=self.failures, crashes_left=self.crashes,
        )  # fmt: skip

    # Invariants

    def broken(self, s: State) -> str | None:
        """The invariant that a state breaks, or None."""
        if self.declared:
            bad = {record for record, kind in enumerate(self.kinds) if s.failures[record] or kind == "M"}
            for record, (calls, failures) in enumerate(zip(s.calls, s.failures, strict=True)):
                others = 0 if self.apart else len(bad - {record})
                if calls > failures + 1 + others:
                    return f"record {record} is called again, although it has not failed"
        if not s.committed:
            return None
        for record in range(len(self.kinds)):
            ends = Counter(s.rows)[record], Counter(s.letters)[record]
            if ends not in ((1, 0), (0, 1)):
                return f"record {record} has {ends[0]} rows and {ends[1]} dead letters"
        wanted = tuple(record for record in range(len(self.kinds)) if record in s.rows and self.changes(record))
        return None if s.state == wanted else f"the state is of {s.state}, and an ordered run has {wanted}"

    def changes(self, record: int) -> bool:
        return self.kinds[record] in "SM"

    # Steps

    def steps(self, s: State) -> Iterator[Step]:
        if s.committed:
            return
        if s.crashes_left:
            again = self.start()._replace(crashes_left=s.crashes_left - 1, failures_left=s.failures_left)
            yield "crash", again
        if s.attempt is None:
            if s.parts:
                began = s.state if self.rules.carried else ()
                yield "attempt", s._replace(attempt=Attempt(began, state=began))
            else:
                yield "commit", s._replace(committed=True)
        elif s.attempt.stopped is not None or s.attempt.place == len(s.parts[0]):
            yield "returned", self._returned(s, s.attempt)
        else:
            yield from self._calls(s, s.attempt)

    def _calls(self, s: State, a: Attempt) -> Iterator[Step]:
        record = s.parts[0][a.place]
        if self.kinds[record] == "D":
            yield f"{record} does not decode", s._replace(attempt=a._replace(place=a.place + 1, dead=(*a.dead, record)))
            return
        s = s._replace(calls=_more(s.calls, record))
        changed = a._replace(state=(*a.state, record), used=True) if self.changes(record) else a
        emitted = changed._replace(rows=(*a.rows, record))
        if self.kinds[record] == "M" and self.rules.fit and self.apart:
            yield f"{record} does not fit", self._failed(s, a, emitted, record, again=False)
        else:
            yield f"{record} is done", self._next(s, emitted)
        if s.failures_left:
            s = s._replace(failures_left=s.failures_left - 1)
            again = s.failures[record] + 1 < MOST_TRIES
            yield f"{record} fails at once", self._failed(s, a, a, record, again=again)
            yield f"{record} fails late", self._failed(s, a, emitted, record, again=again)

    def _failed(self, s: State, before: Attempt, a: Attempt, record: int, *, again: bool) -> State:
        s = s._replace(failures=_more(s.failures, record))
        if self.apart and self.rules.undo:
            a = a._replace(state=before.state)
        a = a._replace(failed=(*a.failed, record)) if again else a._replace(dead=(*a.dead, record))
        if self.apart and again and self.rules.stop and (s.known or a.used):
            a = a._replace(stopped=record)
        return self._next(s, a)

    def _next(self, s: State, a: Attempt) -> State:
        a = a._replace(place=a.place + 1)
        if a.used and not s.known:
            s = s._replace(known=True)
            if self.apart and self.rules.back and a.failed:
                a = a._replace(stopped=a.failed[0], state=a.began)
        return s._replace(attempt=a)

    def _returned(self, s: State, a: Attempt) -> State:
        part, later = s.parts[0], s.parts[1:]
        if not self.apart and self.rules.whole and a.used and self._has_failed(a):
            return self._again(s, a)
        upto = part.index(a.stopped) + 1 if a.stopped is not None else a.place
        rest = part[upto:]
        counted = part[:upto]
        dead = [record for record in a.dead if record in counted]
        failed = [record for record in a.failed if record in counted]
        settled = {*a.dead, *a.failed}
        misfits = [record for record in a.rows if self.kinds[record] == "M" and record not in settled]
        dropped = {*dead, *failed} if self.rules.rows else set()
        rows = [record for record in a.rows if record in counted and record not in dropped | set(misfits)]
        parts = [*([tuple(failed)] if failed else []), *([rest] if rest and self.rules.rest else []), *later]
        return s._replace(
            parts=tuple(parts), attempt=None, state=a.state, rows=(*s.rows, *rows),
            letters=(*s.letters, *dict.fromkeys([*dead, *misfits])),
        )  # fmt: skip

    def _has_failed(self, a: Attempt) -> bool:
        """A record that the handler has seen has failed: it may have changed state."""
        return bool(a.failed) or any(self.kinds[record] == "M" for record in a.rows) or self._dead(a) != a.dead

    def _dead(self, a: Attempt) -> tuple[int, ...]:
        return tuple(record for record in a.dead if self.kinds[record] == "D")

    def _again(self, s: State, a: Attempt) -> State:
        """Undo the attempt at a part, and cut the part at its failed records."""
        misfits = [record for record in a.rows if self.kinds[record] == "M" and record not in {*a.failed, *a.dead}]
        dead = {*a.dead, *misfits}
        left = [record for record in s.parts[0] if record not in dead]
        parts: list[tuple[int, ...]] = [()]
        for record in left:
            if self.rules.cut and record in a.failed:
                parts += [(record,), ()]
            else:
                parts[-1] += (record,)
        if not self.rules.order:
            parts.sort(key=lambda part: part[:1] != a.failed[:1])
        return s._replace(parts=(*filter(None, parts), *s.parts[1:]), attempt=None, letters=(*s.letters, *sorted(dead)))

    def search(self) -> Found:
        return explore(self.start(), self.steps, self.broken, done=lambda s: s.committed)


def _more(counts: tuple[int, ...], record: int) -> tuple[int, ...]:
    return (*counts[:record], counts[record] + 1, *counts[record + 1 :])


ALL = Rules()

HOLDS = {
    "known to use state": Model("SNSMDSS", failures=6),
    "found to use state": Model("NNSDMSS", failures=5, declared=False),
    "whole batches": Model("SNDSMS", failures=5, apart=False),
}
"""All rules kept, small enough for every run."""

HOLDS_LONG = {
    "nine records": Model("SNSMDSNSS", failures=7),
    "nine records, found to use state": Model("NNDNSMSSS", failures=7, declared=False),
    "two crashes": Model("SSMDNSS", failures=7, crashes=2),
    "whole batches of eight records": Model("SNDSMSNS", failures=7, apart=False),
}

BREAKS = {
    "keeping the changes of a failed record": Model("SS", rules=replace(ALL, undo=False)),
    "going on behind a failed record": Model("SSS", rules=replace(ALL, stop=False)),
    "forgetting the records behind it": Model("SSS", rules=replace(ALL, rest=False)),
    "keeping the rows of a failed record": Model("SS", rules=replace(ALL, rows=False)),
    "looking at rows when the attempt ends": Model("SMS", rules=replace(ALL, fit=False)),
    "going on when state is used behind a failure": Model("SSS", declared=False, rules=replace(ALL, back=False)),
    "beginning each attempt with the committed state": Model("SSS", rules=replace(ALL, carried=False)),
    "counting an attempt in part": Model("SSS", apart=False, rules=replace(ALL, whole=False)),
    "processing a batch as a whole again": Model("SSS", apart=False, rules=replace(ALL, cut=False)),
    "beginning with the failed record": Model("SSS", apart=False, rules=replace(ALL, order=False)),
}
"""Models with one rule left out: each must break."""


if __name__ == "__main__":
    sys.exit(report({**HOLDS, **({} if "quick" in sys.argv else HOLDS_LONG)}, BREAKS))
