"""Keyed state in the commits of one partition as an explicit-state model: every interleaving, within small bounds.

State is a map. Record r appends itself to key r % 2, so a record that is folded twice, or not at all, shows.
Each record has a kind: C changes state, S changes nothing (only the position moves), D deletes its key, W replaces the
whole state, F fails on worker 0 after it has changed state (a dead letter) and counts on worker 1, T counts on worker 0
and changes nothing on worker 1 (handlers need not be deterministic).

Possible at any step:
- Two owners, a sweeper and a reader pause anywhere.
- Owners die.
- A write is applied after its sender gave up on it and died.
- Files below the checkpoint's number are trimmed or compacted.

The model has no hour of grace, because no rule rests on it.

Checked in every state:
- A new owner would restore the fold of the committed records, each once.
- No object that the new owner needs is gone.
- A reader gets the fold of some prefix of the chain.
- An undisturbed sweep leaves no garbage below the checkpoint's number.
- With at-most-once delivery, no record is shown to a handler twice.

Change the protocol here first, then docs/protocol.md, then the code. `python -m tests.protocol.state_model [quick]`
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from tests.protocol.search import Found, explore, report

Name = tuple[int, int, int]
"""Label, writer and put-id of an object below `state/`. An object is written once, by a plain put."""

Value = tuple[int, ...] | None
"""The records that a key was changed by; None: the key is deleted."""

Content = tuple[tuple[int, Value], ...]
Part = tuple[Name, Content]


class File(NamedTuple):
    """A commit. `delta`: the object that its footer names, if state changed. `whole`: the delta holds all of the state,
    and nothing before it counts. `counted`: the records that changed state, for the checks."""

    first: int
    next: int
    delta: Name | None
    whole: bool
    owner: int
    counted: tuple[int, ...]


class Checkpoint(NamedTuple):
    """`manifest`: the objects, oldest first, that hold all that was committed below `number`."""

    number: int = 0
    position: int = 0
    manifest: tuple[Name, ...] = ()
    owner: int = 0


class Run(NamedTuple):
    """An object that was put in the place of the parts `first` up to `last`, and that no checkpoint names yet."""

    first: int
    last: int
    part: Part


class Worker(NamedTuple):
    """Phase 'claim', 'load', 'walk', 'work' or 'commit'. `parts`: all that is committed below `number`; the memory of
    the worker is their fold. `hand`: the commit on its way, with its changes. `ahead`: at most once, the end of the
    records that the handler is about to see."""

    phase: str
    known: Checkpoint
    owner: int
    number: int = 0
    position: int = 0
    parts: tuple[Part, ...] = ()
    run: Run | None = None
    hand: tuple[File, Content] | None = None
    ahead: int = 0


class Reader(NamedTuple):
    """Phase 'checkpoint', 'load', 'footers' or 'done'."""

    phase: str = "checkpoint"
    known: Checkpoint = Checkpoint()
    number: int = 0
    memory: Content = ()


class Sweeper(NamedTuple):
    """The objects that a sweeper has read so far, in either order."""

    known: Checkpoint | None = None
    listed: tuple[Name, ...] | None = None


class Late(NamedTuple):
    """A write under way whose sender gave up on it: put of an object, create of a file, or swap of the checkpoint."""

    object: Part | None = None
    file: tuple[int, File] | None = None
    swap: tuple[Checkpoint, Checkpoint] | None = None


class State(NamedTuple):
    """`chain`: the commits. `shown`: the records that handlers saw. Both serve the checks; no process stores them."""

    checkpoint: Checkpoint = Checkpoint()
    files: tuple[tuple[int, File], ...] = ()
    objects: tuple[Part, ...] = ()
    boundary: int = 0
    workers: tuple[Worker | None, ...] = (None, None)
    reader: Reader | None = None
    sweeper: Sweeper = Sweeper()
    late: tuple[Late, ...] = ()
    chain: tuple[File, ...] = ()
    shown: tuple[int, ...] = ()
    opens: int = 0
    late_left: int = 0
    merges_left: int = 0
    sweeps_left: int = 0


Step = tuple[str, State]


@dataclass(frozen=True, slots=True)
class Rules:
    """The protocol's rules; leave one out, and the search finds how it breaks."""

    beside: bool = True
    """A delta is put before the commit that names it."""
    own_name: bool = True
    """The delta's name contains the put-id of its commit."""
    drop: bool = True
    """The changes of a failed attempt are dropped."""
    file: bool = True
    """Changed state makes a file of the chain, never a checkpoint alone."""
    carry: bool = True
    """The checkpoint names all that is committed below its number."""
    exact: bool = True
    """A run holds committed state only."""
    tombs: bool = True
    """A run keeps the deletions of keys, unless it is the first of the manifest."""
    whole: bool = True
    """A delta that holds all of the state is marked in its footer."""
    place: bool = True
    """A run takes the place of its parts in the manifest."""
    label: bool = True
    """A run's label is not below the checkpoint's number before the swap that names it."""
    swap: bool = True
    """The manifest changes by compare-and-swap against the owner's own checkpoint."""
    missing: bool = True
    """A missing object stops an owner, and makes a reader begin again."""
    number: bool = True
    """Objects at or above the checkpoint's number are not swept."""
    listing: bool = True
    """A sweep lists the objects; it does not rely on the names in footers."""
    below: bool = True
    """A footer below the checkpoint's number keeps no object alive."""
    again: bool = True
    """After its walk an owner reads the boundary, and opens again if it has passed the walk's first number."""
    again_too: bool = True
    """A reader reads the boundary after its walk, too, and opens again if it has passed."""
    first: bool = True
    """At most once, the checkpoint passes the records before the handler sees them."""


