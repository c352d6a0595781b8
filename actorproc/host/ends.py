"""Where each partition ended at the start of a run until the end, and which ones have not reached it."""

from __future__ import annotations

from typing import Any

from actorproc.errors import CorruptObject, SourceError, StoreError
from actorproc.runtime.tasks import gather
from actorproc.sources.protocol import End, Parents, Source, list_partitions, with_deadline
from actorproc.storage.store import StoreLimits

UNREADABLE = (CorruptObject, SourceError, StoreError)
"""Why the source, or what another host has committed, cannot be read now. The built-in log raises all of them."""


class Ends:
    """The ends of one run."""

    def __init__(self, source: Source, limits: StoreLimits, log: Any) -> None:
        self.source = source
        self._limits, self._logger = limits, log
        self.found: dict[str, End] = {}
        self.unknown: dict[str, str] = {}
        """Partition -> why its end could not be read."""
        self.waiting: set[str] = set()
        """Partitions that have not passed their end."""

    async def take(self) -> None:
        """Note where each partition ends now. A partition whose end cannot be read is logged and left out.

        Raises:
            SourceError: the partitions cannot be listed.
            StoreError: the store cannot be used.
        """
        self.found, self.unknown = {}, {}
        await gather(list(await self.listed()), self._take)
        self.waiting = set(self.found)

    async def _take(self, partition: str) -> None:
        try:
            self.found[partition] = await self.read(partition)
        except (CorruptObject, SourceError) as error:
            self._logger.warning("processor.end_unknown", partition=partition, error=str(error))
            self.unknown[partition] = f"could not tell where it ends: {error}"

    async def read(self, partition: str) -> End:
        """Where the partition ends now."""
        return await with_deadline(self.source.end(partition), "end", self._limits)

    async def listed(self) -> Parents:
        """The partitions that the source lists now."""
        return await with_deadline(list_partitions(self.source), "partitions", self._limits)
