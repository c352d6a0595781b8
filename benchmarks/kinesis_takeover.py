"""One of two hosts on a stream of Kinesis is killed: how long its shards wait, and which records come twice.

kinesalite with four shards, a process that feeds them, two hosts; actorproc beside the Kinesis Client Library (KCL)
with a record processor in Python, and beside async-kinesis with its leases in Redis. All take over 20 s after the last
sign of life. A host of async-kinesis has all shards, because it does not share them; the second one stands by. Needs
Node.js, npm, Java, Maven and `pip install async-kinesis redis fakeredis`.
Goals: no record twice, none lost; taken over within the expiration plus one acquire interval.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
import time
from hashlib import md5
from itertools import count
from pathlib import Path
from typing import Any

import anyio

from actorproc import Processor
from actorproc.connectors.kinesis import KinesisSource
from benchmarks.killed import (
    EVERY,
    EXPIRATION,
    RECORDS,
    RENEW,
    Host,
    Notes,
    Result,
    Row,
    Rows,
    killed,
    note,
    rows_of_notes,
    rows_of_output,
    settings,
    show,
)  # fmt: skip
from benchmarks.processes import only_warnings
from tests.connectors.kinesis.kcl import kcl
from tests.connectors.kinesis.kcl import rows as rows_of_kcl
from tests.connectors.kinesis.servers import REGION, KinesisServer, dynalite, kinesalite
from tests.servers import free_ports

STREAM = "events"
SHARDS = 4


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
                numbers = range(sent.value, sent.value + RECORDS * SHARDS)
                records = [{"PartitionKey": chosen[n % SHARDS], "Data": b'{"n": %d}' % n} for n in numbers]
                await client.put_records(StreamName=STREAM, Records=records)
                sent.value += RECORDS * SHARDS
                await asyncio.sleep(EVERY)

    asyncio.run(feeding())


def actorproc(host: str, port: int, folder: str) -> None:
    """A host, until it is killed."""
    only_warnings()
    server = KinesisServer(port)
    source = KinesisSource(server.url(STREAM), server.options)
    processor = Processor(Notes, source=source, container=folder, host=host, settings=settings())
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
        async with Consumer(STREAM, checkpointer=leases, **where) as consumer:
            while True:
                async for event in consumer:
                    note(Path(folder), host, [event["n"]])

    asyncio.run(reading())


def library(host: str, port: int, folder: str) -> None:
    """The same of the Kinesis Client Library."""
    dynamo, expiration = Path(folder, "dynamo").read_text(), int(EXPIRATION * 1_000)
    with kcl(Path(folder, host), KinesisServer(port), dynamo, STREAM, "rows", failoverTimeMillis=expiration):
        time.sleep(3_600)


def rows_of_library(folder: Path) -> list[Row]:
    return [Row(row.event["n"], host, row.at) for host in ("a", "b") for row in rows_of_kcl(folder / host)]


def _redis(folder: Path) -> None:
    """A server of Redis' protocol in this process, whose port is in the folder."""
    from fakeredis import TcpFakeServer

    [port] = free_ports(1)
    threading.Thread(target=TcpFakeServer(("127.0.0.1", port)).serve_forever, daemon=True).start()
    (folder / "redis").write_text(str(port))


def _round(host: Host[int], rows: Rows) -> Result:
    with tempfile.TemporaryDirectory(prefix="actorproc-bench-") as name:
        folder = Path(name)
        with kinesalite(folder) as server, dynalite(folder) as dynamo:
            asyncio.run(server.create(STREAM, SHARDS))
            (folder / "dynamo").write_text(dynamo)
            _redis(folder)
            return killed(host, rows, feed, server.port, folder, SHARDS)


def run(rounds: int = 3, only: str = "") -> None:
    """Print the table: all rounds together.

    Args:
        only: the program with this name; default: all.
    """
    programs: dict[str, tuple[Host[int], Rows]] = {
        "actorproc": (actorproc, rows_of_output),
        "KCL": (library, rows_of_library),
        "async-kinesis": (async_kinesis, rows_of_notes),
    }
    show(
        {
            program: [_round(host, rows) for _ in range(rounds)]
            for program, (host, rows) in programs.items()
            if only in ("", program)
        },
        SHARDS,
    )
