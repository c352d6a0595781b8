"""The pause between two attempts, which a drain cuts short, and its reports in log and status."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import anyio

from actorproc.config.settings import Settings
from actorproc.handler.base import PartitionHandler
from actorproc.handlers.record_handler import RecordHandler
from actorproc.partition.statistics import Retry, Trouble
from actorproc.runtime.backoff import Backoff
from actorproc.runtime.clock import Clock
from actorproc.runtime.error_text import format_error
from actorproc.runtime.logger import LogThrottle

_SHORT = 1.0  # seconds of pauses in all for which a drain waits before it leaves the batch to the next owner


class Interrupted(Exception):
    """A drain began before the next attempt. The batch is left to the next owner."""


class RetryPause:
    """Pauses between the attempts at all batches of one partition.

    Args:
        handler: its class says how a failure can be undone for one record.
        log: bound to the partition.
        draining: set when the partition should end soon.
        failed: called with the error of each attempt that is followed by another one.
    """

    def __init__(
        self,
        handler: PartitionHandler,
        settings: Settings,
        clock: Clock,
        log: Any,
        draining: anyio.Event,
        failed: Callable[[Exception], object],
    ) -> None:
        self._advice = _advice(handler)
        self._backoff = Backoff(settings.retry_backoff, settings.retry_backoff_max)
        self._clock = clock
        self._logger = log
        self._draining = draining
        self._failed = failed
        self._waited = 0.0  # seconds of pauses since a drain began
        self._rerun = False  # logged
        self._repeats, self._skips = LogThrottle(), LogThrottle()
        self._again: Trouble | None = None
        self._no_thread: Trouble | None = None  # none is free
        self.retry: Retry | None = None
        """The records of the current batch that failed and are tried again."""

    def log_failed(self, attempt: int, failed: Sequence[int], error: Exception) -> None:
        """Log that these records failed and are tried again. A repeated warning is logged only now and then."""
        records = f"record {failed[0]}" if len(failed) == 1 else f"{len(failed):,} records from {failed[0]} on"
        text = f"tries {records} again, after attempt {attempt}: {format_error(error)}"
        self._failed(error)
        now = self._clock.wall()
        self._again = Trouble("retrying", text, now if self._again is None else self._again.since)
        self.retry = Retry(failed[0], len(failed), attempt, None)
        say = self._logger.warning if self._repeats.due("", self._clock.monotonic()) else self._logger.debug
        say(
            "partition.attempt_failed", attempt=attempt, records=len(failed), first=failed[0], error=format_error(error)
        )

    def log_rerun(self, records: int, attempt: int) -> None:
        """Log once that good records are called again, because a failed one may have changed the state before them."""
        if not self._rerun:
            self._rerun = True
            self._logger.warning(
                "partition.batch_rerun", records=records, attempt=attempt,
                why="a record failed alone after the handler had used ctx.state, so the whole attempt is undone, and "
                f"its records are all processed again. {self._advice}",
            )  # fmt: skip

    def log_skipped(self, sequence: int, error: Exception | str) -> None:
        """Log that `on_error` skipped this record. A repeated warning is logged only now and then."""
        times = self._skips.due("", self._clock.monotonic())
        say = self._logger.warning if times else self._logger.debug
        reason = error if isinstance(error, str) else format_error(error)
        say("partition.record_skipped", sequence=sequence, error=reason, times=times or 1)

    def batch_done(self) -> None:
        """The batch is processed."""
        self._again = self.retry = None

    @property
    def trouble(self) -> Trouble | None:
        """Why the current batch does not begin, or is tried again; None: neither."""
        return self._no_thread or self._again

    def no_thread(self, why: str) -> None:
        """The handler has waited long for a thread, and goes on waiting."""
        self._no_thread = self._no_thread or Trouble("starved", why, self._clock.wall())
        self._logger.error("partition.starved", why=why)

    def called(self) -> None:
        """The handler is called: it has a thread, or needs none."""
        self._no_thread = None
        if self.retry is not None:
            self.retry = replace(self.retry, next_at=None)

    async def pause(self, attempt: int, records: int) -> None:
        """Wait after attempt number `attempt` at a batch with this number of records.

        Raises:
            Interrupted: a drain began, and the pause is too long to wait for.
        """
        delay = self._backoff.delay(attempt, self._clock.random)
        if self.retry is not None:
            self.retry = replace(self.retry, next_at=self._clock.wall() + delay)
        if self._waited + delay <= _SHORT:
            await self._clock.sleep(delay)
            if self._draining.is_set():
                self._waited += delay
            return
        with anyio.move_on_after(delay):
            await self._draining.wait()
        if self._draining.is_set():
            self._logger.warning(
                "partition.batch_left",
                records=records,
                why="its next attempt would come too late for this drain; the next owner processes it again",
            )
            raise Interrupted


def _advice(handler: PartitionHandler) -> str:
    """How records would not be called again: why a record fails alone behind others depends on the kind of handler."""
    if not isinstance(handler, RecordHandler):
        return "A RecordHandler undoes and repeats only the record that failed"
    if handler.concurrency > 1:
        return (
            f"With concurrency = {handler.concurrency} this happens if a record fails after it has changed state: "
            "change state after the calls that may fail, or set concurrency = 1"
        )
    return (
        "Its row was given to ctx.emit, and does not fit output_schema, which is found after later records are "
        "processed: return rows from process_record, which are checked before the next record"
    )
