"""Resets of a partition as an explicit-state model: every interleaving, within small bounds.

A reset is a commit of the chain: file n, put-if-absent, without rows. Its footer says the cursor that it ends, the
cursor that it sets, and the command's id. The operator neither claims the checkpoint nor writes it. A walk takes the
cursor of a reset even if it is behind.

Possible at any step:
- Workers pause for long, die and start again, and two of them run the partition at once.
- Operators die, and run their command again.
- Creates land late.
- The output is trimmed.
- The source is trimmed up to the lowest position of its readers, in two steps.

Record kinds: R emits a row, S emits nothing, T emits a row by worker 0 only. Rows are folded into keyed state.

Checked in every state: each commit goes on from where those before it lead to, so between two resets each R is
committed once, and a reset repeats or skips the records that its footer names. It goes the way that its dry run
announced. No command takes effect twice. A command that is reported done is in the chain; a refused one is not. A new
owner finds the cursor, the state and the newest reset of the chain. State has no record twice. The source keeps the
record to read next.

Change the protocol here first, then docs/protocol.md, then the code. `python -m tests.protocol.reset_model [quick]`
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from tests.protocol.search import Found, explore, report

Id = tuple[int, int]
"""Id of a command: operator and index in its script."""

Command = tuple[str, int]
"""`("to", position)` or `("undo", 0)`."""


class Reset(NamedTuple):
    """A reset in a footer. `expected`, the newest reset of the dry run, is for the checks only."""

    id: Id
    clears: bool
    way: str
    expected: Id | None


class File(NamedTuple):
    """A commit of `by`."""

    first: int
    next: int
    rows: tuple[int, ...]
    by: int
    reset: Reset | None = None


class At(NamedTuple):
    """The knowledge of a walk up to `number`. `resets`: id, ended cursor and number of each."""

    number: int = 0
    position: int = 0
    state: tuple[int, ...] = ()
    resets: tuple[tuple[Id, int, int], ...] = ()

    @property
    def newest(self) -> Id | None:
        return self.resets[-1][0] if self.resets else None


class Checkpoint(NamedTuple):
    at: At = At()
    owner: int = 0


class Worker(NamedTuple):
    """Phase 'claim', 'walk', 'look', 'run' or 'send'; `known`: its last checkpoint."""

    phase: str
    owner: int
    known: Checkpoint
    at: At = At()
    file: File | None = None


class Operator(NamedTuple):
    """At a command of its script, in phase 'plan', 'hold', 'read', 'walk', 'look', 'send' or 'check'."""

    command: int = 0
    phase: str = "plan"
    target: int = 0
    way: str = ""
    expected: Id | None = None
    begun: int = 0
    """Number of the checkpoint with which the walk began."""
    at: At = At()
    file: File | None = None


class Source(NamedTuple):
    """`version` of the document with `lowest`, below which nothing is kept, and the holds. `limit`: of a trim."""

    version: int = 0
    lowest: int = 0
    holds: tuple[int | None, ...] = ()
    limit: tuple[int, int] | None = None


class State(NamedTuple):
    """`path`: the decided commits, in order. It serves the checks; no process sees it."""

    checkpoint: Checkpoint = Checkpoint()
    files: tuple[tuple[int, File], ...] = ()
    path: tuple[File, ...] = ()
    boundary: int = 0
    workers: tuple[Worker | None, ...] = (None, None)
    operators: tuple[Operator, ...] = ()
    reports: tuple[tuple[Id, bool], ...] = ()
    source: Source = Source()
    late: tuple[tuple[int, File], ...] = ()
    opens: int = 0
    late_left: int = 0
    crashes_left: int = 0


Step = tuple[str, State]


@dataclass(frozen=True, slots=True)
class Rules:
    """The protocol's rules; leave one out, and the search finds how it breaks."""

    commit: bool = True
    """A reset is a commit of the chain, not a swap of the checkpoint."""
    follow: bool = True
    """A walk takes the cursor of a reset back even if it is behind."""
    onward: bool = True
    """A walk takes the cursor of a reset forward only if it is ahead."""
    again: bool = True
    """After a walk the boundary is read: if it has passed the number where the walk began, the walk is done again."""
    look: bool = True
    """After the create of a reset the boundary is read: if it has passed its number, the file is void."""
    id: bool = True
    """Who finds the command's id in the chain does not carry it out again."""
    carry: bool = True
    """The checkpoint lists the resets, so that they are found after the walks begin beyond them."""
    expect: bool = True
    """A reset is refused if another one was made since its dry run."""
    ahead: bool = True
    """A reset forward is refused if the partition has passed its target meanwhile."""
    clear: bool = True
    """A reset to the first record clears keyed state; back to any other record, it is refused if there is state."""
    untouched: bool = True
    """An undo goes back in spite of state only if nothing was committed since the reset that it undoes."""
    hold: bool = True
    """The target is held at the source before the reset is made."""


