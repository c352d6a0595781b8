"""Queries that Spark refuses, or whose Java process dies: the error, and the state that is left. Without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import orjson
import pytest
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import actorproc.cli.spark_query
import actorproc.spark.session
from actorproc.admin.retained import RetainedOutput
from actorproc.admin.spark_checkpoint import make_offset
from actorproc.cli.spark_query import QueryRun
from actorproc.config.settings import Settings
from actorproc.errors import HandlerDefinitionError, QueryFailed, UsageError
from actorproc.retention.readers import Reader, decide, read_registry, register
from actorproc.runtime.backoff import Backoff
from actorproc.runtime.clock import SYSTEM
from actorproc.runtime.signals import Signals
from actorproc.spark.checkpoint import TARGET_KEY
from actorproc.spark.query import Query, Sink
from actorproc.spark.query_runner import QueryRunner, RunLimits
from actorproc.spark.session import Session
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores import open_store

QUICK = RunLimits(failures=2, backoff=Backoff(0.01, 0.02))
READERS = ProcessorLayout("Delays").readers


class JavaError(Py4JJavaError):  # type: ignore[misc]
    """An error of Spark's with the message `text`; None: Java has exited and cannot be asked."""

    def __init__(self, text: str | None = None) -> None:
        Exception.__init__(self)
        self._text = text

    def __str__(self) -> str:
        if self._text is None:
            raise Py4JNetworkError("Answer from Java side is empty")
        return self._text


DAEMON = JavaError(
    "An error occurred while calling o48.load.\n: org.apache.spark.SparkException: EOFException in "
    "pyspark.daemon\n\tat o"
)


NO_FORMAT = JavaError(
    "An error occurred while calling o114.start.\n: org.apache.spark.SparkClassNotFoundException: "
    "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: delta. Make sure it is there. SQLSTATE: 42K02\n\tat "
    "org.apache"
)
FILE = JavaError(
    "An error occurred while calling o135.start.\n: org.apache.hadoop.fs.FileAlreadyExistsException: Destination "
    "exists and is not a directory: /c\n\tat org.apache"
)


def late(function: Any) -> Query:
    return Query("app:late", function, Mock(), "file:///c", {}, Sink())


def runner(start: Any) -> QueryRunner:
    return QueryRunner(start, spec="app:late", reads="", limits=QUICK, on_progress=lambda _: None, clock=SYSTEM)


@pytest.mark.parametrize("error", [JavaError(), DAEMON, Py4JNetworkError("gone"), PySparkException("interrupted")])
async def test_an_error_of_java_while_stopping_is_not_a_failure(error: Exception) -> None:
    def start(_: bool) -> Any:
        query.stop()
        raise error

    query = runner(start)
    await query.run()


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (DAEMON, "app:late: EOFException in pyspark.daemon$"),
        (JavaError(), "without details: Spark's Java process has exited"),
    ],
)
async def test_an_error_of_java_fails_the_query_in_one_line(error: Exception, says: str) -> None:
    def start(_: bool) -> Any:
        raise error

    with pytest.raises(QueryFailed, match=says):
        await runner(start).run()


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (NO_FORMAT, "app:late failed: .*the data source: delta"),
        (FILE, "failed: .* is not a directory: /c$"),
        (
            PySparkException("(org.apache.hadoop.fs.FileAlreadyExistsException) is not a directory: /c"),
            "directory: /c$",
        ),
    ],
)
async def test_a_query_that_spark_refuses_is_not_retried(error: Exception, says: str) -> None:
    def function(rows: Any) -> Any:
        raise error

    query = late(function)
    run = runner(lambda _: query.start_with(SimpleNamespace(), SimpleNamespace()))  # type: ignore[arg-type]
    with pytest.raises(HandlerDefinitionError, match=says):
        await run.run()
    assert run.restarts == 0


async def test_an_error_of_a_query_that_ran_is_retried() -> None:
    """For example a table of `foreachBatch` that does not exist yet."""

    def start(_: bool) -> Any:
        raise StreamingQueryException("[STREAM_FAILED] Query terminated with exception: no table SQLSTATE: 42P01")

    with pytest.raises(QueryFailed, match="stopped after 2 failures"):
        await runner(start).run()


def test_java_dying_in_the_function_is_not_an_error_of_the_function() -> None:
    def function(rows: Any) -> Any:
        raise Py4JNetworkError("Answer from Java side is empty")

    with pytest.raises(Py4JNetworkError):
        late(function).start_with(SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]


