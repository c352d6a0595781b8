"""The output as a Delta or Iceberg table, by metadata alone, as an explicit-state model: every interleaving.

Objects of a partition: its chain; its boundary with `lowest`, ranges (compacted files) and a version; its files. The
table keeps, beside the files that it names, for each processor under its own id (`own`): `count` of our transactions,
and per partition `position` (next commit to take) and `seen` (version of the boundary that the transaction was based
on). An entry in readers.json registers the table: the start is a number, as for every sink.

A **transaction of a committer**: load the table: counters and files of one snapshot. Then read the entry (`after`). If
it is paused, make one transaction that changes nothing, and note for which pause it was made (`each`): one that was
under way is refused from then on. The table counts as paused once this is noted. Else, per partition, list the files,
read the boundary. A table that does not fit (its `position` has another commit before it than the chain, by put-id, or
`seen` is above the boundary's version): the container went back. Stop, as compaction, trim and deletion do, till
somebody mends the table (`fits`). Plan:
1. files of ours with nothing but commits below `lowest` are removed;
2. if the commit at the position is a reset, and the table replaces: files of which every row is taken back are removed,
   others that have such rows are replaced by a copy without these (`cut`). The plan ends before the next reset, so a
   reset is the first of its transaction (`begin`);
3. ranges, in order. One that the table does not name is added; if some of its commits are below the position, only if
   the table names each of these, in files of ours within the range (`whole`), which are removed in the same transaction
   (`together`). Else (others have rewritten some) commits from the position on are taken from their originals;
4. originals from the position on, not below the ranges' end: there they may be void (`void`);
5. position and `seen` are as planned, count + 1. The transaction lands only if the count is the one that was loaded
   (`count`), and every file to remove is there. It is never retried by a library. Refused or in doubt: load again.

A table that is **registered anew**, also by a repair, becomes what the chain has from the start on: what it names of
ours, and the chain has not, is removed, and no file of others (`home`). A plan of it that lacks files lands nothing.

**Trim**: asks the table for its position before it decides `lowest` (`asks`). **Compaction** switches the boundary, as
ever; a range that has a reset begins with it and says so (`apart`). The table follows with its next transaction.
**Deletion** of a file that no boundary names any more, trimmed or compacted: if the table does not name it (`named`),
and a transaction has landed that saw the boundary without it (`seen`), both by one snapshot. An hour later it is done.

What can happen at any step: pauses and resumes; two committers, each may sleep or die, and a transaction may land late;
commits, compaction (also of what the table has not taken), trims, deletions; late creates; a stranger (OPTIMIZE)
replaces files of the table by one of its own. Several partitions; two processors that feed one table; a table that is
registered late. With hosts stopped, a backup of the container is restored, and not of the table.

Checked in every state: each commit from `lowest` (or the start) to the position is in the table once, without those
that a reset has taken back if it replaces; no commit is trimmed before it was taken; each file that the table names is
there, and is what was committed; no transaction changes a table that counts as paused.

Change the protocol here first, then the docs, then the code. `python -m tests.protocol.table_model [quick]`
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from tests.protocol.search import Found, explore, report


class File(NamedTuple):
    """An original has one commit, a compacted file several. `ours`: not made by a stranger, nor a copy."""

    partition: int
    commits: tuple[int, ...]
    ours: bool = True

    def __repr__(self) -> str:
        kind = "" if self.ours else "*"
        return f"p{self.partition}/{self.commits[0]}-{self.commits[-1]}{kind}"


_OTHERS = File(-1, (0,), ours=False)
"""Rows that others have put into the table."""


class Boundary(NamedTuple):
    """`ranges` follow each other from `lowest` on."""

    lowest: int = 0
    ranges: tuple[tuple[int, int], ...] = ()
    version: int = 0

    @property
    def originals(self) -> int:
        return self.ranges[-1][1] if self.ranges else self.lowest


class Partition(NamedTuple):
    """`gone`: files that the boundary of a version does not name any more. `void`: numbers that were created late."""

    tip: int = 0
    boundary: Boundary = Boundary()
    files: frozenset[File] = frozenset()
    void: frozenset[int] = frozenset()
    gone: tuple[tuple[File, int], ...] = ()


class Place(NamedTuple):
    """Of a partition, in the table. `seen` is -1 before the first transaction; `put_id`: of the commit before."""

    position: int = 0
    seen: int = -1
    put_id: int = 0


class Table(NamedTuple):
    counts: tuple[int, ...]
    places: tuple[Place, ...]
    files: frozenset[File] = frozenset()
    life: int = 1
    """Of the registration that made the latest transaction."""


class Change(NamedTuple):
    """What a transaction does to one partition."""

    partition: int
    place: Place
    adds: frozenset[File]
    removes: frozenset[File]


class Committer(NamedTuple):
    """It has loaded a count (`loaded`), `places` and `files`. `listed`: of the next partition; `changes`: planned.

    `pause`: as the entry said, the number of the pause, or 0 without one; None: it has not read it yet.
    """

    processor: int
    loaded: int | None
    places: tuple[Place, ...]
    files: frozenset[File]
    pause: int | None
    listed: frozenset[int] | None = None
    changes: tuple[Change, ...] = ()
    seen: int = 1
    """Life of the table."""
    life: int = 1
    """Of the entry."""

    @property
    def is_anew(self) -> bool:
        return self.seen != self.life


class Left(NamedTuple):
    """How often each event may still happen."""

    compactions: int = 0
    trims: int = 0
    late: int = 0
    strangers: int = 0
    saves: int = 0
    losses: int = 0
    pauses: int = 0
    repairs: int = 0
    loads: int = 4


class State(NamedTuple):
    table: Table
    partitions: tuple[Partition, ...]
    committers: tuple[Committer, ...] = ()
    registered: bool = False
    starts: tuple[int, ...] = ()
    saved: tuple[Partition, ...] | None = None
    cut: tuple[int, ...] | None = None
    """Numbers from which on the container, restored, has other commits."""
    lost: bool = False
    """The table has what the restored container has not."""
    life: int = 1
    """Of the entry."""
    pause: int = 0
    """Number of the pause in the entry; 0: it is not paused."""
    fence: int = 0
    """Number of the pause for which a transaction that changes nothing was noted."""
    left: Left = Left()
    wrong: str | None = None


Step = tuple[str, State]
Script = tuple[int | None, ...]
"""The commits of a partition: None is a row, a number is a reset to this sequence."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of tables; leave one out, and the search finds how it breaks."""

    count: bool = True
    """A transaction lands only if the count is as it was loaded."""
    own: bool = True
    """Each processor has counters of its own."""
    void: bool = True
    """A commit below the ranges' end is not taken from what lies under its number."""
    whole: bool = True
    """A compacted file replaces files only if the table names each commit below the position."""
    together: bool = True
    """A compacted file that begins below the position comes with the removal of what it replaces."""
    named: bool = True
    """Nothing is deleted that the table names, also if it was trimmed."""
    seen: bool = True
    """A file is deleted once a transaction has landed that saw the boundary without it."""
    asks: bool = True
    """A trim asks the table for its position."""
    begin: bool = True
    """A reset is the first commit of its transaction."""
    cut: bool = True
    """A file that has rows which are taken back, and others, is replaced by a copy without them."""
    fits: bool = True
    """Nobody acts on a table whose last commit is another one in the chain, or that saw a later boundary."""
    apart: bool = True
    """A range that has a reset begins with it."""
    after: bool = True
    """The entry is read after the table was loaded."""
    home: bool = True
    """A table that is registered anew loses no file of others."""
    each: bool = True
    """What was made for an earlier pause does not count for a later one."""


