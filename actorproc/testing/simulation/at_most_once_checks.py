"""Invariants of output, dead letters and checkpoints with at-most-once delivery."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from actorproc.handler.base import CloseReason
from actorproc.handler.info import PartitionInfo
from actorproc.output.chain import Commit
from actorproc.output.checkpoint import Checkpoint
from actorproc.records import Batch
from actorproc.testing.simulation.output_checks import OutputChecks, Row, TimerRows
from actorproc.testing.simulation.reference_records import RecordCheck, RecordResult


@dataclass(eq=False, slots=True)
class _Instance:
    """One handler instance."""

    site: PartitionInfo
    ended_well: bool = False
    """Whether everything that it processed was committed when it ended."""


class AtMostOnceChecks(OutputChecks):
    """Checks records at the end of the run, because the checkpoint goes ahead of them.

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
    ) -> None:
        super().__init__(partition, records, check, broken, timers)
        # By the handler's id, which stays unique because the loop keeps all tasks.
        self._running: dict[int, _Instance] = {}
        self._instances: list[_Instance] = []
        self._processed_by: dict[int, _Instance] = {}
        self._rows: dict[int, list[Row]] = {}
        self._lines: dict[int, list[Row]] = {}
        self._taken_on: list[tuple[int, str, int]] = []  # last sequence, host, epoch

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
        """A handler got a batch of which no record may be processed twice."""
        instance = self._running[id(handler)]
        for sequence in batch.sequences:
            if sequence in self._processed_by:
                before, now = self._processed_by[sequence].site, instance.site
                self._broken(
                    f"record {sequence} is processed on {now.host} under epoch {now.epoch} "
                    f"and was processed on {before.host} under epoch {before.epoch}"
                )
            self._processed_by[sequence] = instance

    def checkpoint_written(self, checkpoint: Checkpoint) -> None:
        before = self.checkpoint.cursor.sequence if self.checkpoint else -1
        super().checkpoint_written(checkpoint)
        if checkpoint.cursor.sequence > before:
            self._taken_on.append((checkpoint.cursor.sequence, checkpoint.host, checkpoint.epoch))

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
        before = self._rows.keys() | self._lines.keys()
        for place, found, into in (("_sequence", rows, self._rows), ("sequence", letters, self._lines)):
            for item in found:
                if item[place] in before or item[place] > upto:
                    self._broken(
                        f"a commit up to {upto} holds record {item[place]}, which is beyond, or in another file"
                    )
                into.setdefault(item[place], []).append(item)

    def all_ended(self, end: int) -> None:
        super().all_ended(end)
        for sequence, value in self._records(-1, max(end, self.committed_to())):
            rows, letters = self._rows.pop(sequence, []), self._lines.pop(sequence, [])
            self.seen["records"] += 1
            why = self._check(RecordResult(self.partition, sequence, value, rows, letters))
            if why and not rows and not letters and self._was_in_flight(sequence):
                self.seen["lost"] += 1
            elif why:
                self._broken(f"record {sequence} {why}")
        if strange := self._rows.keys() | self._lines.keys():
            self._broken(f"records {sorted(strange)} are in the output and not in the stream")

    def _was_in_flight(self, sequence: int) -> bool:
        """Whether the record may be lost: the handler instance that had it did not end well."""
        if instance := self._processed_by.get(sequence):
            return not instance.ended_well
        _, host, epoch = self._taken_on[bisect_left(self._taken_on, (sequence,))]
        return any(
            not instance.ended_well
            for instance in self._instances
            if (instance.site.host, instance.site.epoch) == (host, epoch)
        )
