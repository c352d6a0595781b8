"""Rows with keys, across splits and merges and without transactions, as a model: every interleaving, small bounds.

Builds on sink_model.py: an owner of a partition delivers commit after commit, and a position says how far. All rows
here have one key, which goes from a partition to one that follows it. Kinds of sinks:

- **upsert**: rows and position in one transaction, conditional on the position as it was read;
- **versioned**: rows are written one by one, each if its version is not lower than that of the key; the position is in
  the container, and moves by compare-and-swap;
- **http**: requests with idempotency keys, and the position likewise;
- **ordered**: a topic or log, read in order; rows and position in one transaction.

Steps. *Upsert, versioned*: a row gets the version (life, depth, commit number): `life` is the sink's own count of the
processor ids and lives that have delivered to it (`lives`), `depth` is one more than that of the deepest parent
(`depth`, `deepest`), written with the child's first checkpoint; the number, not the sequence, which a reset repeats
(`number`). Of rows of a commit with one key only the last is written (`last`). A row of an equal version is written
again: a redeliver may repair (`equal`). A deletion leaves its version (`tomb`). A reset repeats; `replace` is refused
at the start (`plain`). *Without transactions*: each request is repeated until it is acknowledged, then the position
moves (`acked`), if epoch and position are as they were read (`term`). A *request* is one commit (`cut`); its key has
processor id and life (`key_id`), epoch (`key_epoch`), partition, number, and the put-id of the commit, since a restored
container gives numbers again (`key_put`). *Ordered*: a child delivers once all its parents were delivered to their
ends (`wait`, `all`), and a redeliver of a partition redelivers all that follow it from their first commits (`tree`).

What can happen at any step: two owners sleep or die between any two requests; a request arrives late, also after
another life has begun; operators redeliver; the processor is deleted and begins anew; somebody empties the table or
changes its row, and all is redelivered; with all hosts stopped, a backup of the container is restored.

Checked in every state: the key has the newest row of those that have arrived, or none if that one deletes it, and none
below the positions is missing; a request below the position was accepted once, and once more for each redeliver; an
ordered sink has each row once, parents before children, and after a redeliver its last row is the newest.

Change the protocol here first, then the docs, then the code. `python -m tests.protocol.sink_keyed_model`
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from tests.protocol.search import Found, explore, report


class Tag(NamedTuple):
    """A row: they are in the order of what is true. `history`: 1 if it was made after the container was restored."""

    life: int
    partition: int
    number: int
    place: int
    history: int = 0

    def __repr__(self) -> str:
        return f"{_name(self.partition)}{self.number} (row {self.place}, life {self.life}, history {self.history})"


class Position(NamedTuple):
    life: int = 0
    epoch: int = 0
    next: int = 0


class Request(NamedTuple):
    """Commits `first` up to `next`; `place`: of a single row of the commit."""

    first: int
    next: int
    place: int | None = None


class Task(NamedTuple):
    """An owner in the middle of a delivery."""

    partition: int
    at: Position
    upto: int
    history: int
    requests: tuple[Request, ...]


class Table(NamedTuple):
    """What a table has under the key."""

    version: tuple[int, ...]
    tag: Tag
    damaged: bool = False


class Container(NamedTuple):
    tips: tuple[int, ...]
    positions: tuple[Position, ...]


class Left(NamedTuple):
    """How often each event may still happen."""

    tasks: int = 0
    late: int = 0
    redelivers: int = 0
    emptied: int = 0
    damaged: int = 0
    anew: int = 0
    saves: int = 0
    losses: int = 0


class State(NamedTuple):
    """For the checks: `newest` that has arrived since the table was emptied, and what was redelivered (`again`)."""

    container: Container
    saved: Container | None = None
    life: int = 0
    history: int = 0
    cut: tuple[int, ...] = ()
    """Numbers from which on the chains of history 1 are others."""
    table: Table | None = None
    newest: Tag | None = None
    log: tuple[Tag, ...] = ()
    accepted: frozenset[tuple[object, ...]] = frozenset()
    again: tuple[tuple[int, int], ...] = ()
    spoilt: bool = False
    """Somebody has emptied the table, or changed its row, and nothing was redelivered yet."""
    tasks: tuple[Task, ...] = ()
    flying: tuple[tuple[Task, Request], ...] = ()
    left: Left = Left()


Step = tuple[str, State]
Commit = int | tuple[str, int]
"""The sequence of its row, or with "reset", the sequence that stays, "gone", a deletion, "two", rows of the key."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of rows with keys; leave one out, and the search finds how it breaks."""

    number: bool = True
    """A version counts commits, not sequences, which a reset repeats."""
    depth: bool = True
    """Before that it has the depth of the partition, so that a child's rows win over its parents'."""
    deepest: bool = True
    """That is one more than the depth of the deepest parent."""
    lives: bool = True
    """Before that it has the life, as the sink counts them."""
    last: bool = True
    """Of several rows of one commit with one key the last one is written alone."""
    equal: bool = True
    """A row of an equal version is written again."""
    tomb: bool = True
    """A deletion leaves its version."""
    plain: bool = True
    """A sink with keys repeats; `replace` is refused."""
    acked: bool = True
    """Without a transaction the position moves after each request was acknowledged."""
    term: bool = True
    """It moves only if epoch and position are as they were read."""
    wait: bool = True
    """Into an ordered sink a child delivers after its parents were delivered to their ends."""
    all: bool = True
    """It waits for each of its parents, not for one."""
    tree: bool = True
    """There a redeliver of a partition redelivers all that follow it, from their first commits."""
    key_id: bool = True
    """An idempotency key has processor id and life."""
    key_epoch: bool = True
    """It has the epoch of the redeliver; else the receiver drops what comes again."""
    key_put: bool = True
    """It has the put-id of the commit; else the receiver drops commits of a restored container."""
    cut: bool = True
    """It names one commit, not several that the next owner joins in another way."""


