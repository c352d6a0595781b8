"""A log, a host and a stream into a table, each in a process of its own, for end-to-end figures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from actorproc import Batch, PartitionContext, PartitionHandler
from benchmarks.spark.session import ROOT

NAME = "bench"
PARTITIONS = 8


class Stamped(PartitionHandler):
    """Three fields of each event, and when it was sent."""

    output_schema = "id bigint, carrier string, minutes double, sent timestamp"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            event = record.json()
            row = {
                "id": event["id"],
                "carrier": event["carrier"],
                "minutes": event["minutes"],
                "sent": record.timestamp,
            }
            ctx.emit(record, row)


class Chain:
    """The files of one run in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.log, self.state, self.table = folder / "log", folder / "state", folder / "table"
        self.output = self.state / NAME / "output"
        self._checkpoint = folder / "checkpoint"
        self.done: dict[int, float] = {}
        """Micro-batch -> when it was in the table, in seconds since 1970."""

    @contextmanager
    def host(self, *arguments: str, **settings: object) -> Iterator[subprocess.Popen[bytes]]:
        """`actorproc serve`; stopped at the end if it has not ended by itself."""
        command = ["serve", "benchmarks.spark.chain:Stamped", "--name", NAME, "--host", "a", "--source", str(self.log)]
        command += ["--container", str(self.state), *arguments]
        process = actorproc(*command, **settings)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)

    @contextmanager
    def stream(self, spark: Any, interval: float) -> Iterator[Any]:
        """The query: writes the new rows of each trigger as Parquet files into a folder named after the micro-batch.

        Args:
            interval: of the trigger, in seconds.
        """
        from actorproc.spark import stream_output

        def write(frame: Any, batch: int) -> None:
            frame.write.mode("overwrite").parquet(str(self.table / f"batch={batch}"))
            self.done[batch] = time.time()

        writer = stream_output(spark, str(self.state), NAME).writeStream.foreachBatch(write)
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        query = writer.trigger(processingTime=f"{interval * 1000:.0f} milliseconds").start()
        try:
            yield query
        finally:
            query.stop()

    def wait_for_host(self) -> None:
        """Until a stream can be made of what it commits."""
        until(lambda: any((self.state / NAME).glob("checkpoints/*.json")), 60, "the host to open its partitions")

    def rows(self) -> int:
        """How many are in the table; of finished micro-batches."""
        files = [path for batch in list(self.done) for path in (self.table / f"batch={batch}").glob("*.parquet")]
        return sum(pq.read_metadata(path).num_rows for path in files)

    def wait_for(self, rows: int, query: Any, patience: float = 600) -> float:
        """Until so many are in the table; when the last came, in seconds since 1970."""
        until(lambda: query.exception() is not None or self.rows() >= rows, patience, f"{rows:,} rows in the table")
        if query.exception() is not None:
            raise query.exception()
        return max(self.done.values())


def actorproc(*arguments: str, **settings: object) -> subprocess.Popen[bytes]:
    """The command line in a process of its own; `settings` as variables."""
    environment = {f"ACTORPROC_{name.upper()}": str(value) for name, value in settings.items()}
    return subprocess.Popen(
        [sys.executable, "-m", "actorproc", "--log-level", "error", *arguments],
        cwd=ROOT, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )  # fmt: skip


def until(condition: Callable[[], bool], patience: float, what: str) -> None:
    """Wait for it.

    Raises:
        TimeoutError: for longer than `patience` seconds.
    """
    end = time.monotonic() + patience
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {patience:g} s for {what}")
        time.sleep(0.05)
