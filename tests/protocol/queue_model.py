"""A queue that only acknowledges, as an explicit-state model: every interleaving, within small bounds.

The queue of one partition holds messages 0, 1, ... Two hosts run the partition, at once if it comes to that (leases
give no safety).

Possible at any step:
- A host pauses for long, crashes, starts.
- The broker drops a consumer, which does not notice it at once, so its host still holds messages that went back.
  Acknowledgements on their way are lost then.
- A broker is killed, and forgets the latest acknowledgements, which it had not stored.
- A commit is created after its sender died.

A host claims the checkpoint, walks the chain, attaches its consumer, and looks: if checkpoint or chain have changed
since its walk, it opens anew. Then it takes messages. A host that lost its consumer attaches another one and looks
again. Messages with rows or dead letters are committed as file n of the chain (put if absent), others by the checkpoint
alone (compare-and-swap). A file and the checkpoint carry the identities of the last `unacknowledged` + `unstored`
messages up to their cursor.

Kinds: R emits a row, S emits nothing, F is a dead letter on host 0 and a row on host 1, T is a row on host 0 and
nothing on host 1.

Checked in every state:
- No message has two results.
- A message that the broker has removed was committed.
- Results are in the order of the queue, and the sequence of a message is its place there.

With `progress`: from every state all can be acknowledged.

Change the protocol here first, then docs/protocol.md, then the code. `python -m tests.protocol.queue_model [quick]`
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from tests.protocol.search import Found, explore, report

Messages = tuple[int, ...]
Numbered = tuple[tuple[int, int], ...]
"""Messages with their sequences."""


class File(NamedTuple):
    """A commit of the chain, up to sequence `next`. `took`: all of its messages, also those without a result."""

    next: int
    rows: Numbered
    letters: Numbered
    took: Messages
    identities: str


class Checkpoint(NamedTuple):
    number: int = 0
    next: int = 0
    identities: str = ""
    owner: int = -1


class Host(NamedTuple):
    """Phase 'claim', 'walk', 'attach', 'look' or 'run'. `known`: the checkpoint that it wrote last."""

    phase: str = "claim"
    number: int = 0
    next: int = 0
    identities: str = ""
    known: Checkpoint = Checkpoint()
    hand: Numbered = ()
    """Delivered and not committed."""
    acknowledged: Messages = ()
    """Committed; their acknowledgements are on their way."""
    deliveries: int = 0
    """How many there were, without the rule `number`."""


class State(NamedTuple):
    ready: Messages
    held: tuple[Messages | None, Messages | None] = (None, None)
    """By host: the messages that its consumer has not acknowledged. None: it has no consumer."""
    gone: Messages = ()
    """Removed by the broker, since they were acknowledged."""
    between: Messages = ()
    """Messages of a lost consumer that are not back yet; only without the rule `returned`."""
    files: tuple[File, ...] = ()
    checkpoint: Checkpoint = Checkpoint()
    silent: Messages = ()
    """Committed by the checkpoint alone."""
    hosts: tuple[Host | None, Host | None] = (None, None)
    late: tuple[tuple[int, File], ...] = ()
    """Creates that are under way although their sender died."""
    late_left: int = 0
    stored: int = 0
    """The number of messages of `gone` that a killed broker does not forget."""


Step = tuple[str, State]


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of the protocol, and its demands on the broker. Without any one of them, the search finds a fault."""

    after: bool = True
    """A message is acknowledged after the commit."""
    carry: bool = True
    """A commit carries identities of earlier commits, too."""
    checkpoint: bool = True
    """The checkpoint carries identities, too."""
    known: bool = True
    """A message whose identity is known is acknowledged, and not handled."""
    look: bool = True
    """A host whose consumer is attached looks whether checkpoint or chain have changed since its walk."""
    drop: bool = True
    """A host that lost its consumer drops the messages in hand."""
    ordered: bool = True
    """Messages are acknowledged in the order of their delivery."""
    window: bool = True
    """Room for a new message is made by an acknowledgement that has reached the broker, not by a commit."""
    bound: bool = True
    """A commit carries as many identities as messages may be unacknowledged."""
    spare: bool = True
    """A commit carries so many identities more as there are acknowledgements that a broker may forget."""
    number: bool = True
    """The sequence of a message is the last committed one, plus its place among those in hand."""
    exclusive: bool = True
    """The broker gives messages to one consumer only."""
    place: bool = True
    """A message that comes back takes its old place in the queue."""
    returned: bool = True
    """It is back before the next consumer gets anything."""
    whole: bool = True
    """All messages of a lost consumer come back together, not one by one."""
    keep: bool = True
    """The broker keeps messages that come back, however often and long."""
    unique: bool = True
    """No two messages have the same identity."""


