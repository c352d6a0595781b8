"""Keyed state and timers of partitions that split and merge as an explicit-state model: every interleaving.

P splits into C, which gets the records of key 0, and D, which gets those of key 1; with `merge` they merge into E. The
state of a key is the records that have changed it, so that one that is lost, repeated or overwritten shows. A record
of kind T also sets a timer of its key. Two hosts open any partition whose parents have ended. They pause and crash
anywhere. A create may be applied after its sender died ("late").

Objects below `state/` are left out: state_model.py shows that an owner restores what is committed. Here a checkpoint
holds the state itself.

`word`: the source says which keys are in which partition. Without it each child takes all state, and its copy of the
keys of its sibling grows old. `once`: at most once.

Checked in every state:
- A partition holds the fold of the committed records of its keys, its ancestors' included.
- No timer fires twice.
- A timer that is set and has not fired is held by the one partition that has its key now.

Change the protocol here first, then docs/protocol.md, then the code. `python -m tests.protocol.inherit_model [quick]`
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from tests.protocol.search import Found, explore, report

Names = tuple[str, ...]
Key = tuple[str, int]
"""`state` or `timer`, and the number of the key."""

Value = Names | None
"""The records that have changed the key, or set the timer; None: deleted."""

Memory = tuple[tuple[Key, Value], ...]

PARENTS: Mapping[str, Names] = {"P": (), "C": ("P",), "D": ("P",), "E": ("C", "D")}
HOMES: Mapping[str, tuple[int, ...]] = {"P": (0, 1), "C": (0,), "D": (1,), "E": (0, 1)}


class File(NamedTuple):
    """A commit. `counted`: the record that changed state; `fired`: the timers. Both serve only the checks."""

    next: int
    changes: Memory
    counted: Names = ()
    fired: Names = ()
    ended: bool = False


class Checkpoint(NamedTuple):
    """`held`: all commits below `number`. `base`: the state that the partition took from its parents, `took`."""

    number: int
    position: int
    held: Memory
    base: Memory
    took: Names
    owner: int
    ended: bool = False


class Chain(NamedTuple):
    """The objects of one partition."""

    checkpoint: Checkpoint | None = None
    files: tuple[File, ...] = ()


class Worker(NamedTuple):
    """Phase 'claim', 'walk' or 'work'. `taken`: the state read from the parents, and their names. `ahead`: at most
    once, the end of the record that the handler is about to see."""

    partition: str
    phase: str
    known: Checkpoint | None
    taken: Memory = ()
    took: Names = ()
    number: int = 0
    position: int = 0
    held: Memory = ()
    ended: bool = False
    ahead: int = 0


class State(NamedTuple):
    chains: tuple[Chain, ...]
    workers: tuple[Worker | None, Worker | None] = (None, None)
    late: tuple[tuple[str, int, File], ...] = ()
    late_left: int = 0
    opens_left: int = 0


Step = tuple[str, State]


@dataclass(frozen=True, slots=True)
class Rules:
    """The protocol's rules; leave one out, and the search finds how it breaks."""

    end: bool = True
    """A partition takes the state of its parents once their checkpoints say that they have ended."""
    named: bool = True
    """The write that creates a partition's checkpoint contains the state that it took."""
    first: bool = True
    """Only the owner that creates the checkpoint takes anything."""
    base: bool = True
    """At a merge a key comes from the parent that has changed it since it took it."""
    generation: bool = True
    """A parent whose state another parent has taken is left out: sources may list all ancestors."""
    word: bool = True
    """A timer goes to the one partition that has its key by the source's word."""
    fire: bool = True
    """Without the source's word a partition fires all of its timers before it ends."""


ALL = Rules()


