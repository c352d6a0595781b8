"""Delivers what is left of partitions that nobody runs any more: they have ended, or the source has forgotten them.

A partition may end while a sink is away, its host may die before the sink has the rest, and an operator may redeliver
it later. Any host may deliver, since the sink's row decides; to spare work one of the members does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any
from zlib import crc32

import anyio

from actorproc.output.chain import ChainEnd, OutputChain
from actorproc.retention.readers import SinkEntry, read_registry
from actorproc.runtime.error_text import format_error
from actorproc.sinks.delivery import DOCUMENT_EVERY, SinkDelivery
from actorproc.sinks.entries import needed, progress_document
from actorproc.sinks.host_sinks import HostSinks
from actorproc.storage.names import ProcessorLayout, natural
from actorproc.storage.store import Store


class ClosedPartitions:
    """The deliveries of closed partitions by this host.

    Args:
        log: bound to processor and host.
    """

    def __init__(self, sinks: HostSinks, store: Store, layout: ProcessorLayout, host: str, log: Any) -> None:
        self._sinks, self._store, self._layout, self._clock = sinks, store, layout, store.clock
        self._host, self._logger = host, log
        self._mine: list[str] = []
        self._done: dict[tuple[str, str], SinkEntry] = {}  # (sink, partition) -> the entry that was carried out

    def note(self, closed: Collection[str], members: Collection[str]) -> None:
        """The group was looked at."""
        chosen = [p for p in closed if members and max(members, key=lambda m: crc32(f"{m}/{p}".encode())) == self._host]
        self._mine = sorted(chosen, key=natural)
        self._done = {key: entry for key, entry in self._done.items() if key[1] in closed}

    async def run(self) -> None:
        """Deliver until cancelled."""
        while True:
            await self._clock.sleep(DOCUMENT_EVERY)
            if self._mine:
                await self._try(self._mine)

    async def finish(self, closed: Sequence[str], stopped: Callable[[], bool]) -> None:
        """Wait until the sinks have everything of these, or are paused, or `stopped` says so."""
        while not stopped() and not await self._try(closed):
            await self._clock.sleep(1.0)

    async def _try(self, partitions: Sequence[str]) -> bool:
        """Deliver as far as it is possible now. Returns whether nothing is left."""
        try:
            entries = (await read_registry(self._store, self._layout.readers)).sinks
            rows = {name: entry for name, entry in entries.items() if not entry.table}
            left = [name for name, entry in rows.items() if not await self._deliver(name, entry, partitions)]
        except Exception as error:  # noqa: BLE001  # of the store; the next look tries again
            self._logger.debug("sink.closed_not_delivered", error=format_error(error))
            return False
        return not left

    async def _deliver(self, name: str, entry: SinkEntry, partitions: Sequence[str]) -> bool:
        left = [partition for partition in partitions if self._done.get((name, partition)) != entry]
        while left:
            still = [partition for partition in left if not await self._deliver_one(name, entry, partition)]
            if len(still) == len(left):
                return False  # others come first, on other hosts; or the sink is away
            left = still
        return True

    async def _deliver_one(self, name: str, entry: SinkEntry, partition: str) -> bool:
        tip = await OutputChain(self._store, self._layout, partition).tip()
        if tip is None or await self._is_known_done(name, entry, partition, tip.number):
            self._done[name, partition] = entry
            return True
        log = self._logger.bind(partition=partition)
        found = [each for each in self._sinks.deliveries(partition, log) if each.name == name]
        if not found:
            return True  # a sink that this host does not have
        if is_done := await self._run(found[0], tip):
            self._done[name, partition] = entry
        return is_done

    async def _is_known_done(self, name: str, entry: SinkEntry, partition: str, end: int) -> bool:
        """Whether progress and sink say so: a database may have been restored. After a change of the entry: False."""
        if (name, partition) in self._done or entry.paused:
            return False
        progress = await progress_document(self._store, self._layout, name, partition).read()
        if progress is None or progress.fenced or needed(entry, partition, progress) < end:
            return False
        try:
            return await self._sinks.position(name, partition, entry) >= end
        except Exception:  # noqa: BLE001  # the delivery says what is wrong, and holds up no other sink
            return False

    async def _run(self, delivery: SinkDelivery, tip: ChainEnd) -> bool:
        """Run a delivery until the sink has everything. False: it cannot go on now."""

        def is_stuck() -> bool:
            return delivery.statistics().state in ("failing", "refusing", "waiting for parents")

        delivery.begin(tip.number, tip.checkpoint.depth, tip.totals.rows)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(delivery.run)
            await delivery.caught_up(is_stuck)
            tasks.cancel_scope.cancel()
        is_done = not is_stuck()
        await delivery.close()
        return is_done
