"""Compaction beside committing and trimming, as a model upon the commit model: every interleaving, within small bounds.

Added steps: two compactors, each of which may die or pause between any two steps; sweeps of unused files; deletion of
compacted originals; a reader that lists and then reads, with pauses.

Added checks: each number that counts is visible in exactly one place with its committed content; so is everything that
the reader reads.

Change the protocol here first, then docs/protocol.md, then the code.
Run `python -m tests.protocol.compaction_model [quick]`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

from tests.protocol.commit_model import File, Model, Rules, State, Step
from tests.protocol.search import report


class Range(NamedTuple):
    """Numbers `first` to `next` (exclusive) are in compacted file `body`."""

    first: int
    next: int
    body: int


class Document(NamedTuple):
    """The boundary document besides `lowest`: below `originals` the ranges count, from there on `output/`."""

    ranges: tuple[Range, ...] = ()
    originals: int = 0
    sweeps: int = 0


class Compactor(NamedTuple):
    """Phase 'read', 'write' or 'swap'. `document` and `lowest`: as at its plan; `content`: files read so far."""

    phase: str
    document: Document
    lowest: int
    first: int
    next: int
    content: tuple[File, ...] = ()
    body: int = -1


class Sweeper(NamedTuple):
    """A sweep of leftovers: it has seen `bodies` that the document did not name. `ready`: it may delete them."""

    document: Document
    lowest: int
    bodies: tuple[int, ...]
    ready: bool = False


class Reader(NamedTuple):
    """`listed`: put-ids by number. `plan`: reads in order, each a number and the original's put-id, or -1 - body."""

    listed: tuple[tuple[int, int], ...] | None = None
    document: Document | None = None
    plan: tuple[tuple[int, int], ...] | None = None
    wrong: str | None = None


class Compaction(NamedTuple):
    document: Document = Document()
    bodies: tuple[tuple[int, tuple[tuple[int, File], ...]], ...] = ()
    """Existing compacted files: their content under each number."""
    compactors: tuple[Compactor | None, ...] = (None, None)
    sweeper: Sweeper | None = None
    reader: Reader | None = Reader()
    chain: tuple[File, ...] = ()
    """The commits by number, as the truth: reads must equal them. No process sees it."""
    made: int = 0
    starts_left: int = 0
    sweeps_left: int = 0


@dataclass(frozen=True, slots=True)
class CompactionRules(Rules):
    """The rules of compaction; leave one out, and the search finds how it breaks."""

    switch: bool = True
    """Below `originals` readers take the ranges only."""
    swap: bool = True
    """The switch is a compare-and-swap: refused if the document that it builds upon has changed."""
    newest: bool = True
    """The commit before the checkpoint's number, and those after it, stay as they are."""
    void: bool = True
    """A commit below `originals` is void, as one below the lowest number is."""
    order: bool = True
    """Originals are deleted only once the document says that they count no more."""
    bump: bool = True
    """The document is changed before leftovers are deleted, so that no compactor names one of them."""
    after: bool = True
    """A reader takes the document that it finds after it has listed `output/`."""
    tag: bool = True
    """A reader compares an original with the listing, and lists again if they differ."""


WHOLE = CompactionRules()