@dataclass(frozen=True, slots=True)
class Model:
    """`records`: of each partition, in order: a letter C or T and the key. `opens`, `late`: how many there may be."""

    records: Mapping[str, Names]
    word: bool = False
    ancestors: bool = False
    once: bool = False
    opens: int = 4
    late: int = 0
    rules: Rules = ALL

    @property
    def names(self) -> Names:
        return tuple(self.records)

    def search(self) -> Found:
        start = State(tuple(Chain() for _ in self.names), late_left=self.late, opens_left=self.opens)
        return explore(start, self.steps, self.broken)

    def chain(self, s: State, partition: str) -> Chain:
        return s.chains[self.names.index(partition)]

    def line(self, partition: str) -> Names:
        """The partition and all before it, oldest first."""
        before = [name for parent in PARENTS[partition] for name in self.line(parent)]
        return tuple(dict.fromkeys([*before, partition]))

    # Invariants

    def broken(self, s: State) -> str | None:
        """The invariant that a state breaks, or None."""
        for partition in self.names:
            if self.chain(s, partition).checkpoint is None:
                continue
            held = dict(self._restored(s, partition))
            for key in HOMES[partition]:
                due = self._due(s, partition, key)
                if held.get(("state", key)) != due:
                    return f"{partition} holds {held.get(('state', key))} for key {key}, committed is {due}"
        return self._broken_timers(s)

    def _due(self, s: State, partition: str, key: int) -> Value:
        files = [file for name in self.line(partition) for file in self.chain(s, name).files]
        counted = tuple(record for file in files for record in file.counted if record.endswith(str(key)))
        return counted or None

    def _broken_timers(self, s: State) -> str | None:
        files = [file for chain in s.chains for file in chain.files]
        fired = Counter(timer for file in files for timer in file.fired)
        if fired and max(fired.values()) > 1:
            return f"fired twice: {dict(fired)}"
        for key in (0, 1):
            there = [p for p in self.names if key in HOMES[p] and self.chain(s, p).checkpoint]
            records = [record for file in files for record in file.counted]
            timers = [record for record in records if record[1] == "T" and record[-1] == str(key)]
            if timers and timers[-1] not in fired:
                held = dict(self._restored(s, there[-1])).get(("timer", key))
                if held != (timers[-1],):
                    return f"the timer of {timers[-1]} is lost in {there[-1]}"
        return None

    def _restored(self, s: State, partition: str) -> Memory:
        """The state that a new owner would find now."""
        chain = self.chain(s, partition)
        if chain.checkpoint is None:
            return ()
        held = chain.checkpoint.held
        for file in chain.files[chain.checkpoint.number :]:
            held = fold(held, file.changes)
        return held

    # Steps

    def steps(self, s: State) -> Iterator[Step]:
        for partition, n, file in s.late:
            rest = s._replace(late=())
            yield f"late create of {partition}/{n}", self._created(rest, partition, n, file) or rest
        for h, worker in enumerate(s.workers):
            if worker is None:
                if s.opens_left:
                    yield from self._open(s._replace(opens_left=s.opens_left - 1), h)
                continue
            if s.opens_left:  # else it is as good as asleep
                yield f"h{h} crashes", _put(s, h, None)
            match worker.phase:
                case "claim":
                    yield self._claim(s, h, worker)
                case "walk":
                    yield self._walk(s, h, worker)
                case "work":
                    yield from self._work(s, h, worker)

    def _may_open(self, s: State, partition: str) -> bool:
        found = [self.chain(s, parent).checkpoint for parent in PARENTS[partition]]
        return all(kept and (kept.ended or not self.rules.end) for kept in found)

    def _open(self, s: State, h: int) -> Iterator[Step]:
        for partition in self.names:
            known = self.chain(s, partition).checkpoint
            if not self._may_open(s, partition) or (known and known.ended):
                continue
            taken, took = self._take(s, partition) if known is None or not self.rules.first else ((), ())
            yield (
                f"h{h} opens {partition}, takes {dict(taken)}",
                _put(s, h, Worker(partition, "claim", known, taken, took)),
            )

    def _take(self, s: State, partition: str) -> tuple[Memory, Names]:
        """The state that the parents have left, and their names."""
        names = self.line(partition)[-2::-1] if self.ancestors else PARENTS[partition]
        kept = {name: self.chain(s, name).checkpoint for name in names}
        old = {name for one in kept.values() if one for name in one.took} if self.rules.generation else set()
        parents = [(self._restored(s, name), one.base) for name, one in kept.items() if one and name not in old]
        taken = merged(parents) if self.rules.base else fold((), [item for held, _ in parents for item in held])
        return tuple(item for item in taken if self._is_passed(partition, item[0])), tuple(names)

    def _is_passed(self, partition: str, key: Key) -> bool:
        kind, number = key
        is_mine = number in HOMES[partition]
        if kind == "timer":
            return (self.word and is_mine) or not self.rules.word
        return is_mine or not self.word

    def _claim(self, s: State, h: int, worker: Worker) -> Step:
        partition, known = worker.partition, worker.known
        chain = self.chain(s, partition)
        if chain.checkpoint != known:
            return f"h{h}'s claim of {partition} is refused", _put(s, h, None)
        mine = (known or Checkpoint(0, 0, worker.taken, worker.taken, worker.took, h))._replace(owner=h)
        held = mine.held
        if known and not self.rules.first:
            held = fold(held, worker.taken)
        if known is None and not self.rules.named:
            mine = mine._replace(held=(), base=())
        claimed = Worker(partition, "walk", mine, (), (), mine.number, mine.position, held, mine.ended)
        return f"h{h} claims {partition}", _put(self._with(s, partition, chain._replace(checkpoint=mine)), h, claimed)

    def _walk(self, s: State, h: int, worker: Worker) -> Step:
        files = self.chain(s, worker.partition).files
        if worker.number >= len(files):
            return f"h{h} runs {worker.partition} from {worker.position}", _put(s, h, worker._replace(phase="work"))
        onward = _after(worker, files[worker.number])._replace(position=max(worker.position, files[worker.number].next))
        return f"h{h} walks over {worker.partition}/{worker.number}", _put(s, h, onward)

    def _work(self, s: State, h: int, worker: Worker) -> Iterator[Step]:
        partition, records = worker.partition, self.records[worker.partition]
        yield from self._checkpoint(s, h, worker)
        if worker.ended:
            return
        for (kind, key), value in worker.held:
            if kind == "timer" and value and not worker.ahead:
                yield from self._commit(s, h, worker, File(worker.position, (((kind, key), None),), fired=value))
        if worker.ahead or (worker.position < len(records) and not self.once):
            yield from self._commit(s, h, worker, self._handle(worker))
        elif worker.position < len(records):
            yield from self._checkpoint(s, h, worker._replace(ahead=worker.position + 1))
        elif any(partition in PARENTS[name] for name in self.names):
            yield from self._commit(s, h, worker, self._last(worker))

    def _handle(self, worker: Worker) -> File:
        """The handler sees the next record."""
        at = (worker.ahead or worker.position + 1) - 1
        kind, key = tuple(self.records[worker.partition][at])
        record = f"{worker.partition}{kind}{at}-{key}"
        state: Key = ("state", int(key))
        changes: list[tuple[Key, Value]] = [(state, (*(dict(worker.held).get(state) or ()), record))]
        if kind == "T":
            changes.append((("timer", int(key)), (record,)))
        return File(at + 1, tuple(changes), counted=(record,))

    def _last(self, worker: Worker) -> File:
        """The end; without the source's word its timers fire before, here in the same commit."""
        if self.word or not self.rules.fire:
            return File(worker.position, (), ended=True)
        timers = [(key, value) for key, value in worker.held if key[0] == "timer" and value]
        fired = tuple(record for _, value in timers for record in value or ())
        return File(worker.position, tuple((key, None) for key, _ in timers), fired=fired, ended=True)

    def _commit(self, s: State, h: int, worker: Worker, file: File) -> Iterator[Step]:
        partition, n = worker.partition, worker.number
        name = f"{partition}/{n} {file.counted or file.fired}{', end' if file.ended else ''}"
        if s.late_left:
            dead = _put(s, h, None)._replace(late=((partition, n, file),), late_left=s.late_left - 1)
            yield f"h{h} sends {name}, dies", dead
        created = self._created(s, partition, n, file)
        if created is None:
            yield f"h{h}'s {name} is refused, stops", _put(s, h, None)
            return
        yield f"h{h} commits {name}", _put(created, h, _after(worker, file)._replace(position=file.next, ahead=0))

    def _checkpoint(self, s: State, h: int, worker: Worker) -> Iterator[Step]:
        partition, known = worker.partition, worker.known
        assert known is not None
        position = worker.ahead or worker.position
        mine = known._replace(number=worker.number, position=position, held=worker.held, ended=worker.ended)
        if mine == known:
            return
        chain = self.chain(s, partition)
        if chain.checkpoint != known:
            yield f"h{h} lost the checkpoint of {partition}, stops", _put(s, h, None)
            return
        onward = _put(s, h, None if worker.ended else worker._replace(known=mine))
        done = self._with(onward, partition, chain._replace(checkpoint=mine))
        yield f"h{h} checkpoint of {partition}: {worker.number}{', ended' if worker.ended else ''}", done

    def _created(self, s: State, partition: str, n: int, file: File) -> State | None:
        chain = self.chain(s, partition)
        return self._with(s, partition, chain._replace(files=(*chain.files, file))) if n == len(chain.files) else None

    def _with(self, s: State, partition: str, chain: Chain) -> State:
        i = self.names.index(partition)
        return s._replace(chains=(*s.chains[:i], chain, *s.chains[i + 1 :]))


