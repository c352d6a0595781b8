"""The example of transfers: money moves once, although owners are killed after the database and before the commit."""

from __future__ import annotations

import io
import random
import sqlite3
from pathlib import Path
from typing import Any

import anyio
import orjson
import pyarrow.parquet as pq
import pytest

from actorproc import Batch, PartitionContext, Processor
from actorproc.admin.resets import Resets
from actorproc.config.settings import Settings
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing import MemorySource
from examples.transfers import TABLES, Transfers
from tests.processor.doubling import QUICK

NAMES = "abcdef"


def transfers(count: int) -> list[bytes]:
    draw = random.Random(7)
    return [
        orjson.dumps({"source": draw.choice(NAMES), "target": draw.choice(NAMES), "cents": draw.randint(1, 400)})
        for _ in range(count)
    ]


def expected(values: list[bytes]) -> tuple[dict[str, int], list[bool]]:
    cents, accepted = dict.fromkeys(NAMES, 1_000), []
    for given in map(orjson.loads, values):
        enough = cents[given["source"]] >= given["cents"]
        if enough:
            cents[given["source"]] -= given["cents"]
            cents[given["target"]] += given["cents"]
        accepted.append(enough)
    return cents, accepted


def accounts(path: Path) -> dict[str, int]:
    with sqlite3.connect(path) as database:
        found = dict(database.execute("SELECT name, cents FROM accounts").fetchall())
    database.close()
    return found


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    path = tmp_path / "bank.db"
    with sqlite3.connect(path) as database:
        database.executescript(TABLES)
        database.executemany("INSERT INTO accounts VALUES (?, 1000)", [(name,) for name in NAMES])
    database.close()
    return path


async def test_money_moves_once_although_hosts_end_before_the_commit(bank: Path) -> None:
    ends = iter([3, 2, 5, 1])
    left = [next(ends)]
    crash = [anyio.Event()]

    class Crashing(Transfers):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:  # type: ignore[override]
            super().process(batch, ctx)
            left[0] -= 1
            if not left[0]:
                left[0] = next(ends, 10**9)
                crash[0].set()
                await anyio.sleep_forever()  # the database has the effects, and nothing is committed

    values = transfers(200)
    source, store = MemorySource(1), Store(MemoryStore())
    source.append("0", values)
    settings: dict[str, Any] = {**QUICK, "max_batch_records": 7, "name": "t", "options": {"database": str(bank)}}

    async def run() -> None:
        await Processor(Crashing, source=source, container=store, host="h", **settings).run(until_end=True)
        ended.set()
        crash[0].set()

    ended = anyio.Event()
    with anyio.fail_after(120):
        while not ended.is_set():
            crash[0] = anyio.Event()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                await crash[0].wait()
                tasks.cancel_scope.cancel()
    cents, accepted = expected(values)
    assert left[0] > 10**8, "not each crash was played"
    assert accounts(bank) == cents
    found = [row for commit in await committed(store) for row in commit]
    assert found == accepted
    assert False in found


async def test_after_a_reset_transfers_are_made_again(bank: Path) -> None:
    values = [orjson.dumps({"source": "a", "target": "b", "cents": 100})] * 3
    source, store = MemorySource(1), Store(MemoryStore())
    source.append("0", values)
    settings: dict[str, Any] = {**QUICK, "name": "t", "options": {"database": str(bank)}, "host": "h"}
    await Processor(Transfers, source=source, container=store, **settings).run(until_end=True)
    assert accounts(bank)["b"] == 1_300
    await Processor(Transfers, source=source, container=store, **settings).run(until_end=True)
    assert accounts(bank)["b"] == 1_300
    resets = Resets(store, ProcessorLayout("t"), Settings(**QUICK), source, "ann", command="c")
    await resets.carry_out(await resets.plan("earliest"), {})
    await Processor(Transfers, source=source, container=store, **settings).run(until_end=True)
    assert accounts(bank)["b"] == 1_600


async def committed(store: Store) -> list[list[bool]]:
    found = []
    for entry in (await store.list("t/output/")).entries:
        stored = await store.get(entry.key)
        assert stored is not None
        found.append(pq.read_table(io.BytesIO(stored.body))["accepted"].to_pylist())
    return found
