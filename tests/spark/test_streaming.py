"""Streams with a real Spark: offsets, limits, restarts, on a folder and on S3."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from actorproc.errors import UsageError
from actorproc.spark import stream_output
from actorproc.spark.stream_reader import LIMITS
from actorproc.storage.names import ProcessorLayout
from actorproc.stores import open_store
from tests.servers import S3Server
from tests.spark.committing import Fleet
from tests.spark.conftest import minio_is_long, needs_limits
from tests.spark.sink import Sink

LAYOUT = ProcessorLayout("numbers")


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(200):
        while not condition():
            await anyio.sleep(0.1)


@pytest.mark.slow
@needs_limits
async def test_available_now_respects_limits_and_continues(spark: SparkSession, tmp_path: Path) -> None:
    fleet, sink, checkpoint = Fleet(str(tmp_path / "state")), Sink(tmp_path / "out"), tmp_path / "checkpoint"
    await fleet.commit(p0=40, p1=10)

    def frame(**limits: int) -> None:
        sink.run(stream_output(spark, fleet.container, "numbers", **limits), checkpoint)  # type: ignore[arg-type]

    frame(max_files=2)
    assert [len(rows) for rows in sink.batches()] == [18, 18, 9]
    await fleet.commit(p0=10, p2=20)  # a partition appears
    frame(max_rows=20)
    assert [len(rows) for rows in sink.batches()[3:]] == [18, 9]
    frame()
    assert len(sink.batches()) == 5
    assert sink.rows() == fleet.expected()


@pytest.mark.slow
async def test_available_now_reads_to_the_end_after_a_crash(spark: SparkSession, tmp_path: Path) -> None:
    fleet, sink, checkpoint = Fleet(str(tmp_path / "state")), Sink(tmp_path / "out"), tmp_path / "checkpoint"
    await fleet.commit(p0=20)
    frame = stream_output(spark, str(fleet.container), "numbers")
    sink.run(frame, checkpoint)
    for note in [*(checkpoint / "commits").glob("0"), *(checkpoint / "commits").glob(".0.crc")]:  # it was cut off there
        note.unlink()
    await fleet.commit(p0=10, p1=20)
    sink.run(frame, checkpoint)
    assert [len(rows) for rows in sink.batches()] == [18, 27]
    assert sink.rows() == fleet.expected()


@pytest.mark.skipif(LIMITS, reason="this PySpark has limits")
async def test_limits_are_refused_before_pyspark_4_2(spark: SparkSession, tmp_path: Path) -> None:
    fleet, sink, checkpoint = Fleet(str(tmp_path / "state")), Sink(tmp_path / "out"), tmp_path / "checkpoint"
    await fleet.commit(p0=40, p1=10)
    limited = stream_output(spark, str(fleet.container), "numbers", max_files=2)
    with pytest.raises(PySparkException, match=r"maxRowsPerTrigger and maxFilesPerTrigger need PySpark 4\.2 or newer"):
        sink.run(limited, tmp_path / "refused")
    for _ in range(2):
        sink.run(stream_output(spark, str(fleet.container), "numbers"), checkpoint)
        assert sink.rows() == fleet.expected()
        await fleet.commit(p0=10, p2=20)


@minio_is_long
@pytest.mark.slow
async def test_a_restarted_stream_on_s3_reads_each_row_once(
    spark: SparkSession, s3_server: S3Server, tmp_path: Path
) -> None:
    fleet = Fleet(await s3_server.new_url(), s3_server.settings)
    sink = Sink(tmp_path / "out")

    def start() -> StreamingQuery:
        frame = stream_output(spark, str(fleet.container), "numbers", settings=fleet.settings)
        return sink.start(frame, tmp_path / "checkpoint", interval="200 milliseconds")

    await fleet.commit(p0=20)
    query = start()
    await until(lambda: sink.rows() == fleet.expected())
    await fleet.commit(p0=10, p1=30)
    await until(lambda: sink.rows() == fleet.expected())
    query.stop()
    await fleet.commit(p0=10)
    query = start()
    await until(lambda: sink.rows() == fleet.expected())
    query.stop()


async def test_sparks_own_file_stream_reads_the_same(spark: SparkSession, tmp_path: Path) -> None:
    fleet, sink = Fleet(str(tmp_path / "state")), Sink(tmp_path / "out")
    await fleet.commit(p0=20, p1=10)
    for _ in range(2):
        frame = stream_output(spark, str(fleet.container), "numbers", native=True, max_files=2)
        sink.run(frame, tmp_path / "checkpoint")
        assert sink.rows() == fleet.expected()
        await fleet.commit(p1=10, p2=10)
    with pytest.raises(UsageError, match="use max_files"):
        stream_output(spark, str(fleet.container), "numbers", native=True, max_rows=5)


@pytest.mark.slow
async def test_a_checkpoint_with_lost_files_or_of_another_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    fleet, checkpoint = Fleet(str(tmp_path / "state")), tmp_path / "checkpoint"
    sink = Sink(tmp_path / "out")
    await fleet.commit(p0=20)
    sink.run(stream_output(spark, str(fleet.container), "numbers"), checkpoint)
    await fleet.commit(p0=30)

    async with open_store(str(fleet.container)) as store:
        await store.put(LAYOUT.boundary("0"), b'{"version": 1, "lowest": 4}')
    with pytest.raises(
        PySparkException, match=r"(?s)partition 0 of output numbers.*number 2.*can be read is 4.*trimmed"
    ):
        sink.run(stream_output(spark, str(fleet.container), "numbers"), checkpoint)

    other = Fleet(str(tmp_path / "other"))
    await other.commit(p0=20)
    with pytest.raises(
        PySparkException, match=r"(?s)belongs to a query on output numbers at .*/state, .*reads .*/other"
    ):
        sink.run(stream_output(spark, str(other.container), "numbers"), checkpoint)
