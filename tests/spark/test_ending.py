"""How a query ends that Spark refuses, or whose Java dies: what is said, and what is left behind. Without Spark."""

from __future__ import annotations

import threading
from collections.abc import Mapping
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
from actorproc.cli.spark_query import _keep
from actorproc.errors import HandlerDefinitionError, QueryFailed, UsageError
from actorproc.retention.readers import Reader, decide, read_registry, register
from actorproc.retention.spark_offsets import Offset
from actorproc.runtime.backoff import Backoff
from actorproc.runtime.clock import SYSTEM
from actorproc.runtime.signals import Signals
from actorproc.runtime.tasks import first_cause
from actorproc.spark.query import Query, Sink
from actorproc.spark.query_runner import QueryRunner, RetryLimits
from actorproc.spark.session import Session
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores import open_store

QUICK = RetryLimits(failures=2, backoff=Backoff(0.01, 0.02))
READERS = ProcessorLayout("Delays").readers


class JavaError(Py4JJavaError):  # type: ignore[misc]
    """One of Spark's, in a Java that answers no more, or says `text`."""

    def __init__(self, text: str | None = None) -> None:
        Exception.__init__(self)
        self._text = text

    def __str__(self) -> str:
        if self._text is None:
            raise Py4JNetworkError("Answer from Java side is empty")
        return self._text


DAEMON = JavaError(
    "An error occurred while calling o48.load.\n: org.apache.spark.SparkException: EOFException in pyspark.daemon\n\tat o"
)


NO_FORMAT = JavaError(
    "An error occurred while calling o114.start.\n: org.apache.spark.SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND] "
    "Failed to find the data source: delta. Make sure it is there. SQLSTATE: 42K02\n\tat org.apache"
)
FILE = JavaError(
    "An error occurred while calling o135.start.\n: org.apache.hadoop.fs.FileAlreadyExistsException: Destination exists and is "
    "not a directory: /c\n\tat org.apache"
)


def running(start: Any) -> QueryRunner:
    return QueryRunner(start, what="app:late", reads="", limits=QUICK, told=lambda _: None, clock=SYSTEM)


@pytest.mark.parametrize("error", [JavaError(), DAEMON, Py4JNetworkError("gone"), PySparkException("interrupted")])
async def test_a_java_that_is_stopped_together_with_us_is_no_failure(error: Exception) -> None:
    def start(_: bool) -> Any:
        query.stop()
        raise error

    query = running(start)
    await query.run()


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (DAEMON, "app:late: EOFException in pyspark.daemon$"),
        (JavaError(), "Spark's Java does not tell more: it has ended"),
    ],
)
async def test_what_java_says_by_itself_is_a_failure_of_the_query_told_in_a_line(error: Exception, says: str) -> None:
    def start(_: bool) -> Any:
        raise error

    with pytest.raises(QueryFailed, match=says):
        await running(start).run()


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
async def test_what_spark_refuses_in_javas_own_words_is_wrong_use_and_not_tried_again(
    error: Exception, says: str
) -> None:
    def function(rows: Any) -> Any:
        raise error

    query = Query("app:late", function, "file:///c", {}, Sink())
    run = running(lambda _: query.start(SimpleNamespace(), SimpleNamespace()))  # type: ignore[arg-type]
    with pytest.raises(HandlerDefinitionError, match=says):
        await run.run()
    assert run.restarts == 0


async def test_what_spark_says_of_a_query_that_ran_is_a_failure() -> None:
    """A table of a `foreachBatch`'s, say, that is not there yet."""

    def start(_: bool) -> Any:
        raise StreamingQueryException("[STREAM_FAILED] Query terminated with exception: no table SQLSTATE: 42P01")

    with pytest.raises(QueryFailed, match="given up: 2 failures"):
        await running(start).run()


def test_a_java_that_dies_while_the_function_runs_is_no_fault_of_the_function() -> None:
    def function(rows: Any) -> Any:
        raise Py4JNetworkError("Answer from Java side is empty")

    with pytest.raises(Py4JNetworkError):
        Query("app:late", function, "file:///c", {}, Sink()).start(SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]


def test_a_session_whose_java_has_ended_is_closed_without_a_word() -> None:
    def stop() -> None:
        raise Py4JNetworkError("Error while sending or receiving")

    session = Session("local", {})
    session._current = SimpleNamespace(stop=stop)  # type: ignore[assignment]
    session.close()


