"""What a transaction of a Delta table costs: CPU at 1,000 partitions, and after 1,000 transactions."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from actorproc.connectors.delta import DeltaTable
from actorproc.runtime.clock import SYSTEM
from actorproc.sinks.protocol import SinkPlace
from actorproc.sinks.tables.protocol import AddedFile, Place, TableChange, TableHome
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores import open_store

LAYOUT = ProcessorLayout("Copy")
STATS = '{"numRecords":10,"minValues":{"n":1},"maxValues":{"n":2},"nullCount":{"n":0}}'
MOST = 0.05
"""Seconds of CPU."""


async def transactions(store: Store, partitions: int, number: int, files: int) -> list[float]:
    """CPU seconds of each transaction, which adds a file to some partitions."""
    from tests.connectors.delta.test_chaos import SCHEMA

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
    mean = sum(took[-100:]) / 100
    print(f"after 1,000 transactions, 10,000 files: {1000 * mean:.1f} ms of CPU each, with their checkpoints")
    assert mean < MOST


@pytest.mark.slow
async def test_a_transaction_takes_little_cpu_at_a_thousand_partitions(tmp_path: Path) -> None:
    async with open_store(str(tmp_path)) as store:
        took = await transactions(store, 1_000, 60, 100)
        all_of_them = await transactions(store, 1_000, 20, 1_000)
    mean, whole = sum(took[-40:]) / 40, sum(all_of_them) / 20
    print(f"1,000 partitions: {1000 * mean:.1f} ms of CPU for 100 files, {1000 * whole:.1f} ms for 1,000 files")
    assert mean < MOST
