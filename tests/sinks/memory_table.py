"""A table in memory that several hosts share, with faults: lost replies, outages, strangers."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from actorproc.runtime.clock import SYSTEM
from actorproc.sinks.protocol import SinkError, SinkMoved
from actorproc.sinks.tables.options import TableOptions
from actorproc.sinks.tables.protocol import (
    NamedFiles,
    Place,
    TableChange,
    TableHome,
    TableSink,
    TableSnapshot,
)
from actorproc.storage.store import Store


@dataclass
class Catalog:
    """What the table holds: counters, and the keys that it names with their partitions."""

    count: int = 0
    life: int = 0
    places: dict[str, Place] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    is_away: bool = False
    lose_replies: int = 0
    columns: tuple[str, ...] = ()
    gone: set[str] = field(default_factory=set)
    """Keys that it has named, for readers of older versions. A test clears them where an hour has passed."""

    async def rows(self, store: Store, column: str = "n") -> list[Any]:
        """What a reader of the table finds. Fails if a file is missing."""
        found: list[Any] = []
        for key in self.names:
            stored = await store.get(key)
            assert stored is not None, f"the table names {key}, which is missing"
            found += pq.read_table(io.BytesIO(stored.body))[column].to_pylist()
        return sorted(found)

    async def repeated(self, store: Store) -> list[Any]:
        return [n for n, count in Counter(await self.rows(store)).items() if count > 1]


class MemoryTable(TableSink):
    """A connection to a catalog in memory."""

    table = "within"

    def __init__(self, catalog: Catalog, **options: Any) -> None:
        self.catalog, self.url = catalog, "test-table:"
        self.options = TableOptions(**options)

    async def open(self, schema: pa.Schema | None, home: TableHome) -> None:
        self._check()
        self._home = home
        if schema is not None:
            self.catalog.columns = tuple(schema.names)

    async def load(self) -> TableSnapshot:
        await SYSTEM.sleep(0.01)
        self._check()
        files = NamedFiles(self._home.layout)
        for key, partition in self.catalog.names.items():
            files.add(key, key, partition)
        return TableSnapshot(self.catalog.count, self.catalog.life, dict(self.catalog.places), files)

    async def commit(self, seen: TableSnapshot, change: TableChange) -> None:
        await SYSTEM.sleep(0.01)
        self._check()
        catalog = self.catalog
        if seen.count != catalog.count or any(file.key not in catalog.names for file in change.removes):
            raise SinkMoved("another one was first")
        catalog.count += 1
        catalog.life = change.life
        catalog.places |= change.places
        for gone in change.removes:
            del catalog.names[gone.key]
            catalog.gone.add(gone.key)
        for file in change.adds:
            assert file.key not in catalog.names
            catalog.names[file.key] = file.partition
        if catalog.lose_replies:
            catalog.lose_replies -= 1
            raise SinkError("the reply was lost")

    async def named_since(self, age: float) -> set[str]:
        return set(self.catalog.names) | self.catalog.gone

    async def close(self) -> None:
        pass

    def _check(self) -> None:
        if self.catalog.is_away:
            raise SinkError("the catalog is away")
