"""A source, a store and a handler of numbers, on which partition actors come and go."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import anyio
import orjson
import pyarrow.parquet as pq

from actorproc.codecs import JsonDecoder
from actorproc.config.settings import Settings
from actorproc.handler.base import CloseReason, PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.handler.info import PartitionInfo
from actorproc.output.chain import OutputChain
from actorproc.output.checkpoint import Checkpoint
from actorproc.partition.actor import PartitionActor
from actorproc.partition.dead_letter_summary import DeadLetterSummary
from actorproc.partition.handler_threads import HandlerThreads
from actorproc.partition.hook_queue import HookQueue
from actorproc.partition.host_context import HostContext
from actorproc.records import Batch
from actorproc.rows.output_schema import output_schema, parse_schema
from actorproc.runtime.budget import BufferTotal, ByteBudget
from actorproc.runtime.clock import Clock
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource


class Numbers(PartitionHandler):
    """A row for each even number, a failure for each number that ends in 5, no row for other numbers."""

    output_schema = "n long"
    closed: ClassVar[list[CloseReason]] = []

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            number = record.json()
            if number % 10 == 5:
                ctx.dead_letter(record, "a five")
            elif number % 2 == 0:
                ctx.emit(record, {"n": number})

    async def closing(self, ctx: PartitionInfo, reason: CloseReason) -> None:
        self.closed.append(reason)


class World:
    """One source and one store, on which partition actors come and go."""

    def __init__(
        self,
        handler: type[PartitionHandler] = Numbers,
        page: int = 1000,
        clock: Callable[[int], Clock] = Clock,
        **settings: Any,
    ) -> None:
        self.clock = clock
        self.source = MemorySource(1, page=page, step=3)
        self.store = Store(MemoryStore(clock=clock(0)), clock=clock(0))
        self.layout = ProcessorLayout("p")
        self.handler = handler
        self.settings = Settings.load(**{"commit_interval": 1000, "idle_commit_interval": 1000, **settings})
        self.budget = ByteBudget(self.settings.read_ahead_bytes)
        self.waiting = BufferTotal(self.settings.uncommitted_bytes)
        self.fed = 0

    def feed(self, count: int) -> None:
        self.source.append("0", [str(n).encode() for n in range(self.fed, self.fed + count)])
        self.fed += count

    def actor(self, epoch: int, partition: str = "0") -> PartitionActor:
        context = HostContext(
            "p", f"host-{epoch}", self.handler, output_schema(parse_schema(self.handler.output_schema)), self.source,
            self.host_store(epoch), self.layout, self.settings, self.clock(epoch), "earliest", None, None,
            self.budget, self.waiting, DeadLetterSummary(), HandlerThreads(1, self.clock(epoch)), JsonDecoder(),
            HookQueue(None, 1, self.clock(epoch), None, processor="p", host=f"host-{epoch}"),
        )  # fmt: skip
        return PartitionActor(partition, epoch, context)

    def host_store(self, epoch: int) -> Store:
        """The store, as the owner of this epoch uses it."""
        return self.store

    async def until_end(self, epoch: int, partition: str = "0") -> PartitionActor:
        """Run a new owner until everything there is now is committed, and drain it."""
        actor = self.actor(epoch, partition)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(actor.run)
            with anyio.fail_after(300):
                while actor.statistics.caught_up is None and not actor.ended:
                    await anyio.sleep(0.001)
            actor.drain()
        return actor

    @asynccontextmanager
    async def running(self, epoch: int, partition: str = "0") -> AsyncIterator[PartitionActor]:
        actor = self.actor(epoch, partition)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(actor.run)
            yield actor
            tasks.cancel_scope.cancel()

    async def rows(self) -> list[int]:
        found: list[int] = []
        for entry in (await self.store.list(self.layout.output)).entries:
            stored = await self.store.get(entry.key)
            assert stored is not None
            table = pq.read_table(io.BytesIO(stored.body))
            assert [s // 3 for s in table["_sequence"].to_pylist()] == table["n"].to_pylist()
            found += table["n"].to_pylist()
        return found

    async def columns(self, name: str) -> list[Any]:
        """One column of all rows."""
        entries = (await self.store.list(self.layout.output)).entries
        bodies = [await self.store.get(entry.key) for entry in entries]
        return [
            item for stored in bodies if stored for item in pq.read_table(io.BytesIO(stored.body))[name].to_pylist()
        ]

    async def letters(self) -> list[int]:
        entries = (await self.store.list(self.layout.dead_letters)).entries
        bodies = [await self.store.get(entry.key) for entry in entries]
        return [int(orjson.loads(line)["value"]) for stored in bodies if stored for line in stored.body.splitlines()]

    async def checkpoint(self) -> Checkpoint:
        stored = await self.store.get(self.layout.checkpoint("0"))
        assert stored is not None
        return Checkpoint.from_json("c", stored.body)

    async def check(self) -> None:
        assert await self.rows() == [n for n in range(self.fed) if n % 2 == 0]
        assert await self.letters() == [n for n in range(self.fed) if n % 10 == 5]
        number, previous = 0, -1
        chain = OutputChain(self.store, self.layout, "0")
        while (commit := await chain.read(number)) is not None:
            assert commit.first.sequence >= previous
            number, previous = number + 1, commit.next.sequence


async def eventually(what: Callable[[], Awaitable[object]]) -> None:
    with anyio.fail_after(60):
        while not await what():
            await anyio.sleep(0.001)


async def _is(what: bool) -> bool:
    return what


async def _at_least(count: int, least: int) -> bool:
    return count >= least


class Hosts(World):
    """Each owner has a clock of its own, also for its requests."""

    def host_store(self, epoch: int) -> Store:
        return Store(self.store.backend, clock=self.clock(epoch))
