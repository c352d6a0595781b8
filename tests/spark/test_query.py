"""A function over the output with a real Spark: results, failures, restarts and stops."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest
from pyspark.sql import DataFrame, SparkSession

from actorproc.config.settings import Settings
from actorproc.errors import HandlerDefinitionError, QueryFailed, UsageError
from actorproc.spark.output_dataset import Output
from actorproc.spark.progress import Progress, read_lag
from actorproc.spark.query import Query
from actorproc.spark.query import Sink as To
from actorproc.spark.query_runner import RunLimits
from actorproc.storage.names import ProcessorLayout
from actorproc.stores import open_store
from tests.spark.committing import Fleet
from tests.spark.conftest import needs_limits
from tests.spark.jobs import QUICK, Runs
from tests.spark.sink import Sink


@pytest.mark.slow
@needs_limits
async def test_a_function_may_return_a_dataframe_a_writer_or_a_query(spark: SparkSession, tmp_path: Path) -> None:
    fleet, sink = Fleet(str(tmp_path / "state")), Sink(tmp_path / "out")
    await fleet.commit(p0=30, p1=10)
    table = tmp_path / "table"

    def frame(rows: DataFrame) -> DataFrame:
        return rows.where("n >= 10")

    def writer(rows: DataFrame) -> Any:
        return rows.writeStream.foreachBatch(sink._write)

    def query(rows: DataFrame, *, spark: SparkSession, checkpoint: str, trigger: dict[str, Any]) -> Any:
        assert spark.version
        named = rows.writeStream.format("memory").queryName("numbers_seen").option("checkpointLocation", checkpoint)
        return named.trigger(**trigger).start()

    first = Runs(spark, fleet, tmp_path / "c1", frame, sink=To("parquet", table.as_uri()), max_files=2)
    await first.to_end()
    assert spark.read.parquet(str(table)).count() == 18
    done = [progress for progress in first.reports if progress.ran]
    assert [progress.rows for progress in done] == [18, 18]
    assert done[0].next != done[0].seen == done[1].next == {"0": 3, "1": 1}

    await Runs(spark, fleet, tmp_path / "c2", writer).to_end()
    assert sink.rows() == fleet.expected()

    await Runs(spark, fleet, tmp_path / "c3", query).to_end()
    assert spark.table("numbers_seen").count() == 36


async def test_a_query_with_another_checkpoint_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    fleet = Fleet(str(tmp_path / "state"))
    await fleet.commit(p0=10)

    def own(rows: DataFrame, checkpoint: str) -> Any:
        return rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "mine")).start()

    with pytest.raises(HandlerDefinitionError, match=r"another checkpoint, file:.*/mine"):
        await Runs(spark, fleet, tmp_path / "c", own).to_end()
    assert not spark.streams.active


@needs_limits
async def test_a_failed_query_continues_from_its_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    fleet = Fleet(str(tmp_path / "state"))
    await fleet.commit(p0=40)
    failing = iter([False, True, True, False, True])

    def fail(batch: int) -> None:
        if next(failing, False):
            raise OSError(f"no table today, batch {batch}")

    sink = Sink(tmp_path / "out", fail)
    runs = Runs(spark, fleet, tmp_path / "c", lambda rows: rows.writeStream.foreachBatch(sink._write), max_files=1)
    running = await runs.to_end()
    assert running.restarts == 3, "two failures in a row, and a third after a micro-batch was done"
    assert sink.rows() == fleet.expected()
    assert [progress.batch for progress in runs.reports if progress.ran] == [0, 1, 2, 3]


@pytest.mark.slow
@needs_limits
async def test_a_query_survives_a_missing_container(spark: SparkSession, tmp_path: Path) -> None:
    fleet, sink = Fleet(str(tmp_path / "state")), Sink(tmp_path / "out")
    await fleet.commit(p0=20)
    runs = Runs(
        spark, fleet, tmp_path / "c", lambda rows: rows.writeStream.foreachBatch(sink._write),
        trigger={"processingTime": "100 milliseconds"}, limits=RunLimits(failures=1000, backoff=QUICK.backoff),
        settings=Settings(store_timeout=2, store_patience=5),
    )  # fmt: skip
    with anyio.fail_after(100):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runs.to_end)
            while not runs.reports:
                await anyio.sleep(0.1)
            (tmp_path / "state").rename(tmp_path / "away")
            while runs.runner.restarts < 2:  # the query notices, and then each start
                await anyio.sleep(0.1)
            (tmp_path / "away").rename(tmp_path / "state")
            await fleet.commit(p0=20)
            while sink.rows() != fleet.expected():
                await anyio.sleep(0.1)
            runs.runner.stop()


@pytest.mark.slow
async def test_a_query_that_keeps_failing_ends(spark: SparkSession, tmp_path: Path) -> None:
    fleet = Fleet(str(tmp_path / "state"))
    await fleet.commit(p0=10)

    def write(frame: DataFrame, batch: int) -> None:
        raise ValueError("no such table")

    runs = Runs(spark, fleet, tmp_path / "c", lambda rows: rows.writeStream.foreachBatch(write))
    with pytest.raises(
        QueryFailed, match=r"(?s)^stopped after 3 failures in a row.*app:function: .*no such table"
    ) as failed:
        await runs.to_end()
    assert f"{Path(__file__).name}" in str(failed.value)
    assert "py4j" not in str(failed.value)
    assert "=== Streaming Query" not in str(failed.value)


@pytest.mark.slow
@needs_limits
async def test_a_stop_finishes_the_micro_batch_and_then_ends(spark: SparkSession, tmp_path: Path) -> None:
    fleet, begun, go_on = Fleet(str(tmp_path / "state")), threading.Event(), threading.Event()
    await fleet.commit(p0=40)

    def hold(batch: int) -> None:
        begun.set()
        go_on.wait(60)

    sink = Sink(tmp_path / "out", hold)
    runs = Runs(
        spark, fleet, tmp_path / "c", lambda rows: rows.writeStream.foreachBatch(sink._write), max_files=1,
        trigger={"processingTime": "1 hour"},  # a shorter one may begin the next micro-batch before the stop arrives
    )  # fmt: skip
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runs.to_end)
        await anyio.to_thread.run_sync(begun.wait, 60)
        runs.runner.stop()
        await anyio.sleep(1)
        assert not sink.batches(), "it waits for the micro-batch"
        go_on.set()
    assert len(sink.batches()) == 1
    assert (tmp_path / "c" / "commits" / "0").exists()
    await Runs(spark, fleet, tmp_path / "c", lambda rows: rows.writeStream.foreachBatch(sink._write)).to_end()
    assert sink.rows() == fleet.expected()


async def test_a_stop_interrupts_a_micro_batch_that_takes_too_long(spark: SparkSession, tmp_path: Path) -> None:
    fleet, begun = Fleet(str(tmp_path / "state")), threading.Event()
    ends: list[str] = []
    await fleet.commit(p0=10)

    def hold(frame: DataFrame, batch: int) -> None:
        begun.set()
        try:
            frame.limit(1).selectExpr("reflect('java.lang.Thread', 'sleep', 200000L)").collect()
        except Exception as error:
            ends.append(str(error))
            raise

    limits = RunLimits(stop_within=0.3)
    runs = Runs(spark, fleet, tmp_path / "c", lambda rows: rows.writeStream.foreachBatch(hold), limits=limits)
    with anyio.fail_after(100):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runs.to_end)
            await anyio.to_thread.run_sync(begun.wait, 60)
            runs.runner.stop()
        while not ends:
            await anyio.sleep(0.1)
    assert re.search("(?i)interrupted|cancelled", ends[0])
    assert not (tmp_path / "c" / "commits" / "0").exists()


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda rows: rows.select("m"), "app:function failed: .*UNRESOLVED_COLUMN.*`m`"),
        (lambda rows: 1 / 0, "app:function failed: ZeroDivisionError: division by zero .*test_query.py"),
        (lambda rows: None, "returned None; return a DataFrame, a writer"),
        (lambda rows, spark: spark.range(3), "returned a DataFrame that is not a stream"),
        (lambda rows: rows.groupBy("n").count().writeStream.format("noop"), "Invalid streaming output mode: append"),
    ],
)
async def test_a_wrong_function_is_refused_without_a_retry(
    spark: SparkSession, tmp_path: Path, function: Any, says: str
) -> None:
    fleet = Fleet(str(tmp_path / "state"))
    await fleet.commit(p0=10)
    with pytest.raises(HandlerDefinitionError, match=says):
        await Runs(spark, fleet, tmp_path / "c", function).to_end()


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda: None, "must take the rows, .*: too many positional arguments"),
        (lambda *, rows: None, "must take the rows"),
        (lambda rows, table: None, "may take spark, checkpoint, trigger: missing a required argument: 'table'"),
    ],
)
def test_a_function_with_wrong_parameters_is_refused(function: Any, says: str) -> None:
    with pytest.raises(HandlerDefinitionError, match=says):
        Query("app:function", function, lambda spark: spark.range(0), "file:///c", {}, To())


@pytest.mark.slow
async def test_a_checkpoint_of_another_processor_is_refused_without_a_retry(
    spark: SparkSession, tmp_path: Path
) -> None:
    one, other = Fleet(str(tmp_path / "one")), Fleet(str(tmp_path / "other"))
    await one.commit(p0=10)
    await other.commit(p0=10)
    await Runs(spark, one, tmp_path / "c", lambda rows: rows).to_end()
    runs = Runs(spark, other, tmp_path / "c", lambda rows: rows)
    with pytest.raises(
        UsageError, match=r"^the checkpoint belongs to a query on output numbers at .*/one, and this query"
    ):
        await runs.to_end()
    assert runs.runner.restarts == 0


async def test_the_lag_counts_committed_rows_that_are_not_processed(tmp_path: Path) -> None:
    fleet = Fleet(str(tmp_path / "state"))
    await fleet.commit(p0=30, p1=10)
    output = Output("numbers")
    async with open_store(str(tmp_path / "state")) as store:
        for numbers, rows in (({}, 36), ({"0": 1}, 27), ({"0": 3}, 9), ({"0": 3, "1": 1}, 0)):
            lag = await read_lag(output, store, Progress(0, True, 0, 1.0, numbers, numbers))
            assert lag.rows == rows
            assert lag.seconds == 0 or rows
        oldest = min(entry.modified for entry in (await store.list(ProcessorLayout("numbers").output)).entries)
        lag = await read_lag(output, store, Progress(0, True, 0, 1.0, {}, {}))
        now = (await store.list("", limit=1)).now
        assert 0 <= lag.seconds <= now - oldest
