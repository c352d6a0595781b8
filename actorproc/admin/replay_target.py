"""Where dead letters are replayed to: the built-in log or the topics of Kafka from which their records came."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from actorproc.config.settings import Settings
from actorproc.errors import SourceError, UsageError, located
from actorproc.log.metadata import LogMetadata, open_log
from actorproc.log.staged_files import StagedFile, encode_staged
from actorproc.log.transactions import Transactions
from actorproc.records import Batch
from actorproc.retention.readers import read_registry
from actorproc.runtime.clock import SYSTEM
from actorproc.sources import KAFKA_SCHEMES, open_source
from actorproc.storage.names import READERS, log_staged
from actorproc.storage.store import Store
from actorproc.stores import open_store

if TYPE_CHECKING:
    from actorproc.sources.kafka import KafkaSource


class ReplayTarget(Protocol):
    """A stream to which records can be appended in transactions."""

    url: str
    identity: str

    def has_partition(self, partition: str) -> bool:
        """Whether the stream has this partition."""
        ...

    async def append(self, transaction: str, batch: int, partition: str, records: pa.RecordBatch) -> None:
        """Append the records as batch number `batch` of the transaction, unless that was done before.

        Raises:
            StoreUnavailable, HandlerError: the outcome is unknown; run it again.
        """
        ...

    async def readers(self) -> list[str]:
        """Names of the known readers, which get the records again."""
        ...


class LogTarget:
    """A built-in log."""

    def __init__(self, log: Store, metadata: LogMetadata, transactions: Transactions) -> None:
        self.url, self.identity = log.url, metadata.identity
        self._log, self._count, self._transactions = log, metadata.partitions, transactions

    @classmethod
    @asynccontextmanager
    async def opened(cls, log: Store) -> AsyncIterator[LogTarget]:
        """Write hints for the log's readers as long as the block runs. Raises UsageError if there is no log."""
        metadata = await open_log(log)
        async with Transactions.opened(log) as transactions:
            yield cls(log, metadata, transactions)

    def has_partition(self, partition: str) -> bool:
        return partition.isdecimal() and int(partition) < self._count

    async def append(self, transaction: str, batch: int, partition: str, records: pa.RecordBatch) -> None:
        """See `ReplayTarget.append`: a transaction of the log."""
        body, partitions = encode_staged([(records, np.full(records.num_rows, int(partition), np.uint32))])
        staged = StagedFile(log_staged(transaction, batch, self._log.clock.nonce()), records.nbytes, partitions)
        with located(self.url):
            await self._log.put(staged.key, body)
            await self._transactions.commit(transaction, batch, [staged])

    async def readers(self) -> list[str]:
        return sorted((await read_registry(self._log, READERS)).readers)


class KafkaTarget:
    """The topics of a Kafka source. A record goes to the partition from which it came."""

    def __init__(self, source: KafkaSource, partitions: frozenset[str]) -> None:
        self.url, self.identity = source.url, source.identity or ""
        self._properties, self._partitions = source.producer_properties, partitions

    @classmethod
    @asynccontextmanager
    async def opened(cls, url: str, settings: Settings) -> AsyncIterator[KafkaTarget]:
        """Raises UsageError or SourceError as `KafkaSource` does."""
        source: KafkaSource = open_source(url, settings=settings)  # type: ignore[assignment]  # by the URL's scheme
        await source.open()
        try:
            yield cls(source, frozenset(await source.partitions()))
        finally:
            await source.close()

    def has_partition(self, partition: str) -> bool:
        return partition in self._partitions

    async def append(self, transaction: str, batch: int, partition: str, records: pa.RecordBatch) -> None:
        """See `ReplayTarget.append`: a transaction of Kafka, which stores the number of the batch with it."""
        await SYSTEM.run_in_thread(self._append, f"actorproc-{transaction}", batch, partition, records)

    def _append(self, transaction: str, batch: int, partition: str, records: pa.RecordBatch) -> None:
        from actorproc.handlers.kafka_writers import TopicPosition, TransactionalWriter, copy_of

        topic, _, number = partition.rpartition("-")
        writer = TransactionalWriter(self._properties, topic, transaction, timeout=60.0)
        try:
            if batch in writer.open():
                return
            letters = Batch(partition, records, pa.array(range(records.num_rows), pa.int64()))
            messages = [(record.sequence, copy_of(record)._replace(partition=int(number))) for record in letters]
            if refused := writer.write(messages, TopicPosition(batch)):
                raise SourceError(f"topic {topic}: a letter cannot be sent: {next(iter(refused.values())).str()}")
        finally:
            writer.close()

    async def readers(self) -> list[str]:
        """None: brokers do not say who reads a topic without a group."""
        return []


@asynccontextmanager
async def opened_target(url: str, settings: Settings) -> AsyncIterator[ReplayTarget]:
    """The stream at this URL.

    Raises:
        UsageError: there is no such stream.
    """
    if url.partition("://")[0] in KAFKA_SCHEMES:
        async with KafkaTarget.opened(url, settings) as kafka:
            yield kafka
        return
    async with open_store(url, settings) as store, LogTarget.opened(store) as log:
        yield log


def missing_partition(key: str, partition: str, target: ReplayTarget) -> UsageError:
    """The error for letters of a partition that the target does not have."""
    return UsageError(f"{key}: {target.url} has no partition {partition!r}; is it the source of this processor?")