def fold(held: Memory, changes: Iterable[tuple[Key, Value]]) -> Memory:
    """The state after these changes."""
    after = {**dict(held), **dict(changes)}
    return tuple(sorted((key, value) for key, value in after.items() if value is not None))


def merged(parents: Iterable[tuple[Memory, Memory]]) -> Memory:
    """The state of several parents, each with the state that it once took itself. A change since then wins."""
    parents = list(parents)
    found: dict[Key, Value] = {}
    for held, _ in parents:
        found.update(held)
    for held, base in parents:
        for key in dict(base).keys() - dict(held).keys():
            found.pop(key, None)
    for held, base in parents:
        found.update(item for item in held if item not in base)
    return tuple(sorted(found.items()))


def _after(worker: Worker, file: File) -> Worker:
    """The worker behind a commit."""
    held = fold(worker.held, file.changes)
    return worker._replace(number=worker.number + 1, held=held, ended=worker.ended or file.ended)


def _put(s: State, h: int, worker: Worker | None) -> State:
    return s._replace(workers=(worker, s.workers[1]) if h == 0 else (s.workers[0], worker))


SPLIT: Mapping[str, Names] = {"P": ("T0", "C1"), "C": ("C0",), "D": ("C1",)}
MERGE: Mapping[str, Names] = {"P": ("C0",), "C": ("C0",), "D": (), "E": ("C0",)}
OTHER: Mapping[str, Names] = {"P": ("C1",), "C": (), "D": ("C1",), "E": ()}
TIMER: Mapping[str, Names] = {"P": ("T0",), "C": (), "D": ()}

