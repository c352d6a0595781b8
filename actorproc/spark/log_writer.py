"""The way back: a DataFrame's rows into a built-in log, each once per job or micro-batch.

Tasks stage their rows, sorted by partition of the log; nobody reads those. What staged objects make up the batch is
decided on the driver, which appends them: see `actorproc.log.transactions`. So what a task does twice, or a job that
fails before its commit, leaves nothing in the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from random import Random

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from actorproc.errors import SourceError, StoreError, UsageError
from actorproc.log.metadata import create_log, find_log, open_log
from actorproc.log.partitioner import Router
from actorproc.log.staged_files import StagedFile, encode_staged
from actorproc.log.transactions import UNNAMED, Transactions, abandon, is_begun, is_done
from actorproc.records import RECORD_SCHEMA
from actorproc.runtime.clock import SYSTEM
from actorproc.spark.blocking_store import BlockingStore, open_blocking
from actorproc.spark.python_worker import called_by_spark
from actorproc.spark.quick_ack import QuickAck
from actorproc.spark.target import WriteOptions, check_record_columns, to_records
from actorproc.storage.names import log_staged
from actorproc.storage.store import Store

_HOW_TO_CREATE = 'create it by writing with .option("logPartitions", 8), or with: actorproc produce --log {url} --partitions 8 FILE.jsonl'
STAGE_BYTES = 32 * 2**20
"""Bytes of rows that a task holds before it stages them."""

_QUERY = "sql.streaming.queryId"  # local properties of a task; the id stands in the checkpoint and outlives restarts
_BATCH = "streaming.sql.batchId"

Rows = tuple[pa.RecordBatch, npt.NDArray[np.uint32]]


class Message(WriterCommitMessage):
    """What a task has staged, and for which transaction."""

    def __init__(self, transaction: str, staged: Sequence[StagedFile]) -> None:
        self.transaction = transaction
        self.staged = staged


class _Writer(QuickAck):
    """What both writers do. Made on the driver, pickled to the tasks, settings included."""

    def __init__(self, target: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise UsageError(
                f'a log keeps what it has, and {target.url} cannot be overwritten: write with mode("append"), or '
                'outputMode("append") for a stream'
            )
        check_record_columns(schema)
        self._target = target

    def _open(self) -> AbstractContextManager[BlockingStore]:
        return open_blocking(self._target.url, self._target.settings, patient=True)

    def _stage(self, rows: Iterator[pa.RecordBatch], partitions: int, transaction: str, batch: int) -> Message:
        """What a task does. `partitions`: of the log."""
        task = TaskContext.get()
        number = task.partitionId() if task else 0
        # The same for each attempt: where rows without a key go.
        router = Router(partitions, "sticky", Random(f"{transaction}/{batch}/{number}"))  # noqa: S311
        now = pa.scalar(SYSTEM.now(), RECORD_SCHEMA.field("timestamp").type)
        staged: list[StagedFile] = []
        waiting: list[Rows] = []
        size = 0
        with self._open() as place:
            for found in rows:
                if not found.num_rows:
                    continue
                records = to_records(found, now)
                waiting.append((records, router.choose_many(records)))
                size += records.nbytes
                if size >= STAGE_BYTES:
                    staged.append(_put(place, waiting, size, transaction, batch))
                    waiting, size = [], 0
            if waiting:
                staged.append(_put(place, waiting, size, transaction, batch))
        return Message(transaction, staged)

    def _commit(self, messages: Sequence[WriterCommitMessage | None], batch: int, *, in_turn: bool = False) -> None:
        """What the driver does, once all tasks are done. `in_turn`: see `Transactions.commit`."""
        given = [message for message in messages if isinstance(message, Message)]
        if not given:
            return
        staged = [one for message in given for one in message.staged]
        with self._open() as place:
            place.call(_append, place.store, given[0].transaction, batch, staged, in_turn)


def _put(place: BlockingStore, rows: Sequence[Rows], size: int, transaction: str, batch: int) -> StagedFile:
    body, partitions = encode_staged(rows)
    key = log_staged(transaction, batch, SYSTEM.nonce())
    place.call(place.store.put, key, body)
    return StagedFile(key, size, partitions)


async def _append(store: Store, transaction: str, batch: int, staged: Sequence[StagedFile], in_turn: bool) -> None:
    # One that was begun is finished, though it may find no rows this time.
    if not staged and not await is_begun(store, transaction, batch):
        return
    async with Transactions.opened(store) as transactions:
        await transactions.commit(transaction, batch, staged, in_turn=in_turn)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """`df.write`: once per job that succeeds; with a transaction, once per name and batch."""

    def __init__(self, target: WriteOptions, schema: StructType, overwrite: bool) -> None:
        super().__init__(target, schema, overwrite)
        self._transaction = target.transaction or f"{UNNAMED}{SYSTEM.nonce()}"
        with open_blocking(target.url, target.settings) as place:
            self._partitions, self._done = place.call(self._look, place.store)

    async def _look(self, store: Store) -> tuple[int, bool]:
        """How many partitions the log has, and whether what is to be written is there already."""
        wanted = self._target.partitions
        meta = await (create_log(store, wanted) if wanted else open_log(store, create=_HOW_TO_CREATE))
        name = self._target.transaction
        return meta.partitions, name is not None and await is_done(store, name, self._target.batch)

    @called_by_spark
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        rows = iter(()) if self._done else iterator
        return self._stage(rows, self._partitions, self._transaction, self._target.batch)

    @called_by_spark
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(messages, self._target.batch)

    @called_by_spark
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Of a job with a transaction all is left: what was begun is finished when it runs again."""
        if self._target.transaction is None:
            with suppress(StoreError), open_blocking(self._target.url, self._target.settings) as place:
                place.call(abandon, place.store, self._transaction)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """`df.writeStream`: once per micro-batch of the query, which its checkpoint names. Spark makes one for each.

    Only the first micro-batch creates the log: where a later one finds none, a folder is gone, or a bucket, and rows in a new
    log there would be in none that anybody reads.
    """

    def __init__(self, target: WriteOptions, schema: StructType, overwrite: bool) -> None:
        super().__init__(target, schema, overwrite)
        with self._open() as place:
            meta = place.call(find_log, place.store)
            if meta is None and target.partitions is None:
                place.call(open_log, place.store, create=_HOW_TO_CREATE)  # says what to do
            elif meta is not None and target.partitions is not None:
                place.call(create_log, place.store, target.partitions)  # that it has as many
        self._found = meta is not None
        self._partitions = meta.partitions if meta is not None else target.partitions or 0

    def _check_found(self, batch: int) -> None:
        if not self._found and batch > 0:
            raise SourceError(
                f"there is no log at {self._target.url} any more: micro-batch {batch} is not the first of this query. Is the folder "
                "or bucket still what it was? Once it is back the query goes on where it stopped. (If this query wrote elsewhere "
                f"before, create the log: actorproc produce --log {self._target.url} --partitions {self._partitions} /dev/null)"
            )

    @called_by_spark
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = TaskContext.get()
        query, batch = (task.getLocalProperty(name) if task else None for name in (_QUERY, _BATCH))
        if not query or not batch:
            raise UsageError(
                f"this Spark does not tell its tasks which query and micro-batch they work for ({_QUERY} = {query!r}, "
                f"{_BATCH} = {batch!r}). Use foreachBatch, and there df.write with .option('transaction', 'NAME')"
                ".option('batch', batch_id)"
            )
        self._check_found(int(batch))
        return self._stage(iterator, self._partitions, query, int(batch))

    @called_by_spark
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._check_found(batchId)
        if not self._found:
            with self._open() as place:
                place.call(create_log, place.store, self._partitions)
        self._commit(messages, batchId, in_turn=True)

    @called_by_spark
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing: the micro-batch is run again, and finishes what was begun. What it does not need, it removes."""
