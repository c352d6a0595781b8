"""Writes the history of this host: a sample of its partitions every few minutes. Nothing depends on it."""

from __future__ import annotations

from collections import deque
from typing import Any

import pyarrow as pa

from actorproc.counts import Counts
from actorproc.errors import StoreError
from actorproc.group.format_versions import VERSION
from actorproc.group.history import KEPT, MOST_SAMPLES, SAMPLES, Life, encode_history, telling_settings
from actorproc.host.owned_partitions import OwnedPartitions
from actorproc.host.partition_slot import PartitionSlot
from actorproc.partition.host_context import HostContext
from actorproc.partition.statistics import PartitionStatistics
from actorproc.runtime.logger import LogThrottle

_CLEAN_EVERY = 3_600.0  # seconds between two looks for files of hosts that have ended


class HistoryWriter:
    """Keeps the samples of the last day in memory, and writes all of them with each new one."""

    def __init__(self, context: HostContext, partitions: OwnedPartitions, log: Any) -> None:
        settings, clock = context.settings, context.clock
        self._context = context
        self._partitions = partitions
        self._logger = log
        self._life = Life(
            host=context.host, started=clock.wall(), interval=settings.history_interval, release=VERSION,
            app_version=settings.app_version or "", settings=telling_settings(settings),
            handler=f"{context.handler.__module__}:{context.handler.__qualname__}",
        )  # fmt: skip
        self._key = context.layout.history_file(context.host, clock.nonce())
        self._samples: deque[pa.Table] = deque(maxlen=max(1, min(MOST_SAMPLES, int(KEPT / settings.history_interval))))
        self._counts: dict[str, Counts] = {}  # of each actor at the latest sample
        self._clean_at = clock.monotonic()
        self._failures = LogThrottle()

    async def run(self) -> None:
        """Write again and again, until cancelled."""
        while True:
            try:
                await self._write()  # at once, without samples: else a short life would not show
            except StoreError as error:
                if times := self._failures.due(str(error), self._context.clock.monotonic()):
                    self._logger.warning("history.failed", error=str(error), times=times, why="only dashboards need it")
            await self._context.clock.sleep(self._life.interval)
            self._samples.append(self._sample(self._partitions.by_name()))

    def _sample(self, slots: list[PartitionSlot]) -> pa.Table:
        time = int(self._context.clock.wall() * 1000)
        found = [slot.statistics() for slot in slots]
        lags = {slot.partition: slot.actor.lag.take_most() for slot in slots if slot.actor is not None}
        rows = [
            {
                "time": time, "partition": one.partition, "lag": lags.get(one.partition),
                "records": self._since("records", one),
                "dead_letters": self._since("dead_letters", one),
                "trouble": None if one.trouble is None else one.trouble.kind,
            }
            for one in found
        ]  # fmt: skip
        self._counts = {one.partition: one.counts for one in found}
        return pa.Table.from_pylist(rows, SAMPLES)

    def _since(self, name: str, found: PartitionStatistics) -> int:
        """The count since the latest sample. A new actor has begun at 0."""
        count: int = getattr(found.counts, name)
        before: int = getattr(self._counts.get(found.partition, Counts()), name)
        return count - before if count >= before else count

    async def _write(self) -> None:
        store, clock = self._context.store, self._context.clock
        samples = pa.concat_tables([SAMPLES.empty_table(), *self._samples])
        body = await clock.run_in_thread(encode_history, self._life, samples)
        await store.put(self._key, body)
        if clock.monotonic() >= self._clean_at:
            self._clean_at = clock.monotonic() + _CLEAN_EVERY
            await self._clean()

    async def _clean(self) -> None:
        """Delete the files of hosts that ended a day ago."""
        listing = await self._context.store.list(self._context.layout.history)
        for entry in listing.entries:
            if entry.key.endswith(".parquet") and entry.modified < listing.now - KEPT - self._life.interval:
                await self._context.store.delete(entry.key)
