"""The partition actor, one per owned lease: reads ahead, calls the handler, commits.

The commit protocol: docs/protocol.md. Leases say who should run a partition; that two owners at once do no harm is
the work of the conditional writes here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pyarrow as pa

from actorproc.config.settings import Settings
from actorproc.errors import Fenced, HandlerError, PartitionStuck, SourceError
from actorproc.handler.base import CloseReason, PartitionHandler
from actorproc.handler.context import PartitionInfo
from actorproc.partition.batch_size import Pace
from actorproc.partition.committer import Committer, PartitionStatistics
from actorproc.partition.dead_letter_limit import DeadLetterLimit
from actorproc.partition.dead_letter_summary import DeadLetterSummary
from actorproc.partition.end_offset import EndOffset
from actorproc.partition.handler_threads import HandlerThreads
from actorproc.partition.outcome import Outcome
from actorproc.partition.processing import BatchProcessor
from actorproc.partition.read_ahead import Read, fitting
from actorproc.partition.retry_pause import Interrupted
from actorproc.records import Batch, Cursor
from actorproc.runtime.actor import Actor
from actorproc.runtime.budget import BufferTotal, ByteBudget, ReadBudget
from actorproc.runtime.clock import Clock
from actorproc.runtime.error_text import format_error
from actorproc.runtime.logger import get_logger
from actorproc.runtime.tasks import first_cause
from actorproc.runtime.user_code import user_code
from actorproc.sources.protocol import Chunk, End, Source, Start
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store

CLOSING_TIME = 10.0
"""Seconds that a handler's `closing` may take."""

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class HostContext:
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
    held: BufferTotal
    news: DeadLetterSummary
    threads: HandlerThreads


