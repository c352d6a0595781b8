"""Calls the handler for some records, on the event loop or in a thread, and encodes the rows that it emits."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pyarrow as pa

from actorproc.errors import HandlerError, HandlerMisuse, RowMismatch, RowsLost
from actorproc.handler.attempt import CUT_OFF, FAILED, Attempt
from actorproc.handler.context import PartitionContext
from actorproc.partition.opened_handler import OpenedHandler
from actorproc.records import Batch
from actorproc.runtime.user_code import user_code

_SHORT = 4 * 2**20  # bytes of a batch that a quick handler processes in some ten milliseconds

_BYTES_PER_VALUE = 2 / 3  # 50,000 values are worth a thread: they take some 5 ms

Encoded = tuple[list[pa.Table], dict[int, RowMismatch]]


class AttemptRun:
    """Makes attempts at some records.

    Args:
        work: the method to call with the records and the context.
    """

    def __init__(self, batch: Batch, opened: OpenedHandler, work: Callable[[Batch, PartitionContext], Any]) -> None:
        self._batch = batch
        self._on = opened
        self._work = work
        self._threaded = not inspect.iscoroutinefunction(work)
        self._committing = anyio.Lock()
        self._fatal: Exception | None = None  # the partition has to stop with this error

    async def _commit(self, attempt: Attempt, upto: int) -> None:
        """Override: `ctx.commit`."""
        raise HandlerMisuse("ctx.commit: not here")

    async def _call(self, attempt: Attempt) -> Exception | None:
        """Call `process` and encode its rows. Returns why the attempt failed; it is closed then."""
        self._on.info.committed = self._on.committer.committed.sequence
        ctx = PartitionContext(self._on.info, attempt, self._commit, self._on.draining)
        try:
            with user_code("the handler"):
                encoded = await self._process(attempt, ctx)
                async with self._committing:
                    await self._encode(attempt, encoded)
        except Exception as error:  # noqa: BLE001  # whatever the handler raises
            return error
        except BaseException:
            ctx._close(CUT_OFF)  # a thread may still run it
            raise
        finally:
            self._on.returned()
            ctx._close(FAILED)
        return None

    async def _process(self, attempt: Attempt, ctx: PartitionContext) -> Encoded | None:
        """Call `process`. Returns the rows if they were encoded in its thread."""
        on = self._on
        if self._threaded:
            if on.handler._quick and on.clock.cores == 1 and attempt.batch.nbytes <= _SHORT:
                self._begin(attempt)  # on one core a thread only adds the cost of changing to it
                return self._process_in_thread(attempt, ctx)
            begun = partial(self._begin, attempt)
            return await on.threads.run(
                on.info.partition, begun, self._process_in_thread, attempt, ctx, no_thread=on.retries.no_thread
            )
        self._begin(attempt)
        _check_nothing(await self._work(attempt.batch, ctx))
        ctx._finish()
        return None

    def _begin(self, attempt: Attempt) -> None:
        self._on.called(attempt)

    def _process_in_thread(self, attempt: Attempt, ctx: PartitionContext) -> Encoded | None:
        with user_code("the handler"):
            _check_nothing(self._work(attempt.batch, ctx))
        ctx._finish()
        if self._committing.locked():
            return None  # a commit is under way, and may take some of the rows
        return attempt.rows.detach().encode()

    # Rows

    async def _encode(self, attempt: Attempt, encoded: Encoded | None = None) -> None:
        """Encode the rows emitted so far, in a thread if they are many. The handler may go on meanwhile."""
        if attempt.encoding_error is not None:
            raise attempt.encoding_error
        if encoded is None:
            rows = attempt.rows.detach()
            try:
                encoded = await self._on.clock.run_cpu_work(int(rows.values * _BYTES_PER_VALUE) + 1, rows.encode)
            except BaseException as error:
                # The rows are gone, so the attempt has failed, even if the handler catches what `ctx.commit` raises.
                attempt.encoding_error = cut_short(error)
                raise
        tables, misfits = encoded
        if misfits and not self._on.encoder.width:
            raise HandlerMisuse(
                "a row was emitted, and the handler declares no output_schema, such as 'carrier string, n long'"
            )
        try:
            attempt.add_encoded(tables, misfits)
        except RowsLost as error:
            self._fatal = error
            raise


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
