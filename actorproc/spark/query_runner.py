"""Keeps a query running: looks at its progress, starts it again when it fails, stops it between two micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import anyio
import orjson
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from actorproc.errors import ActorprocError, HandlerDefinitionError, QueryFailed, StoreUnavailable
from actorproc.runtime.backoff import Backoff
from actorproc.runtime.clock import Clock
from actorproc.runtime.logger import get_logger
from actorproc.spark.errors import java_ended_message, translate_error
from actorproc.spark.progress import Progress
from actorproc.spark.time_limit import ends_within

log = get_logger(__name__)
T = TypeVar("T")

_LOOK_EVERY = 0.5  # seconds between looks at a query
_BOUNDARY_EVERY = 0.1  # the same, while the end of its micro-batch is awaited

_STOPPING = 5.0
"""Seconds that Spark has to stop a query. It waits, by itself for ever, until a `foreachBatch` returns, which nothing interrupts
while it is in Python."""

_AGAIN = "its micro-batch, if there was one, runs again"


@dataclass(frozen=True, slots=True)
class RetryLimits:
    """`failures`: so many in a row, without a micro-batch done in between, end it. `stop_within`: seconds that the
    micro-batch under way has to end when the query is to stop."""

    failures: int = 10
    stop_within: float = 30.0
    backoff: Backoff = field(default_factory=lambda: Backoff(0.5, 60.0))


class _Gone(QueryFailed):
    """Spark's Java has ended: no query can be started in it any more."""


class QueryRunner:
    """Runs a query until it ends by itself, is stopped, or fails too often.

    Args:
        start: starts it, from its checkpoint if there is one; blocking. Called with whether it ran before, and failed.
        what: its name in messages.
        reads: the dataset, as its offsets name it.
        told: called with each of Spark's reports, in order.
    """

    def __init__(
        self,
        start: Callable[[bool], StreamingQuery],
        *,
        what: str,
        reads: str,
        limits: RetryLimits,
        told: Callable[[Progress], None],
        clock: Clock,
    ) -> None:
        self._start = start
        self._what = what
        self._reads = reads
        self._limits = limits
        self._told = told
        self._clock = clock
        self._stopping = anyio.Event()
        self._failures = 0
        self.restarts = 0

    def stop(self) -> None:
        """Let the micro-batch under way end, then end."""
        self._stopping.set()

    async def run(self) -> None:
        """Until the end.

        Raises:
            QueryFailed: it failed too often, or Spark itself has ended.
            UsageError, RecordsLost: starting it again would not help.
        """
        query = None
        while not self._stopping.is_set():
            try:
                query = await self._ask(lambda: self._start(self.restarts > 0))
                return await self._attend(query)
            except ActorprocError as error:
                if self._stopping.is_set():  # who stops us may have stopped Java as well, which then fails in any way
                    log.warning("spark.cut_off", error=str(error), why=_AGAIN)
                    return None
                if not self._may_recover(error, ran=query is not None):
                    raise
                await self._recover(error)
        return None

    @staticmethod
    def _may_recover(error: ActorprocError, *, ran: bool) -> bool:
        """Whether it may go better the next time. `ran`: it went well before, so what it needs may come back: a table of the
        function's, or the store, which each start asks for the schema."""
        if isinstance(error, HandlerDefinitionError | StoreUnavailable):
            return ran
        return isinstance(error, QueryFailed) and not isinstance(error, _Gone)

    async def _recover(self, failure: ActorprocError) -> None:
        """Wait until it may be started again."""
        self._failures += 1
        if self._failures >= self._limits.failures:
            raise QueryFailed(f"given up: {self._failures} failures in a row, the last one: {failure}") from failure
        delay = self._limits.backoff.delay(self._failures, self._clock.random)
        self.restarts += 1
        log.error("spark.query_failed", error=str(failure), in_a_row=self._failures, again_in=round(delay, 3))
        with anyio.move_on_after(delay):
            await self._stopping.wait()

    async def _attend(self, query: StreamingQuery) -> None:
        """Follow a query until it has ended; stop it when that is wanted."""
        reports = _Reports(query, self._reads)
        while await self._ask(lambda: query.isActive):
            await self._pass_on(reports)
            with anyio.move_on_after(_LOOK_EVERY):
                await self._stopping.wait()
            if self._stopping.is_set():
                await self._end_batch(reports)
                if not await self._ask(lambda: ends_within(_STOPPING, query.stop)):
                    log.warning("spark.cut_off", error=f"does not stop within {_STOPPING:g} s", why=_AGAIN)
                    return
        await self._pass_on(reports)
        error = await self._ask(query.exception)
        if error is not None and not self._stopping.is_set():
            raise translate_error(error, self._what)

    async def _pass_on(self, reports: _Reports) -> bool:
        """Tell what is new; whether a micro-batch was done."""
        fresh = await self._ask(reports.fresh)
        for progress in fresh:
            self._told(progress)
        if done := any(progress.ran for progress in fresh):
            self._failures = 0
        return done

    async def _end_batch(self, reports: _Reports) -> None:
        """Until no micro-batch is under way. Where one follows the other without a pause, the next has hardly begun."""
        await self._pass_on(reports)
        with anyio.move_on_after(self._limits.stop_within) as waiting:
            while (await self._ask(lambda: reports.query.status))["isTriggerActive"]:
                if await self._pass_on(reports):
                    return
                await self._clock.sleep(_BOUNDARY_EVERY)
        if waiting.cancelled_caught:
            log.warning("spark.batch_cut_off", after=self._limits.stop_within, why="the next start runs it again")

    async def _ask(self, work: Callable[[], T]) -> T:
        """Something that Spark answers.

        Raises:
            _Gone: there is no Spark any more. QueryFailed: it failed.
        """
        try:
            return await self._clock.run_in_thread(work, abandon=True)
        except (Py4JNetworkError, OSError) as error:
            then = "Run it again: it goes on from its checkpoint"
            raise _Gone(java_ended_message(error, f"runs {self._what}", then)) from error
        except (Py4JError, PySparkException) as error:
            raise translate_error(error, self._what) from error


class _Reports:
    """Spark's reports on a query, each once."""

    def __init__(self, query: StreamingQuery, reads: str) -> None:
        self.query = query
        self._reads = reads
        self._since = ""  # ISO 8601 in UTC: of the latest that was returned
        self._next = -1  # the first micro-batch that was not told of as done

    def fresh(self) -> list[Progress]:
        """Those that were not returned before."""
        newest = self.query.lastProgress
        if newest is None or newest.timestamp == self._since:
            return []
        reports = [newest]
        if newest.batchId > self._next:  # others were done meanwhile; Spark keeps the latest hundred, each dear to get
            found = self.query.recentProgress
            new = [report for report in found if self._since < report.timestamp <= newest.timestamp]
            reports = new or reports  # it may be told to keep fewer
        told = [Progress.of(orjson.loads(report.json), self._reads) for report in reports]
        # A look for news is told of with the number of the micro-batch that comes next.
        self._since, self._next = newest.timestamp, told[-1].batch + told[-1].ran
        return told
