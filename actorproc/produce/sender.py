"""Sends the batches of a producer: one after the other in each partition, within a bounded buffer."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import NamedTuple

import anyio
import anyio.abc
import numpy as np
import pyarrow as pa

from actorproc.errors import ActorprocError, BufferFull, StoreError, StoreRefused, StoreUnavailable
from actorproc.produce.appender import Appender, PartitionEnded
from actorproc.produce.batches import Part, ProducerBatch
from actorproc.produce.hint_writer import HintWriter
from actorproc.produce.routes import Routes
from actorproc.runtime.budget import ByteBudget
from actorproc.runtime.clock import Clock
from actorproc.runtime.error_text import describe_error
from actorproc.runtime.logger import get_logger
from actorproc.storage.store import Store

_HINT_RETRY = 1.0  # seconds

_STAYS_OPEN = 0.1  # share of the timeout during which a waiting batch accepts more records

logger = get_logger(__name__)


class ProducerStatistics(NamedTuple):
    """A snapshot. Counts are since the producer was opened."""

    records: int
    """Confirmed by the store."""
    files: int
    failed: int
    """Records whose append failed, or whose outcome is unknown."""
    waiting_bytes: int
    """Bytes of the buffer in use: keys, values, headers and overhead of records that are not settled."""


class Sender:
    """Sends batches, one after the other in each partition.

    If the log grows, a batch of a partition that has ended goes to the partitions that follow it. These get nothing
    else before.

    Args:
        routes: of the producer.
        hints: opened before the first append after a pause; names the appended segments.
        buffer_bytes: bytes of records that wait or are in flight.
        linger: seconds that a batch waits for more records, unless it is ripe.
        timeout: seconds after the end of `linger` at which a batch fails that is not confirmed.
    """

    def __init__(
        self,
        store: Store,
        hints: HintWriter,
        routes: Routes,
        *,
        buffer_bytes: int,
        linger: float,
        timeout: float,
        compression: str,
        clock: Clock,
    ) -> None:
        self._store = store
        self._hints = hints
        self._routes = routes
        self._budget = ByteBudget(buffer_bytes)
        self._linger = linger
        self._timeout = timeout
        self._compression = compression
        self._clock = clock
        self._queues: dict[int, deque[ProducerBatch]] = {}
        """By the partition's number; oldest first. The batch in flight is the first, and ripe, until it is settled."""
        self._appenders: dict[str, Appender] = {}
        self._ended: set[int] = set()  # partitions that have ended, as far as it matters
        self._pending: dict[ProducerBatch, None] = {}  # not settled, oldest first
        self._failure: Exception | None = None  # the first since the last flush
        self._records = self._files = self._failed = 0

    def statistics(self) -> ProducerStatistics:
        return ProducerStatistics(self._records, self._files, self._failed, self._budget.used)

    async def make_room(self, weight: int, max_block: float | None) -> None:
        """Wait for buffer space of `weight` bytes. It is released when the batch that uses it is settled.

        Raises:
            BufferFull: there was none within `max_block` seconds.
        """
        full = self._budget.used + weight > self._budget.size
        if full:
            for queue in self._queues.values():  # end the linger of batches that are not behind another one
                if queue:
                    queue[0].ripe.set()
        if max_block is None or not (full or self._budget.crowded):
            await self._budget.take(weight)
            return
        with anyio.move_on_after(max_block):
            await self._budget.take(weight)
            return
        raise BufferFull(
            f"the producer's buffer of {self._budget.size:,} bytes had no room for {max_block:g} s: the record was not "
            "sent"
        )

    def give_back(self, weight: int) -> None:
        """Release buffer space that no batch uses."""
        self._budget.give_back(weight)

    def open_batch(self, number: int, tasks: anyio.abc.TaskGroup) -> ProducerBatch:
        """The batch of a partition to which records can be added. `tasks`: the group in which it is sent."""
        queue = self._queues.get(number)
        if queue is None:
            queue = self._queues[number] = deque()
        now = self._clock.monotonic()
        if queue and not queue[-1].ripe.is_set():
            if now - queue[-1].born <= self._linger + _STAYS_OPEN * self._timeout:
                return queue[-1]
            queue[-1].ripe.set()
        batch = ProducerBatch(str(number), now)
        queue.append(batch)
        self._pending[batch] = None
        if len(queue) == 1:
            tasks.start_soon(self._run, number, queue)
        return batch

    async def flush(self) -> None:
        """Send all batches, and return when they are settled.

        Raises:
            StoreError: the first error of these batches, or of batches since the last flush.
        """
        waiting = list(self._pending)
        for batch in waiting:
            batch.ripe.set()
        for batch in waiting:
            await batch.done.wait()
        failure, self._failure = self._failure, None
        failure = failure or next((batch.error for batch in waiting if batch.error is not None), None)
        if failure is not None:
            raise failure.with_traceback(None)

    async def _run(self, number: int, queue: deque[ProducerBatch]) -> None:
        """Send the batches of a partition until there are none."""
        try:
            while queue:
                batch = queue[0]
                if not self._budget.crowded:  # else a send is waiting for space, and this batch may free it
                    with anyio.move_on_after(max(0.0, batch.born + self._linger - self._clock.monotonic())):
                        await batch.ripe.wait()
                batch.ripe.set()
                try:
                    await self._empty_ancestors(number)
                    await self._deliver(number, batch)
                finally:
                    queue.popleft()
        finally:
            while queue:  # cancelled
                error = StoreUnavailable("the producer was cancelled before the record was sent")
                self._settle(queue.popleft(), None, error)

    async def _empty_ancestors(self, number: int) -> None:
        """Wait until this producer has nothing left for the partitions before this one."""
        ancestors = self._routes.generations.ancestors(number)
        while waiting := next((queue for before in ancestors if (queue := self._queues.get(before))), None):
            waiting[0].ripe.set()
            await waiting[0].done.wait()

    async def _deliver(self, number: int, batch: ProducerBatch) -> None:
        deadline = batch.born + self._linger + self._timeout
        parts: list[Part] | None = None
        error: Exception = StoreUnavailable("the producer was cancelled: the record may be in the log or not")
        try:
            table = await self._clock.run_cpu_work(batch.cost, batch.table)
            parts = await self._append(number, table, batch.placed, deadline)
        except Exception as failure:  # noqa: BLE001 - an error in one batch must not end the others
            error = failure
            if not isinstance(failure, ActorprocError):
                error = StoreError(
                    f"{batch.rows} records failed, and may be in the log or not: {describe_error(failure)}"
                )
                error.__cause__ = failure
            logger.warning("producer.append_failed", partition=batch.partition, records=batch.rows, error=str(error))
        finally:
            self._settle(batch, parts, error)

    async def _append(self, number: int, table: pa.Table, placed: Collection[int], deadline: float) -> list[Part]:
        """Append the records to this partition, or if it has ended, to those that follow it."""
        if (parent := self._routes.unsealed_parent(number)) is not None and parent not in self._ended:
            await self._seal(parent, deadline)
        partition = str(number)
        await self._open_hint(f"{table.num_rows} records for partition {number}", deadline)
        base: int | None = None
        try:
            base = await self._appender(partition).append(table, deadline)
        except PartitionEnded as ended:
            base = ended.base  # readers must find the end, too
            self._ended.add(number)
        else:
            return [Part(partition, base)]
        finally:
            self._hints.end(partition, base)
        await self._routes.renew(number)
        return await self._append_to_children(number, table, placed, deadline)

    async def _append_to_children(
        self, number: int, table: pa.Table, placed: Collection[int], deadline: float
    ) -> list[Part]:
        parts: list[Part] = []
        try:
            for child, rows in self._routes.shares(number, table, placed):
                its_placed = np.flatnonzero(np.isin(rows, list(placed))).tolist() if placed else ()
                found = await self._append(child, table.take(rows), its_placed, deadline)
                parts += [Part(p, base, rows if own is None else rows[own]) for p, base, own in found]
        except StoreRefused as error:
            if not parts:
                raise
            raise StoreUnavailable(
                f"some of {table.num_rows} records are in the log, and others not: {error}"
            ) from None
        return parts

    async def _seal(self, number: int, deadline: float) -> None:
        """End a partition, since records are about to go to one that follows it."""
        await self._open_hint(f"the end of partition {number}", deadline)
        base: int | None = None
        try:
            base = await self._appender(str(number)).seal(deadline)
        finally:
            self._hints.end(str(number), base)
        self._ended.add(number)

    def _appender(self, partition: str) -> Appender:
        found = self._appenders.get(partition)
        if found is None:
            found = self._appenders[partition] = Appender(
                self._store,
                partition,
                self._hints.producer,
                compression=self._compression,
                hint=self._hints.newest.get(partition, 0),
                clock=self._clock,
            )
        return found

    async def _open_hint(self, what: str, deadline: float) -> None:
        why = "earlier batches took that long"
        while (left := deadline - self._clock.monotonic()) > 0:
            try:
                with anyio.fail_after(left):
                    return await self._hints.begin()
            except TimeoutError:
                why = f"{self._store.url}: no answer"
            except StoreUnavailable as error:
                why = str(error)
                await self._clock.sleep(_HINT_RETRY)
        raise StoreUnavailable(f"{what} were not sent within {self._timeout:g} s: {why}")

    def _settle(self, batch: ProducerBatch, parts: list[Part] | None, error: Exception) -> None:
        if parts is None:
            self._failed += batch.rows
            self._failure = self._failure or error
            batch.fail(error)
        else:
            self._files += len(parts)
            self._records += batch.rows
            batch.settle(parts)
        self._pending.pop(batch, None)
        self._budget.give_back(batch.weight)
