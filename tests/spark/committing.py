"""Real processors that commit output for the tests: small files, dead letters, new partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import anyio

from actorproc import Batch, PartitionContext, PartitionHandler, Processor, Settings
from actorproc.retention.boundary import read_boundary
from actorproc.storage.names import ProcessorLayout, number_of
from actorproc.storage.store import Store
from actorproc.stores import open_store
from actorproc.testing.memory_source import MemorySource

LAYOUT = ProcessorLayout("numbers")

QUICK: dict[str, Any] = {
    "lease_acquire_interval": 0.2,
    "lease_renew_interval": 0.1,
    "lease_expiration_interval": 1.0,
    "rebalance_delay": 0.1,
    "retry_backoff": 0.001,
    "max_attempts": 1,
    "dead_letter_limit": 1.0,
    "commit_interval": 1000,
    "max_batch_records": 10,
    "commit_rows": 9,  # so each batch of ten is a file, also with a poisoned record in it
}

Rows = set[tuple[str, int, int]]
"""(`_partition`, `_sequence`, `n`) of each row."""


class Numbers(PartitionHandler):
    """One row for each record; records that end in 7 are poison."""

    output_schema = "n long"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.emit(record, self.row(record.json()))

    def row(self, n: int) -> dict[str, Any]:
        if n % 10 == 7:
            raise ValueError(f"{n} is poison")
        return {"n": n}


class Grown(Numbers):
    """The same, after a column was added."""

    output_schema = "n long, half double"

    def row(self, n: int) -> dict[str, Any]:
        return super().row(n) | {"half": n / 2}


class Stream(MemorySource):
    """Its partitions have names, and come into being when something is appended."""

    identity = "the stream of the test"

    def __init__(self) -> None:
        super().__init__(0)

    def add(self, partition: str, count: int) -> None:
        """Append `count` records, whose values count on from those that are there."""
        if partition not in self._values:
            self.add_partition(partition)
        there = len(self._values[partition])
        self.append(partition, [str(there + n).encode() for n in range(count)], key=partition.encode())


async def delete_originals(store: Store, partitions: Sequence[str]) -> int:
    """Delete originals as `actorproc trim` does an hour after a compaction. Returns the number of deleted files."""
    count = 0
    for partition in partitions:
        boundary = await read_boundary(store, LAYOUT.boundary(partition))
        for entry in (await store.list(LAYOUT.output_dir(partition))).entries:
            if boundary.range_of(number_of(entry.key)) is not None:
                await store.delete(entry.key)
                count += 1
    return count


class Fleet:
    """A processor named `numbers` over a stream that grows on demand."""

    def __init__(self, container: str | Store, settings: Mapping[str, Any] | None = None) -> None:
        self.container = container
        self.stream = Stream()
        self._settings = {**QUICK, **(settings or {})}

    async def commit(self, handler: type[Numbers] = Numbers, /, **counts: int) -> None:
        """Append so many records to each partition, and process all there is: a file for each ten, and one for the
        rest.

        `p0=30` stands for partition "0".
        """
        for name, count in counts.items():
            self.stream.add(name.removeprefix("p"), count)
        processor = Processor(
            handler, name="numbers", source=self.stream, container=self.container, host="a", **self._settings
        )
        await processor.run(until_end=True)

    def expected(self, *, dead: bool = False) -> Rows:
        """The rows (or dead letters) that were committed."""
        return {
            (partition, n, n)
            for partition, values in self.stream._values.items()
            for n in range(len(values))
            if (n % 10 == 7) == dead
        }

    @property
    def settings(self) -> Settings:
        return Settings.load(**self._settings)


async def until_past(fleet: Fleet) -> None:
    """Wait until the store's time is not before any commit. MinIO reports its own time in seconds, and that of files
    more precisely."""
    async with open_store(str(fleet.container), fleet.settings) as store:
        while (listing := await store.list(LAYOUT.output)).now < max(entry.modified for entry in listing.entries):
            await anyio.sleep(0.05)