@dataclass(frozen=True, slots=True)
class Model:
    """`kinds`: one letter per message. `unacknowledged`: how many at most. `late`: how many late creates.

    `unstored`: how many of the latest acknowledgements a broker that is killed may forget.
    """

    kinds: str
    unacknowledged: int = 2
    late: int = 0
    unstored: int = 0
    progress: bool = False
    rules: Rules = Rules()

    # Invariants

    def broken(self, s: State) -> str | None:
        """The invariant that a state breaks, or None."""
        results = [pair for file in s.files for pair in sorted(file.rows + file.letters)]
        shown = [message for message, _ in results]
        if max(Counter(shown).values(), default=0) > 1:
            return f"a message has two results: {shown}"
        committed = {message for file in s.files for message in file.took} | set(s.silent)
        if lost := set(s.gone) - committed:
            return f"removed by the broker, and not committed: {lost}"
        if shown != sorted(shown):
            return f"out of order: {shown}"
        if wrong := [pair for pair in results if pair[1] != pair[0] + 1]:
            return f"the sequence is not the place in the queue: {wrong}"
        return None

    def done(self, s: State) -> bool:
        return len(s.gone) == len(self.kinds)

    # Steps

    def start(self) -> State:
        return State(tuple(range(len(self.kinds))), late_left=self.late)

    def steps(self, s: State) -> Iterator[Step]:
        for i, (n, file) in enumerate(s.late):
            rest = s._replace(late=s.late[:i] + s.late[i + 1 :])
            landed = _with_file(rest, n, file)
            yield f"late create of {n} {'lands' if landed else 'refused'}", landed or rest
        if s.between:
            yield f"broker takes back {s.between}", self._back(s._replace(between=()), s.between)
        for forgotten in range(1, len(s.gone) - s.stored + 1):
            yield f"broker is killed, forgets {s.gone[-forgotten:]}", self._killed(s, s.gone[-forgotten:])
        for h, host in enumerate(s.hosts):
            yield from self._broker(s, h)
            if host is None:
                yield f"h{h} starts", _put(s, h, Host())
            else:
                yield f"h{h} crashes", _put(s, h, None)
                yield from self._host(s, h, host)

    def identity(self, message: int) -> str:
        return "abcdefgh"[message if self.rules.unique else 0]

    # The broker

    def _broker(self, s: State, h: int) -> Iterator[Step]:
        held, host = s.held[h], s.hosts[h]
        if held is None:
            return
        dropped = _hold(s, h, None)
        if self.rules.returned or not held:
            yield f"broker drops h{h}'s consumer, takes back {held}", self._back(dropped, held)
        elif not s.between:
            yield f"broker drops h{h}'s consumer", dropped._replace(between=held)
        if not self.rules.whole:
            for message in held:
                yield f"broker takes back {message} from h{h}", self._back(_release(s, h, message), (message,))
        if host is not None and host.phase == "run":
            yield from self._acknowledge(s, h, host)
            room = len(held) if self.rules.window else len(host.hand)
            if s.ready and room < self.unacknowledged:
                yield self._deliver(s, h, host, s.ready[0])

    def _killed(self, s: State, forgotten: Messages) -> State:
        kept = s.gone[: -len(forgotten)]
        held = [message for held in s.held for message in held or ()]
        after = s._replace(gone=kept, stored=len(kept), held=(None, None), between=())
        return self._back(after, (*held, *s.between, *forgotten))

    def _back(self, s: State, messages: Messages) -> State:
        if not self.rules.keep:
            return s._replace(gone=tuple(sorted({*s.gone, *messages})))
        ready = s.ready + messages
        return s._replace(ready=tuple(sorted(ready)) if self.rules.place else ready)

    def _acknowledge(self, s: State, h: int, host: Host) -> Iterator[Step]:
        for message in host.acknowledged[:1] if self.rules.ordered else host.acknowledged:
            after = _put(s, h, host._replace(acknowledged=tuple(m for m in host.acknowledged if m != message)))
            if message in (s.held[h] or ()):
                gone = tuple(sorted({*s.gone, message}))
                stored = max(s.stored, len(gone) - self.unstored)
                after = _release(after, h, message)._replace(gone=gone, stored=stored)
            yield f"h{h}'s acknowledgement of {message} arrives", after

    def _deliver(self, s: State, h: int, host: Host, message: int) -> Step:
        s = _hold(s, h, (*(s.held[h] or ()), message))._replace(ready=s.ready[1:])
        if not self.rules.number:
            host = host._replace(deliveries=host.deliveries + 1)
        if self.rules.known and self.identity(message) in host.identities:
            again = host._replace(acknowledged=(*host.acknowledged, message))
            return f"h{h} gets {message}, recognizes it", _put(s, h, again)
        sequence = host.next + len(host.hand) + 1 if self.rules.number else host.deliveries
        host = host._replace(hand=(*host.hand, (message, sequence)))
        if not self.rules.after:
            host = host._replace(acknowledged=(*host.acknowledged, message))
        return f"h{h} gets {message}", _put(s, h, host)

    # A host

    def _host(self, s: State, h: int, host: Host) -> Iterator[Step]:
        match host.phase:
            case "claim":
                mine = s.checkpoint._replace(owner=h)
                claimed = Host("walk", mine.number, mine.next, mine.identities, mine)
                yield f"h{h} claims", _put(s, h, claimed)._replace(checkpoint=mine)
            case "walk":
                yield self._walk(s, h, host)
            case "attach":
                if s.held[h] is None and (s.held[1 - h] is None or not self.rules.exclusive):
                    phase = "look" if self.rules.look else "run"
                    yield f"h{h} attaches", _hold(_put(s, h, host._replace(phase=phase)), h, ())
            case "look":
                moved = s.checkpoint != host.known or len(s.files) > host.number
                onward = Host() if moved else host._replace(phase="run")
                yield f"h{h} looks, {'opens anew' if moved else 'runs'}", _put(s, h, onward)
            case "run":
                yield from self._run(s, h, host)
        if s.held[h] is None and host.phase in ("look", "run"):
            hand = () if self.rules.drop else host.hand
            again = host._replace(phase="attach", hand=hand, acknowledged=())
            yield f"h{h} notices that its consumer is gone", _put(s, h, again)

    def _walk(self, s: State, h: int, host: Host) -> Step:
        cursor, identities = host.next, host.identities
        for file in s.files[host.number :]:
            if file.next > cursor or (file.next == cursor and not self.rules.checkpoint):
                cursor, identities = file.next, file.identities
        walked = host._replace(phase="attach", number=len(s.files), next=cursor, identities=identities)
        if not self.rules.number:
            walked = walked._replace(deliveries=cursor)
        return f"h{h} walks to {len(s.files)}, up to {cursor}", self._detached(_put(s, h, walked), h)

    def _detached(self, s: State, h: int) -> State:
        """Close the consumer of an earlier start, if there still is one."""
        held = s.held[h]
        return s if held is None else self._back(_hold(s, h, None), held)

    def _run(self, s: State, h: int, host: Host) -> Iterator[Step]:
        for size in range(1, len(host.hand) + 1):
            yield from self._commit(s, h, host, host.hand[:size])
        here = Checkpoint(host.number, host.next, host.identities if self.rules.checkpoint else "", h)
        if here != host.known and host.known == s.checkpoint:
            yield f"h{h} writes the checkpoint", _put(s, h, host._replace(known=here))._replace(checkpoint=here)

    def _commit(self, s: State, h: int, host: Host, took: Numbered) -> Iterator[Step]:
        rows = tuple(pair for pair in took if self.kinds[pair[0]] in ("RT" if h == 0 else "RF"))
        letters = tuple(pair for pair in took if self.kinds[pair[0]] == "F" and h == 0)
        messages = tuple(message for message, _ in took)
        n, cursor, identities = host.number, took[-1][1], self._identities(host, messages)
        onward = host._replace(next=cursor, identities=identities, hand=host.hand[len(took) :])
        if self.rules.after:
            onward = onward._replace(acknowledged=(*host.acknowledged, *messages))
        if rows or letters:
            file = File(cursor, rows, letters, messages, identities)
            done = _with_file(s, n, file)
            if done is None:
                yield f"h{h} create of {n} refused, stops", _put(s, h, None)
            else:
                yield f"h{h} commits {messages} as {n}", _put(done, h, onward._replace(number=n + 1))
            if s.late_left:
                dead = _put(s, h, None)._replace(late_left=s.late_left - 1)
                yield f"h{h} sends {messages} as {n}, dies", dead._replace(late=(*s.late, (n, file)))
        elif host.known != s.checkpoint:
            yield f"h{h} lost the checkpoint, stops", _put(s, h, None)
        else:
            mine = Checkpoint(n, cursor, identities if self.rules.checkpoint else "", h)
            silent = tuple(sorted({*s.silent, *messages}))
            done = _put(s, h, onward._replace(known=mine))._replace(checkpoint=mine, silent=silent)
            yield f"h{h} commits {messages} by checkpoint", done

    def _identities(self, host: Host, messages: Messages) -> str:
        own = "".join(map(self.identity, messages))
        kept = self.unacknowledged - (not self.rules.bound) + (self.unstored if self.rules.spare else 0)
        return ((host.identities if self.rules.carry else "") + own)[-kept:] if kept else ""

    def search(self) -> Found:
        return explore(self.start(), self.steps, self.broken, done=self.done if self.progress else None)


