"""The commit protocol of one partition as an explicit-state model: every interleaving, within small bounds.

Possible at any step:
- A worker pauses for long, crashes, restarts.
- Two workers run the partition at once (leases give no safety).
- A write is applied after its sender gave up on it and died ("late").
- Old files are trimmed.

The model assumes that all readers have read the trimmed files; `trim_model` checks that.

Each record has a kind: R emits a row, S emits nothing, F fails on worker 0 (a dead letter) and emits a row on worker 1,
T emits a row on worker 0 and nothing on worker 1 (handlers need not be deterministic).

Checked in every state:
- No row is visible twice.
- No record is both a row and a dead letter.
- No dead letter is visible twice.
- Nothing below a committed position is missing.
- Dead letters below the checkpoint are published.

Change the protocol here first, then docs/protocol.md, then the code. `python -m tests.protocol.commit_model [quick]`
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from tests.protocol.search import Found, explore, report


class File(NamedTuple):
    """An output file: a commit. `rows` and `letters` are the records that ended so in it."""

    first: int
    next: int
    rows: tuple[int, ...]
    letters: tuple[int, ...]
    put_id: int


class Checkpoint(NamedTuple):
    number: int
    position: int
    owner: int


class Worker(NamedTuple):
    """Phase 'claim', 'walk', 'look', 'run', 'retry' or 'publish', at file `number`; `known`: its last checkpoint."""

    phase: str
    number: int
    position: int
    known: Checkpoint
    file: File | None = None


class State(NamedTuple):
    files: tuple[tuple[int, File], ...] = ()
    checkpoint: Checkpoint = Checkpoint(0, 0, 0)
    published: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Number -> the dead letters published under it."""
    workers: tuple[Worker | None, ...] = (None, None)
    late: tuple[tuple[int, File], ...] = ()
    """Creates that are under way although their sender gave up on them."""
    crashes_left: int = 0
    late_left: int = 0
    boundary: int = 0
    read: tuple[File, ...] = ()
    """The rows that readers had seen of the files below the boundary."""
    put_ids: int = 0
    more: Hashable = None
    """State of a model that is built upon this one."""


Step = tuple[str, State]


@dataclass(frozen=True, slots=True)
class Rules:
    """The protocol's rules; leave one out, and the search finds how it breaks."""

    in_commit: bool = True
    """Dead letters ride in the commit's footer and are published afterwards, under the commit's number."""
    publish: bool = True
    """A checkpoint passes number n only after the dead letters of n are published."""
    boundary: bool = True
    """Readers ignore numbers below the boundary; it is raised, after they have read, before anything is deleted."""
    keep_last: bool = True
    """The newest file of a partition is never trimmed, so a sleeper runs into it and stops."""
    look: bool = True
    """Before dead letters are published the boundary is read: below it the commit is void, the worker stops."""
    again: bool = True
    """After the walk the boundary is read: if it has passed the number where the walk began, the worker opens again."""
    put_id: bool = True
    """A worker whose create is refused compares the put-id of the existing file with its own."""
    absent: bool = True
    """A commit is created only where no file is."""


