"""Partitions that end (split P -> C, D; merge P, Q -> C) as an explicit-state model: every interleaving, small bounds.

Two hosts run one actor each at a time. Each host has a view of `group.json` and of the source's list, and may act upon
an old one. It may open any partition that its view assigns (leases give no safety). It may pause between any two steps,
or crash. A create may be applied after its sender died ("late").

The source goes from stage to stage: open; split (P ends, its children are listed); unlisted (P can still be read);
forgotten (P cannot be read). It may go on at any moment, also before this processor has claimed P. With `latest` the
processor is created before the last record of P was written, and must not read the earlier one.

Kinds of P's records: R emits a row, S emits nothing, X fails on host 0 (a dead letter) and emits nothing on host 1.

With `inherits` a child has the records of its parents, too, as a range of Cosmos DB has: its parents' first, in their
order, then its own. A parent that was split ends at once, and its child reads on.

With `removes` a name that has ended leaves group.json once the source does not list it any more, so that the document
does not grow for ever. Its checkpoint and its chain stay.

With `once` delivery is at most once: the checkpoint passes a batch before the handler sees it, and the rows follow. The
rows of a worker that stops in between are lost, but no record is shown to a handler twice.

Checked in every state:
- No record is committed twice.
- No record below a cursor is left out.
- A child commits nothing while the source still has uncommitted records of its parent, or its parent has not ended.
- A parent commits nothing after its child.
- Records that a child leaves out were committed by its parent.
- Nothing follows an end.
- A partition that `group.json` calls ended is ended in its checkpoint, and its dead letters are published.

With `progress`: from every state the work can be finished.

Change the protocol here first, then docs/protocol.md, then the code. `python -m tests.protocol.split_model [quick]`
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from tests.protocol.search import Found, explore, report

Records = tuple[int, ...]
Names = tuple[str, ...]


class File(NamedTuple):
    """A commit of the chain. `ended`: nothing follows it."""

    next: int
    ended: bool
    rows: Records
    letters: Records


class Checkpoint(NamedTuple):
    number: int
    position: int
    ended: bool
    owner: int
    skips: Records = ()
    """How many records of each parent the partition leaves out."""
    ahead: bool = False
    """At most once: the rows up to the position may not be committed yet."""


class Chain(NamedTuple):
    """The objects of one partition. `published`: numbers of the files whose dead letters are published.

    `shown`: records that handlers have seen, at most once. `deleted`: files that are not there any more.
    """

    files: tuple[File, ...] = ()
    checkpoint: Checkpoint | None = None
    published: tuple[int, ...] = ()
    shown: Records = ()
    deleted: tuple[File, ...] = ()

    @property
    def position(self) -> int:
        """How far the partition is processed."""
        return max([file.next for file in self.files] + [self.checkpoint.position if self.checkpoint else 0])

    @property
    def has_ended(self) -> bool:
        return any(file.ended for file in self.files) or bool(self.checkpoint and self.checkpoint.ended)


class Worker(NamedTuple):
    """Phase 'claim', 'walk', 'run', 'publish' or 'end'. It has read ahead up to `read`; `at_end`: that is all.

    `hand`: the end of the batch that the handler has seen, at most once.
    """

    partition: str
    phase: str
    known: Checkpoint | None
    number: int = 0
    position: int = 0
    ended: bool = False
    read: int = 0
    at_end: bool = False
    hand: int | None = None


class Group(NamedTuple):
    assigned: Names = ()
    ended: Names = ()


class View(NamedTuple):
    """The view of a host: the group, then the source's list."""

    group: Group = Group()
    listed: Names = ()


class State(NamedTuple):
    chains: tuple[Chain, ...]
    stage: int = 0
    group: Group = Group()
    views: tuple[View, View] = (View(), View())
    workers: tuple[Worker | None, Worker | None] = (None, None)
    late: tuple[tuple[str, int, File], ...] = ()
    late_left: int = 0
    disorder: str = ""
    """How a commit came too early or too late."""


Step = tuple[str, State]


