"""Delivery of commits to a log of two partitions as an explicit-state model: every interleaving, within small bounds.

Each commit has a row for each of the two partitions. A document, changed by compare-and-swap, holds the sink's row
(position: the next commit), and the latest batch: its commits, its id, and the base where its segment is tried in each
partition. Owners take turns at any step, sleep and die.

*Deliver*: read the document. An unfinished batch is appended first (`finish`), as it was decided, whatever commits the
owner would have joined itself (`staged`). Then the next batch is decided: commits from the position on, and the new
position, in one write that is refused if the document is not as it was read (`row`). *Append*: create the
segment at the base of the document. A segment of this batch there is its own (`put_id`). If it is another's, the
document moves to the next base first, by compare-and-swap (`move`). Once all is appended, the batch is done (`done`).

What can happen at any step: owners sleep or die; a create arrives late; another producer appends.

Checked in every state: no commit is twice in a partition, or out of order; once a batch is done, each commit below the
position is in each partition.

Change the protocol here first, then docs/protocol.md, then the code. `python -m tests.protocol.log_sink_model [quick]`
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from tests.protocol.search import Found, explore, report

OTHER = -1
"""Batch of another producer's segment."""


class Segment(NamedTuple):
    batch: int
    first: int = 0
    upto: int = 0


class Doc(NamedTuple):
    """`bases`: None where the batch is appended, as far as this copy knows."""

    version: int = 0
    position: int = 0
    batch: int = 0
    first: int = 0
    upto: int = 0
    bases: tuple[int | None, int | None] = (None, None)
    done: bool = True


class Owner(NamedTuple):
    """`cut`: the commit at which this owner would end its batch."""

    doc: Doc
    cut: int


class Left(NamedTuple):
    """How often each event may still happen."""

    opens: int = 4
    late: int = 1
    others: int = 1


class State(NamedTuple):
    doc: Doc = Doc()
    log: tuple[tuple[Segment, ...], tuple[Segment, ...]] = ((), ())
    owners: tuple[Owner | None, Owner | None] = (None, None)
    flying: tuple[int, int, Segment] | None = None
    batches: int = 0
    """Ids that were given."""
    left: Left = Left()