def _put(s: State, h: int, host: Host | None) -> State:
    return s._replace(hosts=(host, s.hosts[1]) if h == 0 else (s.hosts[0], host))


def _hold(s: State, h: int, held: Messages | None) -> State:
    return s._replace(held=(held, s.held[1]) if h == 0 else (s.held[0], held))


def _release(s: State, h: int, message: int) -> State:
    return _hold(s, h, tuple(m for m in s.held[h] or () if m != message))


def _with_file(s: State, n: int, file: File) -> State | None:
    """None: the create is refused, because there is a file."""
    return s._replace(files=(*s.files, file)) if n == len(s.files) else None


ALL = Rules()

HOLDS = {
    "silence, then a row": Model("SSR", progress=True),
    "silence, then a row, and a late create": Model("SSR", late=1, progress=True),
}
"""All rules kept, small enough for every run."""

HOLDS_LONG = {
    "one unacknowledged message": Model("RRR", unacknowledged=1, late=1, progress=True),
    "three rows": Model("RRR", late=1, progress=True),
    "unsteady silence, failure": Model("TFR", progress=True),
    "failure between": Model("RFR", late=1, progress=True),
    "four rows": Model("RRRR"),
    "silence and rows": Model("SSRR", late=1),
    "three unacknowledged messages": Model("RRRR", unacknowledged=3),
    "a broker that forgets": Model("RRR", unacknowledged=1, unstored=1, progress=True),
    "a broker that forgets two": Model("RSRR", unacknowledged=1, unstored=2),
}

