"""Follows the partitions of this host to their ends: has each commit there, and checks that no record is missing."""

from __future__ import annotations

from actorproc.errors import SourceError
from actorproc.host.ends import UNREADABLE, Ends
from actorproc.host.owned_partitions import OwnedPartitions
from actorproc.partition.actor import PartitionActor
from actorproc.sources.protocol import earliest_position, is_certainly_at_end


class EndsHere:
    """Looks at one partition at a time, whenever it has changed."""

    def __init__(self, ends: Ends, partitions: OwnedPartitions, *, needs_owner: bool) -> None:
        self._ends, self._partitions = ends, partitions
        self._needs_owner = needs_owner
        self._flushed: dict[str, PartitionActor] = {}  # those that were asked to commit everything
        self.failed: dict[str, str] = {}
        """Partition -> why it will not reach its end."""

    async def look(self, partition: str) -> None:
        """Ask it to commit once it has processed everything up to its end. After that it is not waited for."""
        self.failed.pop(partition, None)
        slot = self._partitions.get(partition)
        if slot is None:
            return
        if (why := slot.failed_for_good()) is not None:
            self.failed[partition] = why
        actor = slot.actor
        if actor is None or actor.flushing or not self._has_processed(actor):
            return
        if self._flushed.get(partition) is not actor:
            self._flushed[partition] = actor
            actor.flush()
        elif (shortfall := await self._shortfall(actor)) is not None:
            actor.abort(shortfall)
        else:
            self._ends.waiting.discard(partition)

    def behind_sinks(self) -> dict[str, str]:
        """Partitions with everything committed, and the sinks that do not have it yet."""
        found = {}
        for partition, actor in self._flushed.items():
            behind = [sink for sink in actor.deliveries.statistics() if sink.lag != 0 and sink.state != "paused"]
            if partition in self._ends.waiting and behind:
                sinks = "; ".join(f"sink {sink.name}: {sink.error or 'it needs more time'}" for sink in behind)
                found[partition] = f"all is committed, and not all of it is delivered ({sinks})"
        return found

    def _has_processed(self, actor: PartitionActor) -> bool:
        done, end = actor.statistics, self._ends.found[actor.partition]
        if done.state != "running":
            return False
        if done.caught_up is not None:
            return True
        if not done.counts.records and end.sequence is not None and done.cursor.sequence > end.sequence:
            return False  # beyond the end from the start: the source has to confirm that it has such a position
        if self._needs_owner and end.sequence is not None and done.cursor.sequence <= end.sequence:
            return False  # the source has to say that there is no more: stream time may follow the wall clock then
        source, partition = self._ends.source, actor.partition
        return source.reached(done.cursor, end) and is_certainly_at_end(source, partition, done.cursor, end)

    async def _shortfall(self, actor: PartitionActor) -> Exception | None:
        """The error if the source says that it has nothing more, and records that it had at the start were not read.

        Or if the source cannot tell now. The partition fails with it, and is started again.
        """
        partition, cursor = actor.partition, actor.statistics.committed
        source, end = self._ends.source, self._ends.found[partition]
        if source.reached(cursor, end) or end.sequence is None:
            return None
        before = source.sequence_before(partition, cursor.position)
        upto = max(cursor.sequence, -1 if before is None else before)
        if upto >= end.sequence:
            return None
        try:
            if before is None and cursor.sequence < 0 and cursor.position != await earliest_position(source, partition):
                return None  # a position without a sequence may be anywhere, at the end too
            now = (await self._ends.read(partition)).sequence
        except UNREADABLE as error:
            return error
        if now is None or upto >= now:
            return None
        return SourceError(
            f"the source has nothing more of partition {partition} after sequence {cursor.sequence}, and at the start "
            f"of this run its newest record was {end.sequence}: the records in between are gone, or cannot be read"
        )
