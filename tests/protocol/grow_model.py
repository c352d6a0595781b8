"""The growth of a log as an explicit-state model: every interleaving, within small bounds.

A log has generations of partitions. A growth names the partitions of the next generation in `log.json`, and then ends
each partition of the one before with a seal: a file without records, at the next number of the partition. Partition q
of the next generation follows partition q % n of the one before, and gets the same keys.

Producers send records of one key in order, each producer through one queue per partition.

Possible at any step:
- A producer opens the log.
- An append or a seal is applied after its sender gave up on it.
- The operator's process dies.

Checked in every state:
- A record is in the log once.
- An acknowledged record is before the end of its partition.
- A reader that begins a partition once those before it have ended reads a record after all records of the key that its
  producer had sent before, and after all that were acknowledged when it was sent.

Change the protocol here first, then docs/protocol.md, then the code. `python -m tests.protocol.grow_model`
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from tests.protocol.search import Found, explore, report

T = TypeVar("T")

SEAL = -1
"""The entry of a chain that ends it."""


class Metadata(NamedTuple):
    """The content of `log.json`: the newest generation, and whether partitions before it may not have ended yet."""

    generation: int = 0
    growing: bool = False


class Producer(NamedTuple):
    """`view`: the metadata that it has read, None until it opens the log. `sent`: how many records it has sent.

    `queues`: partition -> records that are not acknowledged, oldest first. `doubts`: partition -> base at which the
    first of them was sent, without a reply. `ended`: partitions that it knows to have ended.
    """

    view: Metadata | None = None
    sent: int = 0
    queues: tuple[tuple[int, ...], ...] = ()
    doubts: tuple[int | None, ...] = ()
    ended: frozenset[int] = frozenset()


class State(NamedTuple):
    chains: tuple[tuple[int, ...], ...]
    producers: tuple[Producer, ...]
    metadata: Metadata = Metadata()
    acknowledged: frozenset[int] = frozenset()
    earlier: tuple[frozenset[int], ...] = ()
    """For each record: the records that a reader must read before it."""
    flagged: frozenset[int] = frozenset()
    """Partitions that ended without a file, which only happens without the rule `place`."""
    ends: tuple[int | None, ...] = ()
    """For each partition: the number of its entries when it ended."""
    late: frozenset[tuple[int, int, int]] = frozenset()
    """Writes that may still be applied: partition, base, entry."""
    late_left: int = 0
    dead: bool = False
    """The process of the operator is."""
    homeless: bool = False
    """A producer has met the end of a partition that no other one follows."""


Step = tuple[str, State]


@dataclass(frozen=True, slots=True)
class Rules:
    """The protocol's rules; leave one out, and the search finds how it breaks."""

    multiple: bool = True
    """The next generation has a multiple of the partitions."""
    intent: bool = True
    """`log.json` names the next generation before a partition of this one ends."""
    place: bool = True
    """The end is a file of the partition, at its next number."""
    first: bool = True
    """A producer ends a partition before it appends to one that follows it."""
    complete: bool = True
    """`log.json` says that a growth is complete once all partitions before it have ended."""
    finish: bool = True
    """The next growth begins when the one before is complete."""
    settle: bool = True
    """A record whose append is in doubt is settled at its base before it is sent to another partition."""
    drain: bool = True
    """A producer appends to a partition once it has nothing left for the partitions before it."""