ALL = Rules()


@dataclass(frozen=True, slots=True)
class Model:
    """`scripts`: the commits of each partition; `parents`: of each partition, earlier ones."""

    kind: str
    scripts: tuple[tuple[Commit, ...], ...]
    parents: tuple[tuple[int, ...], ...]
    left: Left
    rules: Rules = ALL

    def start(self) -> State:
        count = len(self.scripts)
        return State(Container((0,) * count, (Position(),) * count), cut=(9,) * count, left=self.left)

    # What must hold

    def broken(self, s: State) -> str | None:
        past = [
            Tag(s.life, p, n, self._rows(p, n) - 1, self._history(s, p, n))
            for p, at in enumerate(s.container.positions)
            for n in range(at.next)
            if self._rows(p, n)
        ]
        if self.kind in ("upsert", "versioned"):
            return self._table_wrong(s, past)
        if self.kind == "http":
            return _requests_wrong(s, past)
        return self._order_wrong(s)

    def _table_wrong(self, s: State, past: list[Tag]) -> str | None:
        if past and not s.spoilt and (s.newest is None or s.newest < max(past)):
            return f"{max(past)} is below the position, the newest in the sink is {s.newest}"
        if s.table is not None and s.table.damaged and not s.spoilt and self._ended(s):
            return "all was delivered again, and the row is not as it was committed"
        due = s.newest if s.newest is not None and not self._deletes(s.newest) else None
        found = s.table.tag if s.table is not None and not self._deletes(s.table.tag) else None
        return f"the key has the value of {found}, due is {due}" if found != due else None

    def _order_wrong(self, s: State) -> str | None:
        if not s.again:
            for i, tag in enumerate(s.log):
                if any(self._precedes(later, tag) or later == tag for later in s.log[i + 1 :]):
                    return f"out of order, or twice: {s.log}"
        if s.log and self._ended(s) and any(self._precedes(s.log[-1], tag) for tag in s.log):
            return f"all is delivered, and the last row is {s.log[-1]}"
        return None

    def _ended(self, s: State) -> bool:
        return all(at.next == len(x) for at, x in zip(s.container.positions, self.scripts, strict=True))

    def _precedes(self, tag: Tag, other: Tag) -> bool:
        """Whether `tag` must come first: of the same partition, or of one that the other's follows."""
        if tag.partition == other.partition:
            return tag < other
        return tag.partition in self._before(other.partition)

    # The partitions

    def _before(self, p: int) -> set[int]:
        return {q for parent in self.parents[p] for q in (parent, *self._before(parent))}

    def _depth(self, p: int) -> int:
        depths = [self._depth(parent) for parent in self.parents[p]]
        return 1 + (max(depths) if self.rules.deepest else depths[0]) if depths else 0

    def _rows(self, p: int, n: int) -> int:
        commit = self.scripts[p][n]
        return 1 if isinstance(commit, int) else {"reset": 0, "gone": 1, "two": 2}[commit[0]]

    def _sequence(self, p: int, n: int) -> int:
        commit = self.scripts[p][n]
        return commit if isinstance(commit, int) else commit[1]

    def _deletes(self, tag: Tag) -> bool:
        commit = self.scripts[tag.partition][tag.number]
        return not isinstance(commit, int) and commit[0] == "gone"

    def _history(self, s: State, p: int, n: int) -> int:
        return int(n >= s.cut[p])

    # What can happen

    def steps(self, s: State) -> Iterator[Step]:
        c = s.container
        for p, script in enumerate(self.scripts):
            if c.tips[p] < len(script):
                tips = (*c.tips[:p], c.tips[p] + 1, *c.tips[p + 1 :])
                yield f"commit {_name(p)}{c.tips[p]}", _with(s, tips=tips)
                break
        for i, (task, request) in enumerate(s.flying):
            rest = s._replace(flying=s.flying[:i] + s.flying[i + 1 :])
            yield f"late: {_told(task, request)} arrives", self._arrive(rest, task, request) or rest
        yield from self._operators(s)
        yield from self._take(s)
        for task in s.tasks:
            yield from self._deliver(s, task)

    def _operators(self, s: State) -> Iterator[Step]:
        c = s.container
        if s.left.redelivers:
            for p, at in enumerate(c.positions):
                for n in range(at.next):
                    yield f"redeliver {_name(p)} --from {n}", self._redeliver(s, p, n)
        if s.left.emptied and s.table:
            yield "somebody empties the table", _spend(s, "emptied")._replace(table=None, newest=None, spoilt=True)
        if s.left.damaged and s.table:
            damaged = s.table._replace(damaged=True)
            yield "somebody changes the row in the table", _spend(s, "damaged")._replace(table=damaged, spoilt=True)
        if s.spoilt:
            back = tuple(at._replace(epoch=at.epoch + 1, next=0) for at in c.positions)
            yield "all is redelivered", _with(s, positions=back)._replace(spoilt=False)
        if s.left.anew:
            new = _with(_spend(s, "anew"), tips=(0,) * len(c.tips), positions=(Position(s.life + 1),) * len(c.tips))
            yield "the processor is deleted and begins anew", new._replace(life=s.life + 1)
        if s.left.saves:
            yield "backup of the container", _spend(s, "saves")._replace(saved=c)
        if s.left.losses and s.saved is not None and s.saved != c:
            lost = _spend(s, "losses")._replace(container=s.saved, history=1, cut=s.saved.tips, tasks=())
            yield "with all hosts stopped, the container is restored", lost

    def _redeliver(self, s: State, p: int, n: int) -> State:
        back = {p: n}
        if self.rules.tree and self.kind == "ordered":
            back.update({q: 0 for q in range(len(self.scripts)) if p in self._before(q)})
        positions = list(s.container.positions)
        again = list(s.again)
        for q, first in back.items():
            at = positions[q]
            positions[q] = Position(s.life, at.epoch + 1, min(first, at.next))
            again += [(q, m) for m in range(first, at.next)]
        return _with(_spend(s, "redelivers"), positions=tuple(positions))._replace(again=tuple(again))

    def _take(self, s: State) -> Iterator[Step]:
        if not s.left.tasks or len(s.tasks) == 2:
            return
        c = s.container
        for p, at in enumerate(c.positions):
            if self.kind == "ordered" and self.rules.wait:
                parents = self.parents[p] if self.rules.all else self.parents[p][:1]
                if any(c.positions[q].next < len(self.scripts[q]) for q in parents):
                    continue
            for upto in range(at.next + 1, c.tips[p] + 1):
                task = Task(p, at, upto, s.history, tuple(self._requests(p, at.next, upto)))
                tasks = tuple(sorted((*s.tasks, task)))
                yield f"an owner takes {_name(p)}{at.next}-{upto}", _spend(s, "tasks")._replace(tasks=tasks)

    def _requests(self, p: int, first: int, upto: int) -> Iterator[Request]:
        if self._whole or (self.kind == "http" and not self.rules.cut):
            yield Request(first, upto)
            return
        for n in range(first, upto):
            if self.kind == "versioned" and not self.rules.last:
                yield from (Request(n, n + 1, index) for index in range(self._rows(p, n)))
            else:
                yield Request(n, n + 1)

    @property
    def _whole(self) -> bool:
        """Rows and position in one transaction."""
        return self.kind in ("upsert", "ordered")

    def _deliver(self, s: State, task: Task) -> Iterator[Step]:
        gone = _task(s, task, None)
        yield f"the owner of {_name(task.partition)} dies", gone
        if not task.requests:
            now = s.container.positions[task.partition]
            expected = task.at if self.rules.term else task.at._replace(epoch=now.epoch)
            moved = _moved(gone, task.partition, now._replace(next=task.upto))
            label = f"the position of {_name(task.partition)} moves to {task.upto}"
            yield (label, moved) if now == expected else (f"{label}: refused", gone)
            return
        request, rest = task.requests[0], task._replace(requests=task.requests[1:])
        onward = gone if self._whole else _task(s, task, rest)
        after = self._arrive(onward, task, request)
        yield (f"{_told(task, request)} arrives", after) if after else (f"{_told(task, request)} is refused", gone)
        if s.left.late:
            flying = tuple(sorted((*s.flying, (task, request)), key=repr))
            doubt = _spend(gone if self._whole else s, "late")._replace(flying=flying)
            yield f"{_told(task, request)} is in doubt", doubt
        if not self.rules.acked and not self._whole:
            yield f"{_told(task, request)} is lost", onward

    def _arrive(self, s: State, task: Task, request: Request) -> State | None:
        """One transaction or request at the sink; None if it is refused."""
        p = task.partition
        if self._whole:
            if s.container.positions[p] != task.at:
                return None
            s = _moved(s, p, task.at._replace(next=task.upto))
        if self.kind == "http":
            rules, put_id = self.rules, tuple(self._put_id(s, task, n) for n in range(request.first, request.next))
            key = (
                task.at.life if rules.key_id else 0, task.at.epoch if rules.key_epoch else 0, p, request.first,
                None if rules.cut else request.next, put_id if rules.key_put else None,
            )  # fmt: skip
            if key in s.accepted:
                return s
            s = s._replace(accepted=s.accepted | {key})
        for n in range(request.first, request.next):
            rows = self._rows(p, n)
            if not rows and not self.rules.plain:
                s = self._replaced(s, task, self._sequence(p, n))
            for index in range(rows) if request.place is None else [request.place]:
                if request.place is None and self.rules.last and index < rows - 1:
                    continue
                s = self._row(s, Tag(task.at.life, p, n, index, self._put_id(s, task, n)))
        return s

    def _put_id(self, s: State, task: Task, n: int) -> int:
        return int(task.history == 1 and n >= s.cut[task.partition])

    def _row(self, s: State, tag: Tag) -> State:
        if self.kind in ("http", "ordered"):
            log = (*s.log, tag)
            return s._replace(log=tuple(sorted(log)) if self.kind == "http" else log)
        rules, p, n = self.rules, tag.partition, tag.number
        version = (
            tag.life if rules.lives else 0, self._depth(p) if rules.depth else 0,
            n if rules.number else self._sequence(p, n),
        )  # fmt: skip
        newest = tag if s.newest is None else max(s.newest, tag)
        old = s.table
        if old is None or version > old.version or (version == old.version and rules.equal):
            kept = not self._deletes(tag) or rules.tomb
            return s._replace(newest=newest, table=Table(version, tag) if kept else None)
        return s._replace(newest=newest)

    def _replaced(self, s: State, task: Task, to: int) -> State:
        """A reset that deletes the rows above a sequence."""
        if s.table is None:
            return s
        tag = s.table.tag
        if tag[:2] != (task.at.life, task.partition) or self._sequence(tag.partition, tag.number) <= to:
            return s
        return s._replace(table=None, newest=None)

    def search(self) -> Found:
        return explore(self.start(), self.steps, self.broken)


