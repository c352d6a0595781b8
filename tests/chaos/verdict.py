"""The output: commit chains without gaps or overlaps, and exactly one result for every record of the log."""

from __future__ import annotations

import base64
import io
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tests.chaos.counts import is_timer_row
from tests.chaos.objects import Objects
from tests.chaos.truth import Sent
from tests.chaos.workload import FAILURES, end_of, key_of, may_end_silently, parts_of, value_of

Row = Mapping[str, Any]

_KNOWN = (
    "hosts/", "group.json", "schema.json", "source.json", "checkpoints/", "output/", "dead-letters/", "state/",
    "probe/", "audit/", "history/", "readers.json", "sinks/", "boundaries/", "compacted/",
)  # fmt: skip


@dataclass
class Pass:
    """The records that a partition processed between two resets: those after sequence `after`, up to `upto`."""

    after: int = -1
    upto: int | None = None
    cleared: bool = False
    """The reset before it has cleared the state."""
    rows: defaultdict[int, list[Row]] = field(default_factory=lambda: defaultdict(list))
    """By sequence, as `letters`."""
    letters: defaultdict[int, list[Row]] = field(default_factory=lambda: defaultdict(list))
    timers: defaultdict[int, list[Row]] = field(default_factory=lambda: defaultdict(list))
    """Their rows, by the sequence of the record before."""
    given_up: set[int] = field(default_factory=set)
    """Sequences of the records that the handler gave up itself."""


@dataclass
class Verdict:
    """The findings in a container. `stood_still`: longest time for which a record waited while nothing was
    committed."""

    faults: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    rows: defaultdict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    """Of the output, by partition."""
    commits: defaultdict[str, list[list[Row]]] = field(default_factory=lambda: defaultdict(list))
    """The same by commit, by partition."""
    passes: defaultdict[str, list[Pass]] = field(default_factory=lambda: defaultdict(lambda: [Pass()]))
    """By partition."""
    stood_still: tuple[float, str, int] = (0.0, "", 0)
    """Seconds, partition, number of the commit that ended it."""
    waits: list[float] = field(default_factory=list)
    """For each commit: seconds since the commit before it, or since its oldest record was sent, the smaller of both."""


@dataclass
class _Step:
    """A commit, read from its file without the product's help."""

    name: str
    commit: dict[str, Any]
    rows: list[Row]
    letters: list[Row]
    published: bytes


def judge(container: Objects, processor: str, records: Mapping[str, Sequence[Sent]]) -> Verdict:
    """Everything in the container against the log.

    Args:
        records: of the log, by partition; the index is the sequence.
    """
    verdict = Verdict()
    files: defaultdict[str, dict[str, dict[str, bytes]]] = defaultdict(lambda: {"output": {}, "dead-letters": {}})
    for key, body in container.items():
        root, _, rest = key.partition("/")
        if root != processor or not rest.startswith(_KNOWN):
            verdict.faults.append(f"{key} does not belong into the container")
        kind, _, rest = rest.partition("/")
        if kind in ("output", "dead-letters"):
            folder, _, name = rest.partition("/")
            if folder.startswith("_"):
                continue  # of a table
            files[folder.removeprefix("partition=")][kind][name] = body
    for partition in sorted(files.keys() - records.keys()):
        verdict.faults.append(f"partition {partition} has output, but there is no such partition in the log")
    for partition, sents in sorted(records.items()):
        checkpoint = container.get(f"{processor}/checkpoints/{partition}.json")
        kinds = files[partition]
        _Chain(partition, sents, verdict).check(kinds["output"], kinds["dead-letters"], checkpoint)
    return verdict


