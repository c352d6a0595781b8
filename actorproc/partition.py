"""The partition actor, one per owned lease: reads ahead, calls the handler, commits.

The commit protocol: docs/protocol.md. Leases say who should run a partition; that two owners at once do no harm is
the work of the conditional writes here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import anyio
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from actorproc.actor import Actor, first_cause, is_stray
from actorproc.budget import ByteBudget
from actorproc.clock import Clock
from actorproc.context import Site
from actorproc.errors import Fenced, HandlerError, SourceError
from actorproc.handler import CloseReason, PartitionHandler
from actorproc.layout import ProcessorLayout
from actorproc.output.chain import Commit, OutputChain, encode_commit
from actorproc.output.checkpoints import CheckpointKeeper, Totals
from actorproc.processing import BatchProcessor, Interrupted, Outcome
from actorproc.records import Batch, Cursor
from actorproc.settings import Settings
from actorproc.sources.protocol import End, Source, Start
from actorproc.store import Store

CHECKPOINT_EVERY = 16
"""Commits after which the checkpoint follows: how far the next owner has to walk at most."""

CLOSING_TIME = 10.0
"""Seconds that a handler's `closing` may take."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Shared:
    """What all partitions of a processor on one host have in common."""

    processor: str
    host: str
    handler: type[PartitionHandler]
    schema: pa.Schema
    source: Source
    store: Store
    layout: ProcessorLayout
    settings: Settings
    clock: Clock
    start: Start
    options: Any
    shared: Any
    budget: ByteBudget
    threads: anyio.CapacityLimiter


@dataclass(slots=True)
class PartitionStatistics:
    """What a partition actor has done since it started here. Times: seconds since 1970 by this host's clock."""

    partition: str
    epoch: int
    state: str = "opening"
    cursor: Cursor = field(default_factory=lambda: Cursor(""))
    """Processed up to here; committed up to `committed`."""
    committed: Cursor = field(default_factory=lambda: Cursor(""))
    records: int = 0
    rows: int = 0
    dead_letters: int = 0
    commits: int = 0
    last_commit: float | None = None
    error: str | None = None


@dataclass(slots=True)
class _Read:
    """A message of the reader: a batch (perhaps empty: the end was reached) and how far it leads."""

    batch: Batch
    cursor: Cursor


@dataclass(slots=True)
class _Pending:
    """What was processed and is not committed yet."""

    tables: list[pa.Table] = field(default_factory=list)
    letters: list[bytes] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)
    bytes: int = 0
    letter_bytes: int = 0
    since: float | None = None
    """When the oldest row or dead letter of it was processed."""

    def add(self, outcome: Outcome, records: int, now: float) -> None:
        """Take over what came of `records` records."""
        rows = sum(table.num_rows for table in outcome.tables)
        self.tables += outcome.tables
        self.letters += [letter for _, letter in sorted(outcome.letters.items())]
        self.totals += Totals(records, rows, len(outcome.letters), outcome.skipped)
        self.bytes += sum(table.nbytes for table in outcome.tables)
        self.letter_bytes += sum(map(len, outcome.letters.values()))
        if self and self.since is None:
            self.since = now

    def __bool__(self) -> bool:
        return bool(self.totals.rows or self.letters)