@dataclass(frozen=True, slots=True)
class Model:
    """`counts`: partitions of each generation. `records`: how many each producer sends. `late`: writes without reply.

    All records have the same `key`.
    """

    records: tuple[int, ...]
    counts: tuple[int, ...] = (1, 2)
    key: int = 0
    late: int = 1
    rules: Rules = Rules()

    # Partitions

    def _first(self, generation: int) -> int:
        return sum(self.counts[:generation])

    def _place(self, generation: int) -> int:
        """The partition of the key in a generation."""
        return self._first(generation) + self.key % self.counts[generation]

    def _parent(self, partition: int) -> int | None:
        generation = next(g for g in range(len(self.counts)) if partition < self._first(g + 1))
        if not generation:
            return None
        before = self.counts[generation - 1]
        return self._first(generation - 1) + (partition - self._first(generation)) % before

    def _ancestors(self, partition: int) -> list[int]:
        found = []
        while (parent := self._parent(partition)) is not None:
            found.append(partition := parent)
        return found

    # Invariants

    def broken(self, s: State) -> str | None:
        """The invariant that a state breaks, or None."""
        if s.homeless:
            return "a producer has records that no partition takes"
        places = [(p, i, r) for p, chain in enumerate(s.chains) for i, r in enumerate(chain) if r != SEAL]
        where = {record: (partition, index) for partition, index, record in places}
        if len(where) < len(places):
            return f"a record is in the log twice: {places}"
        for record, (partition, index) in where.items():
            end = s.ends[partition]
            if end is not None and index >= end:
                return f"record {record} comes after the end of partition {partition}: lost"
            for before in s.earlier[record]:
                if not self._comes_before(where.get(before), (partition, index)):
                    return f"record {record} may be read before record {before}"
        return None

    def _comes_before(self, place: tuple[int, int] | None, other: tuple[int, int]) -> bool:
        """Whether each reader reads the record at `place` before the `other`."""
        return place is not None and (place[0] in self._ancestors(other[0]) or (place[0] == other[0] and place < other))

    def done(self, s: State) -> bool:
        """Whether all records are in the log."""
        return len(s.acknowledged) == sum(self.records)

    # Steps

    def start(self) -> State:
        partitions = sum(self.counts)
        producer = Producer(queues=((),) * partitions, doubts=(None,) * partitions)
        return State(
            chains=((),) * partitions,
            producers=(producer,) * len(self.records),
            earlier=(frozenset(),) * sum(self.records),
            ends=(None,) * partitions,
            late_left=self.late,
        )

    def steps(self, s: State) -> Iterator[Step]:
        for write in s.late:
            yield f"late write {write} is applied or refused", _land(s._replace(late=s.late - {write}), *write)
        if not s.dead:
            yield from self._grow(s)
        for p in range(len(self.records)):
            yield from self._produce(s, p)

    def _grow(self, s: State) -> Iterator[Step]:
        yield "the operator's process dies", s._replace(dead=True)
        generation, growing = s.metadata
        more = generation + 1 < len(self.counts)
        if not self.rules.intent:
            left = [p for p in range(self.counts[0]) if s.ends[p] is None]
            if left:
                yield from self._seal_late(s, left[0])
            elif not generation:
                yield "log.json names the next generation", s._replace(metadata=Metadata(1, False))
            return
        if more and (not growing or not self.rules.finish):
            named = Metadata(generation + 1, self.rules.complete)
            yield f"log.json names generation {named.generation}", s._replace(metadata=named)
        if generation:
            before = range(self._first(generation - 1), self._first(generation))
            left = [p for p in before if s.ends[p] is None]
            if left:
                yield from self._seal_late(s, left[0])
            elif growing:
                yield "log.json says complete", s._replace(metadata=Metadata(generation, False))

    def _seal_late(self, s: State, partition: int) -> Iterator[Step]:
        yield f"the operator ends partition {partition}", self._sealed(s, partition)
        if s.late_left and self.rules.place:
            write = (partition, len(s.chains[partition]), SEAL)
            dead = s._replace(late=s.late | {write}, late_left=s.late_left - 1, dead=True)
            yield f"the operator sends the end of partition {partition}, dies", dead

    def _sealed(self, s: State, partition: int) -> State:
        """The partition ends here, unless it has ended."""
        if self.rules.place:
            return _land(s, partition, len(s.chains[partition]), SEAL)
        if partition in s.flagged:
            return s
        return _ended(s._replace(flagged=s.flagged | {partition}), partition)

    def _produce(self, s: State, p: int) -> Iterator[Step]:
        producer = s.producers[p]
        if producer.view is None:
            yield f"p{p} opens the log", _put(s, p, producer._replace(view=s.metadata))
            return
        if producer.sent < self.records[p]:
            yield self._send(s, p, producer, producer.view)
        for partition, queue in enumerate(producer.queues):
            behind = self.rules.drain and any(producer.queues[before] for before in self._ancestors(partition))
            if queue and not behind:
                yield from self._deliver(s, p, partition)

    def _send(self, s: State, p: int, producer: Producer, view: Metadata) -> Step:
        """A record enters the queue of its partition."""
        own = sum(self.records[:p])
        record, partition = own + producer.sent, self._place(view.generation)
        earlier = s.acknowledged | frozenset(range(own, record))
        queues = _set(producer.queues, partition, (*producer.queues[partition], record))
        sent = _put(s, p, producer._replace(sent=producer.sent + 1, queues=queues))
        return f"p{p} sends {record} to partition {partition}", sent._replace(earlier=_set(s.earlier, record, earlier))

    def _deliver(self, s: State, p: int, partition: int) -> Iterator[Step]:
        """The next append of a queue."""
        producer = s.producers[p]
        record = producer.queues[partition][0]
        doubt = producer.doubts[partition]
        if doubt is not None:
            yield self._settle(s, p, partition, doubt)
            return
        parent = self._parent(partition)
        assert producer.view is not None
        if self.rules.first and producer.view.growing and parent is not None and parent not in producer.ended:
            knows = _put(s, p, producer._replace(ended=producer.ended | {parent}))
            yield f"p{p} ends partition {parent}", self._sealed(knows, parent)
            return
        if _has_ended(s, partition):
            yield self._move_on(s, p, partition)
            return
        base = len(s.chains[partition])
        landed = _land(s, partition, base, record)
        yield f"p{p} appends {record} to partition {partition}", self._acknowledge(landed, p, partition)
        if s.late_left:
            waits = _put(s, p, producer._replace(doubts=_set(producer.doubts, partition, base)))
            late = waits._replace(late=s.late | {(partition, base, record)}, late_left=s.late_left - 1)
            yield f"p{p} appends {record} to partition {partition}, no reply", late

    def _settle(self, s: State, p: int, partition: int, base: int) -> Step:
        """A producer tries the base of its append in doubt again."""
        producer = s.producers[p]
        record, chain = producer.queues[partition][0], s.chains[partition]
        assert producer.view is not None
        calm = _put(s, p, producer._replace(doubts=_set(producer.doubts, partition, None)))
        if not self.rules.settle and s.metadata.generation > producer.view.generation:
            return self._move_on(calm, p, partition)
        if len(chain) == base and not (partition in s.flagged and not self.rules.place):
            return f"p{p} appends {record} at {base} again", self._acknowledge(
                _land(calm, partition, base, record), p, partition
            )
        if len(chain) > base and chain[base] == record:
            return f"p{p} finds {record} at {base}", self._acknowledge(calm, p, partition)
        return f"p{p} finds another entry at {base}", calm

    def _move_on(self, s: State, p: int, partition: int) -> Step:
        """A producer reads `log.json`, and sends the first record of a queue to the partition that follows."""
        producer = s.producers[p]
        if not s.metadata.generation or partition >= self._first(s.metadata.generation):
            return f"p{p} finds nothing that follows partition {partition}", s._replace(homeless=True)
        record, *rest = producer.queues[partition]
        # Records in the queue move on before any record that is sent later.
        generation = next(g for g in range(len(self.counts)) if partition < self._first(g + 1)) + 1
        child = self._place(generation)
        moving, staying = ((record, *rest), ()) if self.rules.drain else ((record,), tuple(rest))
        queues = _set(producer.queues, partition, staying)
        queues = _set(queues, child, (*moving, *queues[child]) if self.rules.drain else (*queues[child], *moving))
        moved = _put(s, p, producer._replace(view=s.metadata, queues=queues))
        return f"p{p} moves {moving} from partition {partition} to {child}", moved

    def _acknowledge(self, s: State, p: int, partition: int) -> State:
        producer = s.producers[p]
        record, *rest = producer.queues[partition]
        done = producer._replace(
            queues=_set(producer.queues, partition, tuple(rest)), doubts=_set(producer.doubts, partition, None)
        )
        return _put(s, p, done)._replace(acknowledged=s.acknowledged | {record})

    def search(self) -> Found:
        return explore(self.start(), self.steps, self.broken, done=self.done)


