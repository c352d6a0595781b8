"""Forwarding to a topic in transactions, as an explicit-state model: every interleaving, within small bounds.

Two systems change here: the commit chain, and the topic with the position that is stored in the same transaction as the
messages. A worker opens the chain, fences earlier workers in both systems, reads the topic's position, and works: first
the transaction, then the commit.

Possible at any step:
- A worker pauses for long, crashes, restarts.
- Two workers run the partition at once.
- A commit or a transaction is applied after its sender gave up on it.
- An operator resets the partition to the first record.

Each record has a kind: M becomes a message, S nothing; F fails on worker 0 (a dead letter) and becomes a message on
worker 1.

Checked in every state: a record is at most one message or dead letter, and one more for each reset that repeats it;
every record below the chain's cursor is that often a message or a dead letter, unless it is silent.

Change the protocol here first, then docs/protocol.md, then the code. `python -m tests.protocol.forward_model`
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from tests.protocol.search import Found, explore, report


class Commit(NamedTuple):
    """A file of the chain: the step from record `first` to `next`, with its dead letters."""

    first: int
    next: int
    letters: tuple[int, ...] = ()
    reset: bool = False


class Position(NamedTuple):
    """The position stored with the topic: records below `next` were forwarded, except those in `left_out`.

    `resets`: how many it knows. `later`: sent before the last one and not committed.
    """

    next: int = 0
    left_out: frozenset[int] = frozenset()
    resets: int = 0
    later: frozenset[int] = frozenset()

    def has(self, record: int) -> bool:
        """Whether the record was sent."""
        return (record < self.next or record in self.later) and record not in self.left_out


class Transaction(NamedTuple):
    """Messages of these records, and the position with them."""

    records: tuple[int, ...]
    position: Position


class Worker(NamedTuple):
    """`todo`: the steps of its start that are left. `done`: records below it are processed, `letters` among them.
    `resets`: where the resets that it has found in the chain ended.

    `owed`: a transaction whose batch is committed already, which only happens without the rule `first`.
    """

    todo: tuple[str, ...]
    number: int
    committed: int
    done: int
    letters: tuple[int, ...] = ()
    known: Position = Position()
    noting: Position | None = None
    owed: Transaction | None = None
    resets: tuple[int, ...] = ()


class State(NamedTuple):
    chain: tuple[Commit, ...] = ()
    late_commits: tuple[tuple[int, Commit], ...] = ()
    topic: tuple[int, ...] = ()
    """Records of the messages, in order."""
    position: Position = Position()
    holder: int | None = None
    """The worker whose producer the brokers accept: the last one that has initialized its transactions."""
    late_transactions: tuple[Transaction, ...] = ()
    """Of the holder's."""
    workers: tuple[Worker | None, ...] = (None, None)
    crashes_left: int = 0
    late_left: int = 0
    opens_left: int = 0
    """How many more starts there may be: each makes the chain longer."""
    resets_left: int = 0


Step = tuple[str, State]


@dataclass(frozen=True, slots=True)
class Rules:
    """The protocol's rules; leave one out, and the search finds how it breaks."""

    skip: bool = True
    """Records below the topic's position are not sent again."""
    together: bool = True
    """The position is stored in the transaction of the messages."""
    left_out: bool = True
    """The position names the records below it that were not sent."""
    first: bool = True
    """The chain commits a batch after its transaction is committed."""
    init: bool = True
    """The position is read after the transactions were initialized, which settles or refuses those of others."""
    fence: bool = True
    """A worker commits an empty file before it sends, so that no earlier worker can commit."""
    fence_last: bool = True
    """That file comes after the transactions were initialized."""
    doubt: bool = True
    """A worker whose transaction is in doubt opens anew."""
    reset: bool = True
    """Records that a reset repeats are sent again."""
    later: bool = True
    """Messages that were sent and not committed before the reset are not sent again."""


