"""`Producer`: appends records to the built-in log in batches, each record once."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Any, Self

import anyio
import anyio.abc
import anyio.lowlevel
import numpy as np
import pyarrow as pa

from actorproc.config.settings import Settings
from actorproc.config.units import count_of_bytes, duration
from actorproc.errors import ActorprocError, UsageError
from actorproc.log.metadata import checked_partitions, create_log, open_log
from actorproc.produce.batches import Callback, Deliveries, Delivery, weight_of
from actorproc.produce.hint_writer import HintWriter
from actorproc.produce.routes import Partitioner, Routes, Unkeyed
from actorproc.produce.sender import ProducerStatistics, Sender
from actorproc.produce.serializers import (
    COLUMNS_LIMIT,
    RECORD_WEIGHT,
    VALUE_LIMIT,
    Headers,
    Key,
    Value,
    columns,
    header_list,
    headers_weight,
    key_bytes,
    known_within,
    microseconds,
    value_bytes,
)
from actorproc.records import warm_up
from actorproc.runtime.clock import SYSTEM, Clock
from actorproc.runtime.logger import get_logger
from actorproc.runtime.nudge import nudges_of
from actorproc.runtime.user_code import INTERRUPTIONS
from actorproc.storage.store import Store
from actorproc.stores import given_store

_FEW = 64  # records that send_many encodes first, because their size is unknown
_MANY = 16_384  # records that send_many encodes at once, at most
_YIELD_EVERY = 500  # records after which send yields to the event loop

logger = get_logger(__name__)


class Producer:
    """Appends to a log. When the block of `async with Producer(url) as producer` ends, all sent records are in the log.

    A retried append never repeats a record. Within a partition records keep the order in which one task sent them. Any
    number of producers may share a log.

    Args:
        log: URL or path of a log, or an open store.
        partitions: partition count. The log is created if there is none. Without it, the log must exist.
        partitioner: for records without a key: 'sticky' (one partition per batch, the default) or 'round-robin'.
            Records with a key go to the partition of Kafka's murmur2 hash. A callable decides for all records.
        linger: seconds that a batch waits for more records. Each batch costs a PUT.
        batch_bytes: bytes of records at which a batch is sent at once; at most 1 GiB.
        buffer_bytes: bytes of records that wait or are in flight; `send` waits while there are more.
        max_block: seconds for which `send` and `send_many` wait for room; default: as long as it takes.
        compression: a Parquet codec: 'lz4' (fastest), 'zstd' (files a third smaller), 'snappy', 'gzip' or 'none'. Up to
            4 KiB are not compressed.
        delivery_timeout: seconds after the end of its `linger` at which a batch fails that is not confirmed. The
            outcome is unknown then. While it waits behind another batch it accepts records for a tenth of that time.
        settings: of the store; default: from the environment and `actorproc.toml`.

    Raises:
        UsageError: an argument is wrong; or, when the block begins, the log is missing or has another partition count.
    """

    def __init__(
        self,
        log: str | os.PathLike[str] | Store,
        *,
        partitions: int | None = None,
        partitioner: Unkeyed | Partitioner = "sticky",
        linger: float | str = 0.2,
        batch_bytes: int | str = 4 * 2**20,
        buffer_bytes: int | str = 64 * 2**20,
        max_block: float | str | None = None,
        compression: str = "lz4",
        delivery_timeout: float | str = 120.0,
        settings: Settings | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        if not callable(partitioner) and partitioner not in ("sticky", "round-robin"):
            raise UsageError(f"partitioner = {partitioner!r}: 'sticky', 'round-robin' or a callable")
        if compression not in ("lz4", "zstd", "snappy", "gzip", "none"):
            raise UsageError(f"compression = {compression!r}: 'lz4', 'zstd', 'snappy', 'gzip' or 'none'")
        seconds = duration("linger", linger)
        self._batch_bytes = min(COLUMNS_LIMIT, count_of_bytes("batch_bytes", batch_bytes))
        most = count_of_bytes("buffer_bytes", buffer_bytes)
        self._max_block = None if max_block is None else duration("max_block", max_block)
        timeout = duration("delivery_timeout", delivery_timeout, least=1)
        self._owns_store, self._settings = not isinstance(log, Store), settings
        self._store = given_store("log", log, "the URL or path of a log", settings, clock)
        self._wanted = None if partitions is None else checked_partitions(partitions)
        self._clock = clock
        self._routes = Routes(self._store, partitioner, clock.random)
        self._unbroken = 0  # records since the last yield to the event loop
        self._together = _FEW  # records that send_many encodes at once, judging by the latest ones
        self._hints = HintWriter(self._store, clock)
        self._sender = Sender(
            self._store,
            self._hints,
            self._routes,
            buffer_bytes=most,
            linger=seconds,
            timeout=timeout,
            compression=compression,
            clock=clock,
        )
        self._stack = AsyncExitStack()
        self._tasks: anyio.abc.TaskGroup | None = None

    @property
    def partitions(self) -> int:
        """Partition count of the log, without those that have ended. Known once the producer is open."""
        return self._routes.generations.count

    def statistics(self) -> ProducerStatistics:
        return self._sender.statistics()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            if self._owns_store:
                await stack.enter_async_context(self._store)
            opening = create_log(self._store, self._wanted) if self._wanted is not None else open_log(self._store)
            metadata = await opening
            self._routes.adopt(metadata)
            route, settings = self._store.backend.route, self._settings or Settings.load()
            nudges = self._hints.nudges = nudges_of(route, settings.nudge_host, metadata.identity, self._clock)
            await stack.enter_async_context(nudges.listening(lambda: None))
            await self._hints.read_others()
            await self._clock.run_in_thread(warm_up)
            self._tasks = await stack.enter_async_context(anyio.create_task_group())
            self._tasks.start_soon(self._hints.run)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        """Flush. After a cancellation nothing more is sent, and the outcome of batches in flight is unknown."""
        tasks, self._tasks = self._opened(), None
        cancelled = error if isinstance(error, INTERRUPTIONS) else None
        try:
            if cancelled is None:
                await self._finish(error)
        finally:
            tasks.cancel_scope.cancel()
            await self._stack.__aexit__(type(cancelled) if cancelled else None, cancelled, trace if cancelled else None)

    async def _finish(self, error: BaseException | None) -> None:
        try:
            await self.flush()
        except ActorprocError as failure:
            if error is None:
                raise
            logger.warning("producer.not_all_sent", error=str(failure))  # the error of the block is raised
        finally:
            await self._hints.close()

    async def send(
        self,
        value: Value,
        *,
        key: Key = None,
        headers: Headers | None = None,
        timestamp: datetime | None = None,
        partition: int | None = None,
        callback: Callback | None = None,
    ) -> Delivery:
        """Send a record. Returns when it is in the buffer; waits only while the buffer is full.

        Args:
            value: bytes as they are; text as UTF-8; a dict or list as JSON, in which NaN and infinity are null; None
                is a tombstone.
            key: bytes as they are; text as UTF-8; an int as its digits. Records of one key keep their order.
            timestamp: aware; default: now.
            partition: index of the partition, from 0; default: the partitioner chooses. If the log has grown, the
                partitions of an index follow each other.
            callback: called once, on the event loop, as `callback(report, error)`: with the record's report, or with
                the error that awaiting raises. The other one is None. It must not block.

        Returns:
            An awaitable for (partition, sequence), which returns when the record is durable.

        Raises:
            UsageError: an argument cannot be sent.
            BufferFull: the buffer had no room within `max_block`; the record was not sent.
        """
        tasks = self._opened()
        body = value if type(value) is bytes and len(value) <= VALUE_LIMIT else value_bytes(value)
        key = key if key is None else key_bytes(key)
        listed = header_list(headers) if headers else None
        time = int(self._clock.wall() * 1e6) if timestamp is None else microseconds(timestamp)
        weight = RECORD_WEIGHT + len(body or b"") + len(key or b"") + (headers_weight(listed) if listed else 0)
        self._unbroken += 1
        if (
            self._unbroken >= _YIELD_EVERY
        ):  # before the record is buffered: a send that is cancelled here has sent nothing
            self._unbroken = 0
            await anyio.lowlevel.checkpoint()
        # The choice may raise: a callable partitioner is user code.
        router = self._routes.router
        number = router.choose(key, body) if partition is None else router.number(partition)
        await self._make_room(weight, tasks)
        batch = self._sender.open_batch(number, tasks)
        if partition is not None:
            batch.placed.append(batch.rows)
        elif key is None:
            router.stick(number, batch.ripe)
        delivery = batch.add(body, key, listed, time, weight)
        if callback is not None:
            batch.call_back(callback)
        if batch.weight >= self._batch_bytes:
            batch.ripe.set()
        return delivery

    async def send_many(
        self,
        values: Sequence[Value] | pa.Array,
        *,
        keys: Sequence[Key] | pa.Array | None = None,
        headers: Sequence[Headers | None] | None = None,
        timestamps: Sequence[datetime] | pa.Array | datetime | None = None,
        into: Deliveries | None = None,
    ) -> Deliveries:
        """Send many records, several times as fast as one by one. Arguments as for `send`, each a sequence.

        Args:
            into: new ones, which are filled and returned. They cover the sent records also if this call fails.

        Returns:
            An awaitable for a list of (partition, sequence). Its `confirmed()` only waits, and is cheaper.

        Raises:
            UsageError: an argument cannot be sent. Records before it may have been sent, also after a cancellation.
            BufferFull: the buffer had no room within `max_block`. `into` has the records that were sent.
        """
        tasks = self._opened()
        for name, column in (("keys", keys), ("headers", headers), ("timestamps", timestamps)):
            if column is not None and not isinstance(column, datetime) and len(column) != len(values):
                raise UsageError(f"{len(column)} {name} for {len(values)} values")
        deliveries = Deliveries() if into is None else into
        start, rows = 0, self._together
        first_keys = keys[:rows] if keys is not None else ()
        if headers is not None or not known_within(2 * self._batch_bytes, values[:rows], first_keys):
            rows = _FEW
        while start < len(values):
            await anyio.lowlevel.checkpoint()
            part = slice(start, start + rows)
            times = self._clock.now() if timestamps is None else timestamps
            data = columns(
                values[part],
                keys[part] if keys is not None else None,
                headers[part] if headers is not None else None,
                times if isinstance(times, datetime) else times[part],
            )
            if data is None:
                rows = max(1, min(rows, len(values) - start) // 2)
                continue
            await self._distribute(data, start, deliveries, tasks)
            start += data.num_rows
            # About a batch at a time. Growing step by step, because the next records may be larger.
            rows = max(1, min(_MANY, rows * 4, math.ceil(data.num_rows * self._batch_bytes / max(1, data.nbytes))))
            self._together = max(rows, _FEW)
        return deliveries

    async def flush(self) -> None:
        """Send all records, and return when they are in the log.

        Raises:
            StoreError: the first error of these records, or of records since the last flush. If several tasks flush,
                only the first one gets errors from before; await each `Delivery` to get them all.
        """
        await self._sender.flush()

    def _opened(self) -> anyio.abc.TaskGroup:
        if self._tasks is None:
            raise UsageError("the producer is not open: use it within `async with Producer(...) as producer`")
        return self._tasks

    async def _make_room(self, weight: int, tasks: anyio.abc.TaskGroup) -> None:
        await self._sender.make_room(weight, self._max_block)
        if self._tasks is not tasks:
            self._sender.give_back(weight)
            raise UsageError("the producer was closed while a record waited for room in its buffer: it was not sent")

    async def _distribute(
        self, data: pa.RecordBatch, start: int, deliveries: Deliveries, tasks: anyio.abc.TaskGroup
    ) -> None:
        """Add records to the batches of their partitions, in order. `start`: index of the first in the call."""
        router, total = self._routes.router, self._routes.generations.total
        chosen = router.choose_many(data)
        # Stable. For 16 bits NumPy has a radix sort, which is many times as fast.
        order = np.argsort(chosen.astype(np.uint16) if total <= 2**16 else chosen, kind="stable")
        counts = np.bincount(chosen)
        at = 0
        for number in np.flatnonzero(counts).tolist():
            own = order[at : at + int(counts[number])]
            at += len(own)
            # A copy: a slice would keep the records of all partitions in memory while this batch waits.
            share = data.take(pa.array(own))
            step = max(1, len(own) * self._batch_bytes // max(1, share.nbytes))
            for first in range(0, len(own), step):
                piece = share.slice(first, step)
                weight = weight_of(piece)
                await self._make_room(weight, tasks)
                batch = self._sender.open_batch(number, tasks)
                if piece.column("key").null_count:
                    router.stick(number, batch.ripe)
                deliveries.add(batch, batch.add_columns(piece, weight), own[first : first + step] + start)
                if batch.weight >= self._batch_bytes:
                    batch.ripe.set()