@dataclass(frozen=True, slots=True)
class Rules:
    """The protocol's rules; leave one out, and the search finds how it breaks."""

    wait: bool = True
    """A child is assigned when each of its parents is ended in group.json, or neither listed nor ever assigned."""
    relist: bool = True
    """A plan's list of partitions is read after the group.json that it is written against."""
    seal: bool = True
    """An end is always a file of the chain, also when it is empty."""
    publish: bool = True
    """A checkpoint passes a commit only after its dead letters are published."""
    first: bool = True
    """The checkpoint says ended before group.json does."""
    now: bool = True
    """A worker whose walk meets the end writes the checkpoint before it gives the lease back."""
    vanish: bool = True
    """The owner of a partition that the source has forgotten, and that has a child, seals it with an empty end."""
    resolve: bool = True
    """`start` is resolved once, with the first group.json. A partition not listed then begins at its beginning."""
    claim: bool = True
    """A claim is a compare-and-swap of the checkpoint."""
    last: bool = True
    """A worker whose walk meets the end commits nothing."""
    after: bool = True
    """A child that has its parents' records begins where they have ended (`start_after`)."""
    each: bool = True
    """It reads the records of each parent on from that parent's own position: those of several do not compare."""
    within: bool = True
    """It begins behind the records that its parent has committed, not at the page that its parent would read next."""
    keep: bool = True
    """The checkpoint and the chain of a partition stay when its name leaves group.json."""
    ahead: bool = True
    """At most once, the checkpoint passes a batch before the handler sees it."""


Parents = tuple[tuple[str, Names], ...]

PAGE = 2
"""Records of a page, whose beginning is the position of each."""

SPLIT: Parents = (("P", ()), ("C", ("P",)), ("D", ("P",)))
ONE: Parents = (("P", ()), ("C", ("P",)))
MERGE: Parents = (("P", ()), ("Q", ()), ("C", ("P", "Q")))