ALL = Rules()


@dataclass(frozen=True, slots=True)
class Model:
    """`kinds`: one letter per record. `opens`, `late`, `merges`, `sweeps`: how many there may be. `trim`: old files go.
    `most`: records in a commit. `once`: at most once."""

    kinds: str
    opens: int = 3
    late: int = 0
    merges: int = 0
    sweeps: int = 0
    trim: bool = False
    reader: bool = False
    most: int = 9
    once: bool = False
    rules: Rules = ALL

    def start(self) -> State:
        return State(
            reader=Reader() if self.reader else None,
            late_left=self.late,
            merges_left=self.merges,
            sweeps_left=self.sweeps,
        )

    def search(self) -> Found:
        return explore(self.start(), self.steps, self.broken)

    # Invariants

    def broken(self, s: State) -> str | None:
        """The invariant that a state breaks, or None."""
        if len(set(s.shown)) < len(s.shown):
            return f"shown to handlers: {s.shown}"
        position, parts, gone = self._restored(s)
        if gone:
            return f"object {gone} is needed and gone"
        if fold(parts) != (due := self._due(s.chain, position)):
            return f"a new owner restores {fold(parts)} at {position}, committed is {due}"
        if s.reader and s.reader.phase == "done":
            n, got = s.reader.number, dict(s.reader.memory)
            if got != (due := self._due(s.chain[:n])):
                return f"a reader sees {got} after commit {n - 1}, which is {due}"
        end = s.checkpoint._replace(number=len(s.chain), manifest=tuple(name for name, _ in parts))
        there = [name for name, _ in s.objects]
        if left := {name for name in there if name[0] < end.number} - {*end.manifest, *self._garbage(s, there, end)}:
            return f"a sweep leaves {left} for ever"
        return None

    def _due(self, chain: Iterable[File], upto: int = 0) -> Mapping[int, Value]:
        """The fold of the commits. Each C, D, W below `upto` counts; with at-most-once delivery it may be lost."""
        counted = {record for file in chain for record in file.counted}
        if not self.once:
            counted |= {record for record in range(upto) if self.kinds[record] in "CDW"}
        state: Mapping[int, Value] = {}
        for record in sorted(counted):
            state = self._changed(state, record)
        return state

    def _changed(self, state: Mapping[int, Value], record: int) -> Mapping[int, Value]:
        key, kind = record % 2, self.kinds[record]
        if kind == "D":
            return {k: value for k, value in state.items() if k != key}
        return {key: (record,)} if kind == "W" else {**state, key: (*(state.get(key) or ()), record)}

    def _restored(self, s: State) -> tuple[int, tuple[Part, ...], Name | None]:
        """Position and parts that a new owner would find now, and an object that is missing."""
        there, files = dict(s.objects), dict(s.files)
        names, n, position = s.checkpoint.manifest, s.checkpoint.number, s.checkpoint.position
        while (file := files.get(n)) is not None:
            names = (() if file.whole else names) + ((file.delta,) if file.delta else ())
            position, n = max(position, file.next), n + 1
        gone = next((name for name in names if name not in there), None)
        return position, tuple((name, there.get(name, ())) for name in names), gone

    def _garbage(self, s: State, listed: Iterable[Name], known: Checkpoint) -> set[Name]:
        """The objects that a sweep with this checkpoint, however old, may delete."""
        rules, named = self.rules, {file.delta for _, file in s.files}
        gone = {name for name in listed if name not in known.manifest}
        gone = {name for name in gone if name[0] < known.number or not rules.number}
        gone = {name for name in gone if rules.listing or name in named}
        return {name for name in gone if rules.below or name not in named}

    # Steps

    def steps(self, s: State) -> Iterator[Step]:
        yield from self._late_writes(s)
        if self.trim:
            yield from self._trim(s)
        if s.reader and s.reader.phase != "done":
            yield self._read(s, s.reader)
        if s.sweeps_left:
            yield from self._sweep(s)
        for w, worker in enumerate(s.workers):
            if worker is None:
                if s.opens < self.opens:
                    opened = _put(s, w, Worker("claim", s.checkpoint, s.opens + 1))
                    yield f"w{w} reads the checkpoint", opened._replace(opens=s.opens + 1)
                continue
            if s.opens < self.opens:  # else it is as good as asleep
                yield f"w{w} dies", _put(s, w, None)
            match worker.phase:
                case "claim":
                    yield self._claim(s, w, worker)
                case "load":
                    yield self._load(s, w, worker)
                case "walk":
                    yield self._walk(s, w, worker)
                case "work":
                    yield from self._work(s, w, worker)
                case "commit":
                    yield from self._commit(s, w, worker)

    def _late_writes(self, s: State) -> Iterator[Step]:
        for i, late in enumerate(s.late):
            rest = s._replace(late=s.late[:i] + s.late[i + 1 :])
            if late.swap:
                expected, to = late.swap
                lands = s.checkpoint == expected
                yield f"late swap {'lands' if lands else 'refused'}", rest._replace(checkpoint=to) if lands else rest
            elif late.object:
                yield f"late put of {late.object[0]} lands", _with_object(rest, late.object)
            elif late.file:
                yield f"late create of {late.file[0]} lands or is refused", _create(rest, *late.file)

    def _trim(self, s: State) -> Iterator[Step]:
        if s.boundary < s.checkpoint.number - 1:
            yield f"the boundary is {s.boundary + 1}", s._replace(boundary=s.boundary + 1)
        for n, _ in s.files:
            if n < s.boundary:
                yield f"trim {n}", s._replace(files=tuple(item for item in s.files if item[0] != n))

    def _claim(self, s: State, w: int, worker: Worker) -> Step:
        if worker.known != s.checkpoint:
            return f"w{w} claim refused, reads again", _put(s, w, worker._replace(known=s.checkpoint))
        mine = s.checkpoint._replace(owner=worker.owner)
        return f"w{w} claims", _put(s, w, worker._replace(phase="load", known=mine))._replace(checkpoint=mine)

    def _load(self, s: State, w: int, worker: Worker) -> Step:
        there, known = dict(s.objects), worker.known
        if self.rules.missing and any(name not in there for name in known.manifest):
            return f"w{w} misses an object, stops", _put(s, w, None)
        parts = tuple((name, there.get(name, ())) for name in known.manifest)
        onward = worker._replace(phase="walk", parts=parts, number=known.number, position=known.position)
        return f"w{w} loads {fold(parts)}", _put(s, w, onward)

    def _walk(self, s: State, w: int, worker: Worker) -> Step:
        file, there = dict(s.files).get(worker.number), dict(s.objects)
        if file is None:
            if self.rules.again and s.boundary > worker.known.number:
                return f"w{w} walked below the boundary, stops", _put(s, w, None)
            return f"w{w} runs from {worker.position}", _put(s, w, worker._replace(phase="work"))
        if file.delta and file.delta not in there and self.rules.missing:
            return f"w{w} misses a delta, stops", _put(s, w, None)
        content = there.get(file.delta, ()) if file.delta else ()
        onward = _after(worker, file, content)._replace(phase="walk", position=max(worker.position, file.next))
        return f"w{w} walks over {worker.number}", _put(s, w, onward)

    def _work(self, s: State, w: int, worker: Worker) -> Iterator[Step]:
        if worker.ahead:
            yield from self._handle(s, w, worker, worker.ahead)
            return
        for upto in range(worker.position + 1, min(worker.position + self.most, len(self.kinds)) + 1):
            if self.once and self.rules.first:
                yield from self._advance(s, w, worker._replace(ahead=upto))
            else:
                yield from self._handle(s, w, worker, upto)
        if (worker.number, worker.position) > (worker.known.number, worker.known.position):
            yield from self._advance(s, w, worker)
        if s.merges_left and worker.number > worker.known.number and not worker.run:
            yield from self._merge(s, w, worker)

    def _handle(self, s: State, w: int, worker: Worker, upto: int) -> Iterator[Step]:
        """The handler sees the records up to `upto`, and its changes are committed."""
        changes, whole, counted, letters = self._attempt(w, worker, upto)
        if self.once:
            s = s._replace(shown=(*s.shown, *range(worker.position, upto)))
        name = (worker.number, worker.owner, upto) if self.rules.own_name else (worker.number, 0, 0)
        delta = name if changes else None
        file = File(worker.position, upto, delta, whole and self.rules.whole, worker.owner, counted)
        if changes and self.rules.beside:
            yield from self._put_delta(s, w, worker._replace(phase="commit", hand=(file, changes)), (name, changes))
        elif changes or letters:
            yield from self._commit(s, w, worker._replace(hand=(file, changes)))
        else:
            yield from self._advance(s, w, worker._replace(position=upto, ahead=0))

    def _attempt(self, w: int, worker: Worker, upto: int) -> tuple[Content, bool, tuple[int, ...], tuple[int, ...]]:
        """Changed keys; whether they are all of the state; the records that count; dead letters."""
        before = fold(worker.parts)
        state, whole = before, False
        counted: list[int] = []
        letters: list[int] = []
        for record in range(worker.position, upto):
            kind = self.kinds[record]
            if kind == "S" or (kind == "T" and w == 1):
                continue
            fails = kind == "F" and w == 0
            (letters if fails else counted).append(record)
            if not fails or not self.rules.drop:
                state, whole = self._changed(state, record), whole or kind == "W"
        changes = {key: state.get(key) for key in (0, 1) if whole or state.get(key) != before.get(key)}
        if whole:
            changes = dict(state)
        return tuple(sorted(changes.items())), whole, tuple(counted), tuple(letters)

    def _put_delta(self, s: State, w: int, worker: Worker, part: Part) -> Iterator[Step]:
        done = _with_object(_put(s, w, worker), part)
        yield f"w{w} puts delta {part[0]} = {dict(part[1])}", done
        if s.late_left:
            yield f"w{w} puts delta {part[0]} twice, one is late", _late(done, Late(object=part))

    def _commit(self, s: State, w: int, worker: Worker) -> Iterator[Step]:
        """Create the file; or, after no reply, find out whose it is."""
        assert worker.hand is not None
        (file, changes), n = worker.hand, worker.number
        if not self.rules.file and file.delta:
            yield from self._advance(s, w, _after(worker, file, changes)._replace(number=n))
        if dict(s.files).get(n, file) != file:
            yield f"w{w} finds another's {n}, stops", _put(s, w, None)
            return
        yield (
            f"w{w} creates {n} ({file.first}-{file.next})",
            _create(_put(s, w, _after(worker, file, changes)), n, file),
        )
        if s.late_left:
            doubt = _put(s, w, worker._replace(phase="commit"))
            yield f"w{w} sends {n} ({file.first}-{file.next}), no reply", _late(doubt, Late(file=(n, file)))

    def _merge(self, s: State, w: int, worker: Worker) -> Iterator[Step]:
        """Put a run of neighbouring parts."""
        end = len(worker.parts)
        pending: Content = ()
        if not self.rules.exact and worker.position < len(self.kinds):
            pending = self._attempt(w, worker, worker.position + 1)[0]
        for first in range(end - 1):
            for last in range(first + 2, end + 1):
                name = (worker.number - 1 if self.rules.label else first, worker.owner, -1 - first)
                merged = {**latest(worker.parts[first:last]), **dict(pending)}
                kept = {k: v for k, v in merged.items() if v is not None or (first and self.rules.tombs)}
                part = (name, tuple(sorted(kept.items())))
                onward = _put(s, w, worker._replace(run=Run(first, last, part)))
                merging = _with_object(onward, part)._replace(merges_left=s.merges_left - 1)
                yield f"w{w} puts run {name} = {kept}", merging

    def _advance(self, s: State, w: int, worker: Worker) -> Iterator[Step]:
        """Swap in how far the worker is; a run that was put is named."""
        parts = worker.parts
        if worker.run:
            before, after, run = parts[: worker.run.first], parts[worker.run.last :], worker.run.part
            parts = (*before, run, *after) if self.rules.place else (*before, *after, run)
        manifest = tuple(name for name, _ in parts) if self.rules.carry else worker.known.manifest
        to = Checkpoint(worker.number, worker.ahead or worker.position, manifest, worker.owner)
        if worker.known != s.checkpoint and (self.rules.swap or not worker.run):
            yield f"w{w} lost the checkpoint, stops", _put(s, w, None)
            return
        onward = worker._replace(phase="work", known=to, parts=parts, run=None, hand=None)
        yield f"w{w} checkpoint {tuple(to)}", _put(s, w, onward)._replace(checkpoint=to)
        if s.late_left:
            dead = _late(_put(s, w, None), Late(swap=(worker.known, to)))
            yield f"w{w} sends checkpoint {tuple(to)}, dies", dead

    def _sweep(self, s: State) -> Iterator[Step]:
        known, listed = s.sweeper
        if known is None:
            yield "sweeper reads the checkpoint", s._replace(sweeper=s.sweeper._replace(known=s.checkpoint))
        if listed is None:
            names = tuple(name for name, _ in s.objects)
            yield "sweeper lists", s._replace(sweeper=s.sweeper._replace(listed=names))
        if known is not None and listed is not None:
            gone = self._garbage(s, listed, known)
            objects = tuple(part for part in s.objects if part[0] not in gone)
            swept = s._replace(objects=objects, sweeper=Sweeper(), sweeps_left=s.sweeps_left - 1)
            yield f"sweeper deletes {gone}", swept

    def _read(self, s: State, reader: Reader) -> Step:
        there, file = dict(s.objects), dict(s.files).get(reader.number)
        again = "reader begins again", s._replace(reader=Reader())
        if reader.phase == "checkpoint":
            begun = Reader("load", s.checkpoint, s.checkpoint.number)
            return "reader reads the checkpoint", s._replace(reader=begun)
        loading = reader.phase == "load"
        if not loading and file is None:
            if self.rules.again_too and s.boundary > reader.known.number:
                return again
            return "reader is done", s._replace(reader=reader._replace(phase="done"))
        wanted = reader.known.manifest if loading else (file.delta,) if file and file.delta else ()
        if self.rules.missing and any(name not in there for name in wanted):
            return again
        parts = tuple((name, there.get(name, ())) for name in wanted)
        if not (not loading and file and file.whole):
            parts = (((-1, 0, 0), reader.memory), *parts)
        memory = tuple(sorted(fold(parts).items()))
        onward = Reader("footers", reader.known, reader.number + (not loading), memory)
        return f"reader reads {'the manifest' if loading else reader.number}", s._replace(reader=onward)


