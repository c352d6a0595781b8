"""Where each partition ended at the start of a run until the end, and which ones have not reached it."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from actorproc.errors import CorruptObject, SourceError
from actorproc.records import Cursor
from actorproc.runtime.tasks import gather
from actorproc.sources.protocol import (
    End,
    Parents,
    Source,
    is_certainly_at_end,
    list_partitions,
    with_deadline,
)
from actorproc.storage.names import named_partitions, natural
from actorproc.storage.store import StoreLimits


class Ends:
    """The ends of one run."""

    def __init__(self, source: Source, limits: StoreLimits) -> None:
        self.source = source
        self._limits = limits
        self.found: dict[str, End] = {}
        self.unknown: dict[str, str] = {}
        """Partition -> why its end could not be read."""
        self.waiting: set[str] = set()
        """Partitions that have not passed their end."""

    async def take(self, log: Any) -> None:
        """Note where each partition ends now. A partition whose end cannot be read is logged and left out.

        Raises:
            SourceError: the partitions cannot be listed.
        """

        async def end(partition: str) -> End | None:
            try:
                return await self.read(partition)
            except (CorruptObject, SourceError) as error:
                log.warning("processor.end_unknown", partition=partition, error=str(error))
                self.unknown[partition] = f"could not tell where it ends: {error}"
                return None

        found = await gather(list(await self.listed()), end)
        self.found = {partition: end for partition, end in found.items() if end is not None}
        self.waiting = set(self.found)

    async def read(self, partition: str) -> End:
        """Where the partition ends now."""
        return await with_deadline(self.source.end(partition), "end", self._limits)

    async def listed(self) -> Parents:
        """The partitions that the source lists now."""
        return await with_deadline(list_partitions(self.source), "partitions", self._limits)

    def is_past(self, partition: str, cursor: Cursor) -> bool:
        """Whether everything up to the end comes before `cursor`."""
        end = self.found[partition]
        return self.source.reached(cursor, end) and is_certainly_at_end(self.source, partition, cursor, end)


def named(partitions: Set[str]) -> str | None:
    """For logs: `partitions 0-7, 9`."""
    return named_partitions(sorted(partitions, key=natural)) if partitions else None
