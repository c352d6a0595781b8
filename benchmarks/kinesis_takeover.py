"""One of two hosts on a stream of Kinesis is killed: how long its shards wait, and which records come twice.

kinesalite with four shards, a process that feeds them, two hosts; actorproc beside the Kinesis Client Library (KCL)
with a record processor in Python, and beside async-kinesis with its leases in Redis. All take over 20 s after the last
sign of life. A row counts once it is where the next program finds it: in the output, or in the file to which the others
append. A host of async-kinesis has all shards, because it does not share them; the second one stands by. Needs Node.js,
npm, Java, Maven and `pip install async-kinesis redis fakeredis`.
Goals: no record twice, none lost; taken over within the expiration plus one acquire interval.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from hashlib import md5
from itertools import count
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import anyio
from pyarrow.dataset import dataset
from rich.console import Console
from rich.table import Table

from actorproc import Batch, PartitionContext, PartitionHandler, Processor, Settings
from actorproc.sources.kinesis import KinesisSource
from benchmarks.processes import only_warnings
from tests.kcl import kcl
from tests.kcl import rows as rows_of_kcl
from tests.kinesis_servers import REGION, KinesisServer, dynalite, kinesalite
from tests.servers import free_ports

STREAM = "events"
SHARDS = 4
EVERY = 0.1  # seconds between two requests of the feed
RECORDS = 10 * SHARDS  # of a request
EXPIRATION, RENEW, ACQUIRE = 20.0, 5.0, 5.0
SETTLING = 30.0  # seconds until both hosts read
PATIENCE = 120.0  # seconds after which a step counts as failed

spawn = multiprocessing.get_context("spawn")


class Row(NamedTuple):
    """A record that a host has processed, and when (seconds since 1970)."""

    n: int
    host: str
    at: float

    @property
    def shard(self) -> int:
        return self.n % SHARDS


class Notes(PartitionHandler):
    """A row per record, with the host and the time."""

    output_schema = "n bigint, host string, at double"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.emit(record, {"n": record.json()["n"], "host": ctx.host, "at": time.time()})


def keys() -> list[str]:
    """A partition key for each shard, in order of their hashes."""
    found: dict[int, str] = {}
    for number in count():
        key = str(number)
        found.setdefault(int.from_bytes(md5(key.encode(), usedforsecurity=False).digest()) * SHARDS >> 128, key)
        if len(found) == SHARDS:
            return [found[shard] for shard in range(SHARDS)]
    raise AssertionError


def feed(port: int, sent: Any, stop: Any) -> None:
    """Send records to each shard ten times a second."""

    async def feeding() -> None:
        chosen = keys()
        async with KinesisServer(port).client() as client:
            while not stop.is_set():
                numbers = range(sent.value, sent.value + RECORDS)
                records = [{"PartitionKey": chosen[n % SHARDS], "Data": b'{"n": %d}' % n} for n in numbers]
                await client.put_records(StreamName=STREAM, Records=records)
                sent.value += RECORDS
                await asyncio.sleep(EVERY)

    asyncio.run(feeding())


def actorproc(host: str, port: int, folder: str) -> None:
    """A host, until it is killed."""
    only_warnings()
    server = KinesisServer(port)
    timers = {"lease_renew_interval": RENEW, "lease_acquire_interval": ACQUIRE, "lease_expiration_interval": EXPIRATION}
    source = KinesisSource(server.url(STREAM), server.options)
    processor = Processor(Notes, source=source, container=folder, host=host, settings=Settings(**timers))
    anyio.run(processor.run)


def async_kinesis(host: str, port: int, folder: str) -> None:
    """The same of async-kinesis."""
    from kinesis import Consumer
    from kinesis.checkpointers import RedisCheckPointer

    os.environ |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    os.environ["REDIS_PORT"] = Path(folder, "redis").read_text()

    async def reading() -> None:
        leases = RedisCheckPointer("rows", id=host, session_timeout=int(EXPIRATION), heartbeat_frequency=int(RENEW))
        where = {"endpoint_url": f"http://127.0.0.1:{port}", "region_name": REGION}
        with Path(folder, f"{host}.jsonl").open("a") as file:
            async with Consumer(STREAM, checkpointer=leases, **where) as consumer:
                while True:
                    async for event in consumer:
                        file.write(json.dumps(Row(event["n"], host, time.time())) + "\n")
                        file.flush()

    asyncio.run(reading())


def library(host: str, port: int, folder: str) -> None:
    """The same of the Kinesis Client Library."""
    dynamo, expiration = Path(folder, "dynamo").read_text(), int(EXPIRATION * 1_000)
    with kcl(Path(folder, host), KinesisServer(port), dynamo, STREAM, "rows", failoverTimeMillis=expiration):
        time.sleep(3_600)


def rows_of_actorproc(folder: Path) -> list[Row]:
    output = folder / "Notes" / "output"
    table = dataset(output, format="parquet").to_table(["n", "host", "at"]) if output.exists() else None
    return [] if table is None else [Row(**row) for row in table.to_pylist()]


def rows_of_async_kinesis(folder: Path) -> list[Row]:
    lines = [line for file in folder.glob("*.jsonl") for line in file.read_text().splitlines(keepends=True)]
    return [Row(*json.loads(line)) for line in lines if line.endswith("\n")]


def rows_of_library(folder: Path) -> list[Row]:
    return [Row(row.event["n"], host, row.at) for host in ("a", "b") for row in rows_of_kcl(folder / host)]


class Result(NamedTuple):
    """Seconds from the kill to the next row of each of the dead host's shards; rows too many, and records too few."""

    waits: Sequence[float]
    repeated: int
    lost: int