@dataclass(frozen=True, slots=True)
class Model:
    """`kinds`: one letter per record of P; other partitions have one R of their own.

    `late`: how many late creates there may be.
    """

    parents: Parents
    kinds: str
    late: int = 0
    forget: bool = True
    latest: bool = False
    inherits: bool = False
    removes: bool = False
    once: bool = False
    progress: bool = False
    rules: Rules = Rules()

    # The source

    @property
    def names(self) -> Names:
        return tuple(name for name, _ in self.parents)

    @property
    def stages(self) -> Names:
        before = ("before",) if self.latest else ()
        return (*before, "open", "split", *(("unlisted", "forgotten") if self.forget else ()))

    def stage(self, s: State) -> str:
        return self.stages[s.stage]

    def parents_of(self, partition: str) -> Names:
        return dict(self.parents)[partition]

    def kinds_of(self, partition: str) -> str:
        own = self.kinds if partition == "P" else "R"
        return "".join(map(self.kinds_of, self.parents_of(partition))) + own if self.inherits else own

    def is_left_out(self, partition: str, skips: Records, record: int) -> bool:
        """Whether this is a record of a parent that the partition leaves out."""
        first = 0
        for parent, skipped in zip(self.parents_of(partition), skips, strict=False):
            if first <= record < first + skipped:
                return True
            first += len(self.kinds_of(parent))
        return False

    def listed(self, s: State) -> Names:
        if self.stage(s) in ("unlisted", "forgotten"):
            return tuple(name for name in self.names if name != "P")
        return self.names if self.stage(s) == "split" else tuple(name for name, parents in self.parents if not parents)

    def length(self, s: State, partition: str) -> int:
        return 1 if self.stage(s) == "before" and partition == "P" else len(self.kinds_of(partition))

    def is_gone(self, s: State, partition: str) -> bool:
        return partition == "P" and self.stage(s) == "forgotten"

    def skips_of(self, s: State, partition: str) -> Records:
        """The records that a child leaves out when it is claimed for the first time."""
        if not (self.inherits and self.rules.after):
            return ()
        ends = tuple(
            self.read_from(p, c.position) if (c := self.chain(s, p).checkpoint) else 0
            for p in self.parents_of(partition)
        )
        return ends if self.rules.each else tuple(max(ends) for _ in ends)

    def read_from(self, partition: str, position: int) -> int:
        """Where the records that a child leaves out end."""
        at_page = self.rules.within or position == len(self.kinds_of(partition))
        return position if at_page else position // PAGE * PAGE

    def start_of(self, s: State, partition: str) -> int:
        if self.rules.resolve or not self.latest:
            return self.first_of(partition)
        if any(self.chain(s, parent).checkpoint for parent in self.parents_of(partition)):
            return 0  # a parent was processed
        return self.length(s, partition)

    def first_of(self, partition: str) -> int:
        return 1 if self.latest and partition == "P" else 0

    def chain(self, s: State, partition: str) -> Chain:
        return s.chains[self.names.index(partition)]

    # Invariants

    def broken(self, s: State) -> str | None:
        """The invariant that a state breaks, or None."""
        if s.disorder:
            return s.disorder
        for partition in self.names:
            chain = self.chain(s, partition)
            if why := self._broken_chain(partition, chain, partition in s.group.ended):
                return why
            if self.inherits and chain.checkpoint and (why := self._broken_succession(s, partition, chain)):
                return why
        return None

    def _broken_succession(self, s: State, child: str, chain: Chain) -> str | None:
        """Whether a parent's record is committed by both, or by none although the child leaves it out."""
        assert chain.checkpoint is not None
        mine, first = _committed(chain), 0
        for parent in self.parents_of(child):
            theirs, kinds = _committed(self.chain(s, parent)), self.kinds_of(parent)
            for record, kind in enumerate(kinds):
                if theirs[record] and mine[first + record]:
                    return f"record {record} of {parent} is committed twice, by {child}, too"
                left_out = self.is_left_out(child, chain.checkpoint.skips, first + record)
                if kind == "R" and left_out and not theirs[record] and not self.once:
                    return f"{child} leaves out record {record} of {parent}, which is not committed"
            first += len(kinds)
        return None

    def _broken_chain(self, partition: str, chain: Chain, ended: bool) -> str | None:
        committed = _committed(chain)
        if max(committed.values(), default=0) > 1:
            return f"{partition}: committed twice {dict(committed)}"
        kinds, skips = self.kinds_of(partition), chain.checkpoint.skips if chain.checkpoint else ()
        below = [
            record
            for record in range(self.first_of(partition), chain.position)
            if not self.is_left_out(partition, skips, record)
        ]
        lost = [record for record in below if kinds[record] == "R" and record not in committed]
        if lost and not self.once:
            return f"{partition}: below the cursor {chain.position}, and not committed: {lost}"
        if any(file.ended for file in chain.files[:-1]):
            return f"{partition}: a commit after the end"
        if ended and not (chain.checkpoint and chain.checkpoint.ended):
            return f"{partition}: ended in group.json, not in its checkpoint"
        if ended and any(file.letters and n not in chain.published for n, file in enumerate(chain.files)):
            return f"{partition}: ended, and its dead letters are never published"
        return None

    def done(self, s: State) -> bool:
        """All children are processed to their ends, and no parent that was assigned is still in the group."""
        children = [name for name, parents in self.parents if parents]
        parents = {name for name, parents in self.parents if not parents}
        at_end = all(self.chain(s, child).position == len(self.kinds_of(child)) for child in children)
        return at_end and parents & {*s.group.assigned} <= {*s.group.ended}

    # Steps

    def steps(self, s: State) -> Iterator[Step]:
        if s.stage + 1 < len(self.stages):
            yield f"source: {self.stages[s.stage + 1]}", s._replace(stage=s.stage + 1)
        for partition, n, file in s.late:
            rest = s._replace(late=())
            yield f"late create of {partition}/{n}", self._created(rest, partition, n, file) or rest
        for h, worker in enumerate(s.workers):
            yield from self._plan(s, h)
            if worker is None:
                yield from self._open(s, h)
                continue
            yield f"h{h} crashes", _put(s, h, None)
            match worker.phase:
                case "claim":
                    yield self._claim(s, h, worker)
                case "walk":
                    yield self._walk(s, h, worker)
                case "run":
                    yield from self._run(s, h, worker)
                case "publish":
                    yield self._publish(s, h, worker)
                case "end":
                    yield from self._end(s, h, worker)

    def _plan(self, s: State, h: int) -> Iterator[Step]:
        view, fresh = s.views[h], View(s.group, self.listed(s))
        if view != fresh:
            yield f"h{h} reads the group, then lists {''.join(fresh.listed)}", _view(s, h, fresh)
        if not self.rules.relist and view.listed and view.group != s.group:
            yield f"h{h} reads the group", _view(s, h, view._replace(group=s.group))
        group = view.group
        if self.removes and group == s.group:
            yield from self._remove(s, h)
        new = tuple(p for p in view.listed if p not in group.assigned and self._may_assign(view, p))
        if new and group == s.group:
            after = group._replace(assigned=(*group.assigned, *new))
            yield f"h{h} assigns {''.join(new)}", _view(s._replace(group=after), h, view._replace(group=after))

    def _remove(self, s: State, h: int) -> Iterator[Step]:
        group, listed = s.views[h]
        names = {name for name in group.ended if name not in listed}
        if not names:
            return
        after = Group(*(tuple(name for name in part if name not in names) for part in group))
        for name in () if self.rules.keep else names:
            chain = self.chain(s, name)
            s = self._with(s, name, Chain(shown=chain.shown, deleted=chain.deleted + chain.files))
        yield f"h{h} removes the names {''.join(sorted(names))}", _view(s._replace(group=after), h, View(after, listed))

    def _may_assign(self, view: View, partition: str) -> bool:
        group = view.group
        return not self.rules.wait or all(
            parent in group.ended or (parent not in view.listed and parent not in group.assigned)
            for parent in self.parents_of(partition)
        )

    def _open(self, s: State, h: int) -> Iterator[Step]:
        group = s.views[h].group
        for partition in group.assigned:
            if partition not in group.ended:
                known = self.chain(s, partition).checkpoint
                yield (
                    f"h{h} opens {partition}, checkpoint {known and tuple(known)}",
                    _put(s, h, Worker(partition, "claim", known)),
                )

    def _claim(self, s: State, h: int, worker: Worker) -> Step:
        partition, known = worker.partition, worker.known
        chain = self.chain(s, partition)
        if self.rules.claim and chain.checkpoint != known:
            return f"h{h}'s claim of {partition} is refused", _put(s, h, None)
        first = Checkpoint(0, self.start_of(s, partition), False, h, self.skips_of(s, partition))
        mine = (known or first)._replace(owner=h)
        worker = Worker(partition, "walk", mine, mine.number, mine.position, mine.ended)
        return f"h{h} claims {partition} at {mine.position}", _put(
            self._with(s, partition, chain._replace(checkpoint=mine)), h, worker
        )

    def _walk(self, s: State, h: int, worker: Worker) -> Step:
        partition, n = worker.partition, worker.number
        chain = self.chain(s, partition)
        assert worker.known is not None
        if n < len(chain.files):
            file = chain.files[n]
            if file.letters and n not in chain.published and self.rules.publish:
                return f"h{h} publishes {partition}/{n}", self._published(s, partition, n)
            onward = worker._replace(
                number=n + 1, position=max(worker.position, file.next), ended=worker.ended or file.ended
            )
            return f"h{h} walks over {partition}/{n}", _put(s, h, onward)
        if worker.ended and self.rules.last:
            if self.rules.now or worker.known.ended:
                return f"h{h} finds {partition} ended", _put(s, h, worker._replace(phase="end"))
            return f"h{h} finds {partition} ended, gives it back", _put(s, h, None)
        return f"h{h} runs {partition} from {worker.position}", _put(
            s, h, worker._replace(phase="run", read=worker.position)
        )

    def _run(self, s: State, h: int, worker: Worker) -> Iterator[Step]:
        partition, position = worker.partition, worker.position
        if worker.hand is not None:
            yield from self._commit(s, h, worker, worker.hand, worker.at_end and worker.hand == worker.read)
            return
        if self.is_gone(s, partition):
            if self.rules.vanish and worker.read == position and not worker.at_end:
                yield f"h{h} finds {partition} gone", _put(s, h, worker._replace(at_end=True))
        else:
            at_end = not self.parents_of(partition) and self.stage(s) in ("split", "unlisted", "forgotten")
            upto = worker.read if self.inherits and at_end else self.length(s, partition)
            if (upto, at_end) != (worker.read, worker.at_end):
                yield (
                    f"h{h} reads {partition} to {upto}{', the end' if at_end else ''}",
                    _put(s, h, worker._replace(read=upto, at_end=at_end)),
                )
        for upto in range(position, worker.read + 1):
            if self.once and upto > position:
                yield from self._show(s, h, worker, upto)
                continue
            for end in {False, worker.at_end and upto == worker.read}:
                if upto > position or end:
                    yield from self._commit(s, h, worker, upto, end)
        yield from self._checkpoint(s, h, worker, position, False)

    def _show(self, s: State, h: int, worker: Worker, upto: int) -> Iterator[Step]:
        """Let the handler see a batch, at most once."""
        partition = worker.partition
        assert worker.known is not None
        onward = worker._replace(hand=upto)
        if self.rules.ahead:
            mine = worker.known._replace(number=worker.number, position=upto, ahead=True)
            chain = self.chain(s, partition)
            if chain.checkpoint != worker.known:
                yield f"h{h}'s checkpoint of {partition} is refused, stops", _put(s, h, None)
                return
            s = self._with(s, partition, chain._replace(checkpoint=mine))
            onward = onward._replace(known=mine)
        chain, seen = self.chain(s, partition), range(worker.position, upto)
        if twice := {*chain.shown} & {*seen}:
            s = s._replace(disorder=f"{partition}: a handler sees {twice} again")
        after = self._with(s, partition, chain._replace(shown=(*chain.shown, *seen)))
        yield f"h{h} shows {partition} to {upto}", _put(after, h, onward)

    def _commit(self, s: State, h: int, worker: Worker, upto: int, end: bool) -> Iterator[Step]:
        partition, n, kinds = worker.partition, worker.number, self.kinds_of(worker.partition)
        assert worker.known is not None
        skips = worker.known.skips
        records = [n for n in range(worker.position, upto) if not self.is_left_out(partition, skips, n)]
        rows = tuple(record for record in records if kinds[record] == "R")
        letters = tuple(record for record in records if kinds[record] == "X" and h == 0)
        if not (rows or letters or (end and self.rules.seal)):
            yield from self._checkpoint(s, h, worker, upto, end)
            return
        file = File(upto, end, rows, letters)
        name = f"{partition}/{n} (to {upto}{', end' if end else ''})"
        if s.late_left:
            yield f"h{h} sends {name}, dies", _put(s, h, None)._replace(late=((partition, n, file),), late_left=0)
        created = self._created(s, partition, n, file)
        if created is None:
            yield f"h{h}'s {name} is refused, stops", _put(s, h, None)
            return
        phase = "publish" if letters and self.rules.publish else "end" if end else "run"
        onward = worker._replace(number=n + 1, position=upto, ended=end, phase=phase, hand=None)
        yield f"h{h} commits {name}", _put(created, h, onward)

    def _publish(self, s: State, h: int, worker: Worker) -> Step:
        onward = _put(s, h, worker._replace(phase="end" if worker.ended else "run"))
        n = worker.number - 1
        return f"h{h} publishes {worker.partition}/{n}", self._published(onward, worker.partition, n)

    def _checkpoint(self, s: State, h: int, worker: Worker, position: int, end: bool) -> Iterator[Step]:
        assert worker.known is not None
        partition = worker.partition
        mine = Checkpoint(worker.number, position, end, h, worker.known.skips)
        chain = self.chain(s, partition)
        if mine == worker.known:
            return
        if chain.checkpoint != worker.known:
            yield f"h{h}'s checkpoint of {partition} is refused, stops", _put(s, h, None)
            return
        onward = worker._replace(known=mine, position=position, ended=end, phase="end" if end else "run", hand=None)
        ordered = self._ordered(s, partition, position > worker.position)
        after = self._with(ordered, partition, chain._replace(checkpoint=mine))
        yield f"h{h} checkpoint of {partition}: {position}{', ended' if end else ''}", _put(after, h, onward)

    def _end(self, s: State, h: int, worker: Worker) -> Iterator[Step]:
        assert worker.known is not None
        if not worker.known.ended:
            yield from self._checkpoint(s, h, worker, worker.position, True)
        if worker.known.ended or not self.rules.first:
            ended = tuple(sorted({*s.group.ended, worker.partition}))
            after = s._replace(group=s.group._replace(ended=ended))
            yield f"h{h} writes {worker.partition} ended into group.json", _put(after, h, None)

    def _created(self, s: State, partition: str, n: int, file: File) -> State | None:
        chain = self.chain(s, partition)
        if n != len(chain.files):
            return None
        s = self._ordered(s, partition, bool(file.rows or file.letters))
        return self._with(s, partition, chain._replace(files=(*chain.files, file)))

    def _ordered(self, s: State, partition: str, has_records: bool) -> State:
        """Notes a commit that comes before its parent's last, or after its child's first."""
        if not has_records:
            return s
        assigned = s.group.assigned
        for parent in self.parents_of(partition):
            chain, length = self.chain(s, parent), len(self.kinds_of(parent))
            # A parent that the source had forgotten before its child was assigned is none of this processor's.
            before = parent in assigned and assigned.index(parent) < assigned.index(partition)
            ours = chain.checkpoint is not None or parent in self.listed(s) or before
            if self.inherits and chain.checkpoint is not None and not chain.has_ended:
                return s._replace(disorder=f"{partition} commits while {parent} has not ended")
            if not self.inherits and ours and not self.is_gone(s, parent) and chain.position < length:
                return s._replace(disorder=f"{partition} commits while {parent} is at {chain.position} of {length}")
        if any(self.chain(s, child).files for child, parents in self.parents if partition in parents):
            return s._replace(disorder=f"{partition} commits after its child has")
        return s

    def _with(self, s: State, partition: str, chain: Chain) -> State:
        i = self.names.index(partition)
        return s._replace(chains=(*s.chains[:i], chain, *s.chains[i + 1 :]))

    def _published(self, s: State, partition: str, n: int) -> State:
        chain = self.chain(s, partition)
        return self._with(s, partition, chain._replace(published=tuple(sorted({*chain.published, n}))))

    def search(self) -> Found:
        start = State(tuple(Chain() for _ in self.names), late_left=self.late)
        return explore(start, self.steps, self.broken, done=self.done if self.progress else None)