@dataclass(frozen=True, slots=True)
class CompactionModel(Model):
    """`starts`: how often a compactor starts; `sweeps`: how often one sweeps; `reader`: whether one reads beside."""

    rules: CompactionRules = WHOLE
    starts: int = 1
    sweeps: int = 0
    reader: bool = False

    def start(self) -> State:
        reader = Reader() if self.reader else None
        return Model.start(self)._replace(
            more=Compaction(starts_left=self.starts, sweeps_left=self.sweeps, reader=reader)
        )

    # Invariants

    def visible(self, s: State) -> Mapping[int, File]:
        c = _of(s)
        bodies = {body: dict(content) for body, content in c.bodies}
        found = {n: f for n, f in s.files if n >= s.boundary and (n >= c.document.originals or not self.rules.switch)}
        for number_range in c.document.ranges:
            content = bodies.get(number_range.body, {})
            for n in range(max(number_range.first, s.boundary), number_range.next):
                if n in content and n not in found:
                    found[n] = content[n]
        return dict(sorted(found.items()))

    def void(self, s: State, n: int) -> bool:
        return (self.rules.look and n < s.boundary) or (self.rules.void and n < _of(s).document.originals)

    def below_boundary(self, s: State, n: int) -> bool:
        return n < max(s.boundary, _of(s).document.originals)

    def broken(self, s: State) -> str | None:
        if why := Model.broken(self, s):
            return why
        c = _of(s)
        if c.reader is not None and c.reader.wrong:
            return c.reader.wrong
        named = [n for r in c.document.ranges for n in range(r.first, r.next)]
        places = {n: named.count(n) for n in range(s.boundary, len(c.chain))}
        for n, _ in s.files:
            if n >= s.boundary and (n >= c.document.originals or not self.rules.switch):
                places[n] += 1
        if several := {n: count for n, count in places.items() if count != 1}:
            return f"number of places of each number: {several}"
        visible = self.visible(s)
        for n in range(s.boundary, len(c.chain)):
            if n not in visible:
                return f"number {n} is gone"
            if visible[n].put_id != c.chain[n].put_id:
                return f"number {n} is not what was committed"
        return None

    # Steps

    def steps(self, s: State) -> Iterator[Step]:
        for label, after in Model.steps(self, s):
            yield label, _grown(after)
        yield from self._delete_originals(s)
        for k, compactor in enumerate(_of(s).compactors):
            yield from self._begin(s, k) if compactor is None else self._compact(s, k, compactor)
        yield from self._sweep(s)
        yield from self._read(s)

    def _delete_originals(self, s: State) -> Iterator[Step]:
        c = _of(s)
        upto = c.document.originals
        if not self.rules.order:
            upto = max([upto, *(x.next for x in c.compactors if x is not None and x.phase == "swap")])
        for n, _ in s.files:
            if n < upto:
                yield f"original {n} is deleted", s._replace(files=tuple(item for item in s.files if item[0] != n))

    def _begin(self, s: State, k: int) -> Iterator[Step]:
        """Plan to compact adjacent originals or ranges."""
        c = _of(s)
        if not c.starts_left:
            return
        starts = sorted(
            {max(c.document.originals, s.boundary), *(r.first for r in c.document.ranges if r.first >= s.boundary)}
        )
        ends = {r.next for r in c.document.ranges} | set(
            range(c.document.originals + 1, s.checkpoint.number - self.rules.newest + 1)
        )
        for first in starts:
            for upto in sorted(end for end in ends if end > first):
                if any(r.first == first and r.next == upto for r in c.document.ranges):
                    continue
                began = Compactor("read", c.document, s.boundary, first, upto)
                label = f"c{k} is to compact {first} to {upto - 1}"
                yield label, _with(s, starts_left=c.starts_left - 1, compactors=_set(c.compactors, k, began))

    def _compact(self, s: State, k: int, compactor: Compactor) -> Iterator[Step]:
        c = _of(s)
        gone = _with(s, compactors=_set(c.compactors, k, None))
        yield f"c{k} dies", gone
        first, upto, content = compactor.first, compactor.next, compactor.content
        if compactor.phase == "read":
            n = first + len(content)
            if n == upto:
                body = (c.made, tuple(zip(range(first, upto), content, strict=True)))
                ready = compactor._replace(phase="swap", body=c.made, content=())
                yield (
                    f"c{k} writes body {c.made}",
                    _with(s, bodies=(*c.bodies, body), made=c.made + 1, compactors=_set(c.compactors, k, ready)),
                )
                return
            file = _stored(s, compactor.document, n)
            if file is None:
                return  # gives up, as if it died
            onward = compactor._replace(content=(*content, file._replace(letters=())))
            yield f"c{k} reads {n}", _with(s, compactors=_set(c.compactors, k, onward))
            return
        now, planned = c.document, compactor.document
        replaced = [r for r in planned.ranges if first <= r.first < upto]
        fits = (
            now.sweeps == planned.sweeps
            and s.boundary <= first
            and [r for r in now.ranges if first <= r.first < upto] == replaced
            and (upto <= planned.originals or now.originals == planned.originals)
        )
        if self.rules.swap and not fits:
            return
        kept = [r for r in (now if self.rules.swap else planned).ranges if not first <= r.first < upto]
        document = Document(
            tuple(sorted([*kept, Range(first, upto, compactor.body)])), max(upto, now.originals), now.sweeps
        )
        yield f"c{k} switches {first} to {upto - 1} to body {compactor.body}", _with(gone, document=document)

    def _sweep(self, s: State) -> Iterator[Step]:
        """Delete compacted files that the document does not name."""
        c = _of(s)
        named = {r.body for r in c.document.ranges}
        if c.sweeper is None:
            bodies = tuple(body for body, _ in c.bodies if body not in named)
            if bodies and c.sweeps_left:
                seen = Sweeper(c.document, s.boundary, bodies, ready=not self.rules.bump)
                yield f"bodies {bodies} are to be swept", _with(s, sweeper=seen, sweeps_left=c.sweeps_left - 1)
            return
        if c.sweeper.ready:
            kept = tuple(item for item in c.bodies if item[0] not in c.sweeper.bodies)
            yield f"bodies {c.sweeper.bodies} are deleted", _with(s, bodies=kept, sweeper=None)
        elif (c.document, s.boundary) == (c.sweeper.document, c.sweeper.lowest):
            document = c.document._replace(sweeps=c.document.sweeps + 1)
            yield "the document says so", _with(s, document=document, sweeper=c.sweeper._replace(ready=True))
        else:
            yield "the document has changed", _with(s, sweeper=None)

    def _read(self, s: State) -> Iterator[Step]:
        c = _of(s)
        reader = c.reader
        if reader is None or reader.plan == ():
            return
        if reader.plan is not None:
            yield self._read_next(s, reader, reader.plan)
            return
        if reader.document is None and not self.rules.after:
            yield "reader takes the document", _with(s, reader=reader._replace(document=c.document))
            return
        if reader.listed is None:
            if c.chain:
                listed = tuple((n, file.put_id) for n, file in s.files)
                yield "reader lists", _with(s, reader=reader._replace(listed=listed))
            return
        document = reader.document or c.document
        plan = _plan(document, s.boundary, dict(reader.listed))
        yield "reader plans", _with(s, reader=reader._replace(plan=plan, document=None))

    def _read_next(self, s: State, reader: Reader, plan: tuple[tuple[int, int], ...]) -> Step:
        c = _of(s)
        n, wanted = plan[0]
        onward = reader._replace(plan=plan[1:], listed=() if plan[1:] else None)
        there = _content(c, n, -1 - wanted) if wanted < 0 else dict(s.files).get(n)
        if there is not None and (wanted < 0 or there.put_id == wanted or not self.rules.tag):
            if there.put_id != c.chain[n].put_id:
                onward = onward._replace(wrong=f"a reader takes for commit {n} what is not")
            return f"reader reads {n}", _with(s, reader=onward)
        if n < s.boundary:
            return f"reader finds {n} trimmed", _with(s, reader=reader._replace(plan=()))
        again = _plan(c.document, n, dict(plan))
        if n >= c.document.originals:
            return f"reader misses {n}", _with(s, reader=reader._replace(wrong=f"a reader misses {n}"))
        return f"reader finds no {n}, looks again", _with(s, reader=reader._replace(plan=again))


