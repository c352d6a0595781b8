"""Where dead letters are replayed to: the stream from which their records came, or any built-in log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from actorproc.config.settings import Settings
from actorproc.errors import UsageError, located
from actorproc.log.metadata import LogMetadata, open_log
from actorproc.log.partitioner import partitions_of_keys
from actorproc.log.staged_files import StagedFile, encode_staged
from actorproc.log.transactions import Transactions
from actorproc.records import Batch
from actorproc.retention.readers import read_registry
from actorproc.runtime.clock import SYSTEM
from actorproc.sources import APPENDABLE_SCHEMES, KAFKA_SCHEMES, open_source
from actorproc.sources.appendable import Appendable
from actorproc.sources.protocol import Source
from actorproc.storage.names import READERS, log_staged
from actorproc.storage.store import Store
from actorproc.stores import open_store

if TYPE_CHECKING:
    from actorproc.sources.kafka import KafkaSource


class Outcome(NamedTuple):
    """What became of a batch.

    Attributes:
        refused: why records are refused for good, by index. The others are appended, unless the batch is void.
        is_void: nothing of the batch is in the stream, or will ever be.
        reason: of a void batch: why, where it is not known which records are refused.
    """

    refused: Mapping[int, str] = {}
    is_void: bool = False
    reason: str = ""


class ReplayTarget(Protocol):
    """A stream to which records can be appended.

    Attributes:
        kind: class name of a source that has no identity.
        letters_at_once: of a batch, at most; None: no limit.
        has_transactions: whether a batch that is appended again is appended once.
    """

    url: str
    identity: str
    kind: str
    letters_at_once: int | None
    has_transactions: bool

    def has_partition(self, partition: str) -> bool:
        """Whether the stream has this partition."""
        ...

    async def append(self, transaction: str, batch: int, partition: str, records: pa.RecordBatch) -> Outcome:
        """Append the records as batch number `batch` of the transaction, unless that was done before.

        A stream without transactions appends them again. If one with transactions refuses a record, the batch is void.

        Raises:
            StoreUnavailable, SourceError, HandlerError: the outcome is unknown; run it again.
        """
        ...

    async def readers(self) -> list[str]:
        """Names of the known readers, which get the records again."""
        ...


class LogTarget:
    """A built-in log.

    Args:
        by_key: choose partitions as a producer does, for records that come from elsewhere.
    """

    kind = ""
    letters_at_once: int | None = None
    has_transactions = True

    def __init__(self, log: Store, metadata: LogMetadata, transactions: Transactions, *, by_key: bool) -> None:
        self.url, self.identity = log.url, metadata.identity
        self._log, self._transactions, self._by_key = log, transactions, by_key
        self._generations = metadata.generations

    @classmethod
    @asynccontextmanager
    async def opened(cls, log: Store, *, by_key: bool = False) -> AsyncIterator[LogTarget]:
        """Write hints for the log's readers as long as the block runs. Raises UsageError if there is no log."""
        metadata = await open_log(log)
        async with Transactions.opened(log) as transactions:
            yield cls(log, metadata, transactions, by_key=by_key)

    def has_partition(self, partition: str) -> bool:
        return self._by_key or (partition.isdecimal() and int(partition) < self._generations.total)

    async def append(self, transaction: str, batch: int, partition: str, records: pa.RecordBatch) -> Outcome:
        """See `ReplayTarget.append`: a transaction of the log, which refuses no record."""
        body, partitions = encode_staged([(records, self._chosen(partition, records))])
        staged = StagedFile(log_staged(transaction, batch, self._log.clock.nonce()), records.nbytes, partitions)
        with located(self.url):
            await self._log.put(staged.key, body)
            await self._transactions.commit(transaction, batch, [staged])
        return Outcome()

    def _chosen(self, partition: str, records: pa.RecordBatch) -> npt.NDArray[np.uint32]:
        """The partition of each record. Records without a key stay together, as they were in their partition."""
        if self._by_key:
            keys = records.column("key").fill_null(partition.encode())
            return partitions_of_keys(keys, self._generations.count) + np.uint32(self._generations.first)
        return np.full(records.num_rows, int(partition), np.uint32)

    async def readers(self) -> list[str]:
        return sorted((await read_registry(self._log, READERS)).readers)


_BROKERS_LIMIT = {"message.max.bytes": 10**9}
"""The client's own limit is lower than what a topic may have taken."""


