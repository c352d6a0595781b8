"""How far a partition is behind its source, in records, bytes and seconds."""

from __future__ import annotations

import math

from actorproc.partition.read_ahead import Read, ReadAhead
from actorproc.partition.statistics import PartitionStatistics
from actorproc.records import Cursor
from actorproc.runtime.clock import Clock
from actorproc.sources.protocol import End, Source


class Lag:
    """Lag of one partition, by its committed position."""

    def __init__(self, source: Source, reads: ReadAhead, statistics: PartitionStatistics, clock: Clock) -> None:
        self._source = source
        self._reads = reads
        self._statistics = statistics
        self._clock = clock
        self._end: int | None = None  # sequence of the source's newest record, when it was asked last
        self._begin = -1  # sequence of the last record before the first one to process
        self._unread: tuple[int | None, int] = None, 0  # `progress` of the reads then, and records not yielded
        self._most: int | None = None  # `records` at its highest since `take_most`
        self._opened_at = Cursor("")
        self._behind_since = -math.inf  # the first record beyond the end was read then; inf: everything is processed
        self.oldest_time: float | None = None
        """Timestamp of the oldest record that is read and not committed."""
        self.began_at: float | None = None
        """When that record began its way through a chain of processors: of the first one, its timestamp."""

    def handed(self, time: float | None, began_at: float | None, *, all_committed: bool) -> None:
        """The handler gets a batch now. Records from the future, by this host's clock, count as made now.

        Args:
            time: of its oldest record.
            began_at: see `Chunk.oldest`.
            all_committed: whether everything before it is.
        """
        if all_committed:
            self.all_committed()
        now = self._clock.wall()
        self.oldest_time = _earliest(self.oldest_time, time, now)
        for since in (self.oldest_time, began_at):  # a way that begins after its own record is shown as that record's
            self.began_at = _earliest(self.began_at, since, now)

    def all_committed(self) -> None:
        """Nothing that was read waits for a commit."""
        self.oldest_time = self.began_at = None

    def note_end(self, end: End) -> None:
        """The source was asked for its end, since it has more to read, or its `read` may hang."""
        self._end, committed = end.sequence, self._statistics.committed
        if (newest := self._reads.newest) is not None and end.sequence is not None:
            more = self._source.records_between(newest, end.sequence) if end.sequence > newest else 0
            self._unread = self._reads.progress, more or 0
        if committed.sequence < 0:
            before = self._source.sequence_before(self._statistics.partition, committed.position)
            self._begin = -1 if before is None else before
        self._note(self.records)

    def opened(self, at: Cursor) -> None:
        """The partition was opened here, with everything up to this cursor committed."""
        self._opened_at = at

    def processed(self, read: Read, reached: Cursor, behind: float) -> bool:
        """A read is processed. Returns whether that ends a backlog of at least `behind` seconds, or the first one."""
        if not read.at_end:
            self._behind_since = min(self._behind_since, read.since)
            return False
        if self._statistics.caught_up is None:
            self._statistics.caught_up = reached
            self._note_first_end(reached)
        since = min(self._behind_since, read.since) if read.records else self._behind_since
        self._behind_since = math.inf
        return self._clock.monotonic() - since >= behind

    def _note_first_end(self, reached: Cursor) -> None:
        """If the source was not asked for its end, only this tells how far behind the partition was."""
        if self._end is None:
            before = self._opened_at.sequence
            if before < 0:
                found = self._source.sequence_before(self._statistics.partition, self._opened_at.position)
                before = -1 if found is None else found
            self._note(self._source.records_between(before, reached.sequence) if reached.sequence > before else 0)

    def _note(self, records: int | None) -> None:
        self._most = self._most if records is None else max(records, self._most or 0)

    def take_most(self) -> int | None:
        """The highest lag, in records, since the last call; None: not known."""
        self._note(self.records)
        most, self._most = self._most, None
        return most

    @property
    def unread(self) -> int:
        """Records that the source has, and that a `read` at the end has not yielded since: it may hang."""
        asked, more = self._unread
        return more if asked is not None and asked == self._reads.progress else 0

    @property
    def records(self) -> int | None:
        """Records that the source has after the committed ones; None: not known yet."""
        newest, committed = self._reads.newest, self._statistics.committed.sequence
        between = self._source.records_between
        if newest is not None:
            lag = between(committed, newest)
            return None if lag is None else lag + self.unread
        return None if self._end is None else between(max(committed, self._begin), self._end)

    @property
    def bytes(self) -> int | None:
        """Size of these records, by the mean size of those that were read; None: not known."""
        records, reads = self.records, self._reads
        if not records:
            return records
        return round(records * reads.bytes_read / reads.records_read) if reads.records_read else None

    @property
    def seconds(self) -> float | None:
        """Age of the oldest record that is read and not committed, by its timestamp; 0 without lag."""
        if self.oldest_time is not None:
            return max(0.0, self._clock.wall() - self.oldest_time)
        return 0.0 if self.records == 0 else None

    @property
    def seconds_end_to_end(self) -> float | None:
        """Like `seconds`, since that record began its way through a chain of processors."""
        if self.began_at is not None:
            return max(0.0, self._clock.wall() - self.began_at)
        return self.seconds


def _earliest(known: float | None, time: float | None, now: float) -> float | None:
    """The earlier one of two times. One before 1970 says nothing, and none is after `now`."""
    if time is None or time <= 0:
        return known
    return min(time, now if known is None else known)