def _plan(document: Document, lowest: int, listed: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
    """Where each number is read: the put-id of the listed original, or -1 - body."""
    ranged = {n: -1 - r.body for r in document.ranges for n in range(r.first, r.next)}
    originals = {n: put_id for n, put_id in listed.items() if n >= document.originals}
    return tuple(sorted((n, at) for n, at in {**originals, **ranged}.items() if n >= lowest))


def _stored(s: State, document: Document, n: int) -> File | None:
    """The file that a compactor that planned with `document` reads as number `n`."""
    for r in document.ranges:
        if r.first <= n < r.next:
            return _content(_of(s), n, r.body)
    return dict(s.files).get(n)


def _content(c: Compaction, n: int, body: int) -> File | None:
    return dict(dict(c.bodies).get(body, ())).get(n)


def _without(kinds: str, *, starts: int = 1, sweeps: int = 0, reader: bool = False, **rule: bool) -> CompactionModel:
    rules = replace(WHOLE, **rule)
    return CompactionModel(kinds, crashes=0, late=0, starts=starts, sweeps=sweeps, reader=reader, rules=rules)


def _of(s: State) -> Compaction:
    return cast(Compaction, s.more)


def _with(s: State, **changes: object) -> State:
    return s._replace(more=_of(s)._replace(**changes))  # type: ignore[arg-type]


def _set(compactors: tuple[Compactor | None, ...], k: int, to: Compactor | None) -> tuple[Compactor | None, ...]:
    return (*compactors[:k], to, *compactors[k + 1 :])


def _grown(s: State) -> State:
    """With the commit that was just made in the chain."""
    chain, files = _of(s).chain, dict(s.files)
    return _with(s, chain=(*chain, files[len(chain)])) if len(chain) in files else s


HOLDS = {
    "beside commits, dead letters": CompactionModel("FR", crashes=0, late=0, trim=True),
    "two compactors, leftovers are swept": CompactionModel("RR", crashes=0, late=0, starts=2, sweeps=1),
    "a late write": CompactionModel("RR", crashes=0, late=1),
    "a reader": CompactionModel("RR", crashes=0, late=0, reader=True),
}
"""All rules kept, small enough for every run."""

HOLDS_LONG = {
    "two compactors, three commits": CompactionModel("RRR", crashes=0, late=0, starts=2),
    "trimming three commits": CompactionModel("RRR", crashes=0, late=0, trim=True),
    "three commits, leftovers are swept": CompactionModel("RRR", crashes=0, late=0, starts=2, sweeps=1),
    "silence, failure, row, a late write": CompactionModel("SFR", crashes=0, late=1),
    "a reader beside trimming, two compactors, sweeping": CompactionModel(
        "RR", crashes=0, late=0, trim=True, starts=2, sweeps=1, reader=True
    ),
}

BREAKS = {
    "readers take originals that are compacted, too": _without("RR", switch=False),
    "the switch overwrites what it was not built upon": _without("RRR", starts=2, swap=False),
    "compacting the newest commit": _without("RRR", newest=False),
    "publishing below what is compacted": _without("SFR", void=False),
    "deleting originals before the switch": _without("RR", order=False),
    "sweeping without a word in the document": _without("RR", sweeps=1, bump=False),
    "a reader takes the document, then lists": _without("RR", reader=True, after=False),
    "a reader takes whatever is there": _without("RR", reader=True, tag=False),
}
"""Models with one rule left out: each must break."""

if __name__ == "__main__":
    sys.exit(report({**HOLDS, **({} if "quick" in sys.argv else HOLDS_LONG)}, BREAKS))
