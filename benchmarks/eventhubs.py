"""A hub over AMQP into Parquet: actorproc beside Microsoft's own processor, with two sizes of its prefetch window.

The hub is the server of the tests, in a process of its own. Microsoft's processor parses each event, keeps three
columns in a file for each batch, and then writes its checkpoint, in memory: at least once at best. Ours is exact.
Goal: at least eight tenths of its speed. Most of the time of both is in Microsoft's client.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import anyio
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from azure.eventhub import EventData
from azure.eventhub._pyamqp.message import Message
from azure.eventhub.aio import EventHubConsumerClient
from rich.console import Console
from rich.table import Table

from actorproc import JsonRows, Processor
from actorproc.connectors.eventhubs import EventHubsSource
from benchmarks.processes import in_own_process
from tests.connectors.eventhubs.server import eventhubs

HUB = "events"
PARTITIONS = 2
PREFETCH = (300, 3_000)

spawn = multiprocessing.get_context("spawn")


class Rows(JsonRows):
    output_schema = "carrier string, dep_delay double, n bigint"


def serve(events: int, started: Connection) -> None:
    """A hub with so many events, until killed."""
    with eventhubs() as server:
        hub = server.create(HUB, PARTITIONS)
        for number, partition in enumerate(hub.partitions):
            body = {"carrier": "UA", "dep_delay": 11.0, "tail": "N14228", "origin": "EWR"}
            numbers = range(number, events, PARTITIONS)
            messages = [Message(data=[orjson.dumps(body | {"n": n})]) for n in numbers]
            server.call(partition.append, messages, None)
        started.send((server.url(HUB), server.connection_string))
        time.sleep(3_600)


@contextmanager
def served(events: int) -> Iterator[tuple[str, str]]:
    """URL and connection string of such a hub."""
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=serve, args=(events, theirs), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.kill()
        process.join()


def actorproc(url: str, connection_string: str, prefetch: int, folder: str) -> tuple[float, float]:
    """Seconds, and seconds of CPU, until all events are in the output."""
    source = EventHubsSource(url, {"connection_string": connection_string, "prefetch": prefetch})
    begin, cpu = time.perf_counter(), time.process_time()
    anyio.run(lambda: Processor(Rows, source=source, container=folder).run(until_end=True))
    return time.perf_counter() - begin, time.process_time() - cpu


def microsoft(connection_string: str, prefetch: int, folder: str, events: int) -> tuple[float, float]:
    """The same of Microsoft's processor."""
    begin, cpu = time.perf_counter(), time.process_time()
    asyncio.run(_microsoft(connection_string, prefetch, Path(folder), events))
    return time.perf_counter() - begin, time.process_time() - cpu


async def _microsoft(connection_string: str, prefetch: int, folder: Path, events: int) -> None:
    client = EventHubConsumerClient.from_connection_string(connection_string, "$Default", eventhub_name=HUB)
    left, done = events, asyncio.Event()

    async def on_batch(context: Any, batch: list[EventData]) -> None:
        nonlocal left
        values = [orjson.loads(event.body_as_str()) for event in batch]
        table = pa.table({name: [value[name] for value in values] for name in ("carrier", "dep_delay", "n")})
        pq.write_table(table, folder / f"{context.partition_id}-{batch[0].sequence_number}.parquet")
        await context.update_checkpoint()
        left -= len(batch)
        if not left:
            done.set()

    how: dict[str, Any] = {"starting_position": "-1", "prefetch": prefetch, "max_batch_size": prefetch}
    receiving = asyncio.create_task(client.receive_batch(on_batch, **how))
    await done.wait()
    receiving.cancel()
    await asyncio.wait([receiving])
    await client.close()


def run(events: int = 100_000, rounds: int = 3) -> None:
    """Print the table: the best of so many rounds."""
    table = Table("program", "prefetch", "events/s", "events per second of CPU", title="Event Hubs over AMQP")
    with served(events) as (url, connection_string), tempfile.TemporaryDirectory(prefix="actorproc-bench-") as name:
        for prefetch in PREFETCH:
            found: dict[str, list[tuple[float, float]]] = {"Microsoft's processor": [], "actorproc": []}
            for turn in range(rounds):
                folder = Path(name) / f"{prefetch}-{turn}"
                folder.mkdir()
                found["Microsoft's processor"].append(
                    in_own_process(microsoft, connection_string, prefetch, str(folder), events)
                )
                found["actorproc"].append(
                    in_own_process(actorproc, url, connection_string, prefetch, str(folder / "state"))
                )
            for program, times in found.items():
                seconds, cpu = min(times)
                table.add_row(program, f"{prefetch:,}", f"{events / seconds:,.0f}", f"{events / cpu:,.0f}")
    Console().print(table)