ALL = Rules()


@dataclass(frozen=True, slots=True)
class Model:
    """`scripts` of the partitions; `processors`: of which one each is."""

    scripts: tuple[Script, ...]
    left: Left
    replaces: bool = False
    processors: tuple[int, ...] = (0, 0)
    begins: bool = True
    """The table is registered before the first commit."""
    now: bool = False
    """It starts with the next commit."""
    shared: bool = False
    """It has a file of others, with the partition 0 in its metadata."""
    rules: Rules = ALL

    def start(self) -> State:
        count = len(self.scripts)
        files = frozenset({_OTHERS} if self.shared else ())
        table = Table((0,) * (1 + max(self.processors)), (Place(),) * count, files)
        starts = (0,) * count if self.begins else ()
        return State(table, (Partition(),) * count, registered=self.begins, starts=starts, left=self.left)

    # What must hold

    def broken(self, s: State) -> str | None:
        if s.wrong or s.lost or not s.registered:
            return s.wrong
        if self.shared and _OTHERS not in s.table.files:
            return "rows of others have left the table"
        for p, partition in enumerate(s.partitions):
            if why := self._partition_wrong(s, p, partition):
                return why
        return None

    def _partition_wrong(self, s: State, p: int, partition: Partition) -> str | None:
        files = [f for f in s.table.files if f.partition == p]
        for f in files:
            if f.ours and f not in partition.files:
                return f"the table names {f}, which is deleted"
            if f.ours and len(f.commits) == 1 and f.commits[0] in partition.void:
                return f"the table names {f}, which is void"
        have = Counter(n for f in files for n in f.commits if self.scripts[p][n] is None)
        if twice := [n for n, count in have.items() if count > 1]:
            return f"rows twice: p{p}, {twice}"
        lowest, position = max(partition.boundary.lowest, s.starts[p]), s.table.places[self._place(p)].position
        due = {n for n in self._standing(p, position) if n >= lowest}
        if missing := due - set(have):
            return f"rows missing: p{p}, {sorted(missing)}"
        if extra := {n for n in have if n >= lowest} - due:
            return f"rows that should not be there: p{p}, {sorted(extra)}"
        return None

    def _standing(self, p: int, position: int) -> set[int]:
        """The commits with rows below a position, without those that a reset has taken back."""
        rows: set[int] = set()
        for n in range(min(position, len(self.scripts[p]))):
            to = self.scripts[p][n]
            if to is None:
                rows.add(n)
            elif self.replaces:
                rows = {m for m in rows if self._sequence(p, m) < to}
        return rows

    def _sequence(self, p: int, n: int) -> int:
        sequence = 0
        for commit in self.scripts[p][:n]:
            sequence = sequence + 1 if commit is None else commit
        return sequence

    def _place(self, p: int) -> int:
        return p if self.rules.own else 0

    # What can happen

    def steps(self, s: State) -> Iterator[Step]:
        if not s.registered:
            starts = tuple(x.tip if self.now else x.boundary.lowest for x in s.partitions)
            places = tuple(Place(first) for first in starts)
            yield (
                "the table is registered",
                s._replace(registered=True, starts=starts, table=s.table._replace(places=places)),
            )
        for p, partition in enumerate(s.partitions):
            if partition.tip < len(self.scripts[p]):
                files = partition.files | {File(p, (partition.tip,))}
                after = partition._replace(tip=partition.tip + 1, files=files)
                yield f"commit {partition.tip} of p{p}", _with(s, p, after)
            yield from self._strange(s, p)
        lost = "acting on a table of a lost chain" if s.lost else None
        for label, state in self._ours(s):
            yield label, state._replace(wrong=state.wrong or lost)
        yield from self._load(s)
        yield from self._pause(s)
        yield from self._go_back(s)
        if s.registered and s.left.repairs:
            yield "registered anew", _spend(s, "repairs")._replace(life=s.life + 1)

    def _ours(self, s: State) -> Iterator[Step]:
        """What we do to files and table."""
        for p, partition in enumerate(s.partitions):
            if self._fits(s, p, s.table.places[self._place(p)]):
                yield from self._compact(s, p, partition)
                yield from self._trim(s, p, partition)
                yield from self._delete(s, p, partition)
        for committer in s.committers:
            fits = all(self._fits(s, p, place) for p, place in enumerate(committer.places))
            if committer.is_anew or fits:  # else it waits for people
                yield from self._commit(s, committer)

    def _fits(self, s: State, p: int, place: Place) -> bool:
        if not self.rules.fits or place.seen < 0 or s.table.life != s.life:
            return True
        x, last = s.partitions[p], place.position - 1
        return place.seen <= x.boundary.version and last < x.tip and _put_id(s, p, last) == place.put_id

    def _go_back(self, s: State) -> Iterator[Step]:
        """The container is restored from a backup; the table is in a catalog elsewhere, and stays."""
        if s.left.saves:
            yield "backup of the container", _spend(s, "saves")._replace(saved=s.partitions)
        if s.left.losses and s.saved is not None:
            ahead = [
                place.position > x.tip or place.seen > x.boundary.version
                for x, place in zip(s.saved, s.table.places, strict=True)
            ]
            back = _spend(s, "losses")._replace(partitions=s.saved, cut=tuple(x.tip for x in s.saved))
            yield "with all hosts stopped, the container is restored", back._replace(committers=(), lost=any(ahead))

    def _compact(self, s: State, p: int, x: Partition) -> Iterator[Step]:
        if not s.left.compactions:
            return
        b = x.boundary
        first = b.originals
        for end in range(first + 2, x.tip):  # the newest stays
            if self.rules.apart and any(commit is not None for commit in self.scripts[p][first + 1 : end]):
                continue
            new = b._replace(ranges=(*b.ranges, (first, end)), version=b.version + 1)
            yield f"p{p} is compacted: {first}-{end - 1}", self._switch(s, p, new, [(n,) for n in range(first, end)])
        if len(b.ranges) == 2:
            first, end = b.ranges[0][0], b.ranges[1][1]
            if not self.rules.apart or self.scripts[p][b.ranges[1][0]] is None:
                new = b._replace(ranges=((first, end),), version=b.version + 1)
                parts = [tuple(range(*r)) for r in b.ranges]
                yield f"p{p} is compacted again: {first}-{end - 1}", self._switch(s, p, new, parts)

    def _switch(self, s: State, p: int, new: Boundary, replaced: list[tuple[int, ...]]) -> State:
        x = s.partitions[p]
        files = x.files | {File(p, tuple(range(*new.ranges[-1])))}
        gone = (*x.gone, *((File(p, commits), new.version) for commits in replaced))
        return _with(_spend(s, "compactions"), p, x._replace(boundary=new, files=files, gone=tuple(sorted(gone))))

    def _trim(self, s: State, p: int, x: Partition) -> Iterator[Step]:
        """Whole files are trimmed."""
        b, tip = x.boundary, x.tip
        limit = tip - 1
        if s.registered and self.rules.asks:
            limit = min(limit, s.table.places[self._place(p)].position if s.table.life == s.life else s.starts[p])
        for lowest in range(b.lowest + 1, limit + 1) if s.left.trims else ():
            if any(first < lowest < end for first, end in b.ranges):
                continue
            ranges = tuple(r for r in b.ranges if r[0] >= lowest)
            out = [File(p, tuple(range(*r))) for r in b.ranges if r[0] < lowest]
            out += [File(p, (n,)) for n in range(b.originals, lowest)]
            new = Boundary(lowest, ranges, b.version + 1)
            gone = tuple(sorted((*x.gone, *((f, new.version) for f in out))))
            trimmed = _with(_spend(s, "trims"), p, x._replace(boundary=new, gone=gone))
            if s.registered and lowest > s.table.places[self._place(p)].position:
                trimmed = trimmed._replace(wrong=f"p{p} is trimmed below {lowest}, before the table has it")
            yield f"p{p} is trimmed below {lowest}", trimmed

    def _delete(self, s: State, p: int, x: Partition) -> Iterator[Step]:
        """Deletion at once is the worst that a deleter can do that decides, sleeps, and deletes."""
        for i, (f, since) in enumerate(x.gone):
            if s.registered and self.rules.named and f in s.table.files:
                continue
            seen = s.table.places[self._place(p)].seen if s.table.life == s.life else -1
            if s.registered and self.rules.seen and seen < since:
                continue
            rest = x._replace(files=x.files - {f}, gone=x.gone[:i] + x.gone[i + 1 :])
            yield f"{f} is deleted", _with(s, p, rest)
            n = f.commits[0]
            if s.left.late and len(f.commits) == 1 and n not in x.void:
                void = rest._replace(files=rest.files | {f}, void=rest.void | {n})
                yield f"{f} is deleted, and a late create of {n} lands", _with(_spend(s, "late"), p, void)

    def _strange(self, s: State, p: int) -> Iterator[Step]:
        files = sorted(f for f in s.table.files if f.partition == p)[:2]
        if s.left.strangers and len(files) == 2:
            both = File(p, tuple(sorted(files[0].commits + files[1].commits)), ours=False)
            table = s.table._replace(files=s.table.files - set(files) | {both})
            yield f"a stranger rewrites {files}", _spend(s, "strangers")._replace(table=table)

    # Committers

    def _load(self, s: State) -> Iterator[Step]:
        if not s.registered or not s.left.loads or len(s.committers) == 2:
            return
        for processor in range(len(s.table.counts)):
            unread = None if self.left.pauses else 0
            if self.rules.after:
                committer = self._loaded(s, Committer(processor, None, (), frozenset(), unread))
                told = f"loads count {committer.loaded}"
            else:
                committer = Committer(processor, None, (), frozenset(), s.pause, life=s.life)
                told = f"reads the entry: pause {s.pause}"
            begun = _spend(s, "loads")._replace(committers=_sorted((*s.committers, committer)))
            yield f"a committer of {processor} {told}", begun

    def _loaded(self, s: State, c: Committer) -> Committer:
        table = s.table
        count = table.counts[self._count(c.processor)]
        life = c.life if c.pause is None else s.life
        return c._replace(loaded=count, places=table.places, files=table.files, seen=table.life, life=life)

    def _count(self, processor: int) -> int:
        return processor if self.rules.own else 0

    def _commit(self, s: State, c: Committer) -> Iterator[Step]:
        mine = [p for p in range(len(self.scripts)) if self.processors[p] == c.processor]
        name = f"the committer of {c.processor} at {c.loaded}"
        if c.loaded is None:
            yield f"{name} loads", _put(s, c, self._loaded(s, c))
            return
        if c.pause is None:
            yield f"{name} reads the entry: pause {s.pause}", _put(s, c, c._replace(pause=s.pause, life=s.life))
            return
        if c.pause:
            yield from self._fence(s, c, name)
            return
        if len(c.changes) < len(mine):
            p = mine[len(c.changes)]
            x = s.partitions[p]
            if c.listed is None:
                listed = frozenset(f.commits[0] for f in x.files if len(f.commits) == 1)
                yield f"{name} lists p{p}", _put(s, c, c._replace(listed=listed))
                return
            change = self._plan(p, c, c.listed, x.boundary)
            if change is None and c.is_anew:
                yield f"{name} finds that files are missing", _put(s, c, None)
                return
            change = change or Change(p, c.places[self._place(p)], frozenset(), frozenset())
            change = change._replace(place=change.place._replace(put_id=_put_id(s, p, change.place.position - 1)))
            onward = c._replace(listed=None, changes=(*c.changes, change))
            if len(onward.changes) == len(mine):
                if not c.is_anew and all(self._idle(c, done) for done in onward.changes):
                    yield f"{name} has nothing to do", _put(s, c, None)._replace(fence=0)
                    return
                onward = onward._replace(places=(), files=frozenset())
            yield f"{name} reads the boundary of p{p}", _put(s, c, onward)
            return
        yield f"{name} dies", _put(s, c, None)
        if self.rules.count and c.loaded != s.table.counts[self._count(c.processor)]:
            yield f"{name} is refused", _put(s, c, None)
        elif not all(change.removes <= s.table.files for change in c.changes):
            yield f"{name} is refused: a file to remove is not there", _put(s, c, None)
        else:
            landed = _put(s, c, None)._replace(table=self._landed(s.table, c), fence=0)
            if self._is_paused(s):
                landed = landed._replace(wrong=f"a transaction lands in a table that counts as paused ({s.pause})")
            yield f"{name} lands: {self._told(c.changes)}", landed

    # A pause

    def _pause(self, s: State) -> Iterator[Step]:
        if not s.registered or not self.left.pauses:
            return
        number = 1 + self.left.pauses - s.left.pauses
        if s.pause:
            yield "resumed", s._replace(pause=0)
        elif s.left.pauses:
            yield f"pause {number}", _spend(s, "pauses")._replace(pause=number)

    def _is_paused(self, s: State) -> bool:
        """As operators see it."""
        return bool(s.pause) and self._is_fenced(s, s.pause)

    def _is_fenced(self, s: State, pause: int) -> bool:
        return s.fence == pause if self.rules.each else s.fence > 0

    def _fence(self, s: State, c: Committer, name: str) -> Iterator[Step]:
        yield f"{name} dies", _put(s, c, None)
        assert c.pause
        if self._is_fenced(s, c.pause):
            yield f"{name} finds the table fenced", _put(s, c, None)
        elif self.rules.count and c.loaded != s.table.counts[self._count(c.processor)]:
            yield f"{name} is refused", _put(s, c, None)
        else:
            counts = list(s.table.counts)
            counts[self._count(c.processor)] += 1
            table = s.table._replace(counts=tuple(counts))
            yield f"{name} fences pause {c.pause}", _put(s, c, None)._replace(table=table, fence=c.pause)

    def _idle(self, c: Committer, change: Change) -> bool:
        return not change.adds and not change.removes and change.place == c.places[self._place(change.partition)]

    def _told(self, changes: tuple[Change, ...]) -> str:
        return "; ".join(f"+{sorted(x.adds)} -{sorted(x.removes)} to {x.place.position}" for x in changes)

    def _landed(self, table: Table, c: Committer) -> Table:
        places, files, counts = list(table.places), table.files, list(table.counts)
        for change in c.changes:
            places[self._place(change.partition)] = change.place
            files = (files - change.removes) | change.adds
        counts[self._count(c.processor)] += 1
        return Table(tuple(counts), tuple(places), files, c.life)

    def _plan(self, p: int, c: Committer, listed: frozenset[int], b: Boundary) -> Change | None:
        """None: files are missing."""
        if c.is_anew:
            found = self._plan_from(p, Place(), set(), listed, b)
            gone = {f for f in c.files if f.partition == p or not self.rules.home}
            return found and found._replace(adds=found.adds - c.files, removes=frozenset(gone - found.adds))
        return self._plan_from(p, c.places[self._place(p)], {f for f in c.files if f.partition == p}, listed, b)

    def _plan_from(self, p: int, place: Place, named: set[File], listed: frozenset[int], b: Boundary) -> Change | None:
        old = {f for f in named if f.ours and f.commits[-1] < b.lowest}
        position = max(place.position, b.lowest)
        removes, adds = set(old), set[File]()
        stop = len(self.scripts[p])
        if self.replaces:
            if self._is_reset(p, position) and (position in listed or any(first == position for first, _ in b.ranges)):
                self._reset(p, position, named - old, adds, removes)
            if self.rules.begin:
                stop = next((n for n in range(position + 1, stop) if self._is_reset(p, n)), stop)
        for first, end in b.ranges if self.rules.void else [r for r in b.ranges if r[1] <= place.position]:
            compacted = File(p, tuple(range(first, end)))
            if compacted in named or first >= stop:
                continue
            within = {f for f in named - removes if f.ours and first <= f.commits[0] and f.commits[-1] < end}
            held = {n for f in within for n in f.commits}
            due = {n for n in range(first, min(end, place.position)) if self.scripts[p][n] is None}
            if not self.rules.whole or held >= due:
                if end <= place.position or self.rules.together:
                    removes |= within
                adds.add(compacted)
            else:
                originals = range(position, end)
                if not listed.issuperset(originals):
                    return None
                adds |= {File(p, (n,)) for n in originals if self.scripts[p][n] is None}
            position = max(position, end)
        while position < stop and position in listed and (position >= b.originals or not self.rules.void):
            if self.scripts[p][position] is None:
                adds.add(File(p, (position,)))
            elif self.replaces and not self.rules.begin:
                self._reset(p, position, named, adds, removes)
            position += 1
        return Change(p, Place(position, b.version), frozenset(adds), frozenset(removes))

    def _is_reset(self, p: int, n: int) -> bool:
        return n < len(self.scripts[p]) and self.scripts[p][n] is not None

    def _reset(self, p: int, n: int, named: set[File], adds: set[File], removes: set[File]) -> None:
        """What a reset takes back leaves the table."""
        to = self.scripts[p][n]
        assert to is not None
        for f in named:
            rest = tuple(m for m in f.commits if self.scripts[p][m] is None and self._sequence(p, m) < to)
            rows = [m for m in f.commits if self.scripts[p][m] is None]
            if len(rest) < len(rows):
                removes.add(f)
                if rest and self.rules.cut:
                    adds.add(File(p, rest, ours=False))

    def search(self) -> Found:
        return explore(self.start(), self.steps, self.broken)


