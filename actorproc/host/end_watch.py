"""Asks the source for the end of a partition that has more to read, or whose read hangs. So its lag is known."""

from __future__ import annotations

from typing import Any

from actorproc.errors import ActorprocError
from actorproc.host.owned_partitions import OwnedPartitions
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
        context = self._context
        while True:
            await context.clock.sleep(context.settings.lag_interval)
            for slot in list(self._partitions.values()):
                actor = slot.actor
                if actor is None or actor.statistics.state != "running":
                    continue
                silence = slot.silence(context.clock.monotonic())
                if actor.is_at_end and silence <= context.settings.max_read_time / 2:
                    continue
                try:
                    end = await with_deadline(context.source.end(actor.partition), "end", context.store.limits)
                    actor.lag.note_end(end)
                except ActorprocError as error:  # its lag stays as it was; reading finds out by itself
                    self._log.debug("partition.end_unknown", partition=actor.partition, error=str(error))
