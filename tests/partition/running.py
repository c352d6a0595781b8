"""Runs a handler on one batch after another, without a source and a store."""

from __future__ import annotations

from typing import Any, cast

import anyio
import orjson
import pyarrow as pa
import structlog

from actorproc.codecs import JsonDecoder
from actorproc.config.settings import Settings
from actorproc.handler.base import PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.handler.info import PartitionInfo
from actorproc.partition.batch_processor import BatchProcessor
from actorproc.partition.committer import Committer
from actorproc.partition.dead_letter_limit import DeadLetterLimit
from actorproc.partition.handler_calls import HandlerCalls
from actorproc.partition.handler_threads import HandlerThreads
from actorproc.partition.results import Results
from actorproc.partition.retry_pause import RetryPause
from actorproc.records import Batch, Cursor
from actorproc.rows.output_schema import parse_schema
from actorproc.runtime.clock import SYSTEM, Clock
from actorproc.state.partition_state import PartitionState
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore

INFO = PartitionInfo("p", "h", "0", 1, None, None, structlog.get_logger(), JsonDecoder())
QUICK = Settings(retry_backoff=0.001, retry_backoff_max=0.002)


class Doubler(PartitionHandler):
    """Emits a row per number; raises for the numbers in `bad`; keeps the batches that it saw."""

    output_schema = "n long, attempt int"
    bad: frozenset[int] = frozenset()

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        self.seen.append([record.json() for record in batch])
        for record in batch:
            number = record.json()
            if number in self.bad:
                raise ValueError(f"{number} is bad")
            ctx.emit(record, {"n": number, "attempt": ctx.attempt})


def numbers(*values: int | bytes) -> Batch:
    return Batch.of(
        "0", [v if isinstance(v, bytes) else str(v).encode() for v in values], range(100, 100 + len(values))
    )


class Commits:
    """Takes the place of the committer: `saved` has numbers, dead letters and last sequence of each commit."""

    def __init__(self, slow: int = 0) -> None:
        self.cursor = self.committed = Cursor("")
        self.state = PartitionState(Store(MemoryStore()), ProcessorLayout("p"), "0", limit=2**20)
        self.saved: list[tuple[list[int], list[int], int]] = []
        self.results: list[Results] = []
        self._slow = slow
        self._added: list[tuple[list[int], list[int], int]] = []

    def add(self, batch: Batch, upto: int, cursor: Cursor, results: Results, begun: float) -> None:
        self.results.append(results)
        self.state.add(results.changes)
        self._added.append((column(results, "n"), sorted(results.letters), upto))

    async def commit_if_due(self) -> None:
        pass

    async def commit(self) -> None:
        for _ in range(self._slow):
            await anyio.sleep(0)
        self.saved += self._added
        self._added.clear()

    def now(self) -> float:
        return SYSTEM.wall()


def processor(
    handler: PartitionHandler,
    settings: Settings = QUICK,
    *,
    info: PartitionInfo = INFO,
    commits: Commits | None = None,
    limit: DeadLetterLimit | None = None,
    draining: anyio.Event | None = None,
) -> BatchProcessor:
    clock, draining = Clock(1), draining or anyio.Event()
    retries = RetryPause(handler, settings, clock, info.log, draining, lambda _: None)
    calls = HandlerCalls(
        handler, info, parse_schema(handler.schema_for(info.options)), clock,
        committer=cast(Committer, commits or Commits()), threads=HandlerThreads(2, clock), retries=retries,
        draining=draining,
    )  # fmt: skip
    return BatchProcessor(calls, settings, limit or DeadLetterLimit(settings), retries.pause)


class Run:
    """Runs a handler on one batch after another, and keeps its own commits."""

    def __init__(
        self, handler: PartitionHandler, settings: Settings = QUICK, limit: DeadLetterLimit | None = None, slow: int = 0
    ) -> None:
        self.commits = Commits(slow)
        self.draining = anyio.Event()
        self.processor = processor(handler, settings, commits=self.commits, limit=limit, draining=self.draining)

    @property
    def saved(self) -> list[tuple[list[int], list[int], int]]:
        return self.commits.saved

    async def __call__(self, batch: Batch) -> Results:
        return await self.processor.process(batch)


def column(results: Results, name: str) -> list[Any]:
    return pa.concat_tables(results.tables)[name].to_pylist() if results.tables else []


def letters(results: Results) -> dict[int, dict[str, Any]]:
    return {sequence: orjson.loads(line) for sequence, line in results.letters.items()}