def _put_id(s: State, p: int, n: int) -> int:
    return int(s.cut is not None and n >= s.cut[p])


def _with(s: State, p: int, to: Partition) -> State:
    return s._replace(partitions=(*s.partitions[:p], to, *s.partitions[p + 1 :]))


def _spend(s: State, event: str) -> State:
    return s._replace(left=s.left._replace(**{event: getattr(s.left, event) - 1}))


def _sorted(committers: tuple[Committer, ...]) -> tuple[Committer, ...]:
    """Two committers of a processor are the same."""
    return tuple(sorted(committers, key=hash))


def _put(s: State, c: Committer, to: Committer | None) -> State:
    committers = list(s.committers)
    committers.remove(c)
    return s._replace(committers=_sorted((*committers, *([to] if to else []))))


def _case(*scripts: Script, **left: int) -> Model:
    return Model(scripts, Left(**left), processors=(0,) * len(scripts))


def _without(model: Model, **rule: bool) -> Model:
    return replace(model, rules=replace(ALL, **rule))


_THREE, _FOUR = (None,) * 3, (None,) * 4
_RESET = (None, None, 1, None)
"""Of two rows the second one is taken back, and comes again."""
_RANGES = (None, None, 1, None, None)

_COMPACT = _case(_FOUR, compactions=2, late=1, strangers=1, loads=3)
_TRIM = _case(_FOUR, compactions=1, trims=1, loads=3)
_REPLACE = replace(_case(_RANGES, compactions=2, late=1, loads=3), replaces=True)
_LATE = replace(_case(_THREE, compactions=1, late=1, loads=2), begins=False)
_BACK = _case(_THREE, compactions=1, saves=1, losses=1, loads=2)
_ANEW = replace(_case(_THREE, compactions=1, late=1, strangers=1, repairs=1, loads=3), shared=True)
_PAUSE = _case((None, None), pauses=2, loads=4)
_PROCESSORS = replace(_case((None, None), (None, None), loads=3), processors=(0, 1))

