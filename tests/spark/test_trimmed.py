"""Real Spark queries as registered readers: unread files stay, and queries continue after a trim."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from actorproc import Producer
from actorproc.admin.readers import position_of
from actorproc.admin.retained import RetainedDataset, RetainedLog, RetainedOutput
from actorproc.admin.trim import Trim, trim
from actorproc.config.settings import Settings
from actorproc.retention.readers import Reader, register
from actorproc.spark import stream_output
from actorproc.storage.names import READERS, ProcessorLayout
from actorproc.stores import open_store
from tests.spark.committing import Fleet
from tests.spark.conftest import needs_limits
from tests.spark.sink import Sink

LAYOUT = ProcessorLayout("numbers")
SETTINGS = Settings.load()


def grow_old(folder: Path) -> None:
    for path in folder.rglob("*.parquet"):
        os.utime(path, (time.time() - 7200,) * 2)


async def trim_now(kept: RetainedDataset) -> Trim:
    return await trim(kept, SETTINGS)


@pytest.mark.slow
@needs_limits
async def test_a_failed_micro_batch_is_complete_after_a_trim(spark: SparkSession, tmp_path: Path) -> None:
    fleet, state, checkpoint = Fleet(str(tmp_path / "state")), tmp_path / "state", tmp_path / "checkpoint"
    failing = True

    def fail_once(batch: int) -> None:
        if failing and batch == 1:
            raise RuntimeError("the sink is away")

    sink = Sink(tmp_path / "out", fail_once)

    def run() -> None:
        sink.run(stream_output(spark, str(state), "numbers", max_files=2), checkpoint)

    await fleet.commit(p0=20, p1=20)
    grow_old(state)
    async with open_store(str(state), SETTINGS) as store:
        kept, reader = RetainedOutput(store, LAYOUT), Reader.spark("table", f"file:{checkpoint}")
        await register(store, LAYOUT.readers, reader)
        assert (await trim_now(kept)).files == 0, "it has not begun"
        with pytest.raises(PySparkException, match="the sink is away"):
            run()
        done = sink.rows()
        positions = await position_of(kept, reader, ["0", "1"], SETTINGS)
        assert sum(positions.values()) == 2, "a micro-batch of two files"
        trimmed = await trim_now(kept)
        # The newest file of a partition stays, though it be read.
        assert trimmed.files == sum(min(number, 1) for number in positions.values())
        failing = False
        run()
        assert done < sink.rows() == fleet.expected()


@pytest.mark.long
async def test_a_query_on_a_log_holds_back_unread_records(spark: SparkSession, tmp_path: Path) -> None:
    log, sink = tmp_path / "events", Sink(tmp_path / "out")
    checkpoint = tmp_path / "checkpoint"

    async def produce() -> None:
        async with Producer(str(log), partitions=1) as producer:
            await producer.send_many([b"x"] * 10, keys=[b"k"] * 10)

    def run() -> None:
        frame = spark.readStream.format("actorproc").option("kind", "log").load(str(log))
        sink.run(frame.selectExpr("partition as _partition", "offset as _sequence", "offset as n"), checkpoint)

    for _ in range(2):
        await produce()
    run()
    await produce()
    grow_old(log)
    async with open_store(str(log), SETTINGS) as store:
        kept = RetainedLog(store)
        await register(store, READERS, Reader.spark("table", str(checkpoint)))
        trimmed = await trim_now(kept)
        assert trimmed.partitions[0].hold == (20, "reader table reads 20 next")
        assert trimmed.files == 2
    run()
    assert sorted(n for _, _, n in sink.rows()) == list(range(30))
    frame = spark.read.format("actorproc").option("kind", "log").load(str(log))
    assert [row.offset for row in frame.select("offset").orderBy("offset").collect()] == list(range(20, 30))