class _Chain:
    """One partition."""

    def __init__(self, partition: str, sents: Sequence[Sent], verdict: Verdict) -> None:
        self._partition = partition
        self._sents = sents
        self._verdict = verdict
        self._passes = verdict.passes[partition]

    def _fault(self, what: str) -> None:
        self._verdict.faults.append(f"partition {self._partition}: {what}")

    def check(self, output: Mapping[str, bytes], published: Mapping[str, bytes], checkpoint: bytes | None) -> None:
        """Check the chain, its published dead letters, and the positions of chain and checkpoint."""
        steps = []
        for number, (name, body) in enumerate(sorted(output.items())):
            if name != f"{number:020d}.parquet":
                self._fault(f"output file {name} stands where number {number} should be")
            steps.append(_read_step(name, body))
        self._check_steps(steps)
        self._check_published({step.name.removesuffix(".parquet") + ".jsonl": step for step in steps}, published)
        self._check_checkpoint(steps, checkpoint)
        self._check_records()

    def _check_steps(self, steps: Sequence[_Step]) -> None:
        reached, epoch, time = -1, 0, 0.0
        totals: Counter[str] = Counter()
        put_ids = Counter(step.commit["put_id"] for step in steps)
        for step in steps:
            commit, first, last = step.commit, step.commit["first"][1], step.commit["next"][1]
            reset, now = commit.get("reset"), self._passes[-1]
            least = first + (not any(map(is_timer_row, step.rows)))
            if first < reached or (last < least and reset is None):
                self._fault(f"output file {step.name} leads from {first} to {last}, and the one before to {reached}")
            if commit["epoch"] < epoch:
                self._fault(f"output file {step.name} has epoch {commit['epoch']}, and the one before {epoch}")
            if put_ids[commit["put_id"]] > 1:
                self._fault(f"output file {step.name} shares its put-id {commit['put_id']}")
            totals.update(rows=len(step.rows), dead_letters=len(step.letters))
            for what, count in totals.items():
                if commit["totals"][what] != count:
                    self._fault(f"output file {step.name} counts {commit['totals'][what]} {what} so far, not {count}")
            if commit["rows"] != len(step.rows):
                self._fault(f"output file {step.name} says {commit['rows']} rows and has {len(step.rows)}")
            self._verdict.commits[self._partition].append(step.rows)
            if reset is not None:
                self._note_reset(step, reset)
                reached, epoch, time = last, commit["epoch"], commit["time"]
                continue
            self._verdict.rows[self._partition] += step.rows
            ended: set[int] = set()
            timers = [row["_sequence"] for row in step.rows if is_timer_row(row)]
            if strange := [s for s in timers if not first <= s <= last]:
                self._fault(f"output file {step.name} leads from {first} to {last} and holds timers at {strange[:5]}")
            self._verdict.seen["timers"] += len(timers)
            for row in filter(is_timer_row, step.rows):
                now.timers[row["_sequence"]].append(row)
            own = [row for row in step.rows if not is_timer_row(row)]
            for place, found, into in (("_sequence", own, now.rows), ("sequence", step.letters, now.letters)):
                for item in found:
                    ended.add(item[place])
                    into[item[place]].append(item)
            if strange := [s for s in ended if not first < s <= last]:
                self._fault(f"output file {step.name} leads from {first} to {last} and holds records {strange[:5]}")
            if not ended and not timers:
                self._fault(f"output file {step.name} holds nothing")
            elif ended:
                self._note_wait(step, time, min(ended))
            reached, epoch, time = max(reached, last), commit["epoch"], commit["time"]
        self._verdict.seen.update(commits=len(steps), takeovers=epoch)

    def _note_reset(self, step: _Step, reset: Mapping[str, Any]) -> None:
        """A reset ends a pass, and another one begins."""
        first, last = step.commit["first"][1], step.commit["next"][1]
        if step.rows or step.letters or reset["back"] != (last < first):
            self._fault(f"output file {step.name} leads from {first} to {last}, holds results, or is wrong: {reset}")
        self._passes[-1].upto = first
        self._passes.append(Pass(last, cleared=reset["clears_state"]))
        self._verdict.seen.update(resets=1, repeated=max(0, first - last), skipped=max(0, last - first))

    def _note_wait(self, step: _Step, before: float, oldest: int) -> None:
        if oldest < len(self._sents):
            waited = step.commit["time"] - max(before, self._sents[oldest].time)
            self._verdict.waits.append(waited)
            number = int(step.name.partition(".")[0])
            self._verdict.stood_still = max(self._verdict.stood_still, (waited, self._partition, number))

    def _check_published(self, steps: Mapping[str, _Step], published: Mapping[str, bytes]) -> None:
        for name, step in steps.items():
            if step.published != published.get(name, b""):
                state = "are not those of" if name in published else "were never published from"
                self._fault(f"dead letters {name} {state} output file {step.name}")
        for name in sorted(published.keys() - steps.keys()):
            self._fault(f"dead letters {name} were published from no output file")

    def _check_checkpoint(self, steps: Sequence[_Step], checkpoint: bytes | None) -> None:
        if checkpoint is None:
            self._fault("there is no checkpoint")
            return
        found = orjson.loads(checkpoint)
        number, at = found["number"], found["cursor"][1]
        if number > len(steps):
            self._fault(f"the checkpoint is at output file {number}, and there are {len(steps)}")
        reached = at
        for commit in (step.commit for step in steps[number:]):
            back = (commit.get("reset") or {}).get("back", False)
            reached = commit["next"][1] if back else max(reached, commit["next"][1])
        if reached != len(self._sents) - 1:
            self._fault(f"is committed up to record {reached}, the last one is {len(self._sents) - 1}")

    def _check_records(self) -> None:
        for one in self._passes:
            self._check_pass(one, len(self._sents) - 1 if one.upto is None else one.upto)

    def _check_pass(self, now: Pass, upto: int) -> None:
        for sequence in range(now.after + 1, upto + 1):
            sent = self._sents[sequence]
            rows, letters = now.rows.get(sequence, []), now.letters.get(sequence, [])
            if why := _judge(self._partition, sequence, sent, rows, letters):
                self._fault(f"record {sequence} ({sent.producer}'s {sent.number}) {why}")
            if letters and letters[0]["error"]["type"] == FAILURES["letter"]:
                now.given_up.add(sequence)
            silent = not rows and not letters
            self._verdict.seen.update(records=1, rows=len(rows), dead_letters=len(letters), silent=silent)
        if strange := sorted(s for s in now.rows.keys() | now.letters.keys() if not now.after < s <= upto):
            self._fault(f"holds records {strange[:5]}, which are not in the log, or not of their pass")