@dataclass(frozen=True, slots=True)
class Model:
    """`scripts`: the commands of each operator; `shared`: all of them carry out those of the first one."""

    kinds: str
    scripts: tuple[tuple[Command, ...], ...]
    opens: int = 2
    late: int = 0
    crashes: int = 0
    trim: bool = False
    source: bool = False
    shared: bool = False
    stateful: bool = True
    rules: Rules = Rules()

    # Invariants

    def broken(self, s: State) -> str | None:
        """The invariant that a state breaks, or None."""
        position, newest = 0, None
        state: tuple[int, ...] = ()
        ids = [file.reset.id for file in s.path if file.reset]
        for file in s.path:
            if self.certain(position, file.first) or self.certain(file.first, position):
                return f"{file.first}-{file.next} is committed after {position}"
            if file.reset is not None:
                if file.reset.way != ("back" if file.next < file.first else "forward"):
                    return f"a reset {file.reset.way} went from {file.first} to {file.next}"
                if file.reset.expected != newest:
                    return f"the dry run of {file.reset.id} knew reset {file.reset.expected}, the newest was {newest}"
                newest = file.reset.id
                state = () if file.reset.clears else state
            position, state = file.next, state + (file.rows if self.stateful else ())
        if len(set(ids)) < len(ids):
            return f"a command took effect twice: {ids}"
        if len(set(state)) < len(state):
            return f"a record is folded into state twice: {state}"
        found = self.restored(s)
        if found.position < position or self.certain(position, found.position):
            return f"a new owner finds position {found.position}, committed is {position}"
        if (found.state, found.newest) != (state, newest):
            return f"a new owner finds {found}, committed are state {state} and reset {newest}"
        if found.position < s.checkpoint.at.position and not self.went_back(s):
            return f"a new owner finds position {found.position}, no reset goes back from {s.checkpoint.at.position}"
        for command, done in s.reports:
            final = not self.shared and not (self.late and self.crashes)  # else another life may have carried it out
            if done != (command in ids) and (done or final):
                return f"{command} is reported {'done' if done else 'refused'}, the chain has the resets {ids}"
        if self.certain(found.position, s.source.lowest):
            return f"the source has lost records from {found.position} on, below {s.source.lowest}"
        return None

    def certain(self, first: int, upto: int) -> list[int]:
        """The records between two positions that every worker makes a row of."""
        return [record for record in range(first, upto) if self.kinds[record] == "R"]

    def went_back(self, s: State) -> bool:
        """Whether a reset back was made that the checkpoint has not passed."""
        return any(file.reset and file.reset.way == "back" for file in s.path[s.checkpoint.at.number :])

    def restored(self, s: State) -> At:
        at, files = s.checkpoint.at, dict(s.files)
        while at.number in files:
            at = self.walked(at, files[at.number])
        return at

    def walked(self, at: At, file: File) -> At:
        """After a commit."""
        if file.reset is None:
            state = at.state + (file.rows if self.stateful else ())
            return At(at.number + 1, max(at.position, file.next), state, at.resets)
        follows = self.rules.follow if file.reset.way == "back" else not self.rules.onward
        position = file.next if follows else max(at.position, file.next)
        state = () if file.reset.clears and self.rules.clear else at.state
        return At(at.number + 1, position, state, (*at.resets, (file.reset.id, file.first, at.number)))

    # Steps

    def steps(self, s: State) -> Iterator[Step]:
        for i, (n, file) in enumerate(s.late):
            rest = s._replace(late=s.late[:i] + s.late[i + 1 :])
            yield f"late create of {n} {'refused' if n in dict(s.files) else 'lands'}", _create(rest, n, file)
        if self.trim:
            yield from self._trim(s)
        if self.source:
            yield self._trim_source(s)
        for w, worker in enumerate(s.workers):
            if worker is not None:
                yield from self._worker(s, w, worker)
            elif s.opens < self.opens:
                opened = Worker("claim", s.opens + 1, s.checkpoint)
                yield f"w{w} reads the checkpoint", _put(s, w, opened)._replace(opens=s.opens + 1)
        for o, operator in enumerate(s.operators):
            if operator.command < len(self.scripts[o]):
                yield from self._operator(s, o, operator)

    def _trim(self, s: State) -> Iterator[Step]:
        if s.boundary < s.checkpoint.at.number - 1:
            yield f"trim raises the boundary to {s.boundary + 1}", s._replace(boundary=s.boundary + 1)
        for n, _ in s.files:
            if n < s.boundary:
                yield f"trim deletes {n}", s._replace(files=tuple(item for item in s.files if item[0] != n))

    def _trim_source(self, s: State) -> Step:
        source = s.source
        if source.limit is None:
            needed = min([self.restored(s).position, *(hold for hold in source.holds if hold is not None)])
            return f"source's trim finds {needed}", s._replace(source=source._replace(limit=(source.version, needed)))
        version, limit = source.limit
        if version != source.version or limit <= source.lowest:
            return "source's trim begins anew", s._replace(source=source._replace(limit=None))
        trimmed = Source(version + 1, limit, source.holds)
        return f"source is trimmed below {limit}", s._replace(source=trimmed)

    def _worker(self, s: State, w: int, x: Worker) -> Iterator[Step]:
        if s.opens < self.opens:  # else it is as good as asleep
            yield f"w{w} dies", _put(s, w, None)
        match x.phase:
            case "claim":
                mine = s.checkpoint._replace(owner=x.owner)
                if x.known != s.checkpoint:
                    yield f"w{w} is refused, reads again", _put(s, w, x._replace(known=s.checkpoint))
                else:
                    walking = x._replace(phase="walk", known=mine, at=mine.at)
                    yield f"w{w} claims", _put(s, w, walking)._replace(checkpoint=mine)
            case "walk":
                file = dict(s.files).get(x.at.number)
                onward = x._replace(phase="look") if file is None else x._replace(at=self.walked(x.at, file))
                yield f"w{w} {'ends its walk at' if file is None else 'walks over'} {x.at.number}", _put(s, w, onward)
            case "look":
                if self.rules.again and s.boundary > x.known.at.number:
                    yield f"w{w} walked below the boundary, stops", _put(s, w, None)
                else:
                    yield f"w{w} runs from {x.at.position} at {x.at.number}", _put(s, w, x._replace(phase="run"))
            case "run":
                yield from self._run(s, w, x)
            case "send":
                yield from self._send(s, w, x)

    def _run(self, s: State, w: int, x: Worker) -> Iterator[Step]:
        at = x.at
        for upto in range(at.position + 1, len(self.kinds) + 1):
            shows = "RT" if w == 0 else "R"
            rows = tuple(record for record in range(at.position, upto) if self.kinds[record] in shows)
            if rows:
                file = File(at.position, upto, rows, x.owner)
                yield from self._send(s, w, x._replace(phase="send", file=file))
            else:
                yield self._advance(s, w, x._replace(at=at._replace(position=upto)))
        if (at.number, at.position) != (x.known.at.number, x.known.at.position):
            yield self._advance(s, w, x)

    def _send(self, s: State, w: int, x: Worker) -> Iterator[Step]:
        assert x.file is not None
        n, file = x.at.number, x.file
        if dict(s.files).get(n, file) != file:
            yield f"w{w} finds another's {n}, stops", _put(s, w, None)
            return
        onward = x._replace(phase="run", at=self.walked(x.at, file), file=None)
        yield f"w{w} creates {n} ({file.first}-{file.next})", _create(_put(s, w, onward), n, file)
        if s.late_left:
            yield f"w{w} sends {n} ({file.first}-{file.next}), no reply", _later(_put(s, w, x), n, file)

    def _advance(self, s: State, w: int, x: Worker) -> Step:
        if x.known != s.checkpoint:
            return f"w{w} lost the checkpoint, stops", _put(s, w, None)
        to = Checkpoint(x.at if self.rules.carry else x.at._replace(resets=()), x.owner)
        return f"w{w} checkpoint ({x.at.number}, {x.at.position})", _put(s, w, x._replace(known=to))._replace(
            checkpoint=to
        )

    # Operators

    def _operator(self, s: State, o: int, p: Operator) -> Iterator[Step]:
        if s.crashes_left and p.phase != "plan":
            yield f"o{o} dies, is run again", _set(s, o, Operator(p.command))._replace(crashes_left=s.crashes_left - 1)
        match p.phase:
            case "plan":
                yield from self._plan(s, o, p)
            case "hold":
                yield self._hold(s, o, p)
            case "read":
                at = s.checkpoint.at
                yield f"o{o} reads the checkpoint", _set(s, o, p._replace(phase="walk", begun=at.number, at=at))
            case "walk":
                file = dict(s.files).get(p.at.number)
                onward = p._replace(phase="look") if file is None else p._replace(at=self.walked(p.at, file))
                yield f"o{o} {'ends its walk at' if file is None else 'walks over'} {p.at.number}", _set(s, o, onward)
            case "look":
                yield self._decide(s, o, p)
            case "send":
                yield from self._send_reset(s, o, p)
            case "check":
                if self.rules.look and s.boundary > p.at.number:
                    yield f"o{o} finds its commit void", _set(s, o, p._replace(phase="read", file=None))
                else:
                    yield f"o{o} is done", self._report(s, o, p, done=True)

    def _id(self, o: int, p: Operator) -> Id:
        return (0 if self.shared else o, p.command)

    def _plan(self, s: State, o: int, p: Operator) -> Iterator[Step]:
        """The dry run."""
        at, (what, target) = self.restored(s), self.scripts[o][p.command]
        if what == "undo":
            if not at.resets:
                return
            target = at.resets[-1][1]
        way = "back" if target < at.position else "forward"
        planned = p._replace(phase="hold", target=target, way=way, expected=at.newest)
        yield f"o{o} plans: {what} {target} ({way})", _set(s, o, planned)

    def _hold(self, s: State, o: int, p: Operator) -> Step:
        source = s.source
        if not self.source or not self.rules.hold:
            return f"o{o} begins", _set(s, o, p._replace(phase="read"))
        if p.target < source.lowest:
            return f"o{o} is refused: {p.target} is trimmed", self._report(s, o, p, done=False)
        return f"o{o} holds {p.target} at the source", _set(_held(s, o, p.target), o, p._replace(phase="read"))

    def _decide(self, s: State, o: int, p: Operator) -> Step:
        at, target = p.at, p.target
        if self.rules.again and s.boundary > p.begun:
            return f"o{o} walked below the boundary", _set(s, o, p._replace(phase="read"))
        if self.rules.id and self._id(o, p) in [known for known, _, _ in at.resets]:
            return f"o{o} finds its own in the chain", self._report(s, o, p, done=True)
        if self.rules.expect and at.newest != p.expected:
            return f"o{o} is refused: another reset was made", self._report(s, o, p, done=False)
        if self.rules.ahead and p.way == "forward" and at.position > target:
            return f"o{o} is refused: {target} is passed", self._report(s, o, p, done=False)
        undoes = self.scripts[o][p.command][0] == "undo"
        untouched = undoes and (at.resets[-1][2] == at.number - 1 or not self.rules.untouched)
        clears = not undoes and target == 0
        if self.rules.clear and p.way == "back" and at.state and not clears and not untouched:
            return f"o{o} is refused: there is state", self._report(s, o, p, done=False)
        reset = Reset(self._id(o, p), clears, p.way, p.expected)
        file = File(at.position, target, (), -1 - o, reset)
        if self.rules.commit:
            return f"o{o} is to create {at.number}", _set(s, o, p._replace(phase="send", file=file))
        done = self._report(s, o, p, done=True)._replace(path=(*s.path, file))
        return f"o{o} swaps the checkpoint", done._replace(
            checkpoint=Checkpoint(self.walked(at, file)._replace(number=at.number), -1 - o)
        )

    def _send_reset(self, s: State, o: int, p: Operator) -> Iterator[Step]:
        assert p.file is not None
        n, file = p.at.number, p.file
        if dict(s.files).get(n, file) != file:
            yield f"o{o} finds another's {n}", _set(s, o, p._replace(phase="walk", file=None))
            return
        created = _create(_set(s, o, p._replace(phase="check")), n, file)
        yield f"o{o} creates {n} (reset {file.first} to {file.next})", created
        if s.late_left:
            yield f"o{o} sends {n} (reset {file.first} to {file.next}), no reply", _later(s, n, file)

    def _report(self, s: State, o: int, p: Operator, *, done: bool) -> State:
        if self.source and s.source.holds[o] is not None:
            s = _held(s, o, None)
        return _set(s, o, Operator(p.command + 1))._replace(reports=(*s.reports, (self._id(o, p), done)))

    def start(self) -> State:
        return State(
            operators=tuple(Operator() for _ in self.scripts), source=Source(holds=(None,) * len(self.scripts)),
            late_left=self.late, crashes_left=self.crashes,
        )  # fmt: skip

    def search(self) -> Found:
        return explore(self.start(), self.steps, self.broken)


