"""A handler that doubles numbers, a source of numbers, and short intervals: shared by the tests of `Processor`."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pyarrow.parquet as pq

from actorproc import Batch, PartitionContext, PartitionHandler, Processor
from actorproc.partition.statistics import PartitionStatistics
from actorproc.storage.store import Store
from actorproc.testing.memory_source import MemorySource

QUICK: dict[str, Any] = {
    "lease_acquire_interval": 0.2,
    "lease_renew_interval": 0.1,
    "lease_expiration_interval": 1.0,
    "rebalance_delay": 0.1,
    "commit_interval": 0.05,
    "retry_backoff": 0.001,
    "restart_backoff": 0.01,
    "restart_backoff_max": 0.05,
}


class Double(PartitionHandler):
    output_schema = "n long"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.emit(record, {"n": 2 * record.json()})


def fed(partitions: int = 4, each: int = 10) -> MemorySource:
    source = MemorySource(partitions)
    for partition in range(partitions):
        source.append(str(partition), [str(n).encode() for n in range(each)])
    return source


async def rows(store: Store, name: str = "Double") -> list[int]:
    found: list[int] = []
    for entry in (await store.list(f"{name}/output/")).entries:
        stored = await store.get(entry.key)
        assert stored is not None
        found += pq.read_table(io.BytesIO(stored.body))["n"].to_pylist()
    return sorted(found)


def _partitions(processor: Processor) -> Sequence[PartitionStatistics]:
    return processor.statistics().partitions