HOLDS = {
    "a split": Model(SPLIT),
    "a split, by the source's word, a late write": Model(TIMER, word=True, late=1),
    "a split and a merge": Model(MERGE),
    "a split and a merge, all ancestors listed": Model(OTHER, ancestors=True),
    "a split, at most once": Model(TIMER, once=True, late=1),
}
"""All rules kept, small enough for every run."""

HOLDS_LONG = {
    "a split, by the source's word": Model(SPLIT, word=True, opens=5),
    "a split, a late write": Model(SPLIT, late=1),
    "a split and a merge, by the source's word": Model(MERGE, word=True, late=1),
    "a split and a merge, a crash, a late write": Model(MERGE, opens=5, late=1),
    "a split and a merge, all ancestors listed, at most once": Model(OTHER, ancestors=True, once=True, late=1),
}

BREAKS = {
    "state of a parent that goes on": Model(SPLIT, rules=replace(ALL, end=False)),
    "what was taken is only in memory": Model(SPLIT, rules=replace(ALL, named=False)),
    "each owner takes the parents' state": Model(SPLIT, rules=replace(ALL, first=False)),
    "a merge that lets the last parent win": Model(MERGE, rules=replace(ALL, base=False)),
    "a merge with an ancestor's state": Model(MERGE, ancestors=True, rules=replace(ALL, generation=False)),
    "timers for each child": Model(TIMER, word=True, rules=replace(ALL, word=False)),
    "timers that stay behind": Model(TIMER, rules=replace(ALL, fire=False)),
}
"""Models with one rule left out: each must break."""


if __name__ == "__main__":
    sys.exit(report({**HOLDS, **({} if "quick" in sys.argv else HOLDS_LONG)}, BREAKS))
