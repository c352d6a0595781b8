"""Writes a DataFrame's rows to a built-in log, each row once per job or micro-batch.

Tasks stage their rows, sorted by partition of the log; readers do not see staged objects. The driver decides which
staged objects make up the batch, and appends them: see `actorproc.produce.transactions`. So a task that runs twice,
or a job that fails before its commit, leaves nothing in the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from actorproc.errors import SourceError, StoreError, UsageError
from actorproc.log.generations import Generations
from actorproc.log.metadata import create_log, find_log, open_log
from actorproc.produce.routes import Router
from actorproc.produce.staged_files import StagedFile, encode_staged
from actorproc.produce.transactions import UNNAMED, Transactions, abandon, is_begun, is_done
from actorproc.records import RECORD_SCHEMA
from actorproc.runtime.clock import SYSTEM
from actorproc.spark.blocking_store import BlockingStore, open_blocking
from actorproc.spark.columns import check_record_columns, to_records
from actorproc.spark.options import WriteOptions
from actorproc.spark.python_worker import QuickAck, called_by_spark
from actorproc.storage.names import log_staged
from actorproc.storage.store import Store

_HOW_TO_CREATE = (
    'create it by writing with .option("logPartitions", 8), or with: '
    "actorproc produce --log {url} --partitions 8 FILE.jsonl"
)
STAGE_BYTES = 32 * 2**20
"""A task stages its rows whenever it holds so many bytes."""

# Local properties of a task. The query's id is in its checkpoint, and survives restarts.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"

RoutedRows = tuple[pa.RecordBatch, npt.NDArray[np.uint32]]


@dataclass
class Message(WriterCommitMessage):
    """The objects that a task has staged, and their transaction."""

    transaction: str
    staged: Sequence[StagedFile]


class _LogWriter(QuickAck):
    """The common part of both writers. Made on the driver, and pickled to the tasks with the settings."""

    _generations: Generations
    """Partitions of the log when the writer was made."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise UsageError(
                f'the log {options.url} cannot be overwritten: write with mode("append"), '
                'or outputMode("append") for a stream'
            )
        check_record_columns(schema)
        self._options = options

    def _open(self) -> AbstractContextManager[BlockingStore]:
        return open_blocking(self._options.url, self._options.settings)

    def _stage(self, rows: Iterator[pa.RecordBatch], transaction: str, batch: int) -> Message:
        """Stage a task's rows."""
        task = TaskContext.get()
        number = task.partitionId() if task else 0
        # Seeded: each attempt sends rows without a key to the same partitions.
        random = Random(f"{transaction}/{batch}/{number}")  # noqa: S311
        router = Router(self._generations.count, "sticky", random, self._generations.first)
        now = pa.scalar(SYSTEM.now(), RECORD_SCHEMA.field("timestamp").type)
        staged: list[StagedFile] = []
        waiting: list[RoutedRows] = []
        size = 0
        with self._open() as blocking:
            for found in rows:
                if not found.num_rows:
                    continue
                records = to_records(found, now)
                waiting.append((records, router.choose_many(records)))
                size += records.nbytes
                if size >= STAGE_BYTES:
                    staged.append(_put(blocking, waiting, size, transaction, batch))
                    waiting, size = [], 0
            if waiting:
                staged.append(_put(blocking, waiting, size, transaction, batch))
        return Message(transaction, staged)

    def _commit(self, messages: Sequence[WriterCommitMessage | None], batch: int, *, in_turn: bool = False) -> None:
        """Append the rows of all tasks, on the driver. `in_turn`: see `Transactions.commit`."""
        given = [message for message in messages if isinstance(message, Message)]
        if not given:
            return
        staged = [one for message in given for one in message.staged]
        with self._open() as blocking:
            blocking.call(_append, blocking.store, given[0].transaction, batch, staged, in_turn)


