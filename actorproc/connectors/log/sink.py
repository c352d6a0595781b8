"""`LogSink`: committed rows as records of another built-in log, keyed anew: the way to repartition.

A delivery is a batch of a transaction of the log, one for each sink and partition. The write that decides the batch
replaces the sink's row, if that is the one that was read. Whoever finds the batch unfinished appends what is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from hashlib import sha256
from typing import Any, ClassVar

import msgspec
import pyarrow as pa
from pydantic import Field

from actorproc.config.options import parse_options
from actorproc.errors import CorruptObject, StoreRefused, UsageError
from actorproc.log.metadata import create_log, open_log
from actorproc.produce.hint_writer import HintWriter
from actorproc.produce.routes import Routes
from actorproc.produce.serializers import header_column
from actorproc.produce.staged_files import StagedFile, encode_staged
from actorproc.produce.transactions import GROUP_BYTES, NoteMoved, Transactions
from actorproc.records import RECORD_SCHEMA
from actorproc.sinks.messages import MessageOptions, messages_of, prepare
from actorproc.sinks.protocol import Delivery, Guarantee, Sink, SinkError, SinkMoved, SinkPlace, SinkRefused, SinkRow
from actorproc.sinks.row_encoder import RowEncoder, open_encoder
from actorproc.storage.names import log_staged
from actorproc.storage.store import Store
from actorproc.stores import given_store


class LogSinkOptions(MessageOptions):
    """Options of a sink in a built-in log."""

    partitions: int | None = Field(
        None, gt=0, le=100_000, description="Partition count of the log, which is created if there is none."
    )


class LogSink(Sink):
    """`log:URL`: a log in any store, such as `log:s3://bucket/orders-by-customer` or `log:./by-customer`.

    Args:
        store: of the log, open, in place of the URL.
    """

    guarantee = Guarantee.EXACTLY_ONCE
    ordered: ClassVar[bool] = True
    options: LogSinkOptions

    def __init__(self, url: str, given: Mapping[str, Any], place: SinkPlace, store: Store | None = None) -> None:
        self.options = parse_options(url, LogSinkOptions, given, of="sink")
        self.url, self.place = url, place
        self._encoder = open_encoder(self.options, place.name, place.clock)
        where = url.partition(":")[2]
        if not where and store is None:
            raise UsageError(f"sink {place.name}: log:URL, such as log:./orders-by-customer")
        self._owns_store = store is None
        self._store = store or given_store("sink", where, "the URL or path of a log", None, place.clock)
        self._routes = Routes(self._store, "sticky", place.clock.random)
        self._open = AsyncExitStack()
        self._transactions: Transactions | None = None

    # The contract

    async def open(self, schema: pa.Schema) -> None:
        """See `Sink.open`."""
        await prepare(self.options, schema, self._encoder)
        if self._transactions is not None:
            return
        async with AsyncExitStack() as opening:
            if self._owns_store:
                await opening.enter_async_context(self._store)
            try:
                count = self.options.partitions
                self._routes.adopt(await (open_log(self._store) if count is None else create_log(self._store, count)))
            except UsageError as error:
                raise SinkRefused(str(error)) from None
            hints = HintWriter(self._store, self.place.clock)
            await hints.read_others()
            opening.push_async_callback(hints.close)
            opening.push_async_callback(_stop, asyncio.create_task(hints.run()))
            transactions = Transactions(self._store, hints)
            await transactions.sweep()
            self._transactions, self._open = transactions, opening.pop_all()  # last: what has failed is done again

    async def read(self, partition: str) -> SinkRow | None:
        """See `Sink.read`. Appends the rest of a delivery that was cut off."""
        note = await self._opened().note(self._name(partition))
        return None if not note else msgspec.json.decode(note, type=SinkRow)

    async def write(self, delivery: Delivery) -> None:
        """See `Sink.write`."""
        name, transactions = self._name(delivery.partition), self._opened()

        async def stage(batch: int) -> Sequence[StagedFile]:
            self._routes.adopt(await open_log(self._store))  # it may have grown
            return [await self._stage(name, batch, records) for records in await self._records(delivery)]

        try:
            await transactions.commit_if(name, _text_of(delivery.was), _text_of(delivery.now), stage)
        except NoteMoved:
            raise SinkMoved(f"partition {delivery.partition}: the row in {self._store.url} is another one") from None
        except (CorruptObject, StoreRefused) as error:
            raise SinkRefused(str(error)) from None

    def _opened(self) -> Transactions:
        if self._transactions is None:
            raise SinkError("the sink is not open")
        return self._transactions

    def _name(self, partition: str) -> str:
        """Of the transaction. Partitions may have any name, and this is part of a key."""
        parts = msgspec.json.encode([self.place.processor, self.place.name, partition])
        return f"sink-{sha256(parts).hexdigest()[:32]}"

    async def _records(self, delivery: Delivery) -> list[list[pa.RecordBatch]]:
        """The rows as records, in files of at most about `GROUP_BYTES`."""
        now = int(self.place.clock.wall() * 1e6)
        return await self.place.clock.run_in_thread(
            lambda: list(_files(_batches(delivery, self.options, self._encoder, now)))
        )

    async def _stage(self, transaction: str, batch: int, records: list[pa.RecordBatch]) -> StagedFile:
        router = self._routes.router
        chosen = [(some, router.choose_many(some)) for some in records]
        body, partitions = await self.place.clock.run_in_thread(encode_staged, chosen)
        key = log_staged(transaction, batch, self.place.clock.nonce())
        await self._store.put(key, body)
        return StagedFile(key, sum(some.nbytes for some in records), partitions)

    async def close(self) -> None:
        """See `Sink.close`."""
        self._transactions = None
        await self._open.aclose()
        await self._encoder.close()


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _text_of(row: SinkRow | None) -> str:
    return "" if row is None else msgspec.json.encode(row).decode()


def _batches(delivery: Delivery, options: MessageOptions, encoder: RowEncoder, now: int) -> Iterator[pa.RecordBatch]:
    time = pa.scalar(now, RECORD_SCHEMA.field("timestamp").type)
    for some in messages_of(delivery, options, encoder):
        count = len(some.values)
        headers = header_column(some.headers, count)
        times = pa.repeat(time, count) if some.times is None else some.times.fill_null(time)
        yield pa.RecordBatch.from_arrays([some.keys, some.values, headers, times], schema=RECORD_SCHEMA)


def _files(batches: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    file, size = list[pa.RecordBatch](), 0
    for batch in batches:
        if file and size + batch.nbytes > GROUP_BYTES:
            yield file
            file, size = [], 0
        file.append(batch)
        size += batch.nbytes
    if file:
        yield file