class KafkaTarget:
    """The topics of a Kafka source. A record goes to the partition from which it came."""

    kind = ""
    letters_at_once: int | None = None
    has_transactions = True

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

    async def append(self, transaction: str, batch: int, partition: str, records: pa.RecordBatch) -> Outcome:
        """See `ReplayTarget.append`: a transaction of Kafka, which stores the number of the batch with it.

        That number is left out of the stored position if the batch is void.
        """
        return await SYSTEM.run_in_thread(self._append, f"actorproc-{transaction}", batch, partition, records)

    def _append(self, transaction: str, batch: int, partition: str, records: pa.RecordBatch) -> Outcome:
        from actorproc.handlers.kafka_errors import MessagesRefused
        from actorproc.handlers.kafka_messages import copy_of
        from actorproc.handlers.kafka_position import TopicPosition
        from actorproc.handlers.kafka_writers import TransactionalWriter

        topic, _, number = partition.rpartition("-")
        properties = {**_BROKERS_LIMIT, **self._properties}
        writer = TransactionalWriter(properties, topic, transaction, timeout=60.0)
        try:
            position = writer.open()
            if batch <= position.upto:
                return Outcome(is_void=batch in position.left_out)
            letters = _batch(partition, records)
            messages = [(record.sequence, copy_of(record)._replace(partition=int(number))) for record in letters]
            try:
                outcome = Outcome(writer.write(messages, TopicPosition(batch)))
            except MessagesRefused as error:
                outcome = Outcome(reason=str(error))
            if outcome == Outcome():
                return outcome
            writer.write([], TopicPosition(batch, frozenset((batch,))))
            return outcome._replace(is_void=True)
        finally:
            writer.close()

    async def readers(self) -> list[str]:
        """None: brokers do not say who reads a topic without a group."""
        return []


class _AppendableSource(Source, Appendable):
    """A source of `APPENDABLE_SCHEMES`."""


class AppendableTarget:
    """A source without transactions: records are appended at least once."""

    has_transactions = False

    def __init__(self, url: str, identity: str, source: Appendable, *, kind: str = "") -> None:
        self.url, self.identity, self.kind = url, identity, kind
        self.letters_at_once: int | None = source.appended_at_once
        self._source = source

    @classmethod
    @asynccontextmanager
    async def opened(cls, url: str, settings: Settings) -> AsyncIterator[AppendableTarget]:
        """Raises UsageError or SourceError as the source does."""
        source: _AppendableSource = open_source(url, settings=settings)  # type: ignore[assignment]  # by its scheme
        source.check_appendable()
        await source.open()
        kind = "" if source.identity else type(source).__name__
        try:
            yield cls(url, source.identity or url, source, kind=kind)
        finally:
            await source.close()

    def has_partition(self, partition: str) -> bool:
        """The identity of the stream says so: it had the partition when it was read."""
        return True

    async def append(self, transaction: str, batch: int, partition: str, records: pa.RecordBatch) -> Outcome:
        """See `ReplayTarget.append`: a repetition appends them again."""
        return Outcome(await self._source.append(partition, _batch(partition, records), transaction))

    async def readers(self) -> list[str]:
        """None: such services do not say who reads a stream."""
        return []


def _batch(partition: str, records: pa.RecordBatch) -> Batch:
    return Batch(partition, records, pa.array(range(records.num_rows), pa.int64()))


@asynccontextmanager
async def opened_target(url: str, settings: Settings, *, is_source: bool = True) -> AsyncIterator[ReplayTarget]:
    """The stream at this URL.

    Args:
        is_source: whether the letters came from it; otherwise it must be a built-in log.

    Raises:
        UsageError: there is no such stream.
    """
    if not is_source:
        async with open_store(url, settings) as store, LogTarget.opened(store, by_key=True) as log:
            yield log
        return
    scheme = url.partition("://")[0]
    if scheme in KAFKA_SCHEMES:
        async with KafkaTarget.opened(url, settings) as kafka:
            yield kafka
        return
    if scheme in APPENDABLE_SCHEMES:
        async with AppendableTarget.opened(url, settings) as appendable:
            yield appendable
        return
    async with open_store(url, settings) as store, LogTarget.opened(store) as log:
        yield log


def missing_partition(key: str, partition: str, target: ReplayTarget) -> UsageError:
    """The error for letters of a partition that the target does not have."""
    return UsageError(f"{key}: {target.url} has no partition {partition!r}; is it the source of this processor?")