def _put(blocking: BlockingStore, rows: Sequence[RoutedRows], size: int, transaction: str, batch: int) -> StagedFile:
    body, partitions = encode_staged(rows)
    key = log_staged(transaction, batch, SYSTEM.nonce())
    blocking.call(blocking.store.put, key, body)
    return StagedFile(key, size, partitions)


async def _append(store: Store, transaction: str, batch: int, staged: Sequence[StagedFile], in_turn: bool) -> None:
    # A transaction that was begun is finished, although the repeated tasks may have no rows.
    if not staged and not await is_begun(store, transaction, batch):
        return
    async with Transactions.opened(store) as transactions:
        await transactions.commit(transaction, batch, staged, in_turn=in_turn)


class BatchWriter(_LogWriter, DataSourceArrowWriter):
    """`df.write`: appends once per successful job; with a transaction, once per name and batch."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        self._transaction = options.transaction or f"{UNNAMED}{SYSTEM.nonce()}"
        with open_blocking(options.url, options.settings) as blocking:
            self._generations, self._done = blocking.call(self._look, blocking.store)

    async def _look(self, store: Store) -> tuple[Generations, bool]:
        """The log's partitions, and whether the batch is already in it."""
        wanted = self._options.partitions
        meta = await (create_log(store, wanted) if wanted else open_log(store, create=_HOW_TO_CREATE))
        name = self._options.transaction
        return meta.generations, name is not None and await is_done(store, name, self._options.batch)

    @called_by_spark
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        rows = iter(()) if self._done else iterator
        return self._stage(rows, self._transaction, self._options.batch)

    @called_by_spark
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(messages, self._options.batch)

    @called_by_spark
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove the staged objects, unless the job has a transaction: its next run finishes the transaction."""
        if self._options.transaction is None:
            with suppress(StoreError), open_blocking(self._options.url, self._options.settings) as blocking:
                blocking.call(abandon, blocking.store, self._transaction)


class StreamWriter(_LogWriter, DataSourceStreamArrowWriter):
    """`df.writeStream`: appends once per micro-batch of the query, which its checkpoint identifies.

    Spark makes one for each micro-batch. Only the first micro-batch creates the log. If a later one finds no log, a
    folder or bucket is away; rows in a new log there would reach no reader.
    """

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        with self._open() as blocking:
            meta = blocking.call(find_log, blocking.store)
            if meta is None and options.partitions is None:
                blocking.call(open_log, blocking.store, create=_HOW_TO_CREATE)  # raises
            elif meta is not None and options.partitions is not None:
                blocking.call(create_log, blocking.store, options.partitions)  # raises if the numbers differ
        self._found = meta is not None
        self._generations = meta.generations if meta is not None else Generations((options.partitions or 0,))

    def _check_found(self, batch: int) -> None:
        if not self._found and batch > 0:
            raise SourceError(
                f"the log {self._options.url} is gone: micro-batch {batch} is not the first of this query. Is the "
                "right folder or bucket mounted? Once it is back, the query continues where it stopped. (If this "
                f"query wrote elsewhere before, create the log: actorproc produce --log {self._options.url} "
                f"--partitions {self._generations.count} /dev/null)"
            )

    @called_by_spark
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = TaskContext.get()
        query, batch = (task.getLocalProperty(name) if task else None for name in (_QUERY_ID, _BATCH_ID))
        if not query or not batch:
            raise UsageError(
                f"this Spark does not give its tasks the query and the micro-batch ({_QUERY_ID} = {query!r}, "
                f"{_BATCH_ID} = {batch!r}). Use foreachBatch, and there df.write with .option('transaction', 'NAME')"
                ".option('batch', batch_id)"
            )
        self._check_found(int(batch))
        return self._stage(iterator, query, int(batch))

    @called_by_spark
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._check_found(batchId)
        if not self._found:
            with self._open() as blocking:
                blocking.call(create_log, blocking.store, self._generations.count)
        self._commit(messages, batchId, in_turn=True)

    @called_by_spark
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: the micro-batch runs again, finishes the commit, and removes unneeded objects."""