def latest(parts: Iterable[Part]) -> Mapping[int, Value]:
    """The newest value of each key; None: deleted."""
    return {key: value for _, content in parts for key, value in content}


def fold(parts: Iterable[Part]) -> Mapping[int, Value]:
    """The state that the parts hold."""
    return {key: value for key, value in latest(parts).items() if value is not None}


def _after(worker: Worker, file: File, changes: Content) -> Worker:
    """The worker behind a commit."""
    parts = (() if file.whole else worker.parts) + (((file.delta, changes),) if file.delta else ())
    run = None if file.whole else worker.run
    return worker._replace(
        phase="work", number=worker.number + 1, position=file.next, parts=parts, run=run, hand=None, ahead=0
    )


def _late(s: State, late: Late) -> State:
    return s._replace(late=(*s.late, late), late_left=s.late_left - 1)


def _put(s: State, w: int, worker: Worker | None) -> State:
    return s._replace(workers=(*s.workers[:w], worker, *s.workers[w + 1 :]))


def _with_object(s: State, part: Part) -> State:
    return s._replace(objects=tuple(sorted({**dict(s.objects), part[0]: part[1]}.items(), key=lambda item: item[0])))


def _create(s: State, n: int, file: File) -> State:
    """Create file n where none is: a commit if the number was not decided before, and void if it was trimmed."""
    if n in dict(s.files):
        return s
    files = tuple(sorted({**dict(s.files), n: file}.items()))
    return s._replace(files=files, chain=(*s.chain, file) if n == len(s.chain) else s.chain)


