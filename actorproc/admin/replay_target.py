"""Where dead letters are replayed to: the stream from which their records came, or any built-in log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from actorproc import plugins
from actorproc.config.settings import Settings
from actorproc.errors import UsageError, located
from actorproc.log.key_hash import partitions_of_keys
from actorproc.log.metadata import LogMetadata, open_log
from actorproc.produce.staged_files import StagedFile, encode_staged
from actorproc.produce.transactions import Transactions
from actorproc.records import Batch
from actorproc.retention.readers import read_registry
from actorproc.sources import Source, open_source
from actorproc.sources.replay_target import Appendable, Outcome, Replayable, ReplayTarget
from actorproc.storage.names import READERS, log_staged
from actorproc.storage.store import Store
from actorproc.stores import open_store, with_source_options


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


class AppendableSource(Source, Appendable):
    """Both."""


class AppendableTarget:
    """A source without transactions: records are appended at least once."""

    has_transactions = False

    def __init__(self, url: str, identity: str, source: Appendable, *, kind: str = "") -> None:
        self.url, self.identity, self.kind = url, identity, kind
        self.letters_at_once: int | None = source.appended_at_once
        self._source = source

    @classmethod
    @asynccontextmanager
    async def opened(cls, url: str, source: AppendableSource) -> AsyncIterator[AppendableTarget]:
        """Raises UsageError or SourceError as the source does."""
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
    source = open_source(url, settings=settings)
    if isinstance(source, Replayable):
        async with source.replay_target() as target:
            yield target
    elif isinstance(source, Appendable):
        async with AppendableTarget.opened(url, cast(AppendableSource, source)) as appendable:
            yield appendable
    else:
        async with open_store(url, with_source_options(url, settings)) as store, LogTarget.opened(store) as log:
            yield log


def takes_letters(url: str, settings: Settings) -> bool:
    """Whether dead letters can be appended to the stream of a connector at this URL. Nothing is connected."""
    if url.partition("://")[0] not in plugins.names(plugins.SOURCES):
        return False
    return isinstance(open_source(url, settings=settings), Replayable | Appendable)


def missing_partition(key: str, partition: str, target: ReplayTarget) -> UsageError:
    """The error for letters of a partition that the target does not have."""
    return UsageError(f"{key}: {target.url} has no partition {partition!r}; is it the source of this processor?")
