"""What other hosts have done of a run until the end, and what they say of the rest: read from what they leave in the container."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from actorproc.errors import CorruptObject, SourceError, StoreError
from actorproc.group.heartbeat import Heartbeat, read_heartbeats
from actorproc.group.membership import GroupDocument, read_group
from actorproc.output.chain import OutputChain
from actorproc.sources.protocol import End, Source, earliest_position, is_certainly_at_end, with_deadline
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store


class RemoteProgress:
    """Partitions that other hosts have, or nobody just now. `log`: bound to processor and host."""

    def __init__(self, source: Source, store: Store, layout: ProcessorLayout, log: Any) -> None:
        self._source = source
        self._store = store
        self._layout = layout
        self._log = log
        self._later: dict[str, End] = {}  # of partitions that were empty at first
        self._gone: dict[str, str] = {}  # partition -> how the source has lost what was read
        self._first_said: dict[str, Heartbeat] = {}  # partition -> since when its owner has said that it is hopeless
        self._failing: dict[str, str] = {}

    @property
    def hopeless(self) -> dict[str, str]:
        """Partitions that need not be waited for -> why, as of the latest look at each."""
        return self._gone | self._failing

    async def has_reached(self, partition: str, end: End) -> bool:
        """Whether the partition is committed up to `end`."""
        self._gone.pop(partition, None)
        try:
            tip = await OutputChain(self._store, self._layout, partition).tip()
            if tip is None or tip.ahead:
                return False
            cursor = tip.cursor
            if end.sequence is None and not self._source.reached(cursor, end):
                end = await self._later_end(partition)
            if not self._source.reached(cursor, end):
                return False
            if not is_certainly_at_end(self._source, partition, cursor, end):
                if self._source.sequence_before(partition, cursor.position) is not None or cursor.sequence >= 0:
                    return False
                # Nothing was processed: either it began at the end, or it is about to begin.
                return cursor.position != await earliest_position(self._source, partition)
            if end.sequence is None or cursor.sequence <= end.sequence:
                return True
            now = await self._end(partition)
        except (CorruptObject, StoreError, SourceError) as error:  # its host says what is wrong with it
            self._log.warning("processor.end_unknown", partition=partition, error=str(error))
            return False
        if now.sequence is None or cursor.sequence <= now.sequence:  # it has grown
            return True
        self._gone[partition] = (
            f"its newest record is {now.sequence}, and this processor has read up to {cursor.sequence}: records are gone, or "
            "the stream was made anew"
        )
        return False

    async def _later_end(self, partition: str) -> End:
        """Of one that was empty: a position cannot be compared, but whoever is at a later end has passed the first one. Once
        there is a record it stays as it is, or a stream that grows would be followed for ever."""
        end = self._later.get(partition) or await self._end(partition)
        if end.sequence is not None:
            self._later[partition] = end
        return end

    async def _end(self, partition: str) -> End:
        return await with_deadline(self._source.end(partition), "end", self._store.limits)

    async def _listed(self) -> Sequence[str]:
        return await with_deadline(self._source.partitions(), "partitions", self._store.limits)

    async def listen(self, partitions: Collection[str]) -> None:
        """Hear what the hosts that have these say. One is hopeless that fails again and again on a host that goes on all the same:
        in two of its heartbeats, so that the host is not dead, nor the partition past it. Or one that nobody will ever run."""
        try:
            group = await read_group(self._store, self._layout) or GroupDocument()
            beats = [beat for beat, _ in await read_heartbeats(self._store, self._layout)]
            unheard = set(partitions) - group.leases.keys()
            unlisted = unheard.difference(await self._listed() if unheard else ())
        except (CorruptObject, StoreError, SourceError):
            return  # the supervisor looks at the group, too, and tells; and there is a next time
        said = {p: beat for p, beat in group.said_by_owners(beats, "hopeless").items() if p in partitions}
        self._first_said = {partition: self._since(partition, beat) for partition, beat in said.items()}
        self._failing = dict.fromkeys(unlisted, "the source does not list it any more, so nobody runs it") | {
            partition: f"on {beat.host}: {beat.failure(partition) or 'it fails again and again'}"
            for partition, beat in said.items()
            if beat.beat > self._first_said[partition].beat
        }

    def _since(self, partition: str, beat: Heartbeat) -> Heartbeat:
        before = self._first_said.get(partition)
        return before if before is not None and before.incarnation == beat.incarnation else beat
