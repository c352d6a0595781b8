"""What a transaction of a Delta table costs: CPU at 1,000 partitions, and after 1,000 transactions.

A turn is all that a committer does each interval: it finds what is new, makes a transaction, and notes its progress.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import mean, median

import pytest

from actorproc.connectors.delta import DeltaTable
from actorproc.runtime.clock import SYSTEM
from actorproc.runtime.logger import get_logger
from actorproc.sinks.protocol import SinkPlace
from actorproc.sinks.tables.committer import TableCommitter
from actorproc.sinks.tables.protocol import AddedFile, Place, TableChange, TableHome
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores import open_store
from tests.connectors.delta.chain import SCHEMA, Chain

LAYOUT = ProcessorLayout("Copy")
STATS = '{"numRecords":10,"minValues":{"n":1},"maxValues":{"n":2},"nullCount":{"n":0}}'
MOST = 0.05
"""Seconds of CPU of a transaction, and of a turn without news."""
MOST_OF_A_TURN = 0.1
"""With 100 new files."""


async def transactions(store: Store, partitions: int, number: int, files: int) -> list[float]:
    """CPU seconds of each transaction, which adds a file to some partitions."""
    table = DeltaTable("delta", {}, SinkPlace("table", "Copy", SYSTEM))
    await table.open(SCHEMA, TableHome(store, LAYOUT, "identity"))
    positions = [0] * partitions
    took = []
    for turn in range(number):
        chosen = [(turn * files + n) % partitions for n in range(files)]
        adds, places = [], {}
        for p in chosen:
            adds.append(AddedFile(LAYOUT.output_file(str(p), positions[p]), str(p), 1000, 10, 0.0, STATS))
            positions[p] += 1
            places[str(p)] = Place(positions[p], 0, 1 + positions[p])
        began = time.process_time()
        await table.commit(await table.load(), TableChange(1, places, adds))
        took.append(time.process_time() - began)
    return took


@pytest.mark.slow
async def test_a_transaction_takes_little_cpu_after_a_thousand_others(tmp_path: Path) -> None:
    async with open_store(str(tmp_path)) as store:
        took = await transactions(store, 10, 1_100, 10)
    print(f"after 1,000 transactions, 10,000 files: {1000 * mean(took[-100:]):.1f} ms of CPU each, with checkpoints")
    assert mean(took[-100:]) < MOST


@pytest.mark.slow
async def test_a_transaction_takes_little_cpu_at_a_thousand_partitions(tmp_path: Path) -> None:
    async with open_store(str(tmp_path)) as store:
        took = await transactions(store, 1_000, 60, 100)
        all_of_them = await transactions(store, 1_000, 20, 1_000)
    some, whole = mean(took[-40:]), mean(all_of_them)
    print(f"1,000 partitions: {1000 * some:.1f} ms of CPU for 100 files, {1000 * whole:.1f} ms for 1,000 files")
    assert some < MOST


@pytest.mark.slow
async def test_a_turn_takes_little_cpu_at_a_thousand_partitions(tmp_path: Path) -> None:
    """Without news, and with 100 new files."""
    async with open_store(str(tmp_path)) as store:
        chain = Chain(store, LAYOUT, 1_000)
        home = TableHome(store, LAYOUT, await chain.prepare())
        for p in range(1_000):
            await chain.commit(p, [p])
        await chain.beat()
        table = DeltaTable("delta", {}, SinkPlace("table", "Copy", SYSTEM))
        committer = TableCommitter("table", table, home, schema=SCHEMA, host="h", log=get_logger(__name__))

        async def turn() -> float:
            began = time.process_time()
            await committer.commit()
            return time.process_time() - began

        first = await turn()
        idle = [await turn() for _ in range(10)]
        busy = []
        for turns in range(10):
            for p in range(100):
                await chain.commit((100 * turns + p) % 1_000, [p], checkpoint=False)
            await chain.beat()
            busy.append(await turn())
        assert [place.position for place in (await table.load()).places.values()] == [2] * 1_000
    print(
        f"a turn at 1,000 partitions: {1000 * first:.0f} ms of CPU for the first, {1000 * median(idle):.1f} ms without "
        f"news, {1000 * median(busy):.1f} ms with 100 new files"
    )
    assert median(idle) < MOST
    assert median(busy) < MOST_OF_A_TURN
