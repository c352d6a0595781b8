"""Shows the progress of this host's partitions as that of a consumer group of the source."""

from __future__ import annotations

from typing import Any

import anyio

from actorproc.errors import SourceError
from actorproc.host.owned_partitions import OwnedPartitions
from actorproc.partition.host_context import HostContext
from actorproc.runtime.error_text import error_message
from actorproc.runtime.logger import LogThrottle

MIRROR_EVERY = 5.0
"""Seconds, as often as Kafka's consumers commit by themselves (auto.commit.interval.ms)."""

MIRROR_TIME = 3.0
"""Seconds for the last write while a host leaves. It is tried again and again: a broker may look for a coordinator."""

_PAUSE = 0.3  # seconds between these


class OffsetMirror:
    """Writes committed positions to a group. A failure is logged; nothing else depends on it.

    All positions are written each time. So what an earlier owner of a partition writes too late does not stay, and the
    broker does not forget the offsets of an idle partition.
    """

    def __init__(self, group: str, context: HostContext, partitions: OwnedPartitions, log: Any) -> None:
        self._group = group
        self._source, self._clock = context.source, context.clock
        self._partitions = partitions
        self._logger = log
        self._failures = LogThrottle()

    async def run(self) -> None:
        """Write again and again, until cancelled."""
        while True:
            await self._clock.sleep(MIRROR_EVERY)
            await self.write()

    async def finish(self) -> None:
        """Write the positions with which the partitions were handed over."""
        with anyio.move_on_after(MIRROR_TIME):
            while not await self.write():
                await self._clock.sleep(_PAUSE)

    async def write(self) -> bool:
        """Whether it has succeeded."""
        try:
            await self._source.mirror(self._group, self._partitions.positions())
            return True
        except SourceError as error:
            if times := self._failures.due(str(error), self._clock.monotonic()):
                self._logger.warning(
                    "mirror.failed", group=self._group, error=error_message(error), times=times,
                    why="only tools that watch the group are affected",
                )  # fmt: skip
            return False