def _put(s: State, w: int, worker: Worker | None) -> State:
    return s._replace(workers=(*s.workers[:w], worker, *s.workers[w + 1 :]))


def _set(s: State, o: int, operator: Operator) -> State:
    return s._replace(operators=(*s.operators[:o], operator, *s.operators[o + 1 :]))


def _held(s: State, o: int, target: int | None) -> State:
    holds = (*s.source.holds[:o], target, *s.source.holds[o + 1 :])
    return s._replace(source=s.source._replace(version=s.source.version + 1, holds=holds))


def _later(s: State, n: int, file: File) -> State:
    return s._replace(late=(*s.late, (n, file)), late_left=s.late_left - 1)


def _create(s: State, n: int, file: File) -> State:
    """Create file n where none is. It is the commit unless the number was decided before: then it was trimmed."""
    if n in dict(s.files):
        return s
    decided = n == len(s.path)
    files = tuple(sorted({**dict(s.files), n: file}.items()))
    return s._replace(files=files, path=(*s.path, file) if decided else s.path)


ALL = Rules()

_BACK, _TO_1, _FORWARD, _UNDO = ("to", 0), ("to", 1), ("to", 2), ("undo", 0)

HOLDS = {"two operators": Model("RR", ((_BACK,), (_BACK,)), opens=1)}
"""All rules kept, small enough for every run."""

