"""Sequences that do not grow stop the partition: records out of order would be lost or repeated."""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import pyarrow.parquet as pq
import pytest

from actorproc import Chunk, End, PartitionContext, Processor, Record, RecordHandler
from actorproc.errors import EndNotReached
from actorproc.records import Batch
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource

QUICK: dict[str, Any] = {"restart_backoff": 0.001, "restart_backoff_max": 0.002, "commit_interval": 0.01}


class Sequences(RecordHandler):
    output_schema = "n bigint"

    def process_record(self, record: Record, ctx: PartitionContext) -> dict[str, int]:
        return {"n": record.sequence}


class Scripted(MemorySource):
    """Each read gives the chunks of its script; the last script goes for all later ones."""

    def __init__(self, *scripts: list[list[int]]) -> None:
        super().__init__(1)
        self.scripts = list(scripts)

    async def end(self, partition: str) -> End:
        return End("end", 9)

    async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        for sequences in self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]:
            yield Chunk(Batch.of(partition, [b"x"] * len(sequences), sequences), "0")
            await anyio.sleep(0.05)  # time to commit
        raise ConnectionError("lost")


async def processed(source: Scripted) -> list[int]:
    store = Store(MemoryStore())
    await Processor(Sequences, source=source, container=store, host="a", **QUICK).run(until_end=True)
    stored = [await store.get(entry.key) for entry in (await store.list("Sequences/output/")).entries]
    return [n for one in stored if one for n in pq.read_table(io.BytesIO(one.body))["n"].to_pylist()]


@pytest.mark.parametrize(
    ("chunks", "pair"),
    [
        ([[5, 3]], (3, 5)),
        ([[5, 5]], (5, 5)),
        ([[4, 5], [2, 3]], (2, 5)),
        ([[4, 5], [5, 6]], (5, 5)),
        ([[-2, 3]], (-2, -1)),
    ],
)
async def test_sequences_that_do_not_grow_within_a_read_stop_the_partition(
    chunks: list[list[int]], pair: tuple[int, int]
) -> None:
    says = rf"read\(\) of partition 0 gave sequence {pair[0]} after {pair[1]}: "
    with pytest.raises(EndNotReached, match=says):
        await processed(Scripted(chunks))


async def test_a_new_read_may_begin_below_processed_records() -> None:
    source = Scripted([[1, 3], [5]], [[1, 3, 5, 7], [9]])
    assert await processed(source) == [1, 3, 5, 7, 9]


@pytest.mark.parametrize("sequences", [[1.2, 1.7], [1, 2.5], [True, False], ["1", "2"], [None, None]])
async def test_sequences_that_are_no_whole_numbers_are_not_made_ones(sequences: list[Any]) -> None:
    with pytest.raises(EndNotReached, match=r"sequences are .*, and must be integers"):
        await processed(Scripted([sequences]))
