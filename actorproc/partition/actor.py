"""The partition actor, one per owned lease: read -> batch -> attempt -> commit.

The commit protocol: docs/protocol.md. Leases decide which host should run a partition; the conditional writes of the
protocol make two owners at once harmless.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio

from actorproc.errors import (
    Fenced,
    HandlerError,
    PartitionGone,
    RowsLost,
)
from actorproc.handler.base import CloseReason, PartitionHandler
from actorproc.handler.info import PartitionInfo
from actorproc.handler.state_kinds import wakes
from actorproc.output.checkpoint import Checkpoint
from actorproc.partition.batch_processor import BatchProcessor
from actorproc.partition.batch_size import Pace
from actorproc.partition.committer import Committer
from actorproc.partition.dead_letter_limit import DeadLetterLimit
from actorproc.partition.handler_hooks import (
    CLOSING_TIME,
    call_committed,
    close_handler,
    in_time,
    new_handler,
    open_handler,
)
from actorproc.partition.hook_queue import PartitionHooks
from actorproc.partition.host_context import HostContext
from actorproc.partition.lag import Lag
from actorproc.partition.opened_handler import OpenedHandler
from actorproc.partition.queue_reader import QueueReader
from actorproc.partition.read_ahead import Read, ReadAhead
from actorproc.partition.retry_pause import Interrupted
from actorproc.partition.start import check_source_has, is_followed, start_position
from actorproc.partition.statistics import PartitionStatistics, Retry, Trouble
from actorproc.partition.succession import Succession
from actorproc.partition.time_spent import TimeSpent
from actorproc.partition.wakes import Wakes
from actorproc.records import SEQUENCE, Cursor
from actorproc.runtime.actor import Restartable
from actorproc.runtime.error_text import format_error
from actorproc.runtime.logger import get_logger
from actorproc.runtime.stacks import shown, task_stack, thread_stack
from actorproc.runtime.tasks import first_cause
from actorproc.sources.queue_protocol import QueueSource

log = get_logger(__name__)


class PartitionActor(Restartable):
    """Runs one partition under one epoch until it is drained, fenced or fails.

    Args:
        limit: of dead letters. The supervisor passes the same one to each restart, so that the count goes on.
    """

    def __init__(
        self,
        partition: str,
        epoch: int,
        context: HostContext,
        *,
        limit: DeadLetterLimit | None = None,
    ) -> None:
        super().__init__()
        settings, clock = context.settings, context.clock
        self.partition = partition
        self._context = context
        self._settings, self._clock = settings, clock
        self._limit = limit or DeadLetterLimit(settings)
        self.flushing = False
        """Whether a `flush` was requested and is not done."""
        self.is_claiming = False
        """Whether it waits for its turn to open, or opens: no code of the user's runs, and nothing is uncommitted."""
        self._closing_for = CloseReason.HANDOFF
        self._is_closed = False  # the handler's `closing` was called
        self.statistics = PartitionStatistics(partition, epoch)
        self.time = TimeSpent(clock, context.times)
        self._gone = False  # the source has forgotten the partition, and lists one that follows it
        self.ended = False
        """Whether the partition has ended: all that there ever will be is committed."""
        self._log = log.bind(processor=context.processor, host=context.host, partition=partition, epoch=epoch)
        self._hooks = PartitionHooks(context.hooks, self.statistics, context.dead_letter_summary)
        self._info = PartitionInfo(
            context.processor, context.host, partition, epoch, options=context.options, shared=context.shared,
            log=self._log, decoder=context.decoder, key_decoder=context.key_decoder,
            processor_id=context.processor_id,
            output_schema=context.schema.remove(context.schema.get_field_index(SEQUENCE.name)),
        )  # fmt: skip
        self._behind_since = -math.inf  # the first record beyond the end was read then; inf: everything is processed
        self._opened_at = Cursor("")
        self._draining = anyio.Event()
        self._pace = Pace(clock, settings)
        queue = None
        if isinstance(context.source, QueueSource):
            end_wait = settings.queue_end_wait if context.until_end else None
            queue = QueueReader(context.source, partition, settings.max_unacknowledged, clock, self._log, end_wait)
        self._reads = ReadAhead(
            queue or context.source, partition, settings, context.budget, self._pace,
            prepare=context.prepare, epoch=epoch, costs=context.costs,
        )  # fmt: skip
        self.lag = Lag(context.source, self._reads, self.statistics, clock)
        self._committer = Committer(
            self.statistics, host=context.host, schema=context.schema, store=context.store, layout=context.layout,
            settings=settings, clock=clock, time=self.time, held=context.held,
            dead_letter_summary=context.dead_letter_summary, log=self._log, queue=queue,
        )  # fmt: skip
        self._opened: OpenedHandler | None = None
        self._wakes: Wakes | None = None  # of a handler with timers
        self._task: asyncio.Task[Any] | None = None

    def drain(self, reason: CloseReason = CloseReason.HANDOFF) -> None:
        """Finish the current batch, commit and stop. A batch that waits for a retry is left to the next owner."""
        if self._closing_for is not CloseReason.ENDED:  # its end is being committed, and cannot be called off
            self._closing_for = reason
        self._draining.set()
        self._reads.interrupt()

    def flush(self) -> None:
        """Commit after the current batch, and write the checkpoint, without waiting for `commit_interval`."""
        self.flushing = True
        self._reads.wake()

    @property
    def progress(self) -> tuple[object, ...] | None:
        """Changes whenever the handler makes progress; None while it has nothing to do."""
        return self._opened.progress if self._opened else None

    def stack(self) -> str | None:
        """Where the handler's thread, or this actor, is; for the log."""
        thread = self._context.threads.thread_of(self.partition)
        if thread is not None:
            return shown(thread_stack(thread))
        return None if self._task is None else shown(task_stack(self._task))

    @property
    def read_progress(self) -> int | None:
        """Changes whenever the source yields; None while it does not have to."""
        return self._reads.progress

    def read_anew(self) -> bool:
        """Begin another `read` of the source, if the present one waits at the end. Returns whether it does."""
        return self._reads.begin_anew()

    @property
    def trouble(self) -> Trouble | None:
        """Why the current batch does not begin, or is tried again; None: neither."""
        return self._opened.retries.trouble if self._opened else None

    @property
    def retry(self) -> Retry | None:
        """The records of the batch in hand that failed and are tried again."""
        return self._opened.retries.retry if self._opened else None

    @property
    def is_at_end(self) -> bool:
        """Whether everything that the source had is read."""
        return self._reads.newest is not None

    @property
    def _is_caught_up(self) -> bool:
        """Whether everything that the source had is processed, too: stream time may follow the wall clock."""
        newest = self._reads.newest
        return newest is not None and self._committer.cursor.sequence >= newest

    async def run(self) -> None:
        """Claim the partition, walk its commits, process and commit.

        Raises:
            Fenced: another host runs this partition.
            ActorprocError: anything else that a new start may fix.
        """
        reason = CloseReason.LOST
        self._task = asyncio.current_task()
        try:
            async with in_time(self._settings, "an earlier call of process has not ended, and it cannot be stopped"):
                await self._context.threads.ended(self.partition)
            self.is_claiming = True
            async with self._context.openings.turn():
                handler = new_handler(self._context)
                succession = Succession(self._context, self._info, handler)
                await self._committer.open(
                    partial(self._first_checkpoint, succession),
                    partial(check_source_has, self._context, self.partition),
                )
            self.is_claiming = False
            if self._committer.ended or self._gone:
                await self._end_partition()
                return
            self._opened_at = self._committer.committed
            self._info.committed = self._opened_at.sequence
            self._info.resets = {reset.id: reset.first.sequence for reset in self._committer.resets}
            opened = self._opened = await self._open_handler(handler)
            if opened.handler.exclusive:
                await self._committer.fence()  # after `opened`: see tests/protocol/forward_model.py
            self.statistics.state = "running"
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._reads.run, self._committer.cursor)
                await self._work(opened)
                # Before the reader ends, which may be blocked in a thread for long.
                await self._release(opened, succession)
                tasks.cancel_scope.cancel()
            reason = self._closing_for
        except Exception as error:
            if not isinstance(first_cause(error), Fenced):
                reason = CloseReason.FAILED
            raise
        finally:
            if self.aborted is not None:
                reason = CloseReason.FAILED
            await self._end_run(reason)

    async def _end_run(self, reason: CloseReason) -> None:
        # A drain that took too long has cancelled this actor as well.
        cut_off = self.aborted is not None or (self._draining.is_set() and self.statistics.state == "running")
        if cut_off and self._settings.delivery == "at-most-once" and self._opened is not None:
            await self._commit_after_abort()
        self._reads.close()
        self._committer.clear()
        if self._opened is not None:
            if not self._is_closed:
                await self._close(self._opened.handler, reason)
            self._log.info("partition.closed", reason=reason.value, position=self._committer.committed.position)

    async def _first_checkpoint(self, succession: Succession) -> Checkpoint:
        parents = await succession.parents()
        try:
            position = await start_position(self._context, self.partition, parents)
        except PartitionGone as error:
            if not await self._note_if_lost(error):
                raise
            position = ""
        return await succession.first_checkpoint(position, parents)

    async def _open_handler(self, handler: PartitionHandler) -> OpenedHandler:
        await open_handler(handler, self._context.settings, self._info)
        if type(handler).committed is not PartitionHandler.committed:
            self._committer.after_commit = partial(call_committed, handler, self._info)
        self._committer.on_commit = self._hooks.committed
        opened = OpenedHandler(
            handler, self._info, self._context.schema, self._settings, self._clock,
            committer=self._committer, reads=self._reads, pace=self._pace,
            threads=self._context.threads, draining=self._draining, time=self.time,
        )  # fmt: skip
        opened.retries.on_failed = self._hooks.failed
        if wakes(type(handler)):
            self._wakes = Wakes(opened, self._committer, lambda: self._is_caught_up)
        return opened

    # Processing

    async def _work(self, opened: OpenedHandler) -> None:
        processor = BatchProcessor(opened, self._limit)
        while not self._draining.is_set():
            self._context.changes.add(self.partition)  # it runs, or has processed, committed or flushed more
            if self._wakes is not None:
                await self._run_timers(self._wakes.fire())
            try:
                with self.time.at("wait" if self.is_at_end else "read"):
                    read = await self._reads.next(self._seconds_until_due())
            except Exception as error:
                if isinstance(error, PartitionGone) and await self._note_if_lost(error):
                    self._closing_for = CloseReason.ENDED
                    return
                await self._commit_before_failing()
                raise
            if read is not None:
                try:
                    await self._handle(processor, read)
                except Interrupted:
                    return
                self._note_end(read)
                if read.ended:
                    self._closing_for = CloseReason.ENDED
                    return
                del read  # frees its memory before the wait for the next one
            await self._check_late_rows(opened)
            if self._committer.is_due():
                await self._committer.commit()
            if self.flushing:
                await self._flush()
            if self._committer.has_all_committed:
                self.lag.oldest_time = None

    def _note_end(self, read: Read) -> None:
        """Note whether everything that the source had is processed, and tell the hooks if the partition was behind."""
        now = self._clock.monotonic()
        if not read.at_end:
            self._behind_since = min(self._behind_since, read.since)
            return
        reached = self._committer.cursor
        if self.statistics.caught_up is None:
            self.statistics.caught_up = reached
            self.lag.note_reached(self._opened_at, reached)
        since = min(self._behind_since, read.since) if read.records else self._behind_since
        if now - since >= self._settings.commit_interval:
            self._hooks.caught_up(reached)
        self._behind_since = math.inf

    def _seconds_until_due(self) -> float | None:
        """Seconds until a commit or a timer is due; None: neither is to come."""
        if self.flushing:  # requested while timers fired
            return 0.0
        due, wake = self._committer.due_at(), math.inf
        if self._wakes is not None:
            wake = self._wakes.next_in()
        wait = min(math.inf if due is None else due - self._clock.monotonic(), wake)
        return None if wait == math.inf else wait

    async def _run_timers(self, firing: Awaitable[object]) -> None:
        try:
            with self.time.at("handle"):
                await firing
        except HandlerError:
            await self._commit_before_failing()
            raise

    async def _handle(self, processor: BatchProcessor, read: Read) -> None:
        if not read.pieces:
            self._committer.move(read.cursor)
            return
        batch = await read.take(self._clock)
        settled = self._committer.has_all_committed
        if settled or self.lag.oldest_time is None:
            self.lag.oldest_time = batch.first_time
        begun = self._clock.monotonic()
        try:
            if self._settings.delivery == "at-most-once":
                await self._committer.go_ahead(read.cursor)  # before the handler sees the batch
            self._pace.begin()
            with self.time.at("handle"):
                results = await processor.process(batch, read.cuts)
            self._pace.done(len(batch), len(batch) - len(results.letters) - results.skipped)
        except HandlerError:
            await self._commit_before_failing()
            raise
        finally:
            self._reads.give_back(read)
        self._committer.add(batch, batch.last, read.cursor, results, begun)
        if not self._settings.auto_commit and processor.asked_for(batch, settled) >= batch.last:
            await self._committer.commit()  # the handler asked for it before all records of the batch were done

    async def _check_late_rows(self, opened: OpenedHandler) -> None:
        """Stop if rows came after `process` had returned. Uncommitted records are processed again."""
        if opened.late.is_set():
            if self._settings.delivery == "at-most-once":
                await self._commit_before_failing()
            raise RowsLost(
                "rows were emitted or state was changed after process() had returned, too late for their commit: "
                "await all work before process() returns"
            )

    async def _flush(self) -> None:
        if self._wakes is not None:
            await self._run_timers(self._wakes.settle())
        self._check_all_committed()
        await self._committer.commit()
        await self._committer.checkpoint()
        self.flushing = False

    def _check_all_committed(self) -> None:
        committer = self._committer
        if not self._settings.auto_commit and not committer.has_all_committed:
            raise HandlerError(
                f"the end is processed, but the handler has not committed the records after "
                f"{committer.committed.sequence}: with auto_commit off, call ctx.commit() at the end of each batch"
            )

    # Ending

    async def _commit_before_failing(self) -> None:
        """Commit the earlier batches before a failure ends the actor, so that they are not processed again."""
        wanted = self._settings.auto_commit or self._settings.delivery == "at-most-once"
        if wanted and self._committer.settled:  # else a commit was cut short, and only a new start can find out
            await self._committer.commit()

    async def _commit_after_abort(self) -> None:
        """With at-most-once delivery, commit the earlier batches when the handler hangs in this one."""
        why = f"not committed within {CLOSING_TIME:g} s"
        with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSING_TIME):
            try:
                await self._committer.commit()
                return
            except Exception as error:  # noqa: BLE001  # the actor ends all the same
                why = format_error(error)
        self._log.warning("partition.not_kept", error=why)

    async def _release(self, opened: OpenedHandler, succession: Succession) -> None:
        """Commit the processed records, and write the checkpoint, so that the next owner does not have to walk."""
        await self._check_late_rows(opened)
        self.statistics.state = "draining"
        if self._closing_for is CloseReason.ENDED and self._wakes is not None:
            await self._run_timers(self._wakes.fire(idle=False))
            await self._run_timers(self._wakes.fire_all(succession.goes_on))
        if self._settings.auto_commit:
            await self._committer.commit()
        await self._close(opened.handler, self._closing_for, self._committer.commit)
        self.statistics.state = "draining"
        if self._closing_for is CloseReason.ENDED:
            self._check_all_committed()
            await self._end_partition()
        else:
            await self._committer.checkpoint()
        self.statistics.state = "drained"

    async def _end_partition(self) -> None:
        """Commit the end, unless the chain has it. Nothing is committed after it."""
        await self._committer.end(vanished=self._gone)
        self.ended = True
        self._log.info("partition.ended", position=self._committer.committed.position)

    async def _note_if_lost(self, gone: PartitionGone) -> bool:
        """Whether the source lists a partition that follows this one, which it has forgotten: then its rest is lost."""
        if not await is_followed(self._context, self.partition):
            return False
        self._log.error(
            "partition.records_lost", after=self._committer.cursor.sequence, error=str(gone),
            why="the source has forgotten the partition before its end was read; those that follow it begin now",
        )  # fmt: skip
        self._gone = True
        return True

    async def _close(
        self, handler: PartitionHandler, reason: CloseReason, commit: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self.statistics.state, self._is_closed = "closing", True
        await close_handler(handler, self._info, reason, self._context.threads, commit)