def _has_ended(s: State, partition: int) -> bool:
    return partition in s.flagged or SEAL in s.chains[partition]


def _land(s: State, partition: int, base: int, entry: int) -> State:
    """The entry is at `base` now, unless another entry is there, or the partition has not reached this base."""
    chain = s.chains[partition]
    if len(chain) != base or SEAL in chain:
        return s
    if entry == SEAL:
        s = _ended(s, partition)
    return s._replace(chains=_set(s.chains, partition, (*chain, entry)))


def _ended(s: State, partition: int) -> State:
    return s._replace(ends=_set(s.ends, partition, len(s.chains[partition])))


def _put(s: State, p: int, producer: Producer) -> State:
    return s._replace(producers=_set(s.producers, p, producer))


def _set(values: tuple[T, ...], index: int, value: T) -> tuple[T, ...]:
    return (*values[:index], value, *values[index + 1 :])


ALL = Rules()

HOLDS = {
    "two producers": Model((2, 1)),
    "two growths": Model((1, 1), counts=(1, 2, 4), late=0),
}
"""All rules kept, small enough for every run."""

HOLDS_LONG = {
    "two producers, two late writes": Model((2, 2), late=2),
    "three producers": Model((1, 1, 1)),
    "two growths, a late write": Model((1, 1), counts=(1, 2, 4)),
    "two growths, two late writes": Model((2, 1), counts=(1, 2, 4), late=2),
    "a key of the second partition": Model((2, 1), counts=(2, 4), key=3),
}

BREAKS = {
    "a count that is no multiple": Model((1, 1), counts=(2, 3), key=3, late=0, rules=replace(ALL, multiple=False)),
    "an end before log.json names what follows": Model((1,), counts=(2, 4), key=1, rules=replace(ALL, intent=False)),
    "an end beside the partition": Model((1, 1), rules=replace(ALL, place=False)),
    "appending before the partition before has ended": Model((1, 1), rules=replace(ALL, first=False)),
    "saying complete before it is": Model((1, 1), rules=replace(ALL, complete=False)),
    "growing again before it is complete": Model((1, 1), counts=(1, 2, 4), rules=replace(ALL, finish=False)),
    "moving a record that may be in the log": Model((1,), rules=replace(ALL, settle=False)),
    "not waiting for the queue before": Model((3,), rules=replace(ALL, drain=False)),
}
"""Models with one rule left out: each must break."""


if __name__ == "__main__":
    sys.exit(report({**HOLDS, **({} if "quick" in sys.argv else HOLDS_LONG)}, BREAKS))
