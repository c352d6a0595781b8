"""A handler and the batches of its partition, one at a time."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Set
from contextlib import AbstractAsyncContextManager, nullcontext

import anyio
import pyarrow as pa

from actorproc.config.settings import Settings
from actorproc.handler.base import PartitionHandler
from actorproc.handler.context import PartitionInfo
from actorproc.partition.attempt_rows import AttemptEncoder
from actorproc.partition.batch_run import BatchRun, Workplace
from actorproc.partition.dead_letter_limit import DeadLetterLimit
from actorproc.partition.handler_threads import HandlerThreads
from actorproc.partition.outcome import Outcome
from actorproc.partition.retry_pause import Retrying
from actorproc.records import Batch
from actorproc.runtime.clock import Clock


class BatchProcessor:
    """Calls a handler with batches.

    Args:
        save: called by `ctx.commit` with the batch, what is finished of it, and up to which sequence; makes it durable.
        draining: set when the partition should end soon: waiting to try again is then cut short.
        threads: where a plain `def` handler runs.
        limit: of dead letters.
        aside: entered while waiting to try again.
        lost: told how, when rows of a batch that counts came too late.
    """

    def __init__(
        self,
        handler: PartitionHandler,
        site: PartitionInfo,
        schema: pa.Schema,
        settings: Settings,
        clock: Clock,
        *,
        save: Callable[[Batch, Outcome, int], Awaitable[None]],
        draining: anyio.Event,
        threads: HandlerThreads,
        limit: DeadLetterLimit,
        aside: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
        lost: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._retrying = Retrying(settings, clock, site.log, draining=draining, aside=aside)
        self._place = Workplace(
            handler, site, settings, clock, encoder=AttemptEncoder(schema, clock), retrying=self._retrying,
            threads=threads, limit=limit, save=save, lost=lost,
            threaded=not inspect.iscoroutinefunction(handler.process),
        )  # fmt: skip
        self._run: BatchRun | None = None  # None between batches: its memory is for the next one
        self._wanted = -1
        self._given_up: Set[int] = frozenset()

    async def process(self, batch: Batch) -> Outcome:
        """Everything that came of the batch and was not committed by the handler itself. Raises as `BatchRun.process`."""
        run = self._run = BatchRun(batch, self._place)
        try:
            outcome = await run.process()
        finally:
            self._run = None
        self._wanted, self._given_up = run.wanted, run.given_up
        self._retrying.over()
        return outcome

    def asked_for(self, batch: Batch, settled: bool) -> int:
        """Up to which sequence of `batch`, the one processed last, the handler wants to have committed.

        A handler cannot commit a record that it fails at. So records given up right behind the last one that it asked for count
        as asked for, too; those at the batch's beginning only if it is `settled`: nothing from before waits for a commit.
        """
        upto = self._wanted
        if upto < 0 and not settled:
            return upto
        for sequence in batch.after(upto).sequences:
            if sequence not in self._given_up:
                break
            upto = sequence
        return upto

    @property
    def progress(self) -> tuple[object, ...] | None:
        """Changes whenever the handler gets on; None while it has nothing to do."""
        return self._run.progress if self._run else None

    @property
    def trouble(self) -> str | None:
        """Why the batch at hand does not begin, or is tried again, if so."""
        return self._retrying.trouble