class PartitionActor(Actor[Read | Exception]):
    """Runs one partition under one epoch until it is drained, fenced or fails.

    Args:
        limit: of dead letters; pass one in to keep its count across restarts.
        end: where the caller wants to get to, if anywhere.
        reached: called once everything up to `end` is committed.
        lost: called with the partition and how, when the handler has lost rows.
        stopping: tells whether the host is stopping, for `closing`.
    """

    def __init__(self, partition: str, epoch: int, common: HostContext, *, limit: DeadLetterLimit | None = None, end: End | None = None,
                 reached: Callable[[str], None] = lambda _: None, lost: Callable[[str, str], None] = lambda *_: None, stopping: Callable[[], bool] = lambda: False) -> None:  # fmt: skip
        super().__init__(mailbox=common.settings.read_ahead_batches)
        self.partition = partition
        self._common = common
        self._settings, self._clock = common.settings, common.clock
        self._limit = limit or DeadLetterLimit(common.settings)
        self._goal = EndOffset(common.source, partition, end) if end is not None else None
        self._stopping = stopping
        self._reached = reached
        self._lost = partial(lost, partition)
        self.statistics = PartitionStatistics(partition, epoch)
        self._log = log.bind(processor=common.processor, host=common.host, partition=partition, epoch=epoch)
        self._site = PartitionInfo(
            common.processor, common.host, partition, epoch, common.options, common.shared, self._log
        )
        self._pace = Pace(common.clock, common.settings)
        self._gathered: deque[Read | Exception] = deque()  # taken out of the mailbox, for `_next`
        self._draining = anyio.Event()
        self._waiting: anyio.CancelScope | None = None
        self._committer = Committer(
            self.statistics, host=common.host, schema=common.schema, store=common.store, layout=common.layout,
            settings=common.settings, clock=common.clock, held=common.held, news=common.news, log=self._log,
        )  # fmt: skip
        self._room = ReadBudget(common.budget)
        self._processing: BatchProcessor | None = None

    def drain(self) -> None:
        """End soon: the batch in hand is finished (left to the next owner, if it waits long to be tried again), everything is
        committed, then `run` returns."""
        self._draining.set()
        if self._waiting is not None:
            self._waiting.cancel()

    @property
    def progress(self) -> tuple[object, ...] | None:
        """Changes while the handler gets on; None while it has nothing to do."""
        return self._processing.progress if self._processing else None

    @property
    def trouble(self) -> str | None:
        """Why the batch at hand does not begin, or is tried again, if so."""
        return self._processing.trouble if self._processing else None

    async def run(self) -> None:
        """Claim, walk, process, commit.

        Raises:
            Fenced: another host runs this partition.
            ActorprocError: anything else that a new start may mend.
        """
        handler: PartitionHandler | None = None
        reason = CloseReason.LOST
        try:
            async with self._in_time("an earlier call of process has not ended, and it cannot be stopped"):
                await self._common.threads.ended(self.partition)
            await self._committer.open(self._start)
            async with self._in_time("opened() has not ended"):
                with user_code("opening the handler"):
                    new = self._common.handler()
                    await new.opened(self._site)
            self.statistics.state = "running"
            handler = new
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._read_ahead)
                await self._work(handler)
                await self._release()  # before the reader has ended: it may wait in a thread for long
                tasks.cancel_scope.cancel()
            reason = CloseReason.STOPPING if self._stopping() else CloseReason.HANDOFF
        except Exception as error:
            if not isinstance(first_cause(error), Fenced):
                reason = CloseReason.FAILED
            raise
        finally:
            if self.aborted is not None:
                reason = CloseReason.FAILED
            # Also by a drain that waited for long enough.
            cut_off = self.aborted is not None or (self._draining.is_set() and self.statistics.state == "running")
            if cut_off and self._settings.delivery == "at-most-once" and handler is not None:
                await self._commit_after_abort()
            self.statistics.state = "closing"
            self._room.close()
            self._committer.close()
            if handler is not None:
                await self._say_goodbye(handler, reason)

    @asynccontextmanager
    async def _in_time(self, trouble: str) -> AsyncIterator[None]:
        """Bounds what keeps the handler from its work, as `max_process_time` bounds the work."""
        most = self._settings.max_process_time
        with anyio.move_on_after(most) as scope:
            yield
        if scope.cancelled_caught:
            raise PartitionStuck(f"{trouble} within max_process_time = {most:g} s")

    # Reading

    async def _read_ahead(self) -> None:
        """Read until that fails; the failure waits its turn behind what was read before."""
        failure: Exception
        try:
            with user_code(f"the source's read() of partition {self.partition}", SourceError):
                await self._read()
        except Exception as error:  # noqa: BLE001  # raised in `_work`
            failure = error
        else:
            failure = SourceError(
                f"the source's read() of partition {self.partition} has ended; it must go on for ever"
            )
        await self.send(failure)

    async def _read(self) -> None:
        """Cut what the source yields into batches and send them to the own mailbox: the read-ahead."""
        cursor = self._committer.cursor
        read = -1  # sequence up to which this read() has come: only a new one may begin again below what is done
        async with aclosing(self._common.source.read_within(self.partition, cursor.position, self._room)) as chunks:
            async for chunk in chunks:
                read = self._check_growth(chunk.batch, read)
                cursor = await self._pass_on(chunk, cursor)
                del chunk  # the next may take its time, and this one's memory is free as soon as it is handled

    async def _pass_on(self, chunk: Chunk, cursor: Cursor) -> Cursor:
        """The records of `chunk` beyond `cursor` as messages; how far the chunk leads."""
        settings = self._settings
        position, done = cursor
        batch = chunk.batch.after(done)
        counted = self._room.made
        if not counted and len(batch):  # all of it is there: its first piece holds the memory of the last
            await self._room.reserve(batch.nbytes)
        while len(batch):
            piece = batch[: fitting(batch, settings.max_batch_records, settings.max_batch_bytes)]
            batch = batch[len(piece) :]
            done = piece.last
            await self._room.take(piece.nbytes)
            # Within a chunk the position to resume from is its start, and what is done of it is passed over.
            await self.send(Read([piece], Cursor(position if len(batch) else chunk.next, done)))
        if not counted:
            self._room.resize(0)
        if not len(chunk.batch):
            await self.send(Read([], Cursor(chunk.next, done), at_end=True))
        return Cursor(chunk.next, done)

    def _check_growth(self, batch: Batch, above: int) -> int:
        """Its last sequence; records out of order would be passed over, or come twice."""
        if (pair := batch.disorder(above)) is not None:
            raise SourceError(
                f"the source's read() of partition {self.partition} gave sequence {pair[1]} after {pair[0]}: within one "
                "read() sequences must grow from record to record, from 0"
            )
        return batch.last if len(batch) else above

    @asynccontextmanager
    async def _aside(self) -> AsyncIterator[None]:
        """While a batch waits to be tried again: earlier ones are committed when they are due, and the budget's share of
        what was read is for others, who must not wait for it."""
        with self._pace.pause():
            if self._committer.is_due():
                await self._committer.commit()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._gather)
                with self._room.lent_out():
                    yield
                tasks.cancel_scope.cancel()

    async def _gather(self) -> None:
        """What comes meanwhile makes one batch, as far as that is soon done: a batch costs its pauses however small it is,
        and a slow stream of small pieces with a bad record each would outrun the handler.
        """
        while len(self._gathered) < 2:
            message = await self.receive()
            last = self._gathered[-1] if self._gathered else None
            if isinstance(last, Read) and isinstance(message, Read) and self._may_join(last, message):
                last.join(message)
            elif message is not None:
                self._gathered.append(message)

    def _may_join(self, last: Read, message: Read) -> bool:
        if self._goal is not None and (last.at_end or self._goal.may_be_at(last.cursor)):
            return False  # what leads up to the end that is waited for stays as it is
        return last.fits(message, self._settings, self._pace)

    # Working

    async def _work(self, handler: PartitionHandler) -> None:
        self._processing = BatchProcessor(
            handler, self._site, self._common.schema, self._settings, self._clock,
            save=self._save, draining=self._draining, threads=self._common.threads,
            limit=self._limit, aside=self._aside, lost=self._lost,
        )  # fmt: skip
        await self._settle_goal()
        while not self._draining.is_set():
            message = await self._next()
            if isinstance(message, Exception):
                await self._commit_before_failing()
                raise message
            if message is not None:
                if self._goal is not None:
                    self._goal.note(at_end=message.at_end)
                try:
                    await self._handle(self._processing, message)
                except Interrupted:
                    return
                del message  # the next may take its time, and need not wait beside the memory of this one
            if self._committer.is_due():
                await self._committer.commit()
            await self._settle_goal()

    async def _next(self) -> Read | Exception | None:
        """The next message, cut to what is soon done; None when a commit is due first, or a drain has come."""
        message = await self._next_whole()
        if isinstance(message, Read) and len(message.pieces) == 1 and message.records > self._pace.records:
            message, rest = message.split(self._pace.records, self._committer.cursor.position)
            self._gathered.appendleft(rest)
        return message

    async def _next_whole(self) -> Read | Exception | None:
        due = self._committer.due_at()
        with anyio.CancelScope() as self._waiting:
            if self._gathered:
                await anyio.lowlevel.checkpoint()
                return self._gathered.popleft()
            return await self.receive(None if due is None else due - self._clock.monotonic())
        return None

    async def _handle(self, processor: BatchProcessor, message: Read) -> None:
        if not message.pieces:
            self._committer.move(message.cursor)
            return
        batch = await message.take(self._clock)
        settled = self._committer.committed.sequence == self._committer.cursor.sequence
        begun = self._clock.monotonic()
        try:
            if self._settings.delivery == "at-most-once":
                await self._committer.go_ahead(message.cursor)  # whatever becomes of it
            self._pace.begin()
            outcome = await processor.process(batch)
            self._pace.done(len(batch), len(batch) - len(outcome.letters) - outcome.skipped)
        except HandlerError:
            await self._commit_before_failing()
            raise
        finally:
            self._room.give_back(message.nbytes)
        self._committer.processed(batch, batch.last, message.cursor, outcome, begun)
        if not self._settings.auto_commit and processor.asked_for(batch, settled) >= batch.last:
            await self._committer.commit()  # asked for while records of the batch were still open

    async def _commit_before_failing(self) -> None:
        """Before a failure ends the actor: earlier batches were good, and need not be processed again."""
        wanted = self._settings.auto_commit or self._settings.delivery == "at-most-once"
        if wanted and self._committer.settled:  # else it may be a commit of the handler's that was cut short
            await self._committer.commit()

    async def _commit_after_abort(self) -> None:
        """At most once earlier batches are done for good, though the handler hangs in this one, or takes too long."""
        why = f"not committed within {CLOSING_TIME:g} s"
        with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSING_TIME):
            try:
                await self._committer.commit()
                return
            except Exception as error:  # noqa: BLE001  # whatever it is, what follows an abort follows
                why = format_error(error)
        self._log.warning("partition.not_kept", error=why)

    async def _save(self, batch: Batch, outcome: Outcome, upto: int) -> None:
        """`ctx.commit` within a batch: everything up to a record of it."""
        cursor, now = Cursor(self._committer.cursor.position, upto), self._clock.monotonic()
        self._committer.processed(batch, upto, cursor, outcome, now)  # which waits for nothing
        await self._committer.commit()

    async def _start(self) -> str:
        async with self._in_time("start() of the source has not ended"):
            return await self._common.source.start(self.partition, self._common.start)

    async def _release(self) -> None:
        """Leave nothing behind: what is done is committed, and the next owner need not walk."""
        self.statistics.state = "draining"
        if self._settings.auto_commit:
            await self._committer.commit()
        await self._committer.checkpoint()
        self.statistics.state = "drained"

    async def _settle_goal(self) -> None:
        """Once the end that the caller waits for is processed, make it known: commit, and write the checkpoint."""
        if self._goal is None:
            return
        committer = self._committer
        if (shortfall := await self._goal.shortfall(committer.cursor)) is not None:
            await self._commit_before_failing()
            raise shortfall
        if not self._goal.is_reached(committer.cursor):
            return
        if not self._settings.auto_commit and committer.committed.sequence != committer.cursor.sequence:
            raise HandlerError(
                f"the end is processed, but the handler has not committed the records after "
                f"{committer.committed.sequence}: with auto_commit off, call ctx.commit() at the end of each batch"
            )
        await committer.commit()  # at least how far the source has looked
        await committer.checkpoint()
        self._goal = None
        self._reached(self.partition)

    async def _say_goodbye(self, handler: PartitionHandler, reason: CloseReason) -> None:
        with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSING_TIME) as scope:
            await self._common.threads.ended(self.partition)  # a plain `process` that nobody waits for any more
            try:
                with user_code("closing"):
                    await handler.closing(self._site, reason)
            except Exception:  # noqa: BLE001  # the partition ends all the same
                self._log.exception("partition.closing_failed")
        if scope.cancelled_caught:
            self._log.error("partition.closing_timed_out", after=CLOSING_TIME, why="process or closing still runs")
        self._log.info("partition.closed", reason=reason.value, position=self._committer.committed.position)
