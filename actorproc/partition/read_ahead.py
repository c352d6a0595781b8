"""What was read of a partition and its handler has not taken: a message per batch; and when small pieces share one."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

import pyarrow as pa

from actorproc.config.settings import Settings
from actorproc.partition.batch_size import Pace
from actorproc.records import RECORD_SCHEMA, Batch, Cursor
from actorproc.runtime.clock import Clock

MOST_PIECES = 64
"""Of one batch: a piece weighs kilobytes more than its bytes tell."""


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
        return pieces[0] if len(pieces) == 1 else await clock.run_cpu_work(self.nbytes, Batch.joined, pieces)


def fitting(batch: Batch, records: int, size: int) -> int:
    """How many of the first records go into one batch: within both limits, and at least one."""
    count = min(len(batch), records)
    if batch[:count].nbytes <= size:
        return count
    return max(1, bisect_right(range(1, count + 1), size, key=lambda first: batch[:first].nbytes))


def _is_usual(batch: Batch) -> bool:
    """What a source makes as it likes is handed on as it is."""
    return (
        isinstance(batch.data, pa.RecordBatch)
        and batch.data.schema.equals(RECORD_SCHEMA)
        and batch.sequence_array.type == pa.int64()
    )