def _committed(chain: Chain) -> Counter[int]:
    """How often each record is committed."""
    return Counter(record for file in chain.deleted + chain.files for record in file.rows + file.letters)


def _put(s: State, h: int, worker: Worker | None) -> State:
    return s._replace(workers=(worker, s.workers[1]) if h == 0 else (s.workers[0], worker))


def _view(s: State, h: int, view: View) -> State:
    return s._replace(views=(view, s.views[1]) if h == 0 else (s.views[0], view))


ALL = Rules()

HOLDS = {
    "one child, rows": Model(ONE, "R", forget=False, progress=True),
    "latest": Model(ONE, "RR", latest=True, forget=False, progress=True),
    "silence, then an end without output": Model(ONE, "S", progress=True),
    "a child with its parent's records": Model(ONE, "R", inherits=True, forget=False, progress=True),
}
"""All rules kept, small enough for every run."""

HOLDS_LONG = {
    "one child, unsteady failures": Model(ONE, "X", progress=True),
    "latest, forgotten": Model(ONE, "RR", latest=True, progress=True),
    "late writes": Model(ONE, "X", late=1, forget=False),
    "split": Model(SPLIT, "R"),
    "merge": Model(MERGE, "R", forget=False),
    "a child with its parent's records, forgotten": Model(ONE, "RX", inherits=True),
    "a merge with the parents' records": Model(MERGE, "R", inherits=True, forget=False),
    "names that leave the group": Model(ONE, "R", removes=True, progress=True),
    "at most once": Model(ONE, "R", once=True, forget=False, progress=True),
    "names that leave the group, late writes": Model(ONE, "X", removes=True, late=1),
    "names that leave the group, with the parent's records": Model(ONE, "R", removes=True, inherits=True),
    "names that leave the group, at most once": Model(ONE, "R", removes=True, once=True),
    "at most once, late writes": Model(ONE, "RS", once=True, late=1, forget=False),
}


