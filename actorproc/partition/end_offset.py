"""Where a run until the end is to get to in one partition, and whether it is there."""

from __future__ import annotations

from actorproc.errors import SourceError
from actorproc.records import Cursor
from actorproc.sources.protocol import End, Source, earliest_position, is_certainly_at_end


class EndOffset:
    """The end that a partition had when the run began. It is reached once; `PartitionActor` then commits."""

    def __init__(self, source: Source, partition: str, end: End) -> None:
        self._source = source
        self._partition = partition
        self._end = end
        self._heard = False  # from the source
        self._at_end = False

    def note(self, *, at_end: bool) -> None:
        """The source has yielded something: records, or (`at_end`) that there is nothing more for now."""
        self._heard, self._at_end = True, at_end

    def may_be_at(self, cursor: Cursor) -> bool:
        """Whether `cursor` may be the one that reaches it."""
        return self._source.reached(cursor, self._end)

    def is_reached(self, cursor: Cursor) -> bool:
        """Whether everything up to the end is processed, or the source says that there is no more."""
        newest = self._end.sequence
        if not self._heard and newest is not None and cursor.sequence > newest:
            return False  # beyond it from the start: the source has to say first that it knows of such a place
        if self._at_end:
            return True
        return self._source.reached(cursor, self._end) and is_certainly_at_end(
            self._source, self._partition, cursor, self._end
        )

    async def shortfall(self, cursor: Cursor) -> SourceError | None:
        """The error if the source has nothing more, although records that existed at the start are missing."""
        newest = self._end.sequence
        if not self._at_end or self._source.reached(cursor, self._end) or not await self._falls_short(cursor, newest):
            return None
        return SourceError(
            f"the source has nothing more of partition {self._partition} after sequence {cursor.sequence}, and at "
            f"the start of this run its newest record was {newest}: what lies between is gone, or cannot be seen"
        )

    async def _falls_short(self, cursor: Cursor, newest: int | None) -> bool:
        """Whether record `newest`, or an unread one before it, still exists behind `cursor`.

        False if positions and sequences of the source do not show it.
        """
        before = self._source.sequence_before(self._partition, cursor.position)
        upto = max(cursor.sequence, -1 if before is None else before)
        if newest is None or upto >= newest:
            return False
        # The position may be anywhere, beyond the end too, but where all begins.
        if (
            before is None
            and cursor.sequence < 0
            and cursor.position != await earliest_position(self._source, self._partition)
        ):
            return False
        now = await self._source.end(self._partition)
        return now.sequence is not None and upto < now.sequence