class PartitionActor(Actor[_Read]):
    """Runs one partition under one epoch until it is drained, fenced or fails.

    Args:
        end: where the caller wants to get to, if anywhere.
        reached: called once everything up to `end` is committed.
        stopping: tells whether the host is stopping, for `closing`.
    """

    def __init__(self, partition: str, epoch: int, common: Shared, *, end: End | None = None,
                 reached: Callable[[str], None] = lambda _: None, stopping: Callable[[], bool] = lambda: False) -> None:  # fmt: skip
        super().__init__(mailbox=common.settings.read_ahead_batches)
        self.partition = partition
        self._common = common
        self._settings, self._clock = common.settings, common.clock
        self._end = end
        self._stopping = stopping
        self._reached = reached
        self.statistics = PartitionStatistics(partition, epoch)
        self._log = log.bind(processor=common.processor, host=common.host, partition=partition, epoch=epoch)
        self._site = Site(common.processor, common.host, partition, epoch, common.options, common.shared, self._log)
        self._draining = anyio.Event()
        self._waiting: anyio.CancelScope | None = None
        self._chain = OutputChain(common.store, common.layout, partition)
        self._keeper = CheckpointKeeper(common.store, common.layout, partition, host=common.host, epoch=epoch)
        self._number = 0
        self._cursor = Cursor("")
        self._committed = Cursor("")
        self._totals = Totals()
        self._pending = _Pending()
        self._counted = -1  # sequence up to which records are in the totals
        self._moved_at: float | None = None  # when the cursor left what is committed
        self._held = 0  # bytes of the budget that wait in the mailbox
        self._processor: BatchProcessor | None = None
        self._at_end = False

    def drain(self) -> None:
        """End soon: the batch in hand is finished, everything is committed, then `run` returns."""
        self._draining.set()
        if self._waiting is not None:
            self._waiting.cancel()

    @property
    def progress(self) -> tuple[object, ...] | None:
        """Changes while the handler gets on; None while it has nothing to do."""
        return self._processor.progress if self._processor else None

    async def run(self) -> None:
        """Claim, walk, process, commit.

        Raises:
            Fenced: another host runs this partition.
            ActorprocError: anything else that a new start may mend.
        """
        handler: PartitionHandler | None = None
        reason = CloseReason.LOST
        try:
            await self._open()
            handler = self._common.handler()
            await handler.opened(self._site)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._read_ahead)
                await self._work(handler)
                tasks.cancel_scope.cancel()
            await self._release()
            reason = CloseReason.STOPPING if self._stopping() else CloseReason.HANDOFF
        except Exception as error:
            if not isinstance(first_cause(error), Fenced):
                reason = CloseReason.FAILED
            raise
        finally:
            self.statistics.state = "closed"
            self._common.budget.give_back(self._held)
            self._held = 0
            if handler is not None:
                await self._say_goodbye(handler, reason)

    # Opening

    async def _open(self) -> None:
        common = self._common
        checkpoint = await self._keeper.claim(lambda: common.source.start(self.partition, common.start))
        self._number, self._cursor, self._totals = checkpoint.number, checkpoint.cursor, checkpoint.totals
        while (commit := await self._chain.read(self._number)) is not None:
            await self._chain.publish(self._number, commit)
            self._number += 1
            self._totals = commit.totals
            if commit.next.sequence >= self._cursor.sequence:
                self._cursor = commit.next
        self._committed = self._cursor
        self._counted = self._cursor.sequence
        self.statistics.state = "running"
        self.statistics.cursor = self.statistics.committed = self._cursor
        self._log.info("partition.opened", position=self._cursor.position, next_output=self._number)

    # Reading

    async def _read_ahead(self) -> None:
        try:
            await self._read()
        except asyncio.CancelledError:
            if not is_stray():
                raise
            raise SourceError(f"the source's read() of partition {self.partition} was cancelled from within") from None

    async def _read(self) -> None:
        """Cut what the source yields into batches and send them to the own mailbox: the read-ahead."""
        common, settings = self._common, self._settings
        position, done = self._cursor
        async with aclosing(common.source.read(self.partition, position)) as chunks:
            async for chunk in chunks:
                batch = chunk.batch.after(done)
                while len(batch):
                    piece = batch[: _fitting(batch, settings.max_batch_records, settings.max_batch_bytes)]
                    batch = batch[len(piece) :]
                    done = piece.last
                    await common.budget.take(piece.nbytes)
                    self._held += piece.nbytes
                    # Within a chunk the position to resume from is its start, and what is done of it is passed over.
                    await self.send(_Read(piece, Cursor(position if len(batch) else chunk.next, done)))
                position = chunk.next
                if not len(chunk.batch):
                    await self.send(_Read(chunk.batch, Cursor(position, done)))
        raise SourceError(f"the source's read() of partition {self.partition} has ended; it must go on for ever")

    # Working

    async def _work(self, handler: PartitionHandler) -> None:
        self._processor = BatchProcessor(
            handler, self._site, self._common.schema, self._settings, self._clock,
            save=self._save, draining=self._draining, threads=self._common.threads,
        )  # fmt: skip
        await self._settle_end()
        while not self._draining.is_set():
            message = await self._next()
            if message is not None:
                try:
                    await self._handle(self._processor, message)
                except Interrupted:
                    return
            if self._is_due():
                await self._commit()
            await self._settle_end()

    async def _next(self) -> _Read | None:
        """The next message; None when a commit is due first, or a drain has come."""
        due = self._due_at()
        with anyio.CancelScope() as self._waiting:
            return await self.receive(None if due is None else due - self._clock.monotonic())
        return None

    async def _handle(self, processor: BatchProcessor, message: _Read) -> None:
        batch, self._at_end = message.batch, not len(message.batch)
        if self._at_end:
            self._move(message.cursor, Outcome(), 0)
            return
        try:
            if self._settings.delivery == "at-most-once":
                await self._keeper.advance(self._number, message.cursor, self._totals)
                self._cursor = message.cursor  # whatever becomes of it
            outcome = await processor.process(batch)
        except HandlerError:
            if self._settings.delivery == "at-most-once":
                await self._commit()  # of earlier batches, which nobody will see again
            raise
        finally:
            self._held -= batch.nbytes
            self._common.budget.give_back(batch.nbytes)
        self._move(message.cursor, outcome, self._count(batch, batch.last))
        if processor.wanted >= batch.last and not self._settings.auto_commit:
            await self._commit()  # asked for while records of the batch were still open

    async def _save(self, batch: Batch, outcome: Outcome, upto: int) -> None:
        """`ctx.commit` within a batch: everything up to a record of it."""
        self._move(Cursor(self._cursor.position, upto), outcome, self._count(batch, upto))
        await self._commit()

    def _count(self, batch: Batch, upto: int) -> int:
        """How many records up to `upto` were not counted before."""
        records = len(batch.after(self._counted)) - len(batch.after(upto))
        self._counted = max(self._counted, upto)
        return records

    def _move(self, cursor: Cursor, outcome: Outcome, records: int) -> None:
        """Take over what was processed; it waits for a commit."""
        cursor = max(cursor, self._cursor, key=lambda c: c.sequence)  # at most once: it has gone ahead
        if cursor != self._cursor:
            self._moved_at = self._moved_at or self._clock.monotonic()
        self._cursor = cursor
        self._pending.add(outcome, records, self._clock.monotonic())
        self.statistics.cursor = cursor
        self.statistics.records += records

    # Committing

    def _due_at(self) -> float | None:
        """When the next commit is due; None while there is nothing to commit."""
        if not self._settings.auto_commit:
            return None
        if self._pending.since is not None:
            return self._pending.since + self._settings.commit_interval
        return None if self._moved_at is None else self._moved_at + self._settings.idle_commit_interval

    def _is_due(self) -> bool:
        pending, settings = self._pending, self._settings
        full = (
            pending.totals.rows >= settings.commit_rows
            or pending.bytes >= settings.commit_bytes
            or pending.letter_bytes >= settings.commit_dead_letter_bytes
        )
        due = self._due_at()
        return due is not None and (full or self._clock.monotonic() >= due)

    async def _commit(self) -> None:
        """Make output, dead letters and position durable in one step."""
        pending, totals = self._pending, self._totals + self._pending.totals
        if pending:
            commit = Commit(
                put_id=self._clock.nonce(), host=self._common.host, epoch=self.statistics.epoch,
                first=self._committed, next=self._cursor, totals=totals, time=self._clock.wall(),
                rows=pending.totals.rows, letters=b"".join(pending.letters),
            )  # fmt: skip
            schema = self._common.schema
            table = pa.concat_tables(pending.tables) if pending.tables else schema.empty_table()
            body = await self._clock.offload(encode_commit, table, commit)
            await self._chain.create(self._number, body)
            await self._chain.publish(self._number, commit)
            self._number += 1
            self._totals, self._pending, self._moved_at = totals, _Pending(), None
            self._committed = self.statistics.committed = commit.next
            self.statistics.commits += 1
            self.statistics.rows += commit.rows
            self.statistics.dead_letters += len(pending.letters)
            self.statistics.last_commit = commit.time
            self._log.debug(
                "partition.committed", number=self._number - 1, rows=commit.rows, letters=len(pending.letters)
            )
            if self._number - self._keeper.current.number >= CHECKPOINT_EVERY:
                await self._keeper.advance(self._number, self._cursor, totals)
        elif self._cursor != self._committed:
            await self._keeper.advance(self._number, self._cursor, totals)
            self.statistics.last_commit = self._clock.wall()
        self._totals, self._pending, self._moved_at = totals, _Pending(), None
        self._committed = self.statistics.committed = self._cursor

    async def _release(self) -> None:
        """Leave nothing behind: what is done is committed, and the next owner need not walk."""
        self.statistics.state = "draining"
        if self._settings.auto_commit:
            await self._commit()
        await self._write_checkpoint()

    async def _write_checkpoint(self) -> None:
        if (self._keeper.current.number, self._keeper.current.cursor) != (self._number, self._committed):
            await self._keeper.advance(self._number, self._committed, self._totals)

    async def _settle_end(self) -> None:
        """Once the end that the caller waits for is processed, make it known: commit, and write the checkpoint."""
        if self._end is None:
            return
        if self._at_end or self._common.source.reached(self._cursor, self._end):
            if self._settings.auto_commit:
                await self._commit()
            elif self._committed != self._cursor:
                return
            await self._write_checkpoint()
            self._end = None
            self._reached(self.partition)

    async def _say_goodbye(self, handler: PartitionHandler, reason: CloseReason) -> None:
        with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSING_TIME):
            try:
                await handler.closing(self._site, reason)
            except Exception:  # noqa: BLE001  # the user's code; the partition ends all the same
                self._log.exception("partition.closing_failed")
        self._log.info("partition.closed", reason=reason.value, position=self._committed.position)


def _fitting(batch: Batch, records: int, size: int) -> int:
    """How many of the first records go into one batch: within both limits, and at least one."""
    count = min(len(batch), records)
    if batch[:count].nbytes <= size:
        return count
    ends = np.cumsum(pc.fill_null(pc.binary_length(batch.data.column("value")), 0).to_numpy(zero_copy_only=False))
    return max(1, int(np.searchsorted(ends, size, side="right")))
