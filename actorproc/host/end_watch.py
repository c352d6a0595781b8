"""Asks the source for the end of a partition that has more to read, or whose read hangs. So its lag is known."""

from __future__ import annotations

from typing import Any

from actorproc.errors import ActorprocError
from actorproc.host.owned_partitions import OwnedPartitions
from actorproc.host.partition_slot import PartitionSlot
from actorproc.partition.actor import PartitionActor
from actorproc.partition.host_context import HostContext
from actorproc.sources.protocol import with_deadline


class EndWatch:
    """Asks for one partition after another, each `lag_interval`.

    Partitions that are read to the end cost nothing while `read` yields an empty chunk now and then: a source of ours
    does so each third of `max_read_time`. After half of it a `read` may hang, and the end tells.
    """

    def __init__(self, context: HostContext, partitions: OwnedPartitions, log: Any) -> None:
        self._context = context
        self._partitions = partitions
        self._log = log

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await self._context.clock.sleep(self._context.settings.lag_interval)
            for slot in list(self._partitions.values()):
                if slot.actor is not None and slot.actor.statistics.state == "running" and self._may_have_more(slot):
                    await self._ask(slot.actor)

    def _may_have_more(self, slot: PartitionSlot) -> bool:
        at_end = slot.actor is not None and slot.actor.is_at_end
        return not at_end or slot.silence(self._context.clock.monotonic()) > self._context.settings.max_read_time / 2

    async def _ask(self, actor: PartitionActor) -> None:
        source, store = self._context.source, self._context.store
        try:
            actor.lag.note_end(await with_deadline(source.end(actor.partition), "end", store.limits))
        except ActorprocError as error:  # its lag stays as it was; reading finds out by itself
            self._log.debug("partition.end_unknown", partition=actor.partition, error=str(error))
