"""Invariants of output, dead letters and checkpoints with at-most-once delivery."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from actorproc.handler.base import CloseReason
from actorproc.handler.info import PartitionInfo
from actorproc.output.chain import Commit
from actorproc.output.checkpoint import Checkpoint, Reset
from actorproc.records import Batch
from actorproc.simulation.output_checks import OutputChecks, RecordCheck, RecordResult, Row, TimerRows


@dataclass(eq=False, slots=True)
class _Instance:
    """One handler instance."""

    site: PartitionInfo
    ended_well: bool = False
    """Whether everything that it processed was committed when it ended."""


@dataclass(slots=True)
class _Pass:
    """The events between two resets.

    Attributes:
        after: records up to this sequence are not of it.
        top: the checkpoint went up to here. Its owner may still have had this in hand when the reset was made.
        processed_by: the last handler instance that got a record.
        taken_on: last sequence, host, epoch.
    """

    after: int = -1
    top: int = -1
    repeats_from: int | None = None
    """The reset that ended it goes back: later records may be processed once more."""
    processed_by: dict[int, _Instance] = field(default_factory=dict)
    rows: dict[int, list[Row]] = field(default_factory=dict)
    lines: dict[int, list[Row]] = field(default_factory=dict)
    taken_on: list[tuple[int, str, int]] = field(default_factory=list)


class AtMostOnceChecks(OutputChecks):
    """Checks records at a reset and at the end of the run, because the checkpoint goes ahead of them.

    Those of its parents come first: a child goes on with their state.

    A record without the result that it should have counts as lost if it was in flight when its handler failed, lost the
    partition or crashed. Otherwise an invariant is violated.
    """

    def __init__(
        self,
        partition: str,
        records: Callable[[int, int], Iterable[tuple[int, bytes]]],
        check: RecordCheck,
        broken: Callable[[str], None],
        timers: TimerRows | None = None,
        cleared: Callable[[str], None] = lambda _: None,
        parents: Callable[[], Iterable[OutputChecks]] = lambda: (),
    ) -> None:
        super().__init__(partition, records, check, broken, timers, cleared)
        self._parents = parents
        # By the handler's id, which stays unique because the loop keeps all tasks.
        self._running: dict[int, _Instance] = {}
        self._instances: list[_Instance] = []
        self._passes = [_Pass()]
        self._calls: dict[int, list[_Instance]] = {}

    def handler_opened(self, handler: object, site: PartitionInfo) -> None:
        self._running[id(handler)] = instance = _Instance(site)
        self._instances.append(instance)

    def handler_closing(self, handler: object, reason: CloseReason) -> None:
        self._running.pop(id(handler)).ended_well = reason in (
            CloseReason.STOPPING,
            CloseReason.HANDOFF,
            CloseReason.ENDED,
        )

    def handler_called(self, handler: object, batch: Batch) -> None:
        """A handler got a batch of which no record may be processed twice, unless a reset has gone back."""
        instance = self._running[id(handler)]
        for sequence in batch.sequences:
            self._calls.setdefault(sequence, []).append(instance)
            self._passes[-1].processed_by[sequence] = instance
            if len(self._passes) == 1:
                self._check_calls(sequence)

    def _check_calls(self, sequence: int) -> None:
        repeats = sum(one.repeats_from is not None and one.repeats_from < sequence <= one.top for one in self._passes)
        calls = self._calls[sequence]
        if len(calls) > 1 + repeats:
            sites = ", ".join(f"{call.site.host} under epoch {call.site.epoch}" for call in calls)
            self._broken(f"record {sequence} is processed on {sites}, and resets repeat it {repeats} times")

    def checkpoint_written(self, checkpoint: Checkpoint) -> None:
        super().checkpoint_written(checkpoint)
        passed = sum(commit.reset is not None for commit in self.commits[: checkpoint.number])
        found = self._passes[passed]
        if checkpoint.cursor.sequence > found.top:
            found.top = checkpoint.cursor.sequence
            found.taken_on.append((checkpoint.cursor.sequence, checkpoint.host, checkpoint.epoch))

    def _walked(self) -> int:
        """A file that a former owner creates after the last one has stopped is seen by the next owner."""
        return self.checkpoint.number if self.checkpoint else 0

    def _check_step(self, number: int, commit: Commit) -> None:
        reached = self.checkpoint.cursor.sequence if self.checkpoint else -1
        if commit.next.sequence > reached:
            self._broken(f"commit {number} leads to {commit.next}, and the checkpoint is at {reached} only")

    def _end_silently(self, upto: int) -> None:
        """Nothing to check yet: their results may still follow in a later file."""

    def _end(self, upto: int, rows: list[Row], letters: list[Row]) -> None:
        now = self._passes[-1]
        before = now.rows.keys() | now.lines.keys()
        for place, found, into in (("_sequence", rows, now.rows), ("sequence", letters, now.lines)):
            for item in found:
                if item[place] in before or item[place] > upto:
                    self._broken(
                        f"a commit up to {upto} holds record {item[place]}, which is beyond, or in another file"
                    )
                into.setdefault(item[place], []).append(item)

    def _was_reset(self, reset: Reset) -> None:
        self._check_pass(reset.first.sequence)
        now, after = self._passes[-1], reset.next.sequence
        if reset.back:
            now.repeats_from = after
        self._passes.append(_Pass(after, after))
        super()._was_reset(reset)

    def all_ended(self, end: int) -> None:
        super().all_ended(end)
        self._check_pass(max(end, self.committed_to()))
        for sequence in self._calls:
            self._check_calls(sequence)

    def check_ended(self) -> None:
        if self.commits and self.commits[-1].ended:  # the handler is closed, as the children have begun
            self._check_pass(self.committed_to())

    def _check_pass(self, upto: int) -> None:
        """Each record of the pass has its result, or was in flight."""
        now, after = self._passes[-1], self._passes[-1].after
        if len(self._passes) > 1 and self._passes[-2].repeats_from is None:
            after = max(after, self._passes[-2].top)  # the owner before went past the target
        now.after = max(now.after, upto)
        records = list(self._records(after, upto))
        for parent in self._parents() if records else ():
            parent.check_ended()
        for sequence, value in records:
            rows, letters = now.rows.pop(sequence, []), now.lines.pop(sequence, [])
            self.seen["records"] += 1
            why = self._check(RecordResult(self.partition, sequence, value, rows, letters))
            if why and not rows and not letters and self._was_in_flight(now, sequence):
                self.seen["lost"] += 1
            elif why:
                self._broken(f"record {sequence} {why}")
        if strange := now.rows.keys() | now.lines.keys():
            self._broken(f"records {sorted(strange)} are in the output and not in the stream")

    def _was_in_flight(self, now: _Pass, sequence: int) -> bool:
        """Whether the record may be lost: the handler instance that had it did not end well."""
        if instance := now.processed_by.get(sequence):
            return not instance.ended_well
        _, host, epoch = now.taken_on[bisect_left(now.taken_on, (sequence,))]
        return any(
            not instance.ended_well
            for instance in self._instances
            if (instance.site.host, instance.site.epoch) == (host, epoch)
        )