HOLDS = {
    "compactions, a stranger": _COMPACT,
    "a compaction, a trim": _TRIM,
    "two partitions": _case(_THREE, (None,), compactions=1, trims=1, late=1, loads=2),
    "two processors": _PROCESSORS,
    "registered late": replace(_case(_FOUR, compactions=2, trims=1, late=1, loads=2), begins=False),
    "registered late, from now": replace(_case(_FOUR, compactions=2, late=1, loads=3), begins=False, now=True),
    "a restored container": _BACK,
    "pauses": _PAUSE,
    "registered anew, with rows of others": _ANEW,
    "a reset that repeats": _case(_RANGES, compactions=2, loads=3),
    "a reset that replaces": _REPLACE,
    "a reset that replaces, a stranger": replace(_case(_RANGES, compactions=1, strangers=1, loads=4), replaces=True),
}
"""All rules kept, small enough for every run."""

HOLDS_LONG = {
    "compactions, a trim, a stranger": _case(_FOUR, compactions=2, trims=1, late=1, strangers=1, loads=3),
    "two partitions, two compactions": _case(_THREE, _THREE, compactions=2, late=1, strangers=1, loads=2),
    "two processors, compaction": replace(
        _case(_THREE, (None, None), compactions=1, trims=1, strangers=1, loads=3), processors=(0, 1)
    ),
    "a reset that replaces, a trim": replace(
        _case(_RANGES, compactions=2, trims=1, strangers=1, loads=3), replaces=True
    ),
}

BREAKS = {
    "a transaction without a condition": _without(_COMPACT, count=False),
    "counters that two processors share": _without(_PROCESSORS, own=False),
    "taking what lies under a number": _without(_LATE, void=False),
    "a compacted file beside what others rewrote": _without(_COMPACT, whole=False),
    "a compacted file beside its originals": _without(_COMPACT, together=False),
    "deleting what the table names": _without(_COMPACT, named=False),
    "deleting what a sleeper may name": _without(_TRIM, seen=False),
    "trimming what the table has not taken": _without(_TRIM, asks=False),
    "acting on a table of a lost chain": _without(_BACK, fits=False),
    "a reset within a transaction": _without(_REPLACE, begin=False),
    "removing whole files at a reset": _without(_REPLACE, cut=False),
    "compacting across a reset": _without(_REPLACE, apart=False),
    "reading the entry before the table": _without(_PAUSE, after=False),
    "removing files of others": _without(_ANEW, home=False),
    "trusting the fence of an earlier pause": _without(_PAUSE, each=False),
}
"""One rule left out each."""

BREAKS_LONG: set[str] = set()

if __name__ == "__main__":
    sys.exit(report({**HOLDS, **({} if "quick" in sys.argv else HOLDS_LONG)}, BREAKS))
