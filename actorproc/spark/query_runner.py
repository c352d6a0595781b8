"""Keeps a query running: watches its progress, restarts it when it fails, and stops it between two micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import anyio
import orjson
from pyspark.sql.streaming.query import StreamingQuery

from actorproc.errors import ActorprocError, HandlerDefinitionError, QueryFailed, StoreUnavailable
from actorproc.runtime.backoff import Backoff
from actorproc.runtime.clock import Clock
from actorproc.runtime.logger import get_logger
from actorproc.spark.errors import JavaExited, translate_error, translated
from actorproc.spark.progress import Progress
from actorproc.spark.session import finished_within

logger = get_logger(__name__)
T = TypeVar("T")

_POLL_EVERY = 0.5  # seconds
_POLL_STOPPING_EVERY = 0.1  # seconds, while the end of a micro-batch is awaited

_STOP_TIMEOUT = 5.0
"""Seconds that Spark has to stop a query. By itself it waits for a running `foreachBatch` without a limit: nothing
interrupts Python code."""

_RUNS_AGAIN = "the next start repeats its micro-batch, if there was one"


@dataclass(frozen=True, slots=True)
class RunLimits:
    """When a query ends after failures, and how long its stop may take.

    Attributes:
        failures: this many in a row, without a finished micro-batch in between, end the run.
        stop_within: seconds that the current micro-batch has to finish when the query stops.
    """

    failures: int = 10
    stop_within: float = 30.0
    backoff: Backoff = field(default_factory=lambda: Backoff(0.5, 60.0))


class QueryRunner:
    """Runs a query until it ends by itself, is stopped, or fails too often.

    Args:
        start: starts the query from its checkpoint. Blocking. Called with whether this is a restart.
        spec: MODULE:FUNCTION, for messages.
        reads: title of the dataset, as in its offsets.
        on_progress: called with each of Spark's reports, in order.
    """

    def __init__(
        self,
        start: Callable[[bool], StreamingQuery],
        *,
        spec: str,
        reads: str,
        limits: RunLimits,
        on_progress: Callable[[Progress], None],
        clock: Clock,
    ) -> None:
        self._start = start
        self._spec = spec
        self._reads = reads
        self._limits = limits
        self._on_progress = on_progress
        self._clock = clock
        self._stopping = anyio.Event()
        self._failures = 0
        self.restarts = 0

    def stop(self) -> None:
        """Finish the current micro-batch, then end."""
        self._stopping.set()

    async def run(self) -> None:
        """Run until the end.

        Raises:
            QueryFailed: it failed too often, or Spark's Java process has exited.
            UsageError, RecordsLost: a restart would not help.
        """
        query = None
        while not self._stopping.is_set():
            try:
                query = await self._call(lambda: self._start(self.restarts > 0))
                return await self._watch(query)
            except ActorprocError as error:
                if self._stopping.is_set():  # Java may have got the same signal, and then fails in any way
                    logger.warning("spark.cut_off", error=str(error), why=_RUNS_AGAIN)
                    return None
                if not self._may_recover(error, ran=query is not None):
                    raise
                await self._back_off(error)
        return None

    @staticmethod
    def _may_recover(error: ActorprocError, *, ran: bool) -> bool:
        """Whether a restart may help. If it `ran` before, its dependencies may come back: a table, or the store."""
        if isinstance(error, HandlerDefinitionError | StoreUnavailable):
            return ran
        return isinstance(error, QueryFailed) and not isinstance(error, JavaExited)

    async def _back_off(self, failure: ActorprocError) -> None:
        self._failures += 1
        if self._failures >= self._limits.failures:
            raise QueryFailed(f"stopped after {self._failures} failures in a row, the last one: {failure}") from failure
        delay = self._limits.backoff.delay(self._failures, self._clock.random)
        self.restarts += 1
        logger.error("spark.query_failed", error=str(failure), in_a_row=self._failures, again_in=round(delay, 3))
        with anyio.move_on_after(delay):
            await self._stopping.wait()

    async def _watch(self, query: StreamingQuery) -> None:
        """Follow a query until it has ended; stop it on request."""
        reports = _Reports(query, self._reads)
        while await self._call(lambda: query.isActive):
            await self._forward(reports)
            with anyio.move_on_after(_POLL_EVERY):
                await self._stopping.wait()
            if self._stopping.is_set():
                await self._finish_micro_batch(reports)
                if not await self._call(lambda: finished_within(_STOP_TIMEOUT, query.stop)):
                    logger.warning("spark.cut_off", error=f"does not stop within {_STOP_TIMEOUT:g} s", why=_RUNS_AGAIN)
                    return
        await self._forward(reports)
        error = await self._call(query.exception)
        if error is not None and not self._stopping.is_set():
            raise translate_error(error, self._spec)

    async def _forward(self, reports: _Reports) -> bool:
        """Pass new reports on; return whether a micro-batch was finished."""
        new = await self._call(reports.new)
        for progress in new:
            self._on_progress(progress)
        if finished := any(progress.ran for progress in new):
            self._failures = 0
        return finished

    async def _finish_micro_batch(self, reports: _Reports) -> None:
        """Wait until no micro-batch is running, or one was just finished: then the next has hardly begun."""
        await self._forward(reports)
        with anyio.move_on_after(self._limits.stop_within) as waiting:
            while (await self._call(lambda: reports.query.status))["isTriggerActive"]:
                if await self._forward(reports):
                    return
                await self._clock.sleep(_POLL_STOPPING_EVERY)
        if waiting.cancelled_caught:
            logger.warning("spark.batch_cut_off", after=self._limits.stop_within, why="the next start repeats it")

    async def _call(self, work: Callable[[], T]) -> T:
        """Call Spark in a thread. Raises its errors as ours."""
        then = "Run it again: it continues from its checkpoint"
        with translated(self._spec, f"runs {self._spec}", then):
            return await self._clock.run_in_thread(work, abandon=True)


class _Reports:
    """Spark's progress reports on a query, each returned once."""

    def __init__(self, query: StreamingQuery, reads: str) -> None:
        self.query = query
        self._reads = reads
        self._since = ""  # timestamp of the latest returned report, ISO 8601 in UTC
        self._next = -1  # number of the first micro-batch that was not returned as finished

    def new(self) -> list[Progress]:
        newest = self.query.lastProgress
        if newest is None or newest.timestamp == self._since:
            return []
        reports = [newest]
        if (
            newest.batchId > self._next
        ):  # some were missed; Spark keeps the latest hundred, and each takes time to fetch
            recent = self.query.recentProgress
            missed = [report for report in recent if self._since < report.timestamp <= newest.timestamp]
            reports = missed or reports  # Spark may be configured to keep none
        new = [Progress.from_document(orjson.loads(report.json), self._reads) for report in reports]
        # A trigger without a micro-batch is reported with the number of the next micro-batch.
        self._since, self._next = newest.timestamp, new[-1].batch + new[-1].ran
        return new
