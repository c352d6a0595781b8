"""Processors of a change feed whose ranges split and merge: each change once in the output, in the order of its key."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import anyio
import pytest
from pyarrow.dataset import dataset

from actorproc import Batch, JsonRows, PartitionContext, PartitionHandler, PartitionInfo, Processor, Settings

pytest.importorskip("azure.cosmos", reason="azure-cosmos is not installed")

from actorproc.connectors.cosmos import CosmosSource
from actorproc.errors import UsageError
from tests.connectors.cosmos.server import Container, CosmosServer, cosmos

_NAMES = count()
ACQUIRE = 3.0  # seconds
QUICK: dict[str, Any] = {"partition_refresh_interval": 0.1, "lease_acquire_interval": 0.5}


@pytest.fixture(scope="module")
def server() -> Iterator[CosmosServer]:
    with cosmos() as server:
        yield server


class Changes(JsonRows):
    output_schema = "n bigint, plane string"


class Feed:
    """A container, its processor, and the rows of the processor."""

    def __init__(self, server: CosmosServer, folder: Path, ranges: int = 1) -> None:
        self.server, self.folder = server, folder
        self.container: Container = server.create("shop", f"changes-{next(_NAMES)}", ranges)

    def write(self, numbers: range, bad: int | None = 37) -> None:
        """Documents of ten planes, each with the next number. The one numbered `bad` of a hundred is a dead letter."""
        for number in numbers:
            n = f"not {number}" if number % 100 == bad else number
            self.container.write({"id": str(number), "plane": f"N{number % 10}", "n": n})

    def processor(self, handler: type[PartitionHandler], **settings: Any) -> Processor:
        source = CosmosSource(self.container.url, self.server.options, settings=Settings(poll_interval=0.05))
        return Processor(handler, source=source, container=str(self.folder), name="Changes", **settings)

    async def process(self, **settings: Any) -> list[int]:
        """Run until the end. Returns all numbers in output and dead letters."""
        with anyio.fail_after(60):
            await self.processor(Changes, **(QUICK | settings)).run(until_end=True)
        return self.numbers()

    def numbers(self) -> list[int]:
        return sorted([row["n"] for row in self.rows()] + self._letters())

    def _letters(self) -> list[int]:
        files = (self.folder / "Changes" / "dead-letters").glob("*/*.jsonl")
        letters = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return [int(json.loads(letter["value"])["id"]) for letter in letters]

    def check_order(self) -> None:
        """Check that the changes of each plane are in order: a child's partition number is above its parents'."""
        rows = sorted(self.rows(), key=lambda row: (int(row["partition"]), row["_sequence"]))
        for plane in {row["plane"] for row in rows}:
            numbers = [row["n"] for row in rows if row["plane"] == plane]
            assert numbers == sorted(numbers)

    def rows(self) -> list[dict[str, Any]]:
        folder = self.folder / "Changes" / "output"
        if not folder.exists():
            return []
        return list(dataset(folder, format="parquet", partitioning="hive").to_table().to_pylist())


async def test_each_change_becomes_one_row_also_after_splits_and_merges(server: CosmosServer, tmp_path: Path) -> None:
    feed = Feed(server, tmp_path)
    feed.write(range(100))
    assert await feed.process() == list(range(100))
    feed.write(range(100, 150))
    low, high = feed.container.split("0")
    feed.write(range(150, 200))
    assert await feed.process() == list(range(200))
    feed.container.split(low)
    feed.write(range(200, 250))
    assert await feed.process() == list(range(250))
    neighbours = [one.id for one in feed.container.ranges]
    feed.container.merge(neighbours[1], high)
    feed.write(range(250, 300))
    assert await feed.process() == list(range(300))
    feed.check_order()


async def test_a_document_with_half_a_surrogate_becomes_a_dead_letter(server: CosmosServer, tmp_path: Path) -> None:
    feed = Feed(server, tmp_path)
    feed.write(range(5), bad=None)
    feed.container.write({"id": "5", "plane": "N5", "n": 5, "text": "\ud83d"})
    feed.write(range(6, 10), bad=None)
    assert await feed.process() == list(range(10))
    assert [row["n"] for row in feed.rows()] == [0, 1, 2, 3, 4, 6, 7, 8, 9]


async def test_mode_all_without_a_start_is_refused_before_anything_runs(server: CosmosServer, tmp_path: Path) -> None:
    feed = Feed(server, tmp_path)
    feed.write(range(5), bad=None)

    async def run(**more: Any) -> None:
        options = server.options | {"mode": "all"}
        source = CosmosSource(feed.container.url, options, settings=Settings(poll_interval=0.05))
        with anyio.fail_after(60):
            await Processor(Versions, source=source, container=str(tmp_path), **(QUICK | more)).run(until_end=True)

    with pytest.raises(UsageError, match=r"in mode `all` has no beginning.*`--start latest`"):
        await run()
    await run(start="latest")
    feed.write(range(5, 8), bad=None)
    await run()  # its partitions go on at their checkpoints
    table = dataset(tmp_path / "Versions" / "output", format="parquet").to_table()
    assert sorted(table["id"].to_pylist()) == ["5", "6", "7"]


class Versions(PartitionHandler):
    output_schema = "id string"

    def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.emit(record, {"id": record.json()["current"]["id"]})


class Halting(Changes):
    """Fails from the twentieth change on, until it is another handler."""

    def process(self, batch: Batch, ctx: PartitionContext) -> None:
        if any(record.json()["n"] >= 20 for record in batch):
            raise OSError("not yet")
        super().process(batch, ctx)


async def test_a_split_within_a_page_that_is_committed_in_part_repeats_nothing(
    server: CosmosServer, tmp_path: Path
) -> None:
    feed = Feed(server, tmp_path)
    feed.write(range(40), bad=None)
    async with feed.processor(Halting, max_batch_records=5, commit_interval=0.05, max_attempts=1_000):
        while len(feed.numbers()) < 20:
            await anyio.sleep(0.05)
    feed.container.split("0")
    assert await feed.process() == list(range(40))
    feed.check_order()


class Slowly(Changes):
    """Takes some time for each batch."""

    def process(self, batch: Batch, ctx: PartitionContext) -> None:
        time.sleep(0.02)
        super().process(batch, ctx)


class Changing:
    """A container that is written to, and whose ranges split and merge, at random."""

    def __init__(self, feed: Feed, pick: random.Random) -> None:
        self._feed, self._pick = feed, pick
        self.written = 0

    def step(self) -> None:
        container, pick = self._feed.container, self._pick
        ranges = container.ranges
        match pick.choice(["write", "split", "merge"]):
            case "split" if len(ranges) < 6:
                container.split(pick.choice(ranges).id)
            case "merge" if len(ranges) > 1:
                left = pick.randrange(len(ranges) - 1)
                container.merge(ranges[left].id, ranges[left + 1].id)
            case _:
                first, self.written = self.written, self.written + pick.randint(1, 20)
                self._feed.write(range(first, self.written))

    async def while_processed(self) -> None:
        for _ in range(self._pick.randint(0, 8)):
            await anyio.sleep(self._pick.uniform(0, 0.15))
            self.step()


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 60))])
async def test_splits_and_merges_at_any_time_lose_and_repeat_nothing(
    server: CosmosServer, tmp_path: Path, seed: int
) -> None:
    pick = random.Random(seed)
    feed = Feed(server, tmp_path, ranges=pick.randint(1, 3))
    changing = Changing(feed, pick)
    for _ in range(4):
        for _ in range(pick.randint(1, 8)):
            changing.step()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(changing.while_processed)
            if pick.random() < 0.5:
                await feed.process()
            else:  # stopped anywhere, also within a page
                async with feed.processor(Slowly, max_batch_records=3, commit_interval=0.02, **QUICK):
                    await anyio.sleep(pick.uniform(0.2, 1))
    assert await feed.process() == list(range(changing.written))
    feed.check_order()


async def test_latest_holds_for_children_of_an_unread_range(server: CosmosServer, tmp_path: Path) -> None:
    feed = Feed(server, tmp_path)
    feed.write(range(50))
    assert await feed.process(start="latest") == []
    feed.container.split("0")
    feed.write(range(50, 80))
    assert await feed.process(start="latest") == list(range(50, 80))


class Call(NamedTuple):
    """A call of the handler, or a commit, at a time of the monotonic clock."""

    partition: str
    host: str
    at: float


class Slow(PartitionHandler):
    """Takes its time, so that there is a backlog, and notes calls and commits."""

    output_schema = Changes.output_schema
    calls: ClassVar[list[Call]] = []
    commits: ClassVar[list[Call]] = []

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        self.calls.append(Call(ctx.partition, ctx.host, time.monotonic()))
        await anyio.sleep(len(batch) * 100e-6)
        for record in batch:
            change = record.json()
            ctx.emit(record, {"n": change["n"], "plane": change["plane"]})

    async def committed(self, ctx: PartitionInfo, upto: int, rows: int, error: Exception | None) -> None:
        self.commits.append(Call(ctx.partition, ctx.host, time.monotonic()))


@pytest.mark.parametrize("changes", [10_000, pytest.param(100_000, marks=pytest.mark.long)])
async def test_after_a_split_a_second_host_works_within_one_acquire_interval(
    server: CosmosServer, tmp_path: Path, changes: int
) -> None:
    feed = Feed(server, tmp_path)
    feed.write(range(changes), bad=None)
    Slow.calls, Slow.commits = [], []
    settings = {
        "lease_acquire_interval": ACQUIRE, "rebalance_delay": 0.2, "max_batch_records": 500, "commit_interval": 0.2
    }  # fmt: skip
    with anyio.fail_after(300):
        async with AsyncExitStack() as hosts:
            for host in ("a", "b"):
                await hosts.enter_async_context(feed.processor(Slow, host=host, **settings))
            while len(Slow.calls) < 3:
                await anyio.sleep(0.05)
            children = feed.container.split("0")
            split_at = time.monotonic()
            while {call.host for call in Slow.calls if call.partition in children} != {"a", "b"}:
                await anyio.sleep(0.05)
            seconds = time.monotonic() - split_at
            while len(feed.numbers()) < changes:
                await anyio.sleep(0.5)
    first = min(call.at for call in Slow.calls if call.partition in children)
    last = max(commit.at for commit in Slow.commits if commit.partition == "0")
    print(f"{changes:,} changes: both hosts at work {seconds:.2f} s after the split")
    assert last < first
    assert sum(row["partition"] == 0 for row in feed.rows()) < changes / 2
    assert seconds < ACQUIRE
    assert feed.numbers() == list(range(changes))
    feed.check_order()


@pytest.mark.long
def test_hosts_that_are_killed_or_paused_during_splits_lose_and_repeat_nothing(
    server: CosmosServer, tmp_path: Path
) -> None:
    feed = Feed(server, tmp_path, ranges=2)
    hosts = [start_host(feed) for _ in range(2)]
    try:
        for turn in range(6):
            feed.write(range(200 * turn, 200 * turn + 100))
            wait_until(lambda least=150 * turn: len(feed.numbers()) >= least)
            if turn % 2:
                feed.container.split(feed.container.ranges[turn % len(feed.container.ranges)].id)
            feed.write(range(200 * turn + 100, 200 * turn + 200))
            os.kill(hosts[0].pid, signal.SIGKILL)
            os.kill(hosts[1].pid, signal.SIGSTOP)  # for longer than its leases last
            hosts[0].wait()
            hosts = [*hosts[1:], start_host(feed)]
            wait_until(lambda least=200 * turn + 150: len(feed.numbers()) >= least)
            os.kill(hosts[0].pid, signal.SIGCONT)
        left, right = feed.container.ranges[:2]
        feed.container.merge(left.id, right.id)
        feed.write(range(1_200, 1_300))
        wait_until(lambda: len(feed.numbers()) >= 1_300)
    finally:
        for host in hosts:
            os.kill(host.pid, signal.SIGCONT)
            host.terminate()
            host.wait(60)
    assert feed.numbers() == list(range(1_300))
    feed.check_order()


def start_host(feed: Feed) -> subprocess.Popen[bytes]:
    fast = {
        "lease_renew_interval": 0.3, "lease_expiration_interval": 2, "lease_acquire_interval": 0.5,
        "rebalance_delay": 0.5, "partition_refresh_interval": 0.5, "poll_interval": 0.05, "commit_interval": 0.2,
    }  # fmt: skip
    settings = {f"ACTORPROC_{name.upper()}": str(value) for name, value in fast.items()}
    settings["ACTORPROC_SOURCE_OPTIONS"] = json.dumps(feed.server.options)
    arguments = ["--source", feed.container.url, "--container", str(feed.folder), "--name", "Changes"]
    with (feed.folder / "hosts.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "actorproc", "serve", "tests.connectors.cosmos.test_processing:Changes", *arguments],
            env=os.environ | settings,
            stdout=subprocess.DEVNULL,
            stderr=log,
        )


def wait_until(condition: Any, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.2)