def _without(rule: str) -> Rules:
    return replace(ALL, **{rule: False})


BREAKS: Mapping[str, Model] = {
    "a child assigned beside its parent": Model(ONE, "R", rules=_without("wait")),
    "a list of partitions older than the group": Model(ONE, "R", rules=_without("relist")),
    "an end without output that is only a checkpoint": Model(ONE, "X", forget=False, rules=_without("seal")),
    "a checkpoint before the dead letters": Model(ONE, "X", rules=_without("publish")),
    "group.json before the checkpoint": Model(ONE, "X", rules=_without("first")),
    "an end that is found and only given back": Model(ONE, "R", forget=False, progress=True, rules=_without("now")),
    "a forgotten partition that is left alone": Model(ONE, "R", progress=True, rules=_without("vanish")),
    "latest decided at the first claim": Model(ONE, "R", latest=True, rules=_without("resolve")),
    "a claim that overwrites": Model(ONE, "R", rules=_without("claim")),
    "an ended partition that is run again": Model(ONE, "R", rules=_without("last")),
    "a child that begins with its parent's records": Model(ONE, "R", inherits=True, rules=_without("after")),
    "parents' positions that are compared": Model(MERGE, "R", inherits=True, forget=False, rules=_without("each")),
    "a child that begins at a page of its parent": Model(
        ONE, "RR", inherits=True, forget=False, rules=_without("within")
    ),
    "a checkpoint that goes with its name": Model(ONE, "R", removes=True, rules=_without("keep")),
    "at most once, the checkpoint after the handler": Model(ONE, "R", once=True, forget=False, rules=_without("ahead")),
    "at most once, an end that is only a checkpoint": Model(ONE, "R", once=True, forget=False, rules=_without("seal")),
}
"""Models with one rule left out: each must break."""


if __name__ == "__main__":
    sys.exit(report({**HOLDS, **({} if "quick" in sys.argv else HOLDS_LONG)}, BREAKS))