HOLDS_LONG = {
    "back, an operator that dies": Model("RR", ((_BACK,),), crashes=1),
    "two operators, one dies": Model("RR", ((_BACK,), (_BACK,)), opens=1, crashes=1),
    "two carry out one command": Model("RR", ((_BACK,), (_BACK,)), opens=1, crashes=1, shared=True),
    "the source is trimmed": Model("RR", ((_BACK,),), source=True),
    "back, a late write": Model("RR", ((_BACK,),), late=1),
    "back, silence": Model("SR", ((_BACK,),), late=1, crashes=1),
    "back, unsteady rows": Model("TR", ((_BACK,),), opens=3),
    "back to the middle without state": Model("RRR", ((_TO_1,),), stateful=False, crashes=1),
    "forward": Model("RRR", ((_FORWARD,),), crashes=1),
    "back and undo": Model("RR", ((_BACK, _UNDO),), crashes=1),
    "forward, silence": Model("SSR", ((_TO_1,),), late=1, crashes=1),
    "forward and undo": Model("RRR", ((_FORWARD, _UNDO),)),
    "forward from the first record, and undo": Model("RR", ((_TO_1, _UNDO),), opens=3),
    "forward and undo without state": Model("RRR", ((_FORWARD, _UNDO),), stateful=False),
    "one undoes while another resets": Model("RR", ((_BACK, _UNDO), (_BACK,)), opens=1),
    "trimming": Model("RR", ((_BACK,),), trim=True, crashes=1),
    "trimming, silence, a late write": Model("SR", ((_BACK,),), trim=True, late=1),
    "the source is trimmed, an operator dies": Model("RR", ((_BACK,),), source=True, crashes=1),
}