def test_a_session_that_does_not_end_is_left_to_end_with_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    ends, stopped_by = threading.Event(), []

    def stop() -> None:
        stopped_by.append(threading.current_thread())
        ends.wait(60)

    session = Session("local", {})
    session._current = SimpleNamespace(stop=stop)  # type: ignore[assignment]
    monkeypatch.setattr(actorproc.spark.session, "_CLOSING", 0.01)
    session.close()
    (thread,) = stopped_by
    assert thread.is_alive()
    assert thread.daemon
    ends.set()


def job(checkpoint: str, error: Exception) -> Any:
    def start(_: bool) -> Any:
        raise error

    session = SimpleNamespace(
        place="local", open=lambda: SimpleNamespace(version="4"), page=lambda: None, told=dict, close=lambda: None
    )
    query = SimpleNamespace(spec="app:late", sink=Sink(), checkpoint=checkpoint)
    return SimpleNamespace(session=session, query=query, name="Delays", native=False, settings=None, start=start)


@pytest.mark.parametrize(
    ("function", "writes"),
    [
        (lambda frame, writer, query: frame, "console (update)"),
        (lambda frame, writer, query: writer, "where the function's own writer says"),
        (lambda frame, writer, query: query, "where the function's own query says"),
    ],
)
def test_a_query_that_is_started_tells_where_it_writes(function: Any, writes: str) -> None:
    query, frame, writer = Mock(StreamingQuery), Mock(DataFrame, isStreaming=True), Mock(DataStreamWriter)
    for made in (writer.format, writer.outputMode, writer.options, writer.option, writer.trigger):
        made.return_value = writer
    frame.writeStream, writer.start.return_value = writer, query
    late = Query("app:late", lambda _: function(frame, writer, query), "file:///c", {}, Sink())
    assert late.start(SimpleNamespace(), SimpleNamespace()) == (query, writes)  # type: ignore[arg-type]


async def test_what_was_set_is_said_once_the_query_is_started_and_not_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Mapping[str, str]] = []
    monkeypatch.setattr(actorproc.cli.spark_query, "say_started", lambda facts, told: said.append(facts))

    def ends(error: Exception | None) -> Any:
        return SimpleNamespace(isActive=False, lastProgress=None, exception=lambda: error)

    coming = [None, ends(StreamingQueryException("away")), ends(None)]

    def start(_: bool) -> Any:
        query = coming.pop(0)
        if query is None:
            raise QueryFailed("away")
        return query, "a table"

    runs = job(f"file://{tmp_path}/c", AssertionError())
    runs.start = start
    limits = RetryLimits(failures=9, backoff=QUICK.backoff)
    async with open_store(str(tmp_path / "state")) as store:
        await _keep(runs, limits, store, Signals(SYSTEM, lambda: None), "10s")
    assert [facts["writes"] for facts in said] == ["a table"]


async def readers_after(tmp_path: Path, error: Exception, *there: Reader) -> list[str]:
    async with open_store(str(tmp_path / "state")) as store:
        for reader in there:
            await register(store, READERS, reader)
        with pytest.raises(ExceptionGroup):
            await _keep(job(f"file://{tmp_path}/c", error), QUICK, store, Signals(SYSTEM, lambda: None), "10s")
        return sorted((await read_registry(store, READERS)).readers)


@pytest.mark.parametrize("error", [HandlerDefinitionError("no such column"), UsageError("another's checkpoint")])
async def test_a_function_that_turns_out_to_be_wrong_use_is_no_reader_that_holds_back_a_trim(
    tmp_path: Path, error: Exception
) -> None:
    assert await readers_after(tmp_path, error) == []
    assert await readers_after(tmp_path, error, Reader.spark("app.late", "elsewhere")) == ["app.late"]


async def test_who_was_a_reader_before_or_has_begun_stays_one(tmp_path: Path) -> None:
    before = Reader.spark("mine", f"file://{tmp_path}/c")
    assert await readers_after(tmp_path, QueryFailed("no space"), before) == ["mine"]
    assert await readers_after(tmp_path, HandlerDefinitionError("no such column")) == ["mine"]
    (tmp_path / "other").mkdir()
    async with open_store(str(tmp_path / "other" / "c")) as spark:
        await spark.put("offsets/0", b"v1\n{}")  # the micro-batch that failed, and runs again
    assert await readers_after(tmp_path / "other", QueryFailed("no space")) == ["app.late"]