def _requests_wrong(s: State, past: list[Tag]) -> str | None:
    count = Counter(tag for tag in s.log)
    for tag in past:
        due = 1 + s.again.count((tag.partition, tag.number))
        if count[tag] < due or (count[tag] > due and not s.again):
            return f"{tag} was accepted {count[tag]} times, due {due}"
    return None


def _name(p: int) -> str:
    return "ABCD"[p]


def _told(task: Task, request: Request) -> str:
    row = "" if request.place is None else f" row {request.place}"
    return f"{_name(task.partition)}{request.first}-{request.next}{row}"


def _task(s: State, task: Task, to: Task | None) -> State:
    tasks = list(s.tasks)
    tasks.remove(task)
    return s._replace(tasks=tuple(sorted([*tasks, *([to] if to else [])])))


def _moved(s: State, p: int, to: Position) -> State:
    positions = s.container.positions
    return _with(s, positions=(*positions[:p], to, *positions[p + 1 :]))


def _with(s: State, **changes: object) -> State:
    return s._replace(container=s.container._replace(**changes))  # type: ignore[arg-type]


def _spend(s: State, event: str) -> State:
    return s._replace(left=s.left._replace(**{event: getattr(s.left, event) - 1}))


def _single(kind: str, *script: Commit, **left: int) -> Model:
    return Model(kind, (script,), ((),), Left(**left))


