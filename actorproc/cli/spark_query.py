"""Runs the query of `actorproc spark`: makes the session and the query, keeps it running, and shows its progress."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import structlog

from actorproc.cli.common import opened_processor, pairs, run_async
from actorproc.cli.loading import load_function
from actorproc.cli.spark_arguments import SparkArguments
from actorproc.cli.spark_show import Display, Totals, show_started, summary
from actorproc.cli.streams import conclude
from actorproc.cli.workers import end_soon, stop_with_parent
from actorproc.config.settings import Settings
from actorproc.errors import ActorprocError, UsageError
from actorproc.runtime.backoff import Backoff
from actorproc.runtime.clock import SYSTEM
from actorproc.runtime.logger import get_logger
from actorproc.runtime.signals import Signals
from actorproc.spark.checkpoint import Checkpoint
from actorproc.spark.dataframes import stream_output
from actorproc.spark.hadoop import is_local, spark_url
from actorproc.spark.output_dataset import Output
from actorproc.spark.progress import Lag, read_lag
from actorproc.spark.query import Query
from actorproc.spark.query_runner import QueryRunner, RunLimits
from actorproc.spark.session import Session
from actorproc.storage.store import Store

logger = get_logger(__name__)

_EXIT_MARGIN = 20.0
"""Seconds beyond `stop_within` until an orphan is killed; stopping the query and closing the session take less."""


def run(arguments: SparkArguments, config: Path | None, given: Sequence[str] | None) -> None:
    """Run the query until it ends, is stopped, or fails for good.

    Raises:
        UsageError: an argument is wrong, or something is missing on this machine.
        QueryFailed, SourceError: see `QueryRunner.run`.
    """
    structlog.contextvars.bind_contextvars(processor=arguments.name)
    arguments.check("actorproc spark")
    stop_with_parent(arguments.seconds("stop_within") + _EXIT_MARGIN)

    async def work() -> None:
        signals = Signals(SYSTEM, end_soon, "spark")
        wait = arguments.seconds("wait")
        with signals.handled():
            async with opened_processor(arguments.name, arguments.container, config, given, wait) as (
                store,
                _,
                settings,
            ):
                typed = set(pairs("--set", given))
                session, query = await _prepare(arguments, store, settings, typed)
                await QueryRun(arguments, session, query, store, settings).run(signals)

    run_async(work)


async def _prepare(
    arguments: SparkArguments, store: Store, settings: Settings, typed: set[str]
) -> tuple[Session, Query]:
    """The started session, and the query."""
    urls = arguments.urls(store.url, settings)
    function = None if arguments.remote else arguments.load_early()
    read = {"container": spark_url(store.url, settings)} if arguments.native else {}
    session = arguments.session(urls | read, settings)
    logger.info("spark.starting", on=session.master)
    await SYSTEM.run_in_thread(session.open, abandon=True)
    function = function or load_function(arguments.function)
    session.ship_module(arguments.function.partition(":")[0])
    spark_settings = arguments.spark_settings(settings, typed)
    rows = partial(
        stream_output, container=store.url, name=arguments.name, columns=arguments.columns, max_rows=arguments.max_rows,
        max_files=arguments.max_files, native=arguments.native, settings=spark_settings,
    )  # fmt: skip
    sink = arguments.sink(urls.get("path"), spark_settings)
    query = Query(arguments.function, function, rows, urls["checkpoint"], arguments.trigger_keywords(), sink)
    return session, query


class QueryRun:
    """One run of the command over an open store and a started session."""

    def __init__(
        self, arguments: SparkArguments, session: Session, query: Query, store: Store, settings: Settings
    ) -> None:
        self._arguments = arguments
        self._session = session
        self._query = query
        self._store = store
        self._settings = settings
        self._output = Output(arguments.name)
        self._reads = self._output.title(store.url)
        self._checkpoint = Checkpoint(
            query.checkpoint, query.spec, store, arguments.name, settings, native=arguments.native
        )
        self._totals = Totals()
        self._started = False

    async def run(self, signals: Signals) -> None:
        """Run to the end. The session is closed in any case."""
        began = SYSTEM.monotonic()
        limits = RunLimits(
            self._arguments.max_failures,
            self._arguments.seconds("stop_within"),
            Backoff(self._settings.restart_backoff, self._settings.restart_backoff_max),
        )
        runner = QueryRunner(
            self._start, spec=self._query.spec, reads=self._reads, limits=limits, on_progress=self._totals.add,
            clock=SYSTEM,
        )  # fmt: skip
        try:
            await self._run(runner, signals)
        finally:
            if self._totals.latest is not None:
                conclude(summary(self._query.spec, self._totals, runner.restarts, SYSTEM.monotonic() - began))
            with anyio.CancelScope(shield=True):
                await SYSTEM.run_in_thread(self._session.close)

    async def _run(self, runner: QueryRunner, signals: Signals) -> None:
        if not (self._arguments.remote and is_local(self._query.checkpoint, self._settings)):  # a folder of the server
            await self._checkpoint.bind_target(self._query.sink.target)
        new_reader = await self._checkpoint.register()

        async def stop() -> None:
            await signals.wait()
            runner.stop()

        signals.started()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stop)
                tasks.start_soon(Display(self._query.spec, self._totals, self._lag).run)
                await runner.run()
                tasks.cancel_scope.cancel()
        except* ActorprocError as failed:
            if new_reader is not None and not self._totals.batches:
                await self._checkpoint.unregister(new_reader, refused=failed.subgroup(UsageError) is not None)
            raise

    def _start(self, restart: bool) -> Any:
        query, sink = self._query.start(self._session, restart=restart)
        if not self._started:
            self._started = True
            facts = {
                "query": self._query.spec,
                "spark": f"{self._session.open().version} on {self._session.master}",
                "page": self._session.ui_url() or "on the server",
                "reads": self._reads,
                "writes": sink,
                "checkpoint": self._query.checkpoint,
                "trigger": self._arguments.trigger,
            }
            show_started(facts, self._session.description())
        return query

    async def _lag(self) -> Lag | None:
        if self._totals.latest is None or self._totals.latest.next is None:
            return None
        try:
            return await read_lag(self._output, self._store, self._totals.latest)
        except ActorprocError as error:
            logger.debug("spark.lag_unknown", error=str(error))
            return None
