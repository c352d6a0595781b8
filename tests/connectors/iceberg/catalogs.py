"""Catalogs for the tests, what is committed into containers, and what readers find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from actorproc import Batch, PartitionContext, PartitionHandler, Processor
from actorproc.admin import compact
from actorproc.admin import sinks as operate
from actorproc.admin.verify import verify
from actorproc.config.settings import Settings
from actorproc.connectors.iceberg import IcebergSink
from actorproc.connectors.iceberg.catalog import open_catalog
from actorproc.connectors.iceberg.options import IcebergOptions
from actorproc.output.source_identity import dataset_identity
from actorproc.runtime.clock import SYSTEM
from actorproc.sinks.protocol import SinkPlace
from actorproc.sinks.tables.ownership import Choice
from actorproc.sinks.tables.protocol import TableHome
from actorproc.storage.names import ProcessorLayout
from actorproc.stores import open_store
from actorproc.testing.memory_source import MemorySource

LAYOUT = ProcessorLayout("Copy")
NAME = ("default", "Copy")


class Copy(PartitionHandler):
    """Emits each number."""

    output_schema = "n long, text string, half double, at timestamp, day date, price decimal(10,2), small tinyint"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.emit(record, self.row(record.json()))

    def row(self, n: int) -> dict[str, Any]:
        return {"n": n, "text": f"number {n}", "half": n / 2, "small": n % 100}


class Grown(Copy):
    """The same, after columns were added, one of them with fields."""

    output_schema = f"{Copy.output_schema}, more long, deep struct<x: int, y: array<string>>"

    def row(self, n: int) -> dict[str, Any]:
        return super().row(n) | {"more": n + 1, "deep": {"x": n, "y": [str(n)]}}


@dataclass
class World:
    """A stream of numbers, a container, and a table of a catalog."""

    container: str
    uri: str
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    partitions: int = 2

    def __post_init__(self) -> None:
        self.names = [str(number) for number in range(self.partitions)]
        self.source = MemorySource(self.partitions)
        self.fed = 0
        self._catalog: Catalog | None = None

    def feed(self, count: int) -> None:
        for n in range(self.fed, self.fed + count):
            self.source.append(self.names[n % self.partitions], [str(n).encode()])
        self.fed += count

    @property
    def sinks(self) -> dict[str, Any]:
        return {"lake": {"url": f"iceberg:{self.uri}", "interval": 1, **self.options}}

    def host(self, handler: type[Copy] = Copy, name: str = "a", **settings: Any) -> Processor:
        return Processor(
            handler, source=self.source, container=self.container, name="Copy", host=name,
            **{
                "sinks": self.sinks, "commit_interval": 1000, "max_batch_records": 10, "commit_rows": 10,
                **self.settings, **settings,
            },
        )  # fmt: skip

    async def process(self, count: int, handler: type[Copy] = Copy, **settings: Any) -> None:
        self.feed(count)
        await self.host(handler, **settings).run(until_end=True)

    async def compact(self) -> int:
        settings = Settings.load(sinks=self.sinks, **self.settings)
        done = await compact(container=self.container, name="Copy", older_than=0, settings=settings)
        return done.files_after

    def catalog(self) -> Catalog:
        self._catalog = self._catalog or open_catalog(self.uri, IcebergOptions(**self.options))
        return self._catalog

    def close(self) -> None:
        if self._catalog is not None:
            self._catalog.close()

    def table(self) -> Table:
        return self.catalog().load_table(NAME)

    def rows(self) -> pa.Table:
        return self.table().scan().to_arrow()

    def is_exact(self, beside: int = 0) -> bool:
        """`beside`: rows that a stranger has added, all with n = -1."""
        return Counter(self.rows()["n"].to_pylist()) == Counter(range(self.fed)) + Counter({-1: beside})

    def check(self) -> None:
        assert sorted(self.rows()["n"].to_pylist()) == list(range(self.fed))

    async def damages(self) -> list[str]:
        async with open_store(self.container) as store:
            return [damage.what for damage in (await verify(store, LAYOUT, sinks=self.sinks)).damages]

    async def repair(self, others: Choice = "refuse") -> None:
        async with open_store(self.container) as store:
            await operate.repair(store, LAYOUT, "lake", self.sinks, others=others)


def sqlite_world(folder: Path, **options: Any) -> World:
    uri = f"sqlite:///{folder}/catalog.db"
    return World(str(folder / "state"), uri, {"warehouse": f"file://{folder}/warehouse", **options})


async def opened(world: World) -> tuple[IcebergSink, TableHome]:
    store = open_store(world.container)
    await store.__aenter__()
    home = TableHome(store, LAYOUT, await dataset_identity(store, LAYOUT) or "")
    options = {name: value for name, value in world.sinks["lake"].items() if name != "url"}
    sink = IcebergSink(world.sinks["lake"]["url"], options, SinkPlace("lake", "Copy", SYSTEM))
    await sink.open(None, home)
    return sink, home
