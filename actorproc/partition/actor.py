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
from actorproc.output.checkpoint import Checkpoint
from actorproc.partition.batch_processor import BatchProcessor
from actorproc.partition.batch_size import Pace
from actorproc.partition.committer import Committer
from actorproc.partition.dead_letter_limit import DeadLetterLimit
from actorproc.partition.delivery_mode import DeliveryMode
from actorproc.partition.handler_calls import HandlerCalls
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
from actorproc.partition.queue_reader import Acknowledgements, queue_reader
from actorproc.partition.read_ahead import Read, ReadAhead
from actorproc.partition.retry_pause import Interrupted, RetryPause
from actorproc.partition.start import check_source_has, is_followed, start_position
from actorproc.partition.statistics import PartitionStatistics, Retry, Trouble
from actorproc.partition.succession import Succession
from actorproc.partition.time_spent import TimeSpent
from actorproc.partition.wakes import Wakes
from actorproc.runtime.actor import Restartable
from actorproc.runtime.error_text import format_error
from actorproc.runtime.logger import get_logger
from actorproc.runtime.stacks import shown, task_stack, thread_stack
from actorproc.runtime.tasks import first_cause

logger = get_logger(__name__)


DELIVERY_TIME = 5.0
"""Seconds that a partition waits for its sinks before it goes to another host, which delivers the rest."""


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
        self._logger = logger.bind(processor=context.processor, host=context.host, partition=partition, epoch=epoch)
        self._hooks = PartitionHooks(context.hooks, self.statistics, context.dead_letter_summary)
        self._info = context.partition_info(partition, epoch, self._logger)
        self._draining = anyio.Event()
        self._pace = Pace(clock, settings)
        self._delivery = DeliveryMode.of(settings)
        queue = queue_reader(context, partition, self._logger)
        self._reads = ReadAhead(
            queue or context.source, partition, settings, context.budget, self._pace,
            prepare=context.prepare, epoch=epoch, costs=context.costs,
        )  # fmt: skip
        self.lag = Lag(context.source, self._reads, self.statistics, clock)
        self.deliveries = context.deliveries(partition, self._logger, self._hooks.sink)
        self._committer = Committer(
            context, self.statistics, queue or Acknowledgements(), time=self.time, log=self._logger,
            hooks=self._hooks, deliveries=self.deliveries, committed=self._call_committed,
            oldest=lambda: self.lag.began_at,
        )  # fmt: skip
        self._calls: HandlerCalls | None = None  # once the handler is opened
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
        return self._calls.progress if self._calls else None

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
        return self._calls.retries.trouble if self._calls else None

    @property
    def retry(self) -> Retry | None:
        """The records of the batch in hand that failed and are tried again."""
        return self._calls.retries.retry if self._calls else None

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
            self.lag.opened(self._committer.committed)
            self._info.committed = self._committer.committed.sequence
            self._info.resets = {reset.id: reset.first.sequence for reset in self._committer.resets}
            calls = await self._open_handler(handler)
            if handler.exclusive:
                await self._committer.fence()  # after `opened`: see tests/protocol/forward_model.py
            self.statistics.state = "running"
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._reads.run, self._committer.cursor)
                tasks.start_soon(self.deliveries.run)
                await self._work(calls)
                # Before the reader ends, which may be blocked in a thread for long.
                await self._release(calls, succession)
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
        if cut_off and not self._delivery.repeats and self._calls is not None:
            await self._commit_after_abort()
        self._reads.close()
        self._committer.clear()
        if self._calls is not None:
            if not self._is_closed:
                await self._close(self._calls.handler, reason)
            self._logger.info("partition.closed", reason=reason.value, position=self._committer.committed.position)

    async def _first_checkpoint(self, succession: Succession) -> Checkpoint:
        parents = await succession.parents()
        try:
            position = await start_position(self._context, self.partition, parents)
        except PartitionGone as error:
            if not await self._note_if_lost(error):
                raise
            position = ""
        return await succession.first_checkpoint(position, parents)

    async def _open_handler(self, handler: PartitionHandler) -> HandlerCalls:
        await open_handler(handler, self._settings, self._info)
        retries = RetryPause(handler, self._settings, self._clock, self._logger, self._draining, self._hooks.failed)
        self._calls = HandlerCalls(
            handler, self._info, self._context.schema, self._clock, committer=self._committer,
            threads=self._context.threads, retries=retries, draining=self._draining,
        )  # fmt: skip
        if self._committer.timers is not None:
            self._wakes = Wakes(self._calls, self._committer.timers, self._settings, lambda: self._is_caught_up)
        return self._calls

    async def _call_committed(self, upto: int, rows: int, error: Exception | None) -> None:
        """A commit has ended: tell the handler."""
        calls = self._calls
        if calls is not None and type(calls.handler).committed is not PartitionHandler.committed:
            await call_committed(calls.handler, self._info, upto, rows, error)

    # Processing

    async def _work(self, calls: HandlerCalls) -> None:
        """Process and commit until a drain begins or the partition ends."""
        processor = BatchProcessor(calls, self._settings, self._limit, partial(self._pause, calls.retries))
        try:
            while not self._draining.is_set() and await self._step(processor):
                self._check_late_rows(calls)
                await self._committer.commit_if_due()
                if self.flushing:
                    await self._flush()
                if self._committer.has_all_committed:
                    self.lag.all_committed()
        except Interrupted:
            pass
        except Exception:
            await self._commit_before_failing(calls)
            raise

    async def _step(self, processor: BatchProcessor) -> bool:
        """Fire the timers that are due, then process what is read next. Returns False at the partition's end."""
        self._context.changes.add(self.partition)  # it runs, or has processed, committed or flushed more
        if self._wakes is not None:
            with self.time.at("handle"):
                await self._wakes.fire()
        try:
            with self.time.at("wait" if self.is_at_end else "read"):
                read = await self._reads.next(self._seconds_until_due())
        except PartitionGone as error:
            if not await self._note_if_lost(error):
                raise
            self._closing_for = CloseReason.ENDED
            return False
        if read is None:
            return True
        await self._handle(processor, read)
        if self.lag.processed(read, self._committer.cursor, self._settings.commit_interval):
            self._hooks.caught_up(self._committer.cursor)
        if read.ended:
            self._closing_for = CloseReason.ENDED
        return not read.ended

    async def _pause(self, retries: RetryPause, attempt: int, records: int) -> None:
        """Wait before the next attempt at a batch. Earlier batches are committed when they are due. Reading goes on.

        Raises:
            Interrupted: a drain began, and the pause is too long to wait for.
        """
        with self._pace.pause():
            await self._committer.commit_if_due()
            with self._reads.aside(), self.time.at("wait"):
                await retries.pause(attempt, records)

    def _seconds_until_due(self) -> float | None:
        """Seconds until a commit or a timer is due; None: neither is to come."""
        if self.flushing:  # requested while timers fired
            return 0.0
        due, wake = self._committer.due_at(), math.inf
        if self._wakes is not None:
            wake = self._wakes.next_in()
        wait = min(math.inf if due is None else due - self._clock.monotonic(), wake)
        return None if wait == math.inf else wait

    async def _handle(self, processor: BatchProcessor, read: Read) -> None:
        if not read.pieces:
            self._committer.move(read.cursor)
            return
        batch = await read.take(self._clock)
        all_committed = self._committer.has_all_committed
        self.lag.handed(batch.oldest_time, read.oldest, all_committed=all_committed)
        begun = self._clock.monotonic()
        try:
            await self._delivery.begin(self._committer.go_ahead, read.cursor)
            self._pace.begin()
            with self.time.at("handle"):
                results = await processor.process(batch, read.cuts)
            self._pace.done(len(batch), len(batch) - len(results.letters) - results.skipped)
        finally:
            self._reads.give_back(read)
        self._committer.add(batch, batch.last, read.cursor, results, begun)
        if not self._settings.auto_commit and processor.asked_for(batch, all_committed) >= batch.last:
            await self._committer.commit()  # the handler asked for it before all records of the batch were done

    def _check_late_rows(self, calls: HandlerCalls) -> None:
        """Stop if rows came after `process` had returned. Uncommitted records are processed again."""
        if calls.late.is_set():
            raise RowsLost(
                "rows were emitted or state was changed after process() had returned, too late for their commit: "
                "await all work before process() returns"
            )

    async def _flush(self) -> None:
        if self._wakes is not None:
            with self.time.at("handle"):
                await self._wakes.fire_all_due()
        self._committer.check_all_committed()
        await self._committer.commit()
        await self._committer.checkpoint()
        await self.deliveries.drain(stopped=self._draining.is_set)
        self.flushing = False

    # Ending

    async def _commit_before_failing(self, calls: HandlerCalls) -> None:
        """Commit the earlier batches before a failure ends the actor, so that they are not processed again.

        Not if some of their rows came too late, and could still be made again; nor after a commit was cut short: only a
        new start can find out whether it was made.
        """
        is_whole = not (calls.late.is_set() and self._delivery.repeats)
        if is_whole and self._committer.settled and self._delivery.keeps_early(self._settings):
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
        self._logger.warning("partition.not_kept", error=why)

    async def _release(self, calls: HandlerCalls, succession: Succession) -> None:
        """Commit the processed records, and write the checkpoint, so that the next owner does not have to walk."""
        self.statistics.state = "draining"
        try:
            self._check_late_rows(calls)
            if self._closing_for is CloseReason.ENDED and self._wakes is not None:
                with self.time.at("handle"):
                    await self._wakes.fire(idle=False)
                    await self._wakes.fire_all(succession.goes_on)
        except HandlerError:
            await self._commit_before_failing(calls)
            raise
        if self._settings.auto_commit:
            await self._committer.commit()
        await self._close(calls.handler, self._closing_for, self._committer.commit)
        self.statistics.state = "draining"
        if self._closing_for is CloseReason.ENDED:
            self._committer.check_all_committed()
            await self._end_partition()
        else:
            await self._committer.checkpoint()
        await self.deliveries.drain(DELIVERY_TIME)
        await self.deliveries.close()
        self.statistics.state = "drained"

    async def _end_partition(self) -> None:
        """Commit the end, unless the chain has it. Nothing is committed after it."""
        await self._committer.end(vanished=self._gone)
        self.ended = True
        self._logger.info("partition.ended", position=self._committer.committed.position)

    async def _note_if_lost(self, gone: PartitionGone) -> bool:
        """Whether the source lists a partition that follows this one, which it has forgotten: then its rest is lost."""
        if not await is_followed(self._context, self.partition):
            return False
        self._gone = True
        self._logger.error(
            "partition.records_lost", after=self._committer.cursor.sequence, error=str(gone),
            why="the source has forgotten the partition before its end was read; those that follow it begin now",
        )  # fmt: skip
        return True

    async def _close(
        self, handler: PartitionHandler, reason: CloseReason, commit: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self.statistics.state, self._is_closed = "closing", True
        await close_handler(handler, self._info, reason, self._context.threads, commit)
