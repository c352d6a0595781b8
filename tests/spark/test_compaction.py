"""Compaction with a real Spark, on a folder and on S3, with concurrent readers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import anyio
import pytest
from pyspark.sql import SparkSession

from actorproc import errors
from actorproc.admin.audit import read_audit
from actorproc.retention.boundary import raise_boundary, read_boundary
from actorproc.sinks.entries import register_sink
from actorproc.spark import compact, read_output, stream_output
from actorproc.spark.compaction import Compaction
from actorproc.storage.listing import DataFile
from actorproc.storage.names import ProcessorLayout
from actorproc.stores import open_store
from tests.servers import S3Server
from tests.spark import committing
from tests.spark.committing import Fleet, Grown
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
    fleet = Fleet(str(tmp_path))
    await fleet.commit(p0=30, p1=20)
    if table:
        async with open_store(str(tmp_path)) as store:
            await register_sink(store, LAYOUT, "table", "delta", {}, table=table)
    await fleet.commit(Grown, p0=20, p1=10)  # a column is added

    told: list[int] = []
    done = compact(spark, str(tmp_path), "numbers", older_than=0, done=lambda group: told.append(group.files))
    assert (done.files_before, done.files_after, done.rows, told) == (6, 2, 54, [4, 2])
    assert 0 < done.bytes_after < done.bytes_before
    assert rows(read_output(spark, str(tmp_path), "numbers", native=True)) == fleet.expected()
    async with open_store(str(tmp_path)) as store:
        (act,) = await read_audit(store, ProcessorLayout("numbers").audit)
    assert (act.what, act.effect) == ("compact", "files made of smaller ones: 2; replaced files deleted: 0")
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
    compact(spark, str(tmp_path), "numbers", older_than=0)
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
    assert compact(spark, str(fleet.container), "numbers", older_than=0).files_after == 2
    await delete_originals(fleet)
    run(max_rows=20)
    assert sink.rows() == fleet.expected()
    assert max(len(batch) for batch in sink.batches()[1:]) == 18
    await fleet.commit(p0=20, p2=20)
    run()
    assert sink.rows() == fleet.expected()


async def until_past(fleet: Fleet) -> None:
    """Wait until the store's time is not before any commit. MinIO reports its own time in seconds, and that of files
    more precisely."""
    async with open_store(str(fleet.container), fleet.settings) as store:
        while (listing := await store.list(LAYOUT.output)).now < max(entry.modified for entry in listing.entries):
            await anyio.sleep(0.05)


@pytest.mark.slow
@minio_is_long
async def test_on_s3_without_a_jar_and_run_again(spark: SparkSession, s3_server: S3Server) -> None:
    url = await s3_server.new_url()
    fleet = Fleet(url, s3_server.settings)
    await fleet.commit(p0=30, p1=30)
    await until_past(fleet)

    def again(**how: object) -> tuple[int, int]:
        done = compact(spark, url, "numbers", older_than=0, settings=fleet.settings, **how)  # type: ignore[arg-type]
        return done.files_before, done.files_after

    assert again(dry_run=True) == (4, 0)
    assert again() == (4, 2)
    assert again() == (0, 0)
    await fleet.commit(p0=30)
    await until_past(fleet)
    assert again() == (4, 1)
    await delete_originals(fleet)
    assert rows(read_output(spark, url, "numbers", settings=fleet.settings)) == fleet.expected()


async def test_a_compaction_that_is_refused_says_why(spark: SparkSession, tmp_path: Path) -> None:
    container = str(tmp_path)
    fleet = Fleet(container)
    await fleet.commit(p0=30, p1=30)
    compact(spark, container, "numbers", older_than=0)
    with pytest.raises(errors.UsageError, match=r"was compacted.*leave native out"):
        stream_output(spark, container, "numbers", native=True)
    with pytest.raises(errors.UsageError, match=r"no processor 'nmbers'.*there are: numbers"):
        compact(spark, container, "nmbers")
    with pytest.raises(errors.SettingsError, match="target_size = 'large'"):
        compact(spark, container, "numbers", target_size="large")
    with pytest.raises(errors.UsageError, match="keep = 60 s"):
        compact(spark, container, "numbers", keep="1m")
    await fleet.commit(p0=30, p1=30)
    damaged = LAYOUT.output_file("0", 3)
    (tmp_path / damaged).write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(errors.CorruptObject, match=damaged):
        compact(spark, container, "numbers", older_than=0)
    assert rows(read_output(spark, container, "numbers", partitions=["1"])) == {
        row for row in fleet.expected() if row[0] == "1"
    }


def pairs(files: Sequence[DataFile], target_size: int) -> list[list[DataFile]]:
    """Groups of two files each, for tests that need many groups."""
    return [list(files[at : at + 2]) for at in range(0, len(files) - 1, 2)]


async def test_bad_files_only_stop_the_compaction_of_files_after_them(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actorproc.admin.compaction.grouped", pairs)
    monkeypatch.setattr("actorproc.spark.compaction._GROUPS_PER_CORE", 1)  # two groups at a time
    fleet = Fleet(str(tmp_path))
    await fleet.commit(p0=90, p1=90, p2=90)
    damaged, missing = LAYOUT.output_file("0", 2), LAYOUT.output_file("1", 4)
    (tmp_path / damaged).write_bytes(b"PAR1 nothing PAR1")
    (tmp_path / missing).unlink()
    leftover = tmp_path / LAYOUT.compacted_file("1", 6, "dead")  # which no range holds
    leftover.parent.mkdir(parents=True)
    leftover.write_bytes(b"")
    os.utime(leftover, (0, 0))

    found: list[Compaction] = []
    with pytest.raises(errors.SourceError, match="2 files keep others") as caught:
        compact(spark, str(tmp_path), "numbers", older_than=0, began=found.append)
    assert damaged in str(caught.value)
    assert missing in str(caught.value)
    assert (found[0].files_after, found[0].swept, found[0].contested) == (1 + 2 + 4, 1, set())
    assert not leftover.exists()
    async with open_store(str(tmp_path), fleet.settings) as store:
        reached = [(await read_boundary(store, LAYOUT.boundary(partition))).originals for partition in "012"]
    assert reached == [2, 4, 8]
    with pytest.raises(errors.SourceError, match="2 files keep others"):
        compact(spark, str(tmp_path), "numbers", older_than=0)


async def test_files_after_a_corrupt_compacted_file_are_compacted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actorproc.admin.compaction.grouped", pairs)
    fleet = Fleet(str(tmp_path))
    await fleet.commit(p0=90)
    assert compact(spark, str(tmp_path), "numbers", older_than=0).files_after == 4
    await fleet.commit(p0=30)
    async with open_store(str(tmp_path), fleet.settings) as store:
        first = (await read_boundary(store, LAYOUT.boundary("0"))).ranges[0]
        damaged = LAYOUT.compacted_file("0", 0, first.put_id)
        (tmp_path / damaged).write_bytes(b"PAR1 nothing PAR1")
        with pytest.raises(errors.CorruptObject, match=damaged):
            compact(spark, str(tmp_path), "numbers", older_than=0)
        boundary = await read_boundary(store, LAYOUT.boundary("0"))
    assert [(r.first, r.next) for r in boundary.ranges] == [(0, 2), (2, 4), (4, 8), (8, 10)]
