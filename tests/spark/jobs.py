"""Jobs as `actorproc spark` runs them, in the session that all tests share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from actorproc.runtime.backoff import Backoff
from actorproc.runtime.clock import SYSTEM
from actorproc.spark.job import Job
from actorproc.spark.progress import Progress
from actorproc.spark.query import Query, QueryFunction, Sink
from actorproc.spark.query_runner import QueryRunner, RetryLimits
from actorproc.spark.session import Session
from tests.spark.committing import Fleet

AVAILABLE = {"availableNow": True}
QUICK = RetryLimits(failures=3, stop_within=60.0, backoff=Backoff(0.01, 0.02))


class Borrowed(Session):
    """A session that is there, and stays."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__("the tests' own", {})
        self._spark = spark

    def _start(self) -> SparkSession:
        return self._spark

    def close(self) -> None:
        pass


class Runs:
    """A function over the output of a fleet: what was told of it is in `told`."""

    def __init__(
        self, spark: SparkSession, fleet: Fleet, checkpoint: Path, function: QueryFunction, *,
        trigger: dict[str, Any] | None = None, sink: Sink | None = None, limits: RetryLimits = QUICK, **rows: Any,
    ) -> None:  # fmt: skip
        self.told: list[Progress] = []
        query = Query("app:function", function, checkpoint.as_uri(), trigger or AVAILABLE, sink or Sink("noop"))
        job = Job(Borrowed(spark), query, f"file://{fleet.container}", "numbers", **rows)
        self.running = QueryRunner(
            lambda again: job.start(again)[0],
            what="app:function",
            reads=f"output numbers at file://{fleet.container}",
            limits=limits,
            told=self.told.append,
            clock=SYSTEM,
        )

    async def to_end(self) -> QueryRunner:
        await self.running.run()
        return self.running
