"""Calls the handler of one partition, on the event loop or in a thread, and encodes the rows that it emits."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import pyarrow as pa

from actorproc.errors import HandlerError, HandlerMisuse, RowMismatch, RowsLost
from actorproc.handler.attempt import CUT_OFF, FAILED, Attempt
from actorproc.handler.base import PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.handler.info import PartitionInfo
from actorproc.handler.keyed_state import AttemptState, StateChanges
from actorproc.handler.state_kinds import state_kinds
from actorproc.partition.committer import Committer
from actorproc.partition.handler_threads import HandlerThreads
from actorproc.partition.retry_pause import RetryPause
from actorproc.records import Batch
from actorproc.rows.encoder import RowEncoder
from actorproc.rows.row_buffer import RowBuffer
from actorproc.runtime.clock import Clock
from actorproc.runtime.user_code import user_code

_SHORT = 4 * 2**20  # bytes of a batch that a quick handler processes in some ten milliseconds

_BYTES_PER_VALUE = 2 / 3  # 50,000 values are worth a thread: they take some 5 ms

Work = Callable[[Batch, PartitionContext], Any]
"""The method to call with the records and the context."""

CommitUpto = Callable[[Attempt, int], Awaitable[None]]
"""`ctx.commit` up to a sequence."""


async def _no_commit(attempt: Attempt, upto: int) -> None:
    raise HandlerMisuse("ctx.commit: not here")


class HandlerCalls:
    """Makes attempts, one at a time, with the handler of a partition.

    Args:
        committer: holds the keyed state on which attempts are based.
        threads: run a plain `def process`.
        retries: is told that the handler is called, or waits for a thread.
        draining: set when the partition should end soon.
    """

    def __init__(
        self,
        handler: PartitionHandler,
        info: PartitionInfo,
        schema: pa.Schema,
        clock: Clock,
        *,
        committer: Committer,
        threads: HandlerThreads,
        retries: RetryPause,
        draining: anyio.Event,
    ) -> None:
        self.handler = handler
        self.info = info
        self.clock = clock
        self.committer = committer
        self.retries = retries
        self.draining = draining
        self.late = threading.Event()
        """Set when rows came after `process` had returned."""
        self._encoder = RowEncoder(schema)
        self._kinds = state_kinds(type(handler))
        self._threads = threads
        self._count = 0
        self._attempt: Attempt | None = None  # None between calls, so that the memory of the last one is free

    @property
    def progress(self) -> tuple[object, ...] | None:
        """Changes when the handler emits, fails, commits or finishes a call of `map`; None while it is not called."""
        return None if self._attempt is None else (self._count, self._attempt.progress)

    def attempt(
        self, batch: Batch, number: int, changes: StateChanges | None = None, *, committed: int = -1, may_stop: bool
    ) -> Attempt:
        """A new attempt at these records.

        Args:
            changes: of keyed state, which earlier attempts at the batch have made.
            committed: sequence up to which the handler has committed the batch.
            may_stop: whether it may end at a record that failed. See `Attempt`.
        """
        state = AttemptState(self.committer.state.held, self._kinds, changes, self.committer.now)
        rows = RowBuffer(self._encoder)
        return Attempt(batch, rows, number, committed=committed, late=self.late, state=state, may_stop=may_stop)

    async def call(self, attempt: Attempt, work: Work, commit: CommitUpto = _no_commit) -> Exception | None:
        """Call the handler and encode its rows. Returns why the attempt failed. It is closed then, and not committing.

        Raises:
            ActorprocError: the partition has to stop: a commit was cut short, or rows were lost.
        """
        self.info.committed = self.committer.committed.sequence
        ctx = PartitionContext(self.info, attempt, commit, self.draining)
        failed = None
        try:
            with user_code("the handler"):
                await self._call(attempt, work, ctx)
                async with attempt.committing:
                    await self.encode(attempt)
        except Exception as error:  # noqa: BLE001  # whatever the handler raises
            failed = error
        except BaseException:
            ctx._close(CUT_OFF)  # a thread may still run it
            raise
        finally:
            self._attempt = None
            ctx._close(FAILED)
        async with attempt.committing:  # wait for a commit that the handler has begun and not awaited
            pass
        if attempt.fatal is not None:
            raise attempt.fatal
        return failed

    async def _call(self, attempt: Attempt, work: Work, ctx: PartitionContext) -> None:
        if inspect.iscoroutinefunction(work):
            self._begin(attempt)
            _check_nothing(await work(attempt.batch, ctx))
            ctx._finish()
        elif self.handler._quick and self.clock.cores == 1 and attempt.batch.nbytes <= _SHORT:
            self._begin(attempt)  # on one core a thread only adds the cost of changing to it
            self._call_plain(attempt, work, ctx)
        else:
            await self._threads.run(
                self.info.partition, partial(self._begin, attempt), self._call_plain, attempt, work, ctx,
                no_thread=self.retries.no_thread,
            )  # fmt: skip

    def _begin(self, attempt: Attempt) -> None:
        """The handler is called now: progress counts from here, not from the wait for a thread."""
        self._attempt = attempt
        self._count += 1
        self.retries.called()

    def _call_plain(self, attempt: Attempt, work: Work, ctx: PartitionContext) -> None:
        with user_code("the handler"):
            _check_nothing(work(attempt.batch, ctx))
        ctx._finish()
        if not attempt.committing.locked():  # else a commit is under way, and may take some of the rows
            attempt.in_thread = attempt.rows.detach().encode()

    # Rows

    async def encode(self, attempt: Attempt) -> None:
        """Encode the rows emitted so far, in a thread if they are many. The handler may go on meanwhile."""
        if attempt.encoding_error is not None:
            raise attempt.encoding_error
        encoded, attempt.in_thread = attempt.in_thread, None
        if encoded is None:
            rows = attempt.rows.detach()
            try:
                encoded = await self.clock.run_cpu_work(int(rows.values * _BYTES_PER_VALUE) + 1, rows.encode)
            except BaseException as error:
                # The rows are gone, so the attempt has failed, even if the handler catches what `ctx.commit` raises.
                attempt.encoding_error = cut_short(error)
                raise
        tables, misfits = encoded
        self._check_declared(misfits)
        try:
            attempt.add_encoded(tables, misfits)
        except RowsLost as error:
            attempt.fatal = error
            raise

    def _check_declared(self, misfits: dict[int, RowMismatch]) -> None:
        if misfits and not self._encoder.width:
            raise HandlerMisuse(
                "a row was emitted, and the handler declares no output_schema, such as 'carrier string, n long'"
            )


def cut_short(error: BaseException) -> Exception:
    """The end of a `ctx.commit` that failed: the error, or HandlerError for a cancellation."""
    return error if isinstance(error, Exception) else HandlerError("ctx.commit() was cut short")


def misuse_in(error: BaseException | None) -> HandlerMisuse | None:
    """The HandlerMisuse in an error, which task groups may have wrapped."""
    todo = [error]
    while todo:
        found = todo.pop()
        if isinstance(found, HandlerMisuse):
            return found
        if isinstance(found, BaseExceptionGroup):
            todo.extend(reversed(found.exceptions))
    return None


def _check_nothing(returned: object) -> None:
    """Returned rows are not emitted, and a coroutine that a plain def returns is not awaited."""
    if inspect.iscoroutine(returned):
        returned.close()
        raise HandlerMisuse("process returned a coroutine: nothing of it has run; write async def process")
    if returned is not None:
        raise HandlerMisuse(
            f"process returned a {type(returned).__name__}: emit rows with ctx.emit(record, row), and return nothing"
        )
