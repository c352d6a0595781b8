"""Invariants of output, dead letters and checkpoints with at-most-once delivery."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable

from actorproc.output.chain import Commit
from actorproc.output.checkpoint import Checkpoint
from actorproc.testing.simulation.handler_calls import HandlerCalls
from actorproc.testing.simulation.output_checks import OutputChecks, Row
from actorproc.testing.simulation.reference_records import RecordCheck, RecordResult


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
        calls: HandlerCalls,
    ) -> None:
        super().__init__(partition, records, check, broken)
        self._calls = calls
        self._rows: dict[int, list[Row]] = {}
        self._lines: dict[int, list[Row]] = {}
        self._taken_on: list[tuple[int, str, int]] = []  # last sequence, host, epoch

    def checkpoint_written(self, checkpoint: Checkpoint) -> None:
        before = self.checkpoint.cursor.sequence if self.checkpoint else -1
        super().checkpoint_written(checkpoint)
        if checkpoint.cursor.sequence > before:
            self._taken_on.append((checkpoint.cursor.sequence, checkpoint.host, checkpoint.epoch))

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
        for sequence, value in self._records(-1, end):
            rows, letters = self._rows.pop(sequence, []), self._lines.pop(sequence, [])
            self.seen["records"] += 1
            why = self._check(RecordResult(self.partition, sequence, value, rows, letters))
            if why and not rows and not letters and self._calls.was_in_flight(sequence, *self._who_took(sequence)):
                self.seen["lost"] += 1
            elif why:
                self._broken(f"record {sequence} {why}")
        if strange := self._rows.keys() | self._lines.keys():
            self._broken(f"records {sorted(strange)} are in the output and not in the stream")

    def _who_took(self, sequence: int) -> tuple[str, int]:
        _, host, epoch = self._taken_on[bisect_left(self._taken_on, (sequence,))]
        return host, epoch
