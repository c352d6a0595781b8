"""Helpers that read a log through its source, as users do."""

from __future__ import annotations

from contextlib import aclosing

from actorproc.config.settings import Settings
from actorproc.records import Batch
from actorproc.sources import LogSource
from actorproc.sources.protocol import list_partitions
from actorproc.storage.store import Store


async def batches(source: LogSource, partition: str, position: str = "0") -> list[Batch]:
    """Everything from `position` to the end as it is now, one batch per chunk."""
    found = []
    async with aclosing(source.read(partition, position)) as chunks:
        async for chunk in chunks:
            if not len(chunk.batch):
                break
            found.append(chunk.batch)
    return found


async def values(source: LogSource, partition: str, position: str = "0") -> list[bytes | None]:
    return [value for batch in await batches(source, partition, position) for value in batch.values]


async def log_contents(store: Store) -> dict[str, list[bytes | None]]:
    """Values by partition. Also checks that each sequence is there once, in order, from 0 on."""
    source = LogSource(store, settings=Settings.load(), clock=store.clock)
    await source.open()
    contents = {}
    for partition in await list_partitions(source):
        found = await batches(source, partition)
        sequences = [sequence for batch in found for sequence in batch.sequences]
        assert sequences == list(range(len(sequences)))
        contents[partition] = [value for batch in found for value in batch.values]
    return contents
