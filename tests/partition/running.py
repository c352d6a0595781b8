"""A handler on one batch after another, without a partition around it: what the tests of processing share."""

from __future__ import annotations

from typing import Any

import anyio
import orjson
import pyarrow as pa
import structlog

from actorproc.config.settings import Settings
from actorproc.handler.base import PartitionHandler
from actorproc.handler.context import PartitionContext, PartitionInfo
from actorproc.partition.dead_letter_limit import DeadLetterLimit
from actorproc.partition.handler_threads import HandlerThreads
from actorproc.partition.outcome import Outcome
from actorproc.partition.processing import BatchProcessor
from actorproc.records import Batch
from actorproc.rows.schema import parse_schema
from actorproc.runtime.clock import Clock

SITE = PartitionInfo("p", "h", "0", 1, None, None, structlog.get_logger())
QUICK = Settings(retry_backoff=0.001, retry_backoff_max=0.002)


class Doubler(PartitionHandler):
    """Emits a row per number; what `bad` names raises; keeps count of what it saw."""

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


class Run:
    """A handler on one batch after another, and what was saved from within."""

    def __init__(
        self, handler: PartitionHandler, settings: Settings = QUICK, limit: DeadLetterLimit | None = None
    ) -> None:
        self.lost: list[str] = []
        self.saved: list[tuple[list[int], list[int], int]] = []
        self.draining = anyio.Event()
        self.processor = BatchProcessor(
            handler, SITE, parse_schema(handler.output_schema), settings, Clock(1),
            save=self.save, draining=self.draining, threads=HandlerThreads(2, Clock(1)),
            limit=limit or DeadLetterLimit(settings), lost=self.lost.append,
        )  # fmt: skip

    async def save(self, batch: Batch, outcome: Outcome, upto: int) -> None:
        self.saved.append((column(outcome, "n"), sorted(outcome.letters), upto))

    async def __call__(self, batch: Batch) -> Outcome:
        return await self.processor.process(batch)


def column(outcome: Outcome, name: str) -> list[Any]:
    return pa.concat_tables(outcome.tables)[name].to_pylist() if outcome.tables else []


def letters(outcome: Outcome) -> dict[int, dict[str, Any]]:
    return {sequence: orjson.loads(line) for sequence, line in outcome.letters.items()}