def _split(kind: str, parent: tuple[Commit, ...], child: tuple[Commit, ...], **left: int) -> Model:
    return Model(kind, (parent, child), ((), (0,)), Left(**left))


def _merge(
    kind: str, one: tuple[Commit, ...], two: tuple[Commit, ...], child: tuple[Commit, ...], **left: int
) -> Model:
    return Model(kind, (one, two, child), ((), (), (0, 1)), Left(**left))


def _without(model: Model, **rule: bool) -> Model:
    return replace(model, rules=replace(ALL, **rule))


_GONE = ("gone", 0)
_DEEPER = Model("upsert", ((), (), (0, 1), (0,)), ((), (), (0,), (1, 2)), Left(tasks=5, late=1, redelivers=1))
"""A has ended without rows, C follows it; B and C merge into D."""

HOLDS = {
    "upsert, a split": _split("upsert", (0, 1), (0,), tasks=5, late=1, redelivers=1),
    "upsert, a merge of unequal depths": _DEEPER,
    "upsert, a reset": _single("upsert", 0, 1, ("reset", -1), 0, tasks=4, late=1),
    "upsert, a reset to the middle": _single("upsert", 0, 1, ("reset", 0), tasks=4, late=1, redelivers=1),
    "upsert, begun anew": _single("upsert", 0, 1, tasks=4, late=1, anew=1),
    "upsert, a deletion, a split": _split("upsert", (0, 1), (_GONE,), tasks=5, late=1, redelivers=1),
    "versioned, a split": _split("versioned", (0, 1), (0,), tasks=4, late=1, redelivers=1),
    "versioned, an emptied table": _split("versioned", (0, 1), (0,), tasks=4, late=1, emptied=1),
    "versioned, a changed row": _split("versioned", (0, 1), (0,), tasks=4, late=1, damaged=1),
    "versioned, begun anew": _single("versioned", 0, 1, tasks=4, late=1, anew=1),
    "versioned, a reset": _single("versioned", 0, 1, ("reset", -1), 0, tasks=3, late=1),
    "versioned, a deletion": _single("versioned", 0, ("gone", 1), 2, tasks=3, late=1, redelivers=1),
    "versioned, two rows of a commit": _single("versioned", ("two", 0), 1, tasks=3, late=1, redelivers=1),
    "ordered, a split": _split("ordered", (0, 1), (0,), tasks=5, late=1, redelivers=1),
    "ordered, a merge": _merge("ordered", (0,), (0,), (0,), tasks=5, late=1, redelivers=1),
    "http": _split("http", (0, 1), (0,), tasks=4, late=2),
    "http, a redeliver": _single("http", 0, 1, tasks=4, late=1, redelivers=1),
    "http, begun anew": _single("http", 0, 1, tasks=4, late=1, anew=1),
    "http, a restored container": _single("http", 0, 1, tasks=4, late=1, saves=1, losses=1),
}
"""All rules kept, small enough for every run."""

