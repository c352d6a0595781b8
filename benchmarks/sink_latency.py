"""From a record to its row in PostgreSQL and in a Delta table, as others see them: a part of `sinks`."""

from __future__ import annotations

import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import anyio
import anyio.to_thread
import orjson
import psycopg
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from rich.console import Console
from rich.table import Table

from actorproc import Batch, PartitionContext, PartitionHandler, Processor, Producer
from actorproc.config.settings import Settings
from benchmarks.speed import PARTITIONS
from tests.connectors.postgres.server import Postgres

RATE = 200.0
"""Records a second."""

INTERVAL = 1.0
"""Seconds between two transactions of the Delta table: the shortest."""

BAR_COMMIT_TO_ROW = 0.1

WARM_UP = 10
"""Rows that are not counted: the first ones wait for connections."""

RECENT = 5.0
"""Seconds: a row that takes longer to PostgreSQL fails the run, because the query does not find it."""

Seen = list[tuple[float, str, int, float]]
"""When a record was sent, its partition and sequence, and when its row was seen."""


class Stamp(PartitionHandler):
    """Passes the time on at which a record was sent."""

    output_schema = "sent double"
    committed_at: ClassVar[dict[str, list[tuple[int, float]]]] = {}

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.emit(record, {"sent": record.json()})

    async def committed(self, ctx: Any, upto: int, rows: int, error: Exception | None) -> None:
        self.committed_at.setdefault(ctx.partition, []).append((upto, time.time()))


async def _produce(log: str, seconds: float) -> int:
    sent = 0
    async with Producer(log, partitions=PARTITIONS, linger=0.0) as producer:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await producer.send_many([orjson.dumps(time.time())], keys=[b"%d" % (time.monotonic_ns() // 1000)])
            sent += 1
            await anyio.sleep(1 / RATE)
    return sent


async def _watch_postgres(server: Postgres, seen: Seen, over: anyio.Event) -> None:
    """Asks PostgreSQL for new rows again and again."""
    async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as connection:
        known = set[tuple[str, int]]()
        while not over.is_set():
            found = await connection.execute(
                "SELECT sent, _partition, _sequence FROM latency WHERE sent > %s", (time.time() - RECENT,)
            )
            rows, now = await found.fetchall(), time.time()
            for sent, partition, sequence in rows:
                if (partition, sequence) not in known:
                    known.add((partition, sequence))
                    seen.append((sent, partition, sequence, now))
            await anyio.sleep(0.002)


async def _watch_delta(folder: Path, seen: Seen, over: anyio.Event) -> None:
    """Reads new files of the table as soon as delta-rs names them."""
    table: DeltaTable | None = None
    known = set[str]()
    while not over.is_set():
        await anyio.sleep(0.02)
        try:
            if table is None:
                table = DeltaTable(str(folder))
            await anyio.to_thread.run_sync(table.update_incremental)
        except TableNotFoundError:
            continue
        for path in set(table.file_uris()) - known:
            rows = await anyio.to_thread.run_sync(partial(pq.read_table, path, partitioning=None))
            now = time.time()
            partition = Path(path).parent.name.partition("=")[2]
            sent, sequences = rows["sent"].to_pylist(), rows["_sequence"].to_pylist()
            seen.extend((at, partition, sequence, now) for at, sequence in zip(sent, sequences, strict=True))
            known.add(path)


def measure(server: Postgres, folder: Path, seconds: float) -> dict[str, list[float]]:
    """Seconds on each way. Raises RuntimeError: rows did not come."""
    Stamp.committed_at.clear()
    log, out = folder / "latency-log", folder / "latency"
    rows, files = Seen(), Seen()

    async def run() -> int:
        over = anyio.Event()
        async with Producer(str(log), partitions=PARTITIONS) as producer:
            await producer.send_many([orjson.dumps(time.time())])
        async with Processor(
            Stamp, source=str(log), container=str(out), name="latency", host="bench",
            sinks={"latency": {"url": server.url, "table": "latency"}, "table": {"url": "delta", "interval": INTERVAL}},
            settings=Settings(commit_interval=0.1, poll_interval=0.05),
        ), anyio.create_task_group() as tasks:  # fmt: skip
            await anyio.sleep(2.0)
            tasks.start_soon(_watch_postgres, server, rows, over)
            tasks.start_soon(_watch_delta, out / "latency" / "output", files, over)
            sent = await _produce(str(log), seconds)
            await anyio.sleep(2.0 + INTERVAL)
            over.set()
        return sent

    sent = anyio.run(run)
    for name, seen in (("PostgreSQL", rows), ("Delta", files)):
        if len(seen) < sent:
            raise RuntimeError(f"{name} has {len(seen)} rows of {sent}")
    return {
        "record to row in PostgreSQL": [now - at for at, _, _, now in rows[WARM_UP:]],
        "commit to row in PostgreSQL": _since_commit(rows[WARM_UP:]),
        "record to row in the Delta table": [now - at for at, _, _, now in files[WARM_UP:]],
        "commit to row in the Delta table": _since_commit(files[WARM_UP:]),
    }


def _since_commit(seen: Seen) -> list[float]:
    found = []
    for _, partition, sequence, now in seen:
        at = min((at for upto, at in Stamp.committed_at.get(partition, ()) if upto >= sequence), default=None)
        if at is not None:
            found.append(now - at)
    return found


def print_latency(console: Console, server: Postgres, folder: Path, seconds: float) -> None:
    """Measure, and print the table."""
    table = Table(
        "latency, ms", "p50", "p99", "rows", "bar, p50",
        title=f"{RATE:g} records/s, commits each 0.1 s, polls each 0.05 s, a Delta transaction each {INTERVAL:g} s",
    )  # fmt: skip
    for way, found in measure(server, folder, seconds).items():
        cuts = statistics.quantiles(found, n=100)
        bar = f"{1000 * BAR_COMMIT_TO_ROW:.0f}" if way == "commit to row in PostgreSQL" else ""
        table.add_row(way, f"{1000 * cuts[49]:.0f}", f"{1000 * cuts[98]:.0f}", f"{len(found):,}", bar)
    console.print(table)
