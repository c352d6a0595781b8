"""A real Spark reads compacted output, on a folder and on S3."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from pyspark.sql import SparkSession

from actorproc import errors
from actorproc.admin import compact
from actorproc.retention.boundary import raise_boundary
from actorproc.spark import read_output, stream_output
from actorproc.storage.names import ProcessorLayout
from actorproc.stores import open_store
from tests.servers import S3Server
from tests.spark import committing
from tests.spark.committing import Fleet, Grown, until_past
from tests.spark.conftest import minio_is_long, needs_limits
from tests.spark.sink import Sink
from tests.spark.test_reading import rows

LAYOUT = ProcessorLayout("numbers")


async def delete_originals(fleet: Fleet) -> int:
    async with open_store(str(fleet.container), fleet.settings) as store:
        return await committing.delete_originals(store, ("0", "1", "2"))


@pytest.mark.slow
@pytest.mark.parametrize("table", ["", "within"])
async def test_both_readers_find_the_same_rows_in_compacted_files(
    spark: SparkSession, tmp_path: Path, table: Literal["", "within"]
) -> None:
    """With a table in the output's folder, compacted files are there, too."""
    fleet = Fleet(str(tmp_path), {"sinks": {"table": "delta"}} if table else {})
    await fleet.commit(p0=30, p1=20)
    await fleet.commit(Grown, p0=20, p1=10)  # a column is added

    assert (await compact(container=str(tmp_path), name="numbers", older_than=0)).files_after == 2
    assert rows(read_output(spark, str(tmp_path), "numbers", native=True)) == fleet.expected()
    assert await delete_originals(fleet) == 6
    await fleet.commit(Grown, p0=10, p2=10)
    for native in (True, False):
        found = read_output(spark, str(tmp_path), "numbers", native=native)
        assert rows(found) == fleet.expected()
        narrow = {"columns": ["half", "_sequence"], "partitions": ["0"], "start_sequence": 25}
        halves = read_output(spark, str(tmp_path), "numbers", native=native, **narrow).collect()  # type: ignore[arg-type]
        assert {(row._sequence, row.half) for row in halves} == {
            (n, None if n < 30 else n / 2) for n in range(25, 60) if n % 10 != 7
        }


@pytest.mark.slow
async def test_trimmed_rows_of_a_compacted_file_are_not_read(spark: SparkSession, tmp_path: Path) -> None:
    fleet = Fleet(str(tmp_path))
    await fleet.commit(p0=50, p1=20)
    await compact(container=str(tmp_path), name="numbers", older_than=0)
    async with open_store(str(tmp_path), fleet.settings) as store:
        await raise_boundary(store, LAYOUT.boundary("0"), 2)
    expected = {row for row in fleet.expected() if row[0] == "1" or row[1] >= 20}
    for native in (None, False):
        assert rows(read_output(spark, str(tmp_path), "numbers", native=native)) == expected
    with pytest.raises(errors.UsageError, match="trimmed within a compacted file"):
        read_output(spark, str(tmp_path), "numbers", native=True)


@pytest.mark.slow
@needs_limits
async def test_a_stream_reads_on_in_the_middle_of_a_compacted_file(spark: SparkSession, tmp_path: Path) -> None:
    fleet, sink = Fleet(str(tmp_path / "state")), Sink(tmp_path / "out")
    await fleet.commit(p0=40, p1=30)

    def run(**limits: int) -> None:
        sink.run(stream_output(spark, str(fleet.container), "numbers", **limits), tmp_path / "checkpoint")  # type: ignore[arg-type]

    query = sink.start(
        stream_output(spark, str(fleet.container), "numbers", max_files=3), tmp_path / "checkpoint", interval="1 hour"
    )
    while not query.recentProgress:
        query.awaitTermination(1)
    query.stop()
    assert [len(batch) for batch in sink.batches()] == [27]
    await fleet.commit(p0=10)
    assert (await compact(container=fleet.container, name="numbers", older_than=0)).files_after == 2
    await delete_originals(fleet)
    run(max_rows=20)
    assert sink.rows() == fleet.expected()
    assert max(len(batch) for batch in sink.batches()[1:]) == 18
    await fleet.commit(p0=20, p2=20)
    run()
    assert sink.rows() == fleet.expected()


@pytest.mark.slow
@minio_is_long
async def test_on_s3_without_a_jar(spark: SparkSession, s3_server: S3Server) -> None:
    url = await s3_server.new_url()
    fleet = Fleet(url, s3_server.settings)
    await fleet.commit(p0=30, p1=30)
    await until_past(fleet)
    assert (await compact(container=url, name="numbers", older_than=0, settings=fleet.settings)).files_after == 2
    await fleet.commit(p0=30)
    await delete_originals(fleet)
    assert rows(read_output(spark, url, "numbers", settings=fleet.settings)) == fleet.expected()


async def test_a_native_stream_over_compacted_output_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    fleet = Fleet(str(tmp_path))
    await fleet.commit(p0=30, p1=30)
    await compact(container=fleet.container, name="numbers", older_than=0)
    with pytest.raises(errors.UsageError, match=r"was compacted.*leave native out"):
        stream_output(spark, str(tmp_path), "numbers", native=True)
