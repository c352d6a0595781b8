"""A stream of Kinesis into Parquet: actorproc beside KCL and async-kinesis, and the requests of each without news.

The stream is kinesalite, which refuses nothing. All read its four shards from the beginning, parse JSON, and keep
three columns in files. KCL is the Kinesis Client Library with a record processor in Python, which checkpoints after
each file; its time runs from its first files on, since it takes half a minute to begin. async-kinesis has its
checkpoints in memory: at least once at best. Ours is exact, and keeps to the limits of AWS: five reads and 2 MB per
second and shard. Needs Node.js, npm, Java, Maven and `pip install async-kinesis`.
Goal: not slower, within AWS's limits.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.dataset import dataset
from rich.console import Console
from rich.table import Table

from actorproc import JsonRows, Processor
from actorproc.connectors.kinesis import KinesisSource
from benchmarks.kinesis_kcl import COLUMNS
from benchmarks.processes import in_own_process
from tests.connectors.kinesis.kcl import kcl
from tests.connectors.kinesis.servers import REGION, Faults, KinesisServer, dynalite, kinesalite

STREAM = "events"
SHARDS = 4
_BATCH = 10_000
_LIBRARY = "benchmarks.kinesis_kcl"


class Rows(JsonRows):
    output_schema = "carrier string, dep_delay double, n bigint"


async def fill(server: KinesisServer, events: int) -> None:
    body = {"carrier": "UA", "dep_delay": 11.0, "tail": "N14228", "origin": "EWR"}
    await server.create(STREAM, SHARDS)
    await server.put(STREAM, [(str(n), orjson.dumps(body | {"n": n})) for n in range(events)])


def actorproc(port: int, folder: str, events: int) -> float:
    """Seconds until all events are in the output."""

    async def measured() -> float:
        server, begin = KinesisServer(port), time.perf_counter()
        async with anyio.create_task_group() as tasks:
            source = KinesisSource(server.url(STREAM), server.options)
            processor = Processor(Rows, source=source, container=folder)
            tasks.start_soon(processor.run)
            await _until(lambda: _rows(Path(folder) / "Rows" / "output") >= events)
            taken = time.perf_counter() - begin
            processor.stop()
        return taken

    return anyio.run(measured)


def async_kinesis(port: int, folder: str, events: int) -> float:
    """The same of async-kinesis."""

    async def measured() -> float:
        begin, rows, files = time.perf_counter(), list[Any](), 0
        async with _consumer(port) as consumer:
            left = events
            while left:
                async for row in consumer:
                    rows.append(row)
                    left -= 1
                    if len(rows) == _BATCH or not left:
                        table = pa.table({name: [row[name] for row in rows] for name in COLUMNS})
                        pq.write_table(table, f"{folder}/{files}.parquet")
                        rows, files = [], files + 1
                    if not left:
                        break
        return time.perf_counter() - begin

    return asyncio.run(measured())


def library(port: int, folder: str, events: int) -> float:
    """The same of the Kinesis Client Library, but for its start."""
    place = Path(folder, "kcl")
    files = place / "files"
    files.mkdir(parents=True)

    async def measured() -> float:
        await _until(lambda: _rows(files) > 0)
        begin, first = time.perf_counter(), _rows(files)
        await _until(lambda: _rows(files) >= events)
        return (time.perf_counter() - begin) * events / (events - first)

    with dynalite(Path(folder)) as dynamo, kcl(place, KinesisServer(port), dynamo, STREAM, "rows", _LIBRARY):
        return anyio.run(measured)


def _consumer(port: int) -> Any:
    from kinesis import Consumer

    os.environ |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    return Consumer(STREAM, endpoint_url=f"http://127.0.0.1:{port}", region_name=REGION)


def idle_actorproc(port: int, folder: str, seconds: float) -> int:
    """Requests in so many seconds without news."""

    async def reading(proxy: Faults) -> None:
        source = KinesisSource(proxy.server.url(STREAM), proxy.options)
        await Processor(Rows, source=source, container=folder).run()

    return anyio.run(_asked, KinesisServer(port), reading, seconds)


def idle_async_kinesis(port: int, folder: str, seconds: float) -> int:
    """The same of async-kinesis."""

    async def reading(proxy: Faults) -> None:
        async with _consumer(proxy.port) as consumer:
            while True:
                async for _ in consumer:
                    pass

    return anyio.run(_asked, KinesisServer(port), reading, seconds)


def idle_library(port: int, folder: str, seconds: float) -> int:
    """The same of the Kinesis Client Library. Requests to DynamoDB do not count."""
    place = Path(folder, "kcl")
    (place / "files").mkdir(parents=True)

    async def reading(proxy: Faults) -> None:
        with dynalite(Path(folder)) as dynamo, kcl(place, KinesisServer(proxy.port), dynamo, STREAM, "rows", _LIBRARY):
            await anyio.sleep_forever()

    return anyio.run(_asked, KinesisServer(port), reading, seconds)


async def _asked(server: KinesisServer, reading: Callable[[Faults], Coroutine[Any, Any, None]], seconds: float) -> int:
    async with Faults(server).running() as proxy, anyio.create_task_group() as tasks:
        tasks.start_soon(reading, proxy)
        await _until(lambda: "GetRecords" in proxy.asked)
        await anyio.sleep(10)  # it reads what there is
        proxy.asked.clear()
        await anyio.sleep(seconds)
        asked = len(proxy.asked)
        tasks.cancel_scope.cancel()
    return asked


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await anyio.sleep(0.1)


def _rows(folder: Path) -> int:
    return int(dataset(folder, format="parquet").count_rows()) if folder.exists() else 0


def run(events: int = 100_000, rounds: int = 3, seconds: float = 30) -> None:
    """Print the table: the best of so many rounds."""
    programs = {
        "KCL": (library, idle_library),
        "async-kinesis": (async_kinesis, idle_async_kinesis),
        "actorproc": (actorproc, idle_actorproc),
    }
    table = Table("program", "events/s", "idle requests per minute and shard", title="Kinesis")
    with tempfile.TemporaryDirectory(prefix="actorproc-bench-") as name, kinesalite(Path(name)) as server:
        asyncio.run(fill(server, events))
        for program, (reading, idle) in programs.items():
            times = []
            for turn in range(rounds):
                folder = Path(name) / f"{program}-{turn}"
                folder.mkdir()
                times.append(in_own_process(reading, server.port, str(folder), events))
            asked = in_own_process(idle, server.port, str(folder) + "-idle", seconds)
            table.add_row(program, f"{events / min(times):,.0f}", f"{asked * 60 / seconds / SHARDS:,.0f}")
    Console().print(table)
