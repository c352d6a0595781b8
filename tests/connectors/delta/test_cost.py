"""What a transaction of a Delta table costs: CPU at 1,000 partitions, and after 1,000 transactions."""

from __future__ import annotations

from pathlib import Path
from statistics import mean, median

import pytest

from actorproc.stores import open_store
from tests.connectors.delta.cost import transactions, turns

MOST = 0.05
"""Seconds of CPU of a transaction, and of a turn without news."""
MOST_OF_A_TURN = 0.1
"""With 100 new files."""


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
    async with open_store(str(tmp_path)) as store:
        took = await turns(store, 1_000, 100)
    print(
        f"a turn at 1,000 partitions: {1000 * took.first:.0f} ms of CPU for the first, {1000 * median(took.idle):.1f} "
        f"ms without news, {1000 * median(took.busy):.1f} ms with 100 new files"
    )
    assert median(took.idle) < MOST
    assert median(took.busy) < MOST_OF_A_TURN