BREAKS = {
    "a reset by the checkpoint alone": Model("RR", ((_BACK,),), rules=replace(ALL, commit=False)),
    "a walk that takes the furthest cursor": Model("RR", ((_BACK,),), rules=replace(ALL, follow=False)),
    "a walk that goes back over a reset forward": Model("SSR", ((_TO_1,),), rules=replace(ALL, onward=False)),
    "a walk below the boundary": Model("RR", ((_BACK,),), trim=True, late=1, rules=replace(ALL, again=False)),
    "a reset below the boundary": Model("RR", ((_BACK,),), trim=True, rules=replace(ALL, look=False)),
    "a command that is run again": Model("RR", ((_BACK,),), crashes=1, rules=replace(ALL, id=False)),
    "checkpoints that forget resets": Model("RR", ((_BACK,),), crashes=1, rules=replace(ALL, carry=False)),
    "a reset after another": Model("RR", ((_BACK,), (_BACK,)), opens=1, rules=replace(ALL, expect=False)),
    "a reset forward that goes back": Model("RRR", ((_FORWARD,),), rules=replace(ALL, ahead=False)),
    "state that stays": Model("RR", ((_BACK,),), rules=replace(ALL, clear=False)),
    "an undo after commits": Model("RR", ((_TO_1, _UNDO),), rules=replace(ALL, untouched=False)),
    "a source that is trimmed meanwhile": Model("RR", ((_BACK,),), source=True, rules=replace(ALL, hold=False)),
}
"""Models with one rule left out: each must break."""

BREAKS_LONG = {"a walk below the boundary", "a source that is trimmed meanwhile"}
"""The names in `BREAKS` of models that take some seconds."""


if __name__ == "__main__":
    sys.exit(report({**HOLDS, **({} if "quick" in sys.argv else HOLDS_LONG)}, BREAKS))
