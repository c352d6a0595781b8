"""Spark over committed output on the folder store: our data source against Spark's own readers of the same files.

A full scan through the data source reaches 0.6 of the native one. A trigger on 100,000 files finds 100 new ones in 2 s.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from actorproc.document import to_document
from actorproc.layout import ProcessorLayout
from actorproc.output.chain import Commit, encode_commit
from actorproc.output.checkpoints import Checkpoint, Totals
from actorproc.output.schema import agree_on_schema
from actorproc.records import Cursor
from actorproc.rows.schema import output_schema, parse_schema
from actorproc.stores import open_store
from benchmarks.processes import only_warnings

PARTITIONS = 4
SCHEMA = parse_schema("carrier string, minutes double, flight int, tail string, origin string, at timestamp")
LAYOUT = ProcessorLayout("Delays")


def run(
    rows: int = 2_000_000, rows_per_file: tuple[int, ...] = (5_000, 50_000), rounds: int = 5, files: int = 100_000
) -> None:
    """Print the tables."""
    only_warnings()
    spark = _session()
    try:
        for each in rows_per_file:
            with tempfile.TemporaryDirectory(prefix="actorproc-bench-") as folder:
                _scan(spark, folder, rows, each, rounds)
        with tempfile.TemporaryDirectory(prefix="actorproc-bench-") as folder:
            _trigger(spark, folder, files)
    finally:
        spark.stop()


def _scan(spark: Any, folder: str, rows: int, each: int, rounds: int) -> None:
    from actorproc.spark import read_output

    writer = _Writer(folder)
    for _ in range(rows // each // PARTITIONS):
        for partition in range(PARTITIONS):
            writer.commit(partition, each)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(rounds + 1):
        for native in (True, False):
            began = time.perf_counter()
            frame = read_output(spark, folder, "Delays", native=native)
            frame.write.format("noop").mode("overwrite").save()
            if turn:  # the first warms up
                seconds[native].append(time.perf_counter() - began)
    native, source = (statistics.median(seconds[native]) for native in (True, False))
    table = Table(title=f"full scan of {rows:,} rows, six columns, {each:,} in a file: median of {rounds}")
    for heading in ("reader", "rows/s", "ratio", "bar"):
        table.add_column(heading, justify="left" if heading == "reader" else "right")
    table.add_row("Spark's own Parquet reader", f"{rows / native:,.0f}", "1", "")
    ratio = native / source
    shown = f"[{'green' if ratio >= 0.6 else 'red'}]{ratio:.2f}[/]"
    table.add_row("the data source", f"{rows / source:,.0f}", shown, ">= 0.6")
    Console().print(table)


def _trigger(spark: Any, folder: str, files: int) -> None:
    from actorproc.spark import stream_output

    container = f"{folder}/state"
    writer = _Writer(container)
    for partition in range(PARTITIONS):
        writer.commit(partition, 1)
        writer.repeat(partition, files // PARTITIONS - 1)
        writer.commit(partition, 100)
    # Begins after the old files, as a query does that has read them.
    ours = stream_output(spark, container, "Delays", start_sequence=1)
    _available(ours, f"{folder}/ours")
    for n in range(100):
        writer.commit(n % PARTITIONS, 100)
    found = _available(ours, f"{folder}/ours")
    # Its first trigger; it lists the same at each, unless the limit left more than it can do.
    own = stream_output(spark, container, "Delays", native=True, max_files=100)
    listed = _first(own, f"{folder}/own")

    table = Table(title=f"a trigger on {files:,} files with 100 new ones")
    for heading in ("stream", "finding them", "whole trigger", "bar"):
        table.add_column(heading, justify="left" if heading == "stream" else "right")
    for name, progress, bar in (("the data source", found, "< 2 s"), ("Spark's own file stream", listed, "")):
        finding, whole = (progress["durationMs"][what] / 1000 for what in ("latestOffset", "triggerExecution"))
        table.add_row(name, f"{finding:.2f} s", f"{whole:.2f} s", bar)
    Console().print(table)


def _available(frame: Any, checkpoint: str) -> dict[str, Any]:
    """The progress of the last micro-batch that had rows, of a run over all that is there."""
    query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    return [progress for progress in query.recentProgress if progress["numInputRows"]][-1]  # type: ignore[no-any-return]


def _first(frame: Any, checkpoint: str) -> dict[str, Any]:
    query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    while not query.recentProgress:
        time.sleep(0.1)
    progress: dict[str, Any] = query.recentProgress[0]
    query.stop()
    return progress


class _Writer:
    """Writes what a processor commits, straight into the folder."""

    def __init__(self, container: str) -> None:
        self._container = Path(container)
        self._random = np.random.default_rng(1)
        self._tails = pa.array([f"N{n}AA" for n in range(400)])
        self._number = [0] * PARTITIONS
        self._rows = [0] * PARTITIONS
        anyio.run(self._prepare)

    async def _prepare(self) -> None:
        async with open_store(str(self._container)) as store:
            await agree_on_schema(store, LAYOUT, SCHEMA)
            await store.put(LAYOUT.origin, to_document({"identity": "bench", "name": "bench", "put_id": "bench"}))
            for partition in range(PARTITIONS):
                await store.put(LAYOUT.checkpoint(str(partition)), Checkpoint(1, 0, Cursor("")).to_json())
                self._path(partition, 0).parent.mkdir(parents=True)

    def commit(self, partition: int, rows: int) -> None:
        first = self._rows[partition]
        end = self._rows[partition] = first + rows
        totals = Totals(end, end)
        commit = Commit("bench", "a", 1, Cursor(str(first), first - 1), Cursor(str(end), end - 1), totals, 0.0, rows)
        self._path(partition, self._number[partition]).write_bytes(encode_commit(self._table(first, rows), commit))
        self._number[partition] += 1

    def repeat(self, partition: int, count: int) -> None:
        """More files like the first one; they are there to be listed."""
        for _ in range(count):
            os.link(self._path(partition, 0), self._path(partition, self._number[partition]))
            self._number[partition] += 1

    def _table(self, first: int, rows: int) -> pa.Table:
        def some(values: pa.Array) -> pa.Array:
            return values.take(pa.array(self._random.integers(0, len(values), rows)))

        sequences = np.arange(first, first + rows)
        columns = [
            some(pa.array(["AA", "UA", "DL", "WN", "B6"])),
            pa.array(self._random.normal(10, 20, rows).round()),
            pa.array(self._random.integers(1, 6000, rows), pa.int32()),
            some(self._tails),
            some(pa.array(["EWR", "JFK", "LGA"])),
            pa.array(1_356_998_400_000_000 + sequences * 1_000_000, pa.timestamp("us", "UTC")),
            pa.array(sequences),
        ]
        return pa.Table.from_arrays(columns, schema=output_schema(SCHEMA))

    def _path(self, partition: int, number: int) -> Path:
        return self._container / LAYOUT.output_file(str(partition), number)


def _session() -> Any:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master(f"local[{len(os.sched_getaffinity(0))},4]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "3g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")  # a stream that is stopped complains
    return session


if __name__ == "__main__":
    run()
