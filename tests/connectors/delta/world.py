"""A processor with a Delta table in a store in memory, in virtual time; and what a reader of the log finds there."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pyarrow.parquet as pq

from actorproc import Batch, PartitionContext, PartitionHandler, Processor
from actorproc.admin.compact import compact
from actorproc.admin.retained import RetainedOutput
from actorproc.admin.trim import Trim, trim
from actorproc.config.settings import Settings
from actorproc.connectors.delta.log import DeltaLog
from actorproc.connectors.delta.state import DeltaState
from actorproc.output.row_reader import partitions_with_state
from actorproc.output.source_identity import dataset_identity
from actorproc.runtime.nudge import Nudges
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.sinks.tables.committer import TableCommitter
from actorproc.sinks.tables.open_tables import OpenTables, open_tables
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource

LAYOUT = ProcessorLayout("Copy")


class Copy(PartitionHandler):
    """Emits each number."""

    output_schema = "n long"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.emit(record, {"n": record.json()})


class World:
    """A stream of numbers, a container, and the table in it."""

    def __init__(self, partitions: int = 3) -> None:
        self.partitions = [str(number) for number in range(partitions)]
        self.source = MemorySource(partitions)
        clock = VirtualClock("store")
        self.store = Store(MemoryStore(clock=clock), clock=clock)
        self.fed = self.hosts = 0
        self.retained = RetainedOutput(self.store, LAYOUT)

    def feed(self, count: int) -> None:
        for n in range(self.fed, self.fed + count):
            self.source.append(self.partitions[n % len(self.partitions)], [str(n).encode()])
        self.fed += count

    def host(self, handler: type[PartitionHandler] = Copy, **options: Any) -> Processor:
        self.hosts += 1
        name = f"host-{self.hosts}"
        return Processor(
            handler, source=self.source, container=self.store, name="Copy", host=name, clock=VirtualClock(name),
            nudges=Nudges(), sinks={"table": {"url": "delta", **options}}, commit_interval=1,
        )  # fmt: skip

    @asynccontextmanager
    async def committer(self) -> AsyncIterator[TableCommitter]:
        """A committer that makes a transaction when it is told to."""
        async with open_tables(self.store, LAYOUT, {}) as tables:
            yield tables.each[0].committer

    async def until_end(self, *, feed: int = 0, **options: Any) -> None:
        self.feed(feed)
        await self.host(**options).run(until_end=True)

    async def state(self) -> DeltaState:
        """The table as a reader that has just come finds it."""
        state = DeltaState(LAYOUT, await dataset_identity(self.store, LAYOUT) or "")
        await DeltaLog(self.store, f"{LAYOUT.output}_delta_log/").refresh(state)
        return state

    async def rows(self, state: DeltaState | None = None) -> list[int]:
        """Of all files that the table names. Fails if one is missing."""
        state = state or await self.state()
        found: list[int] = []
        for path in state.adds:
            key = state.key_of(path)
            stored = await self.store.get(key) if key else None
            assert stored is not None, f"the table names {path}, which is missing"
            found += pq.read_table(io.BytesIO(stored.body))["n"].to_pylist()
        return sorted(found)

    async def check(self) -> None:
        assert await self.rows() == list(range(self.fed))

    async def compact(self) -> int:
        """Compact all that is due. Returns the number of new files."""
        return (await compact(container=self.store, name="Copy", older_than=0)).files_after

    async def trim(self) -> Trim:
        return await trim(self.retained, Settings())

    async def with_tables(self, work: Callable[[OpenTables], Awaitable[Any]]) -> Any:
        async with open_tables(self.store, LAYOUT, {}) as tables:
            return await work(tables)

    async def objects(self, folder: str) -> list[str]:
        return [entry.key for entry in (await self.store.list(folder)).entries]

    async def names(self) -> list[str]:
        return await partitions_with_state(self.store, LAYOUT)


def story(work: Callable[..., Awaitable[None]], *given: Any, partitions: int = 3) -> None:
    async def main() -> None:
        await work(World(partitions), *given)

    run(main())


HOUR = 3_700.0


async def an_hour() -> None:
    await anyio.sleep(HOUR)


__all__ = ["HOUR", "LAYOUT", "Copy", "World", "an_hour", "partial", "story"]