@dataclass(frozen=True, slots=True)
class Model:
    """`kinds`: one letter per record. `crashes` and `late`: how many there may be. `trim`: old files go."""

    kinds: str
    crashes: int = 1
    late: int = 1
    trim: bool = False
    rules: Rules = Rules()

    # Invariants

    def broken(self, s: State) -> str | None:
        """The invariant that a state breaks, or None."""
        visible = self.visible(s)
        kept = [*visible.values(), *s.read]
        rows = Counter(record for file in kept for record in file.rows)
        if max(rows.values(), default=0) > 1:
            return f"rows visible twice: {dict(rows)}"
        letters = Counter(record for _, records in s.published for record in records)
        if max(letters.values(), default=0) > 1:
            return f"dead letters visible twice: {dict(letters)}"
        if both := set(letters) & set(rows):
            return f"both row and dead letter: {both}"
        position = max([s.checkpoint.position, *(file.next for file in kept)])
        promised = {record for file in kept for record in file.letters} if self.rules.in_commit else set()
        must_show = {record for record in range(position) if self.kinds[record] in "RF"}
        if gone := must_show - set(rows) - set(letters) - promised:
            return f"lost below committed position {position}: {gone}"
        passed = [file for n, file in visible.items() if s.boundary <= n < s.checkpoint.number] + list(s.read)
        if self.rules.in_commit and (late := {record for file in passed for record in file.letters} - set(letters)):
            return f"dead letters {late} never published"
        return None

    def visible(self, s: State) -> Mapping[int, File]:
        """The output as a reader sees it, by number."""
        return {n: file for n, file in s.files if not self.rules.boundary or n >= s.boundary}

    def void(self, s: State, n: int) -> bool:
        """Whether a file in `output/` under number `n` is void by the rules."""
        return self.rules.look and self.below_boundary(s, n)

    def below_boundary(self, s: State, n: int) -> bool:
        """Whether files in `output/` count only from a number beyond `n` on."""
        return n < s.boundary

    # Steps

    def steps(self, s: State) -> Iterator[Step]:
        yield from self._late_writes(s)
        if self.trim:
            yield from self._trim(s)
        for w, worker in enumerate(s.workers):
            if worker is None:
                c = s.checkpoint
                yield f"w{w} reads checkpoint {tuple(c)}", _put(s, w, Worker("claim", c.number, c.position, c))
                continue
            if s.crashes_left:
                yield f"w{w} crashes", _put(s, w, None)._replace(crashes_left=s.crashes_left - 1)
            match worker.phase:
                case "claim":
                    yield self._claim(s, w, worker)
                case "walk":
                    yield self._walk(s, w, worker)
                case "look":
                    yield self._look(s, w, worker)
                case "publish":
                    yield self._publish(s, w, worker)
                case "retry":
                    yield self._retry(s, w, worker)
                case "run":
                    yield from self._run(s, w, worker)

    def _late_writes(self, s: State) -> Iterator[Step]:
        for i, (n, file) in enumerate(s.late):
            rest = s._replace(late=s.late[:i] + s.late[i + 1 :])
            if self.rules.absent and n in dict(s.files):
                yield f"late create of {n} refused", rest
            else:
                yield f"late create of {n} ({file.first}-{file.next}) lands", _with_file(rest, n, file)

    def _trim(self, s: State) -> Iterator[Step]:
        files = dict(s.files)
        visible = self.visible(s)
        n = min((n for n in visible if n >= s.boundary), default=None)
        if n is not None and n < s.checkpoint.number - self.rules.keep_last:
            read = s._replace(read=(*s.read, visible[n]))
            if self.rules.boundary:
                yield f"readers done, boundary {n + 1}", read._replace(boundary=n + 1)
            else:
                yield f"readers done, trim {n}", _without_file(read, n)
        for n in files:
            if n < s.boundary:
                yield f"trim {n}", _without_file(s, n)

    def _claim(self, s: State, w: int, worker: Worker) -> Step:
        if worker.known != s.checkpoint:
            return f"w{w} claim refused, reads again", _put(s, w, None)
        mine = s.checkpoint._replace(owner=w + 1)
        return f"w{w} claims", _put(s, w, worker._replace(phase="walk", known=mine))._replace(checkpoint=mine)

    def _walk(self, s: State, w: int, worker: Worker) -> Step:
        n = worker.number
        file = dict(s.files).get(n)
        if file is None:
            return f"w{w} ends its walk at {n}", _put(
                s, w, worker._replace(phase="look" if self.rules.again else "run")
            )
        if file.letters and self.void(s, n):
            return f"w{w} is below the boundary, stops", _put(s, w, None)
        if self.rules.in_commit and self.rules.publish and file.letters and n not in dict(s.published):
            return f"w{w} publishes dead letters of {n}", _with_letters(s, n, file.letters)
        onward = worker._replace(number=n + 1, position=max(worker.position, file.next))
        return f"w{w} walks over {n}", _put(s, w, onward)

    def _look(self, s: State, w: int, worker: Worker) -> Step:
        """The walk has ended, and only now the boundary is read."""
        if self.below_boundary(s, worker.known.number):
            return f"w{w} walked below the boundary, opens again", _put(s, w, None)
        return f"w{w} runs from {worker.position} at {worker.number}", _put(s, w, worker._replace(phase="run"))

    def _publish(self, s: State, w: int, worker: Worker) -> Step:
        assert worker.file is not None
        n, file = worker.number, worker.file
        onward = _put(s, w, Worker("run", n + 1, file.next, worker.known))
        if self.void(s, n):
            return f"w{w} is below the boundary, stops", _put(s, w, None)
        if n not in dict(s.published):
            return f"w{w} publishes dead letters of {n}", _with_letters(onward, n, file.letters)
        return f"w{w} finds them published", onward

    def _retry(self, s: State, w: int, worker: Worker) -> Step:
        """The create timed out: send it again."""
        assert worker.file is not None
        n, file, there = worker.number, worker.file, dict(s.files).get(worker.number)
        onward = _put(s, w, self._after_create(n, file, worker.known))
        if there is None or not self.rules.absent:
            return f"w{w} sends {n} again", _with_file(onward, n, file)
        if there.put_id == file.put_id or not self.rules.put_id:
            return f"w{w} finds its own {n}", onward
        return f"w{w} finds another's {n}, stops", _put(s, w, None)

    def _run(self, s: State, w: int, worker: Worker) -> Iterator[Step]:
        for upto in range(worker.position + 1, len(self.kinds) + 1):
            rows, letters = self._results(w, worker.position, upto)
            if rows or letters:
                yield from self._commit(s, w, worker, File(worker.position, upto, rows, letters, s.put_ids))
            else:
                yield self._checkpoint(s, w, worker, worker.known._replace(number=worker.number, position=upto))
        if (worker.number, worker.position) > worker.known[:2]:
            yield self._checkpoint(s, w, worker, worker.known._replace(number=worker.number, position=worker.position))

    def _commit(self, s: State, w: int, worker: Worker, file: File) -> Iterator[Step]:
        n, known = worker.number, worker.known
        if file.letters and not self.rules.in_commit:
            before = dict(s.published).get(file.first, ())
            s = _with_letters(s, file.first, tuple(sorted({*before, *file.letters})))
        if self.rules.absent and n in dict(s.files):
            yield f"w{w} create of {n} refused, stops", _put(s, w, None)
            return
        sent = s._replace(put_ids=s.put_ids + 1)
        done = _put(sent, w, self._after_create(n, file, known))
        yield f"w{w} creates {n} ({file.first}-{file.next})", _with_file(done, n, file)
        if s.late_left:
            doubt = _put(sent, w, Worker("retry", n, worker.position, known, file))
            doubt = doubt._replace(late=(*s.late, (n, file)), late_left=s.late_left - 1)
            yield f"w{w} sends {n} ({file.first}-{file.next}), no reply", doubt

    def _checkpoint(self, s: State, w: int, worker: Worker, to: Checkpoint) -> Step:
        if worker.known != s.checkpoint:
            return f"w{w} lost the checkpoint, stops", _put(s, w, None)
        onward = _put(s, w, Worker("run", to.number, to.position, to))
        return f"w{w} checkpoint ({to.number}, {to.position})", onward._replace(checkpoint=to)

    def _after_create(self, n: int, file: File, known: Checkpoint) -> Worker:
        if file.letters and self.rules.in_commit and self.rules.publish:
            return Worker("publish", n, file.next, known, file)
        return Worker("run", n + 1, file.next, known)

    def _results(self, w: int, first: int, upto: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The records that worker `w` turns into rows, and into dead letters."""
        shows = {"R": True, "S": False, "F": w == 1, "T": w == 0}
        rows = tuple(record for record in range(first, upto) if shows[self.kinds[record]])
        letters = tuple(record for record in range(first, upto) if self.kinds[record] == "F" and w == 0)
        return rows, letters

    def start(self) -> State:
        return State(crashes_left=self.crashes, late_left=self.late)

    def search(self) -> Found:
        return explore(self.start(), self.steps, self.broken)


def _put(s: State, w: int, worker: Worker | None) -> State:
    return s._replace(workers=(*s.workers[:w], worker, *s.workers[w + 1 :]))


def _with_file(s: State, n: int, file: File) -> State:
    return s._replace(files=tuple(sorted({**dict(s.files), n: file}.items())))


def _without_file(s: State, n: int) -> State:
    return s._replace(files=tuple(item for item in s.files if item[0] != n))


def _with_letters(s: State, n: int, letters: tuple[int, ...]) -> State:
    return s._replace(published=tuple(sorted({**dict(s.published), n: letters}.items())))


ALL = Rules()

HOLDS = {
    "rows": Model("RR"),
    "two late writes, two crashes": Model("RR", late=2, crashes=2),
    "rows and silence": Model("SR"),
    "unsteady failures": Model("FR", crashes=2),
    "unsteady silence and failure": Model("TF"),
    "trimming": Model("RR", trim=True),
}
"""All rules kept, small enough for every run."""

HOLDS_LONG = {
    "trimming, late writes, silence, failures": Model("FR", trim=True, late=2),
    "three rows": Model("RRR"),
    "silence and two rows": Model("SRR"),
    "unsteady silence, failure, row": Model("TFR"),
    "trimming three rows": Model("RRR", trim=True),
    "trimming, late writes, silence, failure, row": Model("SFR", trim=True, late=2),
    "trimming four rows": Model("RRRR", crashes=0, trim=True),
}

BREAKS = {
    "dead letters written beside the commit": Model("FR", rules=replace(ALL, in_commit=False)),
    "dead letters not published before the checkpoint passes": Model("FR", rules=replace(ALL, publish=False)),
    "trimming without a boundary": Model("RR", trim=True, rules=replace(ALL, boundary=False)),
    "trimming the newest file": Model("RRR", trim=True, rules=replace(ALL, keep_last=False)),
    "publishing without a look at the boundary": Model("SFR", trim=True, late=0, rules=replace(ALL, look=False)),
    "running after a walk that began below the boundary": Model(
        "RRRR", crashes=0, trim=True, rules=replace(ALL, again=False)
    ),
    "taking another's commit for one's own": Model("FR", rules=replace(ALL, put_id=False)),
    "committing over what is there": Model("RR", rules=replace(ALL, absent=False)),
}
"""Models with one rule left out: each must break."""

BREAKS_LONG = {"running after a walk that began below the boundary"}
"""The names in `BREAKS` of models that take half a minute."""


if __name__ == "__main__":
    sys.exit(report({**HOLDS, **({} if "quick" in sys.argv else HOLDS_LONG)}, BREAKS))