def killed(host: Callable[[str, int, str], None], rows: Callable[[Path], list[Row]], port: int, folder: Path) -> Result:
    """Kill a host, and wait until all records are rows."""
    sent, stop = spawn.Value("q", 0), spawn.Event()
    first, second = (spawn.Process(target=host, args=(name, port, str(folder)), daemon=True) for name in ("a", "b"))
    feeder = spawn.Process(target=feed, args=(port, sent, stop), daemon=True)
    processes: list[BaseProcess] = [feeder, first, second]
    try:
        feeder.start()
        first.start()
        _wait_until(lambda: len(rows(folder)) > 0)
        second.start()
        time.sleep(SETTLING)
        first.kill()
        at = time.time()
        before = rows(folder)
        dead = {row.shard for row in before if row.host == "a" and row.at > at - SETTLING / 3}
        _wait_until(lambda: dead <= {row.shard for row in rows(folder) if row.host == "b" and row.at > at})
        stop.set()
        feeder.join()
        _wait_until(lambda: {row.n for row in rows(folder)} >= set(range(sent.value)))
    finally:
        for process in processes:
            process.kill()
            process.join()
    found = rows(folder)
    numbers = [row.n for row in found]
    waits = [min(row.at for row in found if row.host == "b" and row.shard == shard and row.at > at) for shard in dead]
    return Result([wait - at for wait in waits], len(numbers) - len(set(numbers)), sent.value - len(set(numbers)))


def _wait_until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > give_up:
            raise TimeoutError(f"a step has taken longer than {PATIENCE:g} s")
        time.sleep(0.5)


def _redis(folder: Path) -> None:
    """A server of Redis' protocol in this process, whose port is in the folder."""
    from fakeredis import TcpFakeServer

    [port] = free_ports(1)
    threading.Thread(target=TcpFakeServer(("127.0.0.1", port)).serve_forever, daemon=True).start()
    (folder / "redis").write_text(str(port))


def _round(host: Callable[[str, int, str], None], rows: Callable[[Path], list[Row]]) -> Result:
    with tempfile.TemporaryDirectory(prefix="actorproc-bench-") as name:
        folder = Path(name)
        with kinesalite(folder) as server, dynalite(folder) as dynamo:
            asyncio.run(server.create(STREAM, SHARDS))
            (folder / "dynamo").write_text(dynamo)
            _redis(folder)
            return killed(host, rows, server.port, folder)


def run(rounds: int = 3, only: str = "") -> None:
    """Print the table: all rounds together.

    Args:
        only: the program with this name; default: all.
    """
    programs: dict[str, tuple[Callable[[str, int, str], None], Callable[[Path], list[Row]]]] = {
        "actorproc": (actorproc, rows_of_actorproc),
        "KCL": (library, rows_of_library),
        "async-kinesis": (async_kinesis, rows_of_async_kinesis),
    }
    table = Table("program", "seconds until taken over: shortest", "longest", "repeated", "lost", title="kill -9")
    for program, (host, rows) in programs.items():
        if only not in ("", program):
            continue
        results = [_round(host, rows) for _ in range(rounds)]
        waits = [wait for result in results for wait in result.waits]
        repeated, lost = (", ".join(str(result[field]) for result in results) for field in (1, 2))
        table.add_row(program, f"{min(waits):.1f}", f"{max(waits):.1f}", repeated, lost)
    console = Console()
    console.print(table)
    console.print(f"Expiration {EXPIRATION:g} s, acquire interval {ACQUIRE:g} s; {RECORDS / EVERY:g} records a second.")
