"""What was read of a partition and its handler has not taken: a message per batch; and when small pieces share one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from actorproc.clock import Clock
from actorproc.records import RECORD_SCHEMA, Batch, Cursor
from actorproc.settings import Settings

SHARED_WORK = 1.0
"""Seconds of work for the handler in a batch of several pieces, about: more than the pauses that they share by default, and
so little that commits, a drain or a stuck handler need not wait for it."""

MOST_PIECES = 64
"""Of one batch: a piece weighs kilobytes more than its bytes tell."""


class Pace:
    """How fast the handler works, as the last batch tells that it was done with. Pauses do not count, nor bad records."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begun = self._paused = 0.0
        self._seconds: float | None = None  # per record

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

    def done(self, good: int) -> None:
        """The batch is done with, and had so many good records."""
        if good > 0:
            self._seconds = (self._clock.monotonic() - self._begun - self._paused) / good

    def allows(self, records: int) -> bool:
        """Whether so many are soon done. Not as long as nothing is known."""
        return self._seconds is not None and records * self._seconds <= SHARED_WORK


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
