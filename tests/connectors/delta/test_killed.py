"""A Delta table whose committers and operators are processes that are killed and paused at any moment, while strangers
append and OPTIMIZE with delta-rs, and readers hold versions. No row is lost or doubled, and no file is missing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import IO

import anyio
import anyio.to_thread
import deltalake
import pyarrow as pa
import pytest
from deltalake.exceptions import DeltaError

from actorproc.config.settings import Settings
from actorproc.retention.boundary import read_boundary
from actorproc.storage.store import Store
from actorproc.stores import open_store
from tests.connectors.delta.chain import Chain
from tests.connectors.delta.killed_processes import COMMAND, HOUR, LAYOUT
from tests.connectors.delta.readers import Place
from tests.servers import S3Server

PARTITIONS = 4
SCHEMA = pa.schema([("n", pa.int64()), pa.field("_sequence", pa.int64(), nullable=False), ("partition", pa.string())])


@dataclass
class Done:
    """What has happened."""

    kills: int = 0
    pauses: int = 0
    held: int = 0
    appends: int = 0
    doubtful: int = 0
    optimized: int = 0
    refused: int = 0
    version: int = 0
    trimmed: list[int] = field(default_factory=list)


class Processes:
    """See `killed_processes`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def start(self, role: str) -> int:
        """Returns its id."""
        self._write(f"{role}\n")
        return self._read()

    def finish(self) -> int:
        """Make the last transactions. Returns the exit status."""
        self.start("last")
        return self._read()

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line)
        self._process.stdin.flush()

    def _read(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


@contextmanager
def processes(url: str, server: S3Server | None, log: IO[bytes]) -> Iterator[Processes]:
    settings = {} if server is None else server.settings
    line = [sys.executable, "-c", COMMAND, url]
    env = {**os.environ, **{f"ACTORPROC_{name.upper()}": value for name, value in settings.items()}}
    with subprocess.Popen(line, stdin=-1, stdout=-1, stderr=log, text=True, env=env) as process:
        yield Processes(process)


class Killed:
    """A chain that grows, its table, and what happens to both."""

    def __init__(self, url: str, server: S3Server | None, store: Store, started: Processes) -> None:
        self.url, self.store, self.started = url, store, started
        self.place = Place.on(f"{url}/{LAYOUT.output}".rstrip("/"), server)
        self.storage = {**self.place.storage, "conditional_put": "etag"} if server else {}
        self.chain = Chain(store, LAYOUT, PARTITIONS)
        self.random = Random()
        self.done = Done()
        self.over = False

    async def play(self, transactions: int) -> Done:
        self.identity = await self.chain.prepare()
        for p in range(PARTITIONS):
            await self._commit(p)
        assert self.started.finish() == 0
        async with anyio.create_task_group() as tasks:
            for work in (self.feed, self.be_a_stranger, self.hold, self.hold, self.kill):
                tasks.start_soon(work)
            table = await self._table()
            while self.done.version < transactions:
                await anyio.sleep(0.5)
                await anyio.to_thread.run_sync(table.update_incremental)
                self.done.version = table.version()
            self.over = True
        assert self.started.finish() == 0
        await self.check(await self._table(), at_the_end=True)
        return self.done

    async def _commit(self, p: int) -> None:
        number = self.chain.ends[p]
        await self.chain.commit(p, [] if number % 7 == 6 else [p * 10**9 + number])

    async def feed(self) -> None:
        while not self.over:
            await self._commit(self.random.randrange(PARTITIONS))
            await anyio.sleep(self.random.uniform(0, 0.1))

    async def kill(self) -> None:
        roles = ["committer", "committer", "operator"]
        pids = [self.started.start(role) for role in roles]
        while not self.over:
            after = self.done.version + self.random.randrange(25)
            while self.done.version < after and not self.over:  # however slow the machine is
                await anyio.sleep(0.1)
            await anyio.sleep(self.random.uniform(0, 1))
            chosen = self.random.randrange(len(roles))
            if self.random.random() < 0.1:  # it sleeps, and is killed or goes on
                os.kill(pids[chosen], signal.SIGSTOP)
                await anyio.sleep(self.random.choice([1, 1, 1, 0.7 * HOUR]))
                os.kill(pids[chosen], signal.SIGCONT)
                self.done.pauses += 1
            else:
                os.kill(pids[chosen], signal.SIGKILL)
                pids[chosen] = self.started.start(roles[chosen])
                self.done.kills += 1
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    # Others

    async def _table(self) -> deltalake.DeltaTable:
        return await anyio.to_thread.run_sync(
            lambda: deltalake.DeltaTable(self.place.url, storage_options=dict(self.storage))
        )

    async def be_a_stranger(self) -> None:
        while not self.over:
            await anyio.sleep(self.random.uniform(0.5, 4))
            try:
                await anyio.to_thread.run_sync(self._optimize if self.random.random() < 0.5 else self._append)
            except DeltaError:
                self.done.refused += 1

    def _append(self) -> None:
        self.done.doubtful += 1
        rows = {"n": [-1], "_sequence": [10**9], "partition": ["0"]}
        table = pa.table(rows, schema=SCHEMA)
        deltalake.write_deltalake(self.place.url, table, mode="append", storage_options=dict(self.storage))
        self.done.doubtful -= 1
        self.done.appends += 1

    def _optimize(self) -> None:
        table = deltalake.DeltaTable(self.place.url, storage_options=dict(self.storage))
        p = str(self.random.randrange(PARTITIONS))
        made = table.optimize.compact(partition_filters=[("partition", "=", p)])
        self.done.optimized += made["numFilesAdded"]

    async def hold(self) -> None:
        """A reader that holds a version for less than an hour."""
        while not self.over:
            pinned_at, table = time.monotonic(), await self._table()
            await anyio.sleep(self.random.uniform(0, 0.6 * HOUR))
            await self.check(table, pinned_at=pinned_at)

    # What must hold

    async def check(self, table: deltalake.DeltaTable, *, pinned_at: float = 0.0, at_the_end: bool = False) -> None:
        """Each commit from the boundary to the position once, and none twice."""
        lowest = [(await read_boundary(self.store, LAYOUT.boundary(str(p)))).lowest for p in range(PARTITIONS)]
        try:
            found = await anyio.to_thread.run_sync(self._rows, table)
        except Exception:
            if not at_the_end and time.monotonic() - pinned_at > HOUR:
                return  # on a busy machine
            raise
        foreign = found.pop(-1, 0)
        assert foreign <= self.done.appends + self.done.doubtful
        assert [n for n, count in found.items() if count > 1] == [], f"twice in version {table.version()}"
        for p in range(PARTITIONS):
            position = table.transaction_version(f"actorproc/{self.identity}/{p}/position") or 0
            if at_the_end:
                assert position == self.chain.ends[p]
                assert foreign >= self.done.appends
            due = {p * 10**9 + n for n in range(lowest[p], position) if n % 7 != 6}
            assert due - found.keys() == set()
            assert {n for n in found if n // 10**9 == p and n >= p * 10**9 + lowest[p]} == due
        self.done.held += 1
        self.done.trimmed = lowest

    def _rows(self, table: deltalake.DeltaTable) -> Counter[int]:
        found = deltalake.QueryBuilder().register("t", table).execute("SELECT n FROM t")
        return Counter(pa.table(found)["n"].to_pylist())


async def play(url: str, server: S3Server | None, folder: Path, transactions: int) -> Done:
    settings = Settings.load(**(server.settings if server else {}))
    log = folder / "processes.log"
    with log.open("wb") as errors, processes(url, server, errors) as started:
        async with open_store(url, settings) as store:
            done = await Killed(url, server, store, started).play(transactions)
    told = log.read_text()
    assert "Traceback" not in told, told[-5000:]
    assert "restored from a backup" not in told, told[-5000:]
    print(done, Counter(line[:60] for line in told.splitlines()).most_common(5))
    return done


@pytest.mark.slow
async def test_killed_committers_lose_and_double_no_row(tmp_path: Path) -> None:
    done = await play(str(tmp_path / "state"), None, tmp_path, 60)
    assert done.kills
    assert done.held > 2


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_a_thousand_transactions_of_killed_committers_on_a_folder(tmp_path: Path) -> None:
    check_happened(await play(str(tmp_path / "state"), None, tmp_path, 1_000))


@pytest.mark.long
@pytest.mark.timeout(3600)
async def test_a_thousand_transactions_of_killed_committers_on_s3(s3_server: S3Server, tmp_path: Path) -> None:
    check_happened(await play(await s3_server.new_url(), s3_server, tmp_path, 1_000))


def check_happened(done: Done) -> None:
    assert done.kills > 50
    assert done.pauses
    assert done.held > 10
    assert done.appends
    assert done.optimized
    assert min(done.trimmed) > 0