def _judge(partition: str, sequence: int, sent: Sent, rows: Sequence[Row], letters: Sequence[Row]) -> str | None:
    """The fault in the outcome of a record, or None."""
    producer, number = sent.producer, sent.number
    if rows and letters:
        return f"is {len(rows)} rows and {len(letters)} dead letters"
    if len(letters) > 1:
        return f"is {len(letters)} dead letters"
    if rows:
        made = {(row["host"], row["epoch"], row["attempt"], row["token"]) for row in rows}
        if len(made) > 1:
            return f"has rows of several attempts: {sorted(made)}"
        end = end_of(producer, number, *next(iter(made))[:3])
        parts = parts_of(end, number)
        found = [(row["producer"], row["number"], row["part"], row["parts"]) for row in rows]
        expected = [(producer, number, part, parts) for part in range(parts)]
        return None if found == expected else f"should have ended as {end!r}: {expected}, not {found}"
    if letters:
        letter = letters[0]
        end = end_of(producer, number, letter["host"], letter["epoch"], letter["attempts"])
        if FAILURES.get(end) != letter["error"]["type"]:
            return f"should have ended as {end!r}, and is a dead letter of type {letter['error']['type']}"
        original = (partition, key_of(producer, number).decode(), value_of(producer, number).decode())
        if (letter["partition"], letter["key"], letter["value"]) != original:
            return f"is a dead letter with other contents: {letter}"
        return None
    return None if may_end_silently(producer, number) else "is lost: no row, no dead letter"


def _read_step(name: str, body: bytes) -> _Step:
    file = pq.ParquetFile(io.BytesIO(body))
    metadata = file.metadata.metadata
    commit = orjson.loads(metadata[b"actorproc.commit"])
    letters = b""
    if commit["letters_size"]:
        packed = base64.b64decode(metadata[b"actorproc.dead_letters"])
        letters = pa.decompress(packed, decompressed_size=commit["letters_size"], codec="zstd", asbytes=True)
    rows = file.read(use_threads=False).to_pylist()
    return _Step(name, commit, rows, [orjson.loads(line) for line in letters.splitlines()], letters)
