"""Queries as `actorproc spark` runs them, in the session that all tests share."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from actorproc.runtime.backoff import Backoff
from actorproc.runtime.clock import SYSTEM
from actorproc.spark.dataframes import stream_output
from actorproc.spark.progress import Progress
from actorproc.spark.query import Query, QueryFunction, Sink
from actorproc.spark.query_runner import QueryRunner, RunLimits
from actorproc.spark.session import Session
from tests.spark.committing import Fleet

AVAILABLE = {"availableNow": True}
QUICK = RunLimits(failures=3, stop_within=60.0, backoff=Backoff(0.01, 0.02))


class Borrowed(Session):
    """An open session, which stays open."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__("the tests' own", {})
        self._spark = spark

    def _start(self) -> SparkSession:
        return self._spark

    def close(self) -> None:
        pass


class Runs:
    """A function over the output of a fleet. `reports`: its progress."""

    def __init__(
        self, spark: SparkSession, fleet: Fleet, checkpoint: Path, function: QueryFunction, *,
        trigger: dict[str, Any] | None = None, sink: Sink | None = None, limits: RunLimits = QUICK, **rows: Any,
    ) -> None:  # fmt: skip
        self.reports: list[Progress] = []
        container = f"file://{fleet.container}"
        stream = partial(stream_output, container=container, name="numbers", **rows)
        query = Query("app:function", function, stream, checkpoint.as_uri(), trigger or AVAILABLE, sink or Sink("noop"))
        self.runner = QueryRunner(
            lambda restart: query.start(Borrowed(spark), restart=restart)[0],
            spec="app:function",
            reads=f"output numbers at {container}",
            limits=limits,
            on_progress=self.reports.append,
            clock=SYSTEM,
        )

    async def to_end(self) -> QueryRunner:
        await self.runner.run()
        return self.runner