def test_closing_a_session_ignores_a_dead_java() -> None:
    def stop() -> None:
        raise Py4JNetworkError("Error while sending or receiving")

    session = Session("local", {})
    session._current = SimpleNamespace(stop=stop)  # type: ignore[assignment]
    session.close()


def test_closing_a_session_that_hangs_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    ends, stopped_by = threading.Event(), []

    def stop() -> None:
        stopped_by.append(threading.current_thread())
        ends.wait(60)

    session = Session("local", {})
    session._current = SimpleNamespace(stop=stop)  # type: ignore[assignment]
    monkeypatch.setattr(actorproc.spark.session, "_CLOSE_TIMEOUT", 0.01)
    session.close()
    (thread,) = stopped_by
    assert thread.is_alive()
    assert thread.daemon
    ends.set()


@pytest.mark.parametrize(
    ("function", "sink"),
    [
        (lambda frame, writer, query: frame, "console (update)"),
        (lambda frame, writer, query: writer, "defined by the function's writer"),
        (lambda frame, writer, query: query, "defined by the function's query"),
    ],
)
def test_a_started_query_describes_its_sink(function: Any, sink: str) -> None:
    query, frame, writer = Mock(StreamingQuery), Mock(DataFrame, isStreaming=True), Mock(DataStreamWriter)
    for made in (writer.format, writer.outputMode, writer.options, writer.option, writer.trigger):
        made.return_value = writer
    frame.writeStream, writer.start.return_value = writer, query
    started = late(lambda _: function(frame, writer, query))
    assert started.start_with(SimpleNamespace(), SimpleNamespace()) == (query, sink)  # type: ignore[arg-type]


async def run_query(store: Store, checkpoint: Path, start: Callable[[], Any], *, sink: Sink | None = None) -> None:
    """Run `start` as `actorproc spark` runs a query, without Spark."""
    arguments = SimpleNamespace(
        name="Delays", native=False, remote=None, trigger="10s", max_failures=2, seconds=lambda _: 30.0
    )
    session = SimpleNamespace(
        master="local", open=lambda: SimpleNamespace(version="4"), ui_url=lambda: None, description=dict, close=list
    )
    query = SimpleNamespace(
        spec="app:late", sink=sink or Sink(), checkpoint=f"file://{checkpoint}", start=lambda _, restart: start()
    )
    settings = Settings(restart_backoff=0.01, restart_backoff_max=0.02)
    await QueryRun(arguments, session, query, store, settings).run(Signals(SYSTEM, lambda: None))  # type: ignore[arg-type]


def raises(error: Exception) -> Callable[[], Any]:
    def start() -> Any:
        raise error

    return start


def ended(error: Exception | None = None) -> Any:
    """A query of Spark's that has ended."""
    return SimpleNamespace(isActive=False, lastProgress=None, exception=lambda: error)


async def test_options_are_shown_once_however_often_the_query_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Mapping[str, str]] = []
    monkeypatch.setattr(actorproc.cli.spark_query, "show_started", lambda facts, options: shown.append(facts))
    outcomes = iter([ended(StreamingQueryException("away")), ended()])
    async with open_store(str(tmp_path / "state")) as store:
        await run_query(store, tmp_path / "c", lambda: (next(outcomes), "a table"))
    assert [facts["writes"] for facts in shown] == ["a table"]


async def readers_after(tmp_path: Path, error: Exception, *existing: Reader) -> list[str]:
    """Names of the readers after the query has failed."""
    async with open_store(str(tmp_path / "state")) as store:
        for reader in existing:
            await register(store, READERS, reader)
        with pytest.raises(ExceptionGroup):
            await run_query(store, tmp_path / "c", raises(error))
        return sorted((await read_registry(store, READERS)).readers)


@pytest.mark.parametrize("error", [HandlerDefinitionError("no such column"), UsageError("another's checkpoint")])
async def test_a_refused_query_does_not_stay_a_reader(tmp_path: Path, error: Exception) -> None:
    assert await readers_after(tmp_path, error) == []
    assert await readers_after(tmp_path, error, Reader.spark("app.late", "elsewhere")) == ["app.late"]


