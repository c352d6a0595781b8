"""The Spark driver's process: streams the output into the table until it is stopped or has read everything."""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from actorproc.spark import stream_output
from tests.chaos.programs import make_independent
from tests.chaos.table import Table
from tests.spark.conftest import new_session

INTERVAL = "500 milliseconds"


@dataclass(frozen=True)
class Job:
    """The work of the driver. `folder`: of its table and its checkpoints. `back`: a log that also gets all rows.
    `plant`: a fault that the check must find.

    careless: the sink ignores the numbers of micro-batches. forgetful: the checkpoint is lost at each start.
    """

    container: str
    processor: str
    folder: Path
    master: str
    native: bool = False
    back: str | None = None
    plant: str | None = None

    @property
    def on_cluster(self) -> bool:
        return self.master.startswith("spark:")

    def java_of(self, driver: str) -> Path:
        """The file in which a driver says the process id of its Java."""
        return self.folder / f"{driver}.java"


def drive(folder: str, output: str, environment: dict[str, str], job: Job, name: str, until_end: bool) -> None:
    """Run the stream until SIGTERM, or until it has read all that is there."""
    make_independent(folder, output, environment)
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    table = Table(job.folder, name, careless=job.plant == "careless")
    checkpoint = job.folder / "checkpoint"
    if job.plant == "forgetful":
        shutil.rmtree(checkpoint, ignore_errors=True)
    spark = new_session(job.master)
    spark.sparkContext.setLogLevel("WARN")
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    draft = job.java_of(name).with_suffix(".draft")
    draft.write_text(str(gateway.proc.pid))
    draft.rename(job.java_of(name))
    queries = [_start(_rows(spark, job).writeStream.foreachBatch(table.write), checkpoint, until_end)]
    if job.back is not None:
        target = _records(_rows(spark, job)).writeStream.format("actorproc").option("path", job.back)
        queries.append(_start(target, job.folder / "checkpoint-back", until_end))
    while not stopping and any(not query.awaitTermination(1) for query in queries):
        pass
    for query in queries:
        query.stop()
    spark.stop()
    os._exit(0)  # threads of py4j's callback server would be waited for


def _rows(spark: SparkSession, job: Job) -> DataFrame:
    return stream_output(spark, job.container, job.processor, native=job.native, max_files=200)


def _records(rows: DataFrame) -> DataFrame:
    """A record of the log for each row, whose value is all of it."""
    names = {"_partition": "of_partition", "_sequence": "of_sequence"}
    value = f.struct([f.col(name).alias(names.get(name, name)) for name in rows.columns])
    return rows.select(f.col("token").alias("key"), f.to_json(value).alias("value"))


def _start(writer: DataStreamWriter, checkpoint: Path, until_end: bool) -> StreamingQuery:
    writer = writer.option("checkpointLocation", str(checkpoint))
    return (writer.trigger(availableNow=True) if until_end else writer.trigger(processingTime=INTERVAL)).start()
