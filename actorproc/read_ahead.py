"""What was read of a partition and its handler has not taken: a message per batch; and when small pieces share one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from actorproc.clock import Clock
from actorproc.records import RECORD_SCHEMA, Batch, Cursor
from actorproc.settings import Settings

FIRST_BATCH = 100
"""Records in the first batch. No later one is cut to less than half of that for the time that it takes."""

GROWTH = 4
"""How many times larger than the last one a batch may be, if it takes longer than `QUICK`: one cannot tell from far below."""

QUICK, FAR = 0.5, 100
"""Seconds of work in a batch that may be so many times larger than the last one."""

WORK = 5.0
"""Seconds of work for the handler in a batch, at most, as far as its size decides: commits, a stop or a move of the partition
wait for it."""

SHARED_WORK = 1.0
"""Seconds of work in a batch of several pieces, at most: more than the pauses that they share by default, and little."""

MOST_PIECES = 64
"""Of one batch: a piece weighs kilobytes more than its bytes tell."""


class Pace:
    """How long the handler takes, by the batches that it is done with: some time for each, and some for each record.

    The time in which it pauses does not count, and records that fail do not count as done.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begun = self._paused = 0.0
        self._compared: tuple[int, float] | None = None  # an earlier batch: its good records, and seconds
        self._each = 0.0  # seconds for a record
        self._once = 0.0  # seconds for a batch
        self.records = FIRST_BATCH
        """How many the next batch may have."""

    def begin(self) -> None:
        """A batch begins."""
        self._begun, self._paused = self._clock.monotonic(), 0.0

    @contextmanager
    def pause(self) -> Iterator[None]:
        began = self._clock.monotonic()
        try:
            yield
        finally:
            self._paused += self._clock.monotonic() - began

    def done(self, size: int, good: int) -> None:
        """The batch of so many records, good ones among them, is done with."""
        seconds = self._clock.monotonic() - self._begun - self._paused
        if good > 0:
            self._learn(good, seconds)
        else:
            self._each = max(self._each, seconds / size)
        each = max(self._each, 1e-9)
        most = self.records * (GROWTH if 2 * size >= self.records else 1)
        quick = min((QUICK - self._once) / each, FAR * size)
        self.records = int(max(FIRST_BATCH / 2, min(most, WORK / each), quick))

    def _learn(self, good: int, seconds: float) -> None:
        records, before = self._compared or (good, seconds)
        if not records / 2 < good < records * 2:  # two sizes tell what is each record's
            self._each = min(max((seconds - before) / (good - records), 0.0), seconds / good)
            self._once = seconds - self._each * good
            self._compared = good, seconds
            return
        self._each = max(seconds - self._once, 0.0) / good
        if abs(good - records) <= records / 20:  # or ever smaller batches would never be half of one
            self._compared = records, seconds

    def allows(self, records: int) -> bool:
        """Whether so many are done at once. Not as long as nothing is known."""
        return self._compared is not None and self._once + self._each * records <= SHARED_WORK


@dataclass(slots=True)
class Read:
    """A message of the reader: pieces that the handler gets as one batch (none: only the end was reached), how far they
    lead, and whether the end was there."""

    pieces: list[Batch]
    cursor: Cursor
    at_end: bool = False
    records: int = field(init=False)
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.records, self.nbytes = sum(map(len, self.pieces)), sum(piece.nbytes for piece in self.pieces)

    def fits(self, more: Read, limits: Settings, pace: Pace) -> bool:
        """Whether both together are a batch to be handed out."""
        if not self.pieces or not more.pieces:
            return True
        records, nbytes = self.records + more.records, self.nbytes + more.nbytes
        within = records <= limits.max_batch_records and nbytes <= limits.max_batch_bytes and pace.allows(records)
        return within and len(self.pieces) < MOST_PIECES and _is_usual(self.pieces[-1]) and _is_usual(more.pieces[0])

    def join(self, more: Read) -> None:
        """Lead as far as `more`, which was read next."""
        self.pieces += more.pieces
        self.cursor = more.cursor
        self.at_end = self.at_end or more.at_end
        self.records += more.records
        self.nbytes += more.nbytes

    def split(self, records: int, position: str) -> tuple[Read, Read]:
        """Of the first so many records of its only piece, and of the rest. `position`: where reading goes on before all of it."""
        (piece,) = self.pieces
        head = piece[:records]
        first = Read([head], Cursor(position, head.last))
        rest = Read([piece[records:]], self.cursor, self.at_end)
        first.nbytes, rest.nbytes = 0, self.nbytes  # the memory is free when all of it is done
        return first, rest

    async def take(self, clock: Clock) -> Batch:
        """The pieces as one batch, once: they are not kept beside it."""
        pieces, self.pieces = self.pieces, []
        return pieces[0] if len(pieces) == 1 else await clock.compute(self.nbytes, Batch.joined, pieces)


def _is_usual(batch: Batch) -> bool:
    """What a source makes as it likes is handed on as it is."""
    return (
        isinstance(batch.data, pa.RecordBatch)
        and batch.data.schema.equals(RECORD_SCHEMA)
        and batch.sequence_array.type == pa.int64()
    )