HOLDS = {
    "silence, failures, a late write": Model("SFC", late=1, opens=2),
    "merging": Model("CCC", merges=2, opens=2),
    "merging, deleting": Model("CCD", merges=2, opens=2),
    "merging, replacing the whole": Model("CWD", merges=1, opens=2, late=1),
    "unsteady changes": Model("TSC", late=1, opens=2),
    "at most once": Model("CFC", once=True, late=1, opens=2),
}
"""All rules kept, small enough for every run."""

HOLDS_LONG = {
    "two owners, a late write": Model("CC", late=1),
    "merging and sweeping": Model("CC", merges=1, sweeps=1, opens=2),
    "trimming, a late write": Model("CC", trim=True, late=1),
    "a reader beside merging and sweeping": Model("CC", opens=2, merges=1, sweeps=1, reader=True),
    "a reader beside trimming and a late write": Model("FC", opens=2, late=1, trim=True, reader=True),
    "owners that walk where it was trimmed": Model("FCC", trim=True, late=1, most=1),
    "three commits, merging, sweeping": Model("CCC", opens=2, merges=1, sweeps=1),
    "merging, sweeping, trimming, a late write": Model("CC", opens=2, merges=1, sweeps=1, trim=True, late=1),
    "at most once, merging, trimming": Model("CCC", once=True, opens=2, merges=1, trim=True, late=1),
}

