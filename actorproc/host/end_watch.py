"""Asks the source for the end of a partition that has more to read, or whose read hangs. So its lag is known."""

from __future__ import annotations

from typing import Any

from actorproc.errors import ActorprocError
from actorproc.host.owned_partitions import OwnedPartitions
from actorproc.partition.host_context import HostContext
from actorproc.sources.protocol import with_deadline


async def watch_ends(context: HostContext, partitions: OwnedPartitions, log: Any) -> None:
    """Ask for one partition after another, each `lag_interval`, until cancelled.

    Partitions that are read to the end cost nothing while `read` yields an empty chunk now and then: a source of ours
    does so each third of `max_read_time`. After half of it a `read` may hang, and the end tells.
    """
    clock, settings, source = context.clock, context.settings, context.source
    while True:
        await clock.sleep(settings.lag_interval)
        for slot in list(partitions.values()):
            if (actor := slot.actor) is None or actor.statistics.state != "running":
                continue
            if actor.is_at_end and slot.reading.seconds(clock.monotonic()) <= settings.max_read_time / 2:
                continue
            try:
                actor.lag.note_end(await with_deadline(source.end(slot.partition), "end", context.store.limits))
            except ActorprocError as error:  # its lag stays as it was; reading finds out by itself
                log.debug("partition.end_unknown", partition=slot.partition, error=str(error))
