"""Processors of a stream whose shards split and merge: each record once in the output, in the order of its key."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest
from pyarrow.dataset import dataset

from actorproc import JsonRows, Processor, Settings
from actorproc.admin.dead_letters import DeadLetters, Replayed, Selection
from actorproc.connectors.kinesis import KinesisSource
from actorproc.storage.names import ProcessorLayout
from actorproc.stores import open_store
from tests.connectors.kinesis.servers import KinesisServer

pytestmark = pytest.mark.servers

_NAMES = count()


class Flights(JsonRows):
    output_schema = "n bigint, plane string"


class Feed:
    """A stream, its processor, and the rows of the processor."""

    def __init__(self, server: KinesisServer, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.stream = f"processed-{next(_NAMES)}"

    @property
    def options(self) -> dict[str, Any]:
        return self.server.options | {"reads_per_second": 100}

    async def put(self, numbers: range, *, good: bool = False) -> None:
        """Records of ten planes, each with the next number.

        Unless all are good, every eleventh record is not JSON, and becomes a letter.
        """
        values = [b'{"n": %d, "plane": "N%d"}' % (n, n % 10) if good or n % 11 else b"?%d" % n for n in numbers]
        await self.server.put(self.stream, [(f"N{n % 10}", value) for n, value in zip(numbers, values, strict=True)])

    async def process(self, **settings: Any) -> list[int]:
        """Run until the end. Returns the numbers of all rows and letters."""
        source = KinesisSource(self.server.url(self.stream), self.options, settings=Settings(poll_interval=0.05))
        more = {"partition_refresh_interval": 0.1, "lease_acquire_interval": 0.5} | settings
        processor = Processor(Flights, source=source, container=str(self.folder), **more)
        with anyio.fail_after(60):
            await processor.run(until_end=True)
        return self.numbers()

    async def replay(self) -> Replayed:
        settings = Settings(source_options=self.options)
        async with open_store(str(self.folder), settings) as store:
            letters = await DeadLetters.opened(store, ProcessorLayout("Flights"))
            return await letters.replay(Selection(), settings)

    async def open_shards(self) -> list[str]:
        found = await self.server.shards(self.stream)
        return [one["ShardId"] for one in found if "EndingSequenceNumber" not in one["SequenceNumberRange"]]

    def numbers(self) -> list[int]:
        return sorted([row["n"] for row in self._rows()] + [int(letter["value"][1:]) for letter in self.letters()])

    def letters(self) -> list[dict[str, Any]]:
        files = (self.folder / "Flights" / "dead-letters").glob("*/*.jsonl")
        return [json.loads(line) for path in files for line in path.read_text().splitlines()]

    async def check_succession(self) -> None:
        """Check that the first file of each shard was written after the last one of its parents."""
        files = self.folder / "Flights" / "output"
        times = {
            folder.name.removeprefix("partition="): [file.stat().st_mtime_ns for file in folder.glob("*.parquet")]
            for folder in files.iterdir()
        }
        pairs = [
            (times[str(parent)], times[shard["ShardId"]])
            for shard in await self.server.shards(self.stream)
            for parent in (shard.get("ParentShardId"), shard.get("AdjacentParentShardId"))
            if str(parent) in times and shard["ShardId"] in times
        ]
        assert pairs
        assert all(max(parent) < min(child) for parent, child in pairs)

    def check_order(self) -> None:
        """Check that the records of each plane are in order: a child's name is above its parents'."""
        planes = defaultdict[str, list[int]](list)
        for row in sorted(self._rows(), key=lambda row: (row["partition"], row["_sequence"])):
            planes[row["plane"]].append(row["n"])
        assert len(planes) == 10
        assert all(numbers == sorted(numbers) for numbers in planes.values())

    def _rows(self) -> list[dict[str, Any]]:
        folder = self.folder / "Flights" / "output"
        if not folder.exists():
            return []
        return list(dataset(folder, format="parquet", partitioning="hive").to_table().to_pylist())


@pytest.fixture
async def feed(kinesis: KinesisServer, tmp_path: Path) -> Feed:
    feed = Feed(kinesis, tmp_path)
    await kinesis.create(feed.stream)
    return feed


async def test_each_record_comes_once_after_splits_and_merges(feed: Feed) -> None:
    await feed.put(range(50))
    assert await feed.process() == list(range(50))
    [shard] = await feed.open_shards()
    await feed.put(range(50, 80))
    await feed.server.split(feed.stream, shard)
    await feed.put(range(80, 130))
    assert await feed.process() == list(range(130))
    low, high = await feed.open_shards()
    await feed.server.merge(feed.stream, low, high)
    await feed.put(range(130, 160))
    assert await feed.process() == list(range(160))
    feed.check_order()
    await feed.check_succession()


async def test_latest_holds_for_the_children_of_a_shard_that_is_split_later(feed: Feed) -> None:
    await feed.put(range(20))
    assert await feed.process(start="latest") == []
    await feed.server.split(feed.stream, *await feed.open_shards())
    await feed.put(range(20, 60))
    assert await feed.process(start="latest") == list(range(20, 60))


async def test_letters_are_replayed_by_their_key_also_after_a_split(feed: Feed) -> None:
    await feed.put(range(30))
    assert await feed.process() == list(range(30))
    await feed.server.split(feed.stream, *await feed.open_shards())
    assert (await feed.replay())[:3] == (feed.server.url(feed.stream), 3, 0)
    assert await feed.process() == sorted([*range(30), 0, 11, 22]), "they fail again, as letters of the children"
    assert sorted(letter["key"] for letter in feed.letters()) == ["N0", "N0", "N1", "N1", "N2", "N2"]
    assert (await feed.replay())[1:3] == (3, 3), "a letter is sent once, a new one of the same record, too"


@pytest.mark.long
async def test_hosts_killed_or_paused_during_resharding_lose_nothing(feed: Feed) -> None:
    hosts = [start_host(feed) for _ in range(2)]
    try:
        for turn in range(6):
            await feed.put(range(200 * turn, 200 * turn + 100))
            await wait_until(lambda least=150 * turn: len(feed.numbers()) >= least)
            shards = await feed.open_shards()
            if turn % 3 == 2:
                await feed.server.merge(feed.stream, *shards[:2])
            else:
                await feed.server.split(feed.stream, shards[turn % len(shards)])
            await feed.put(range(200 * turn + 100, 200 * turn + 200))
            os.kill(hosts[0].pid, signal.SIGKILL)
            os.kill(hosts[1].pid, signal.SIGSTOP)  # for longer than its leases last
            hosts[0].wait()
            hosts = [*hosts[1:], start_host(feed)]
            await wait_until(lambda least=200 * turn + 150: len(feed.numbers()) >= least)
            os.kill(hosts[0].pid, signal.SIGCONT)
        await wait_until(lambda: len(feed.numbers()) >= 1_200)
    finally:
        for host in hosts:
            os.kill(host.pid, signal.SIGCONT)
            host.terminate()
            host.wait(60)
    assert feed.numbers() == list(range(1_200))
    feed.check_order()
    await feed.check_succession()


def start_host(feed: Feed) -> subprocess.Popen[bytes]:
    fast = {
        "lease_renew_interval": 0.3, "lease_expiration_interval": 2, "lease_acquire_interval": 0.5,
        "rebalance_delay": 0.5, "partition_refresh_interval": 0.5, "poll_interval": 0.05, "commit_interval": 0.2,
    }  # fmt: skip
    settings = {f"ACTORPROC_{name.upper()}": str(value) for name, value in fast.items()}
    settings["ACTORPROC_SOURCE_OPTIONS"] = json.dumps(feed.options)
    arguments = ["--source", feed.server.url(feed.stream), "--container", str(feed.folder), "--name", "Flights"]
    with (feed.folder / "hosts.log").open("ab") as log:
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "actorproc",
                "serve",
                "tests.connectors.kinesis.test_processing:Flights",
                *arguments,
            ],
            env=os.environ | settings,
            stdout=subprocess.DEVNULL,
            stderr=log,
        )


async def wait_until(condition: Any, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        await anyio.sleep(0.3)