async def test_a_query_that_fails_and_never_began_holds_back_no_trim(tmp_path: Path) -> None:
    assert await readers_after(tmp_path, QueryFailed("no space")) == []


@pytest.mark.parametrize("begun", [False, True])
async def test_sparks_own_file_stream_is_refused_a_checkpoint_of_the_data_source(tmp_path: Path, begun: bool) -> None:
    async with open_store(str(tmp_path / "state")) as store:
        if begun:
            await read_up_to(3, store, tmp_path / "c")
        native = job(f"file://{tmp_path}/c", AssertionError("it was started"))
        native.native = True
        with pytest.raises(UsageError if begun else ExceptionGroup) as refused:
            await _keep(native, QUICK, store, Signals(SYSTEM, lambda: None), "10s")
    if begun:
        assert str(refused.value).startswith(
            f"the checkpoint file://{tmp_path}/c belongs to a query that reads through"
        )
        assert "leave --native out, or give it a new checkpoint" in str(refused.value)


async def test_what_is_wrong_with_the_checkpoint_names_it(tmp_path: Path) -> None:
    async with open_store(str(tmp_path / "state")) as store:
        refused = job(f"file://{tmp_path}/c", UsageError("the checkpoint belongs to a query on output A"))
        with pytest.raises(ExceptionGroup) as raised:
            await _keep(refused, QUICK, store, Signals(SYSTEM, lambda: None), "10s")
    assert str(first_cause(raised.value)) == f"the checkpoint file://{tmp_path}/c belongs to a query on output A"


async def read_up_to(number: int, store: Store, checkpoint: Path) -> None:
    """What Spark leaves when a micro-batch is done."""
    kept = RetainedOutput(store, ProcessorLayout("Delays"))
    offset = Offset(str(kept), await kept.stream_identity(), {"0": number}).to_dict()
    async with open_store(str(checkpoint)) as spark:
        await spark.put("offsets/0", b"v1\n{}\n" + orjson.dumps(offset))
        await spark.put("commits/0", b"v1\n{}")


@pytest.mark.parametrize("reads", [3, 5])
async def test_a_query_that_comes_when_what_it_reads_next_was_trimmed_is_refused_and_holds_nothing(
    tmp_path: Path, reads: int
) -> None:
    async with open_store(str(tmp_path / "state")) as store:
        await read_up_to(reads, store, tmp_path / "c")
        assert await decide(store, READERS, await read_registry(store, READERS), {"0": 5})
        began = job(f"file://{tmp_path}/c", HandlerDefinitionError("it was started"))
        limits, signals = QUICK, Signals(SYSTEM, lambda: None)
        if reads == 5:
            with pytest.raises(ExceptionGroup):  # the function was called
                await _keep(began, limits, store, signals, "10s")
        else:
            with pytest.raises(UsageError, match=r"partition 0: 3, trimmed below 5\)\. Use a new checkpointLocation"):
                await _keep(began, limits, store, signals, "10s")
        assert (await read_registry(store, READERS)).readers == {}


async def test_a_query_on_the_checkpoint_of_another_function_is_refused_before_it_starts(tmp_path: Path) -> None:
    one = Reader.spark("app.early", f"file://{tmp_path}/c", "app:early")
    with pytest.raises(UsageError, match=r"c belongs to app:early: app:late would"):
        await readers_after(tmp_path, AssertionError("it was started"), one)


async def test_a_query_that_is_a_reader_is_not_asked_where_it_stands(tmp_path: Path) -> None:
    """It is held where it was; what is wrong since then, reading says."""
    async with open_store(str(tmp_path / "state")) as store:
        await read_up_to(3, store, tmp_path / "c")
        await register(store, READERS, Reader.spark("mine", str(tmp_path / "c")))
        assert await decide(store, READERS, await read_registry(store, READERS), {"0": 5})
        with pytest.raises(ExceptionGroup):
            await _keep(
                job(f"file://{tmp_path}/c", QueryFailed("no space")), QUICK, store, Signals(SYSTEM, lambda: None), "10s"
            )
        assert set((await read_registry(store, READERS)).readers) == {"mine"}