Step = tuple[str, State]


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of delivery to a log; leave one out, and the search finds how it breaks."""

    row: bool = True
    """A batch is decided only if the document is as it was read."""
    finish: bool = True
    """An unfinished batch is appended before the next one is decided."""
    staged: bool = True
    """It is appended as it was decided, by whoever finishes it."""
    put_id: bool = True
    """A segment that has the id of the batch is its own."""
    move: bool = True
    """The document names another base before it is tried."""
    done: bool = True
    """A batch is done once its segments are in all partitions."""


ALL = Rules()
_LEFT = Left()


@dataclass(frozen=True, slots=True)
class Model:
    commits: int = 2
    left: Left = _LEFT
    rules: Rules = ALL

    def start(self) -> State:
        return State(left=self.left)

    def broken(self, s: State) -> str | None:
        for q, segments in enumerate(s.log):
            rows = [n for one in segments if one.batch != OTHER for n in range(one.first, one.upto)]
            if rows != sorted(set(rows)):
                return f"partition {q} has the commits {rows}"
            if s.doc.done and rows[: s.doc.position] != list(range(s.doc.position)):
                return f"the position is {s.doc.position}, and partition {q} has the commits {rows}"
        return None

    def steps(self, s: State) -> Iterator[Step]:
        if s.flying is not None:
            q, base, segment = s.flying
            landed = _append(s, q, segment) if base == len(s.log[q]) else s
            yield f"a late create arrives at {base} of partition {q}", landed._replace(flying=None)
        if s.left.others:
            for q in (0, 1):
                after = _append(s, q, Segment(OTHER))
                yield f"another producer appends to {q}", after._replace(left=s.left._replace(others=s.left.others - 1))
        for who, owner in enumerate(s.owners):
            if owner is None:
                yield from self._open(s, who)
            else:
                yield f"{who} dies", _owner(s, who, None)
                yield from self._go_on(s, who, owner)

    def _open(self, s: State, who: int) -> Iterator[Step]:
        if s.left.opens:
            for cut in range(1, self.commits + 1):
                after = s._replace(left=s.left._replace(opens=s.left.opens - 1))
                yield f"{who} opens, and would deliver up to {cut}", _owner(after, who, Owner(s.doc, cut))

    def _go_on(self, s: State, who: int, owner: Owner) -> Iterator[Step]:
        doc = owner.doc
        if doc.done or (not self.rules.finish and doc.batch != s.batches):
            if owner.cut > doc.position:
                yield from self._decide(s, who, owner)
            return
        waiting = [q for q in (0, 1) if doc.bases[q] is not None]
        for q in waiting:
            yield from self._create(s, who, owner, q)
        if not waiting or not self.rules.done:
            finished = doc._replace(version=doc.version + 1, done=True, bases=(None, None))
            yield from self._swap(s, who, owner, finished, "the batch is done")

    def _decide(self, s: State, who: int, owner: Owner) -> Iterator[Step]:
        doc = owner.doc
        new = Doc(
            s.doc.version + 1, owner.cut, s.batches + 1, doc.position, owner.cut,
            (len(s.log[0]), len(s.log[1])), done=False,
        )  # fmt: skip
        seen = owner if self.rules.row else owner._replace(doc=s.doc)
        yield from self._swap(
            s._replace(batches=s.batches + 1), who, seen, new, f"decides commits {doc.position} to {owner.cut}"
        )

    def _swap(self, s: State, who: int, owner: Owner, new: Doc, label: str) -> Iterator[Step]:
        if s.doc.version != owner.doc.version:
            yield f"{who}: {label}: refused", _owner(s, who, None)
            return
        yield f"{who}: {label}", _owner(s._replace(doc=new), who, owner._replace(doc=new))

    def _create(self, s: State, who: int, owner: Owner, q: int) -> Iterator[Step]:
        doc, base = owner.doc, owner.doc.bases[q]
        assert base is not None
        label = f"{who} creates batch {doc.batch} at {base} of partition {q}"
        segment = Segment(doc.batch, doc.first, doc.upto if self.rules.staged else max(owner.cut, doc.first + 1))
        appended = doc._replace(bases=_at(doc.bases, q, None))
        if base == len(s.log[q]):
            yield label, _owner(_append(s, q, segment), who, owner._replace(doc=appended))
            if s.left.late and s.flying is None:
                flying = s._replace(flying=(q, base, segment), left=s.left._replace(late=s.left.late - 1))
                yield f"{label}, no reply", _owner(flying, who, None)
            return
        if self.rules.put_id and s.log[q][base].batch == doc.batch:
            yield f"{label}: it is there", _owner(s, who, owner._replace(doc=appended))
            return
        moved = doc._replace(bases=_at(doc.bases, q, len(s.log[q])))
        if not self.rules.move:
            yield f"{label}: another's is there", _owner(s, who, owner._replace(doc=moved))
            return
        stored = moved._replace(version=doc.version + 1)
        yield from self._swap(s, who, owner, stored, f"moves to {len(s.log[q])} of partition {q}")

    def search(self) -> Found:
        return explore(self.start(), self.steps, self.broken)


def _append(s: State, q: int, segment: Segment) -> State:
    log = list(s.log)
    log[q] = (*log[q], segment)
    return s._replace(log=(log[0], log[1]))


def _owner(s: State, who: int, owner: Owner | None) -> State:
    owners = list(s.owners)
    owners[who] = owner
    return s._replace(owners=(owners[0], owners[1]))


def _at(bases: tuple[int | None, int | None], q: int, base: int | None) -> tuple[int | None, int | None]:
    return (base, bases[1]) if q == 0 else (bases[0], base)


def _without(**rule: bool) -> Model:
    return Model(rules=replace(ALL, **rule))


HOLDS = {"two commits": Model()}
"""All rules kept, small enough for every run."""

HOLDS_LONG = {
    "three commits": Model(commits=3),
    "two other producers": Model(left=Left(others=2)),
}

BREAKS = {
    "a batch from a stale row": _without(row=False),
    "a batch that is left unfinished": _without(finish=False),
    "another cut of the commits": _without(staged=False),
    "a segment that is not recognized": _without(put_id=False),
    "a base that nobody knows of": _without(move=False),
    "done before all is appended": _without(done=False),
}
"""One rule left out each."""

BREAKS_LONG: set[str] = set()


if __name__ == "__main__":
    sys.exit(report({**HOLDS, **({} if "quick" in sys.argv else HOLDS_LONG)}, BREAKS))