BREAKS = {
    "a delta that is put after its commit": Model("CC", rules=replace(ALL, beside=False)),
    "two owners' deltas under one name": Model("FC", rules=replace(ALL, own_name=False)),
    "changes of a failed attempt": Model("FC", rules=replace(ALL, drop=False)),
    "state in the checkpoint alone": Model("CCC", opens=2, rules=replace(ALL, file=False)),
    "names in footers only": Model("CC", trim=True, rules=replace(ALL, carry=False)),
    "a run with pending changes": Model("CCC", merges=1, rules=replace(ALL, exact=False)),
    "a run without deletions": Model("CCD", merges=1, opens=1, rules=replace(ALL, tombs=False)),
    "a whole delta without a mark": Model("CW", opens=1, rules=replace(ALL, whole=False)),
    "a run at the end of the manifest": Model("CCC", merges=1, opens=2, rules=replace(ALL, place=False)),
    "a run with the label of its first part": Model(
        "CCC", merges=1, sweeps=1, opens=1, rules=replace(ALL, label=False)
    ),
    "a manifest that is written blindly": Model("CC", merges=1, sweeps=1, opens=2, rules=replace(ALL, swap=False)),
    "an owner that goes on without an object": Model(
        "CCC", opens=2, merges=1, sweeps=1, most=1, rules=replace(ALL, missing=False)
    ),
    "sweeping what may still be committed": Model("CC", sweeps=1, rules=replace(ALL, number=False)),
    "sweeping by footers": Model("CC", rules=replace(ALL, listing=False)),
    "footers that keep objects alive": Model("CCC", merges=1, rules=replace(ALL, below=False)),
    "an owner that walked below the boundary": Model("FCC", trim=True, late=1, most=1, rules=replace(ALL, again=False)),
    "a reader that walked below the boundary": Model(
        "FC", opens=2, trim=True, late=1, reader=True, most=1, rules=replace(ALL, again_too=False)
    ),
    "at most once, the checkpoint after the handler": Model("CC", once=True, rules=replace(ALL, first=False)),
}
"""Models with one rule left out: each must break."""

BREAKS_LONG = frozenset(name for name, model in BREAKS.items() if model.most == 1)
"""The names in `BREAKS` of models that take long."""


if __name__ == "__main__":
    sys.exit(report({**HOLDS, **({} if "quick" in sys.argv else HOLDS_LONG)}, BREAKS))