BREAKS = {
    "acknowledging before the commit": Model("RR", rules=replace(ALL, after=False)),
    "a commit that names its own messages only": Model("RRR", rules=replace(ALL, carry=False)),
    "identities in files only": Model("RR", rules=replace(ALL, checkpoint=False)),
    "handling a message that is known": Model("RR", rules=replace(ALL, known=False)),
    "taking messages without a look": Model("SSR", rules=replace(ALL, look=False)),
    "keeping what is in hand": Model("RR", rules=replace(ALL, drop=False)),
    "acknowledging in any order": Model("RRR", rules=replace(ALL, ordered=False)),
    "room made by a commit": Model("RRR", rules=replace(ALL, window=False)),
    "one identity too few": Model("RR", rules=replace(ALL, bound=False)),
    "no identity to spare": Model("RRR", unacknowledged=1, unstored=1, rules=replace(ALL, spare=False)),
    "sequences that count deliveries": Model("RR", rules=replace(ALL, number=False)),
    "two consumers": Model("RR", rules=replace(ALL, exclusive=False)),
    "what comes back goes to the end": Model("RRR", rules=replace(ALL, place=False)),
    "the next consumer begins before": Model("RRR", rules=replace(ALL, returned=False)),
    "single messages come back": Model("RR", rules=replace(ALL, whole=False)),
    "a broker that discards": Model("R", rules=replace(ALL, keep=False)),
    "two messages with one identity": Model("RR", rules=replace(ALL, unique=False)),
}
"""Models with one rule left out: each must break."""


if __name__ == "__main__":
    sys.exit(report({**HOLDS, **({} if "quick" in sys.argv else HOLDS_LONG)}, BREAKS))