HOLDS_LONG = {
    "upsert, a deletion, a merge": _merge("upsert", (0, _GONE), (), (0, _GONE), tasks=5, late=1, redelivers=1),
    "versioned, a merge": _merge("versioned", (0, 1), (), (0,), tasks=4, late=1, redelivers=1),
    "ordered, a merge, two redelivers": _merge("ordered", (0,), (0,), (0,), tasks=6, late=1, redelivers=2),
}

BREAKS = {
    "versions by sequences": _without(HOLDS["upsert, a reset"], number=False),
    "versions without depth": _without(HOLDS["upsert, a split"], depth=False),
    "the depth of another parent": _without(_DEEPER, deepest=False),
    "versions without lives": _without(HOLDS["versioned, begun anew"], lives=False),
    "each row of a key": _without(HOLDS["versioned, two rows of a commit"], last=False),
    "only newer versions": _without(HOLDS["versioned, a changed row"], equal=False),
    "deletions that leave nothing": _without(HOLDS["versioned, a deletion"], tomb=False),
    "replacing rows with keys": _without(HOLDS["upsert, a reset to the middle"], plain=False),
    "moving on without an acknowledgement": _without(HOLDS["versioned, a split"], acked=False),
    "a position that moves from anywhere": _without(HOLDS["versioned, an emptied table"], term=False),
    "a child that does not wait": _without(HOLDS["ordered, a split"], wait=False),
    "a child that waits for one parent": _without(HOLDS["ordered, a merge"], all=False),
    "a redeliver of one partition": _without(HOLDS["ordered, a split"], tree=False),
    "keys without the processor": _without(HOLDS["http, begun anew"], key_id=False),
    "keys without the epoch": _without(HOLDS["http, a redeliver"], key_epoch=False),
    "keys without the put-id": _without(HOLDS["http, a restored container"], key_put=False),
    "keys of several commits": _without(HOLDS["http"], cut=False),
}
"""One rule left out each."""

BREAKS_LONG: set[str] = set()


if __name__ == "__main__":
    sys.exit(report({**HOLDS, **({} if "quick" in sys.argv else HOLDS_LONG)}, BREAKS))
