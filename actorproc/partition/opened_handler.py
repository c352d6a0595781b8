"""The opened handler of one partition, with everything that a call of it needs."""

from __future__ import annotations

import threading

import anyio
import pyarrow as pa

from actorproc.config.settings import Settings
from actorproc.handler.attempt import Attempt
from actorproc.handler.base import PartitionHandler
from actorproc.handler.info import PartitionInfo
from actorproc.handler.state_kinds import state_kinds
from actorproc.partition.batch_size import Pace
from actorproc.partition.committer import Committer
from actorproc.partition.handler_threads import HandlerThreads
from actorproc.partition.read_ahead import ReadAhead
from actorproc.partition.retry_pause import RetryPause
from actorproc.partition.time_spent import TimeSpent
from actorproc.rows.encoder import RowEncoder
from actorproc.runtime.clock import Clock


class OpenedHandler:
    """The handler of one partition after `opened`.

    Args:
        committer: takes the results up to a record when the handler commits.
        reads: reads on during the pauses before another attempt.
        pace: does not count those pauses.
        threads: run a plain `def process`.
        draining: set when the partition should end soon.
        time: counts the pauses before another attempt.
    """

    def __init__(
        self,
        handler: PartitionHandler,
        info: PartitionInfo,
        schema: pa.Schema,
        settings: Settings,
        clock: Clock,
        *,
        committer: Committer,
        reads: ReadAhead,
        pace: Pace,
        threads: HandlerThreads,
        draining: anyio.Event,
        time: TimeSpent,
    ) -> None:
        self.handler = handler
        self.info = info
        self.settings = settings
        self.clock = clock
        self.committer = committer
        self.threads = threads
        self.encoder = RowEncoder(schema)
        self.state_kinds = state_kinds(type(handler))
        self.retries = RetryPause(handler, settings, clock, info.log, draining)
        self.draining = draining
        self.late = threading.Event()
        """Set when rows came after `process` had returned."""
        self._reads = reads
        self._pace = pace
        self._time = time
        self._calls = 0
        self._attempt: Attempt | None = None  # None between calls, so that the memory of the last one is free

    def called(self, attempt: Attempt) -> None:
        """Note that the handler is called now: progress counts from here, not from the wait for a thread."""
        self._attempt = attempt
        self._calls += 1
        self.retries.called()

    def returned(self) -> None:
        """Note that the call has ended, or that nobody waits for its end any more."""
        self._attempt = None

    @property
    def progress(self) -> tuple[object, ...] | None:
        """Changes when the handler emits, fails, commits or finishes a call of `map`; None while it is not called."""
        return None if self._attempt is None else (self._calls, self._attempt.progress)

    async def pause(self, attempt: int, records: int) -> None:
        """Wait before the next attempt. Earlier batches are committed when they are due. Reading goes on.

        Raises:
            Interrupted: a drain began, and the pause is too long to wait for.
        """
        with self._pace.pause():
            if self.committer.is_due():
                await self.committer.commit()
            with self._reads.aside(), self._time.at("wait"):
                await self.retries.pause(attempt, records)