@dataclass(frozen=True, slots=True)
class Model:
    """`kinds`: one letter per record. `crashes`, `late`, `opens` and `resets`: how many there may be."""

    kinds: str
    crashes: int = 1
    late: int = 1
    opens: int = 4
    resets: int = 0
    rules: Rules = Rules()

    # Invariants

    def broken(self, s: State) -> str | None:
        """The invariant that a state breaks, or None."""
        ended = Counter([*s.topic, *(record for commit in s.chain for record in commit.letters)])
        due = {r: 1 + sum(commit.reset and r < commit.first for commit in s.chain) for r in range(len(self.kinds))}
        if often := {r: count for r, count in ended.items() if count > due[r]}:
            return f"too often a message or dead letter: {often}"
        end = s.chain[-1].next if s.chain else 0
        if gone := {r for r in range(end) if self.kinds[r] != "S" and ended[r] < due[r]} - self._owed(s):
            return f"lost below committed cursor {end}: {gone}"
        return None

    def _owed(self, s: State) -> set[int]:
        """Records that a living worker will still send."""
        return {r for worker in s.workers if worker and worker.owed for r in worker.owed.records}

    # Steps

    def start(self) -> State:
        return State(
            crashes_left=self.crashes, late_left=self.late, opens_left=self.opens, resets_left=self.resets
        )  # fmt: skip

    def steps(self, s: State) -> Iterator[Step]:
        yield from _late(s)
        if s.resets_left and s.chain and s.chain[-1].next:
            reset = Commit(s.chain[-1].next, 0, reset=True)
            yield f"reset from {reset.first}", s._replace(chain=(*s.chain, reset), resets_left=s.resets_left - 1)
        for w, worker in enumerate(s.workers):
            if worker is None:
                if s.opens_left:
                    opened = _put(s, w, self._opened(s))._replace(opens_left=s.opens_left - 1)
                    yield f"w{w} walks the chain to {len(s.chain)}", opened
                continue
            if s.crashes_left:
                yield f"w{w} crashes", _put(s, w, None)._replace(crashes_left=s.crashes_left - 1)
            if worker.todo:
                yield self._prepare(s, w, worker)
            elif worker.noting is not None:
                noted = _put(s, w, worker._replace(noting=None, known=worker.noting))
                yield f"w{w} notes the position", noted._replace(position=worker.noting)
            elif worker.owed is not None:
                yield from self._send(s, w, worker, worker.owed, worker._replace(owed=None))
                yield from self._commit(s, w, worker)
            else:
                yield from self._work(s, w, worker)
                yield from self._commit(s, w, worker)

    def _opened(self, s: State) -> Worker:
        rules = self.rules
        fences = ("fence",) if rules.fence else ()
        order = ("init", *fences) if rules.fence_last else (*fences, "init")
        todo = (*order, "look") if rules.init else ("look", *order)
        end = s.chain[-1].next if s.chain else 0
        return Worker(todo, len(s.chain), end, end, resets=tuple(commit.first for commit in s.chain if commit.reset))

    def _followed(self, known: Position, resets: tuple[int, ...]) -> Position:
        """The position after the resets that it does not know."""
        new = resets[known.resets :]
        if not new or not self.rules.reset:
            return known
        later = frozenset(r for r in {*range(known.next), *known.later} if r >= max(new) and known.has(r))
        return Position(0, frozenset(), len(resets), later if self.rules.later else frozenset())

    def _prepare(self, s: State, w: int, worker: Worker) -> Step:
        step, onward = worker.todo[0], worker._replace(todo=worker.todo[1:])
        if step == "init":
            return f"w{w} initializes transactions", _put(s, w, onward)._replace(holder=w, late_transactions=())
        if step == "look":
            known = self._followed(s.position, worker.resets)
            return f"w{w} reads position {s.position.next}", _put(s, w, onward._replace(known=known))
        if len(s.chain) > worker.number:
            return f"w{w} is refused at {worker.number}, stops", _put(s, w, None)
        empty = Commit(worker.committed, worker.committed)
        fenced = _put(s, w, onward._replace(number=worker.number + 1))
        return f"w{w} commits {worker.number}, empty", fenced._replace(chain=(*s.chain, empty))

    def _work(self, s: State, w: int, worker: Worker) -> Iterator[Step]:
        """Process one batch: records from `done` to any end."""
        for end in range(worker.done + 1, len(self.kinds) + 1):
            sent, failed = self._results(w, worker, end)
            known = worker.known
            left_out = known.left_out | set(failed) if self.rules.left_out else frozenset()
            position = known._replace(next=max(known.next, end), left_out=left_out - set(sent))
            done = worker._replace(done=end, letters=(*worker.letters, *failed))
            if sent:
                transaction = Transaction(sent, position)
                if not self.rules.first:
                    done = done._replace(owed=transaction)
                    yield f"w{w} will send {sent}", _put(s, w, done)
                else:
                    yield from self._send(s, w, worker, transaction, done)
            else:
                done = done._replace(known=position)
                yield f"w{w} has processed {worker.done}-{end}", _put(s, w, done)

    def _results(self, w: int, worker: Worker, end: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The records that worker `w` sends, and those that fail."""
        known = worker.known
        new = [r for r in range(worker.done, end) if not self.rules.skip or not known.has(r)]
        failed = tuple(r for r in new if self.kinds[r] == "F" and w == 0)
        return tuple(r for r in new if self.kinds[r] != "S" and r not in failed), failed

    def _send(self, s: State, w: int, worker: Worker, transaction: Transaction, done: Worker) -> Iterator[Step]:
        what = f"w{w} sends {transaction.records}"
        if s.holder != w:
            yield f"{what}, refused, stops", _put(s, w, None)
            return
        if self.rules.together:
            done = done._replace(known=transaction.position)
            yield f"{what}, position {transaction.position.next}", _applied(_put(s, w, done), transaction)
        else:
            noting = done._replace(noting=transaction.position)
            yield what, _applied(_put(s, w, noting), Transaction(transaction.records, s.position))
        if s.late_left:
            again = None if self.rules.doubt else worker
            doubt = _put(s, w, again)._replace(late_left=s.late_left - 1)
            yield f"{what}, no reply", doubt._replace(late_transactions=(*s.late_transactions, transaction))

    def _commit(self, s: State, w: int, worker: Worker) -> Iterator[Step]:
        if worker.done == worker.committed:
            return
        n, commit = worker.number, Commit(worker.committed, worker.done, worker.letters)
        if len(s.chain) > n:
            yield f"w{w} create of {n} refused, stops", _put(s, w, None)
            return
        done = worker._replace(number=n + 1, committed=worker.done, letters=())
        yield f"w{w} commits {n} {tuple(commit)}", _put(s, w, done)._replace(chain=(*s.chain, commit))
        if s.late_left:
            dead = _put(s, w, None)._replace(late_left=s.late_left - 1)
            yield f"w{w} sends commit {n}, dies", dead._replace(late_commits=(*s.late_commits, (n, commit)))

    def search(self) -> Found:
        return explore(self.start(), self.steps, self.broken)


def _late(s: State) -> Iterator[Step]:
    for i, (n, commit) in enumerate(s.late_commits):
        rest = s._replace(late_commits=s.late_commits[:i] + s.late_commits[i + 1 :])
        if len(s.chain) > n:
            yield f"late commit {n} refused", rest
        else:
            yield f"late commit {n} lands", rest._replace(chain=(*s.chain, commit))
    for i, transaction in enumerate(s.late_transactions):
        rest = s._replace(late_transactions=s.late_transactions[:i] + s.late_transactions[i + 1 :])
        yield f"late transaction of {transaction.records} is applied", _applied(rest, transaction)


def _applied(s: State, transaction: Transaction) -> State:
    return s._replace(topic=(*s.topic, *transaction.records), position=transaction.position)


def _put(s: State, w: int, worker: Worker | None) -> State:
    return s._replace(workers=(*s.workers[:w], worker, *s.workers[w + 1 :]))


ALL = Rules()

HOLDS = {
    "messages": Model("MM", opens=3),
    "unsteady failures": Model("FM", opens=3),
    "a reset": Model("MM", opens=3, late=0, crashes=0, resets=1),
}
"""All rules kept, small enough for every run."""

HOLDS_LONG = {
    "unsteady failures, four starts": Model("FM"),
    "failure behind silence": Model("SF", crashes=2),
    "failure between messages": Model("MFM", opens=3),
    "two unsteady failures, two late writes": Model("FF", crashes=2, late=2),
    "a reset, unsteady failures": Model("FM", opens=3, resets=1),
    "two resets": Model("MM", opens=4, late=0, resets=2),
}

BREAKS = {
    "sending again what the topic has": Model("MM", rules=replace(ALL, skip=False)),
    "a position beside the transaction": Model("MM", rules=replace(ALL, together=False)),
    "a position that does not name what it leaves out": Model("FM", rules=replace(ALL, left_out=False)),
    "committing before the transaction": Model("MM", rules=replace(ALL, first=False)),
    "reading the position before the transactions are initialized": Model("MM", rules=replace(ALL, init=False)),
    "not fencing the chain": Model("FM", rules=replace(ALL, fence=False)),
    "fencing the chain before the topic": Model("FM", rules=replace(ALL, fence_last=False)),
    "taking a transaction in doubt for a failed one": Model("MM", rules=replace(ALL, doubt=False)),
    "a position that stays at a reset": Model("MM", opens=3, late=0, resets=1, rules=replace(ALL, reset=False)),
    "a position that is dropped at a reset": Model("MM", opens=3, late=0, resets=1, rules=replace(ALL, later=False)),
}
"""Models with one rule left out: each must break."""


if __name__ == "__main__":
    sys.exit(report({**HOLDS, **({} if "quick" in sys.argv else HOLDS_LONG)}, BREAKS))
