"""Reads how far one partition is: what its commits say, and what its source has beyond them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from actorproc.admin.fleet import PartitionView
from actorproc.counts import Counts
from actorproc.errors import CorruptObject, CredentialsExpired, SourceError, StoreError, locate
from actorproc.output.chain import ChainEnd, OutputChain
from actorproc.records import Cursor
from actorproc.sources.protocol import End, Source, earliest_position
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store

Begin = Callable[[str], Awaitable[str]]
"""The position at which the first owner of a partition begins."""

_OF_PARTITION = (CorruptObject, SourceError, StoreError)
"""What may ail one partition alone: a folder without rights is refused, a bad sector does not answer."""


class PartitionReader:
    """Reads partitions one by one. About three small requests for each, and those of the source.

    Args:
        source: an open source, asked for ends and lags. None: they stay unknown.
        begin: says where a partition begins of which nothing is committed. None: it is not asked, and the lag counts
            from the first record.
    """

    def __init__(
        self, store: Store, layout: ProcessorLayout, source: Source | None = None, begin: Begin | None = None
    ) -> None:
        self._store, self._layout = store, layout
        self._source, self._begin = source, begin

    async def read(self, partition: str, *, closed: bool = False) -> PartitionView:
        """How far it is. What cannot be read is left out, with the verdict `unreadable`.

        Args:
            closed: no host may run it, so the source is not asked.

        Raises:
            CredentialsExpired: nothing of the store, or of the source, can be read.
        """
        source = None if closed else self._source
        facts: dict[str, Any] = {}
        errors: list[str] = []
        end: End | None = None
        try:
            end = facts["end"] = None if source is None else await source.end(partition)
        except CredentialsExpired:
            raise
        except _OF_PARTITION as broken:
            errors.append(str(broken))
        try:
            tip = await self._read_commits(partition, facts)
            if source is not None and end is not None:
                await self._measure(source, partition, tip, end, facts)
            if tip is not None and tip.ended:
                facts |= {"verdict": "ended", "lag": 0, "lag_bytes": 0, "lag_seconds": 0.0}
        except CredentialsExpired:
            raise
        except _OF_PARTITION as broken:
            locate(broken, self._store.url)
            errors.append(str(broken))
        if errors:
            facts |= {"verdict": "unreadable", "reason": "; ".join(errors)}
        return PartitionView(partition=partition, **facts)

    async def _read_commits(self, partition: str, facts: dict[str, Any]) -> ChainEnd | None:
        chain = OutputChain(self._store, self._layout, partition)
        if (tip := await chain.tip()) is None:
            facts["counts"] = Counts()
            facts["begins_at"] = None if self._begin is None else await self._begin(partition)
            return None
        sequence = tip.cursor.sequence if tip.cursor.sequence >= 0 else None
        facts |= {
            "position": tip.cursor.position, "sequence": sequence, "counts": tip.totals, "output_files": tip.number
        }  # fmt: skip
        facts["last_commit"] = await chain.moved_at(tip)
        return tip

    async def _measure(
        self, source: Source, partition: str, tip: ChainEnd | None, end: End, facts: dict[str, Any]
    ) -> None:
        """The lag. It stays unknown if the source does not know its first record, and nothing is committed."""
        if tip is not None:
            cursor = tip.cursor
        elif (first := facts["begins_at"] or await earliest_position(source, partition)) is not None:
            cursor = Cursor(first)
        else:
            return
        if source.reached(cursor, end):
            facts |= {"lag": 0, "lag_bytes": 0, "lag_seconds": 0.0}
            return
        done = cursor.sequence if cursor.sequence >= 0 else source.sequence_before(partition, cursor.position)
        if end.sequence is not None and done is not None:
            facts["lag"] = source.records_between(done, end.sequence)
        facts["lag_bytes"] = await source.bytes_between(partition, cursor.position, end)
        oldest = await source.time_at(partition, cursor.position)
        if oldest is not None:
            facts["lag_seconds"] = max(0.0, self._store.clock.wall() - oldest.timestamp())