async def test_a_reader_stays_if_it_existed_before_or_has_begun(tmp_path: Path) -> None:
    before = Reader.spark("mine", f"file://{tmp_path}/c")
    assert await readers_after(tmp_path, QueryFailed("no space"), before) == ["mine"]
    assert await readers_after(tmp_path, HandlerDefinitionError("no such column")) == ["mine"]
    (tmp_path / "other").mkdir()
    async with open_store(str(tmp_path / "other" / "c")) as spark:
        await spark.put("offsets/0", b"v1\n{}")  # the micro-batch that failed, and runs again
    assert await readers_after(tmp_path / "other", QueryFailed("no space")) == ["app.late"]


async def test_a_query_that_never_began_does_not_stay_a_reader(tmp_path: Path) -> None:
    assert await readers_after(tmp_path, QueryFailed("no space")) == []


async def read_up_to(number: int, store: Store, checkpoint: Path) -> None:
    """Write the files that Spark leaves after a finished micro-batch."""
    retained = RetainedOutput(store, ProcessorLayout("Delays"))
    offset = make_offset(str(retained), await retained.stream_identity(), {"0": number})
    async with open_store(str(checkpoint)) as spark:
        await spark.put("offsets/0", b"v1\n{}\n" + orjson.dumps(offset))
        await spark.put("commits/0", b"v1\n{}")


@pytest.mark.parametrize("reads", [3, 5])
async def test_a_new_reader_whose_next_rows_were_trimmed_is_refused(tmp_path: Path, reads: int) -> None:
    async with open_store(str(tmp_path / "state")) as store:
        await read_up_to(reads, store, tmp_path / "c")
        assert await decide(store, READERS, await read_registry(store, READERS), {"0": 5})
        start = raises(HandlerDefinitionError("it was started"))
        if reads == 5:
            with pytest.raises(ExceptionGroup):
                await run_query(store, tmp_path / "c", start)
        else:
            with pytest.raises(UsageError, match=r"partition 0: 3, trimmed below 5\)\. Use a new checkpointLocation"):
                await run_query(store, tmp_path / "c", start)
        assert (await read_registry(store, READERS)).readers == {}


async def test_a_checkpoint_of_another_function_is_refused(tmp_path: Path) -> None:
    one = Reader.spark("app.early", f"file://{tmp_path}/c", "app:early")
    with pytest.raises(UsageError, match=r"c belongs to app:early: app:late would"):
        await readers_after(tmp_path, AssertionError("it was started"), one)


async def test_an_existing_reader_is_not_checked_against_the_trim(tmp_path: Path) -> None:
    """It holds back trims; if something is lost all the same, reading reports it."""
    async with open_store(str(tmp_path / "state")) as store:
        await read_up_to(3, store, tmp_path / "c")
        await register(store, READERS, Reader.spark("mine", str(tmp_path / "c")))
        assert await decide(store, READERS, await read_registry(store, READERS), {"0": 5})
        with pytest.raises(ExceptionGroup):
            await run_query(store, tmp_path / "c", raises(QueryFailed("no space")))
        assert set((await read_registry(store, READERS)).readers) == {"mine"}


ONE, OTHER = Sink("parquet", "file:///one"), Sink("parquet", "file:///other")


async def test_another_target_under_an_old_checkpoint_is_refused(tmp_path: Path) -> None:
    async with open_store(str(tmp_path / "state")) as store:
        await run_query(store, tmp_path / "c", lambda: (ended(), "one"), sink=ONE)
        await read_up_to(3, store, tmp_path / "c")
        same = Sink("Parquet", "file:///one", options={"compression": "zstd"})
        await run_query(store, tmp_path / "c", lambda: (ended(), "one"), sink=same)
        for target in (OTHER, Sink()):
            with pytest.raises(UsageError, match=r"writes to parquet file:///one: .* would miss all rows"):
                await run_query(store, tmp_path / "c", raises(AssertionError("started")), sink=target)
        (tmp_path / "c" / TARGET_KEY).unlink()
        await run_query(store, tmp_path / "c", lambda: (ended(), "other"), sink=OTHER)
        with pytest.raises(UsageError, match="writes to parquet file:///other"):
            await run_query(store, tmp_path / "c", raises(AssertionError("started")), sink=ONE)


async def test_the_target_of_a_query_that_never_began_may_change(tmp_path: Path) -> None:
    async with open_store(str(tmp_path / "state")) as store:
        for sink in (ONE, OTHER):
            await run_query(store, tmp_path / "c", lambda: (ended(), "a table"), sink=sink)
