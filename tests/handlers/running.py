"""Runs a handler on a batch as a partition does, without the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import orjson
import pyarrow as pa
import structlog

from actorproc.config.settings import Settings
from actorproc.handler.base import PartitionHandler
from actorproc.handler.checks import checked_handler
from actorproc.handler.context import PartitionInfo
from actorproc.handler.options import load_options
from actorproc.partition.dead_letter_limit import DeadLetterLimit
from actorproc.partition.handler_threads import HandlerThreads
from actorproc.partition.processing import BatchProcessor
from actorproc.records import Batch
from actorproc.rows.schema import parse_schema
from actorproc.runtime.clock import Clock

QUICK = Settings(retry_backoff=0.001, retry_backoff_max=0.002)


class Result:
    """Rows (with `_sequence`) and dead letters by sequence."""

    def __init__(self, table: pa.Table | None, letters: dict[int, dict[str, Any]]) -> None:
        self.table = table
        self.rows: list[dict[str, Any]] = table.to_pylist() if table is not None else []
        self.letters = letters


async def run(
    handler: type[PartitionHandler] | PartitionHandler,
    values: Sequence[bytes | None] | Batch,
    *,
    options: dict[str, object] | None = None,
    settings: Settings = QUICK,
) -> Result:
    """What a batch of these values becomes; records are numbered from 100."""
    instance = handler if isinstance(handler, PartitionHandler) else handler()
    kind = checked_handler(type(instance))
    filled = load_options(kind, options, environment={})
    batch = values if isinstance(values, Batch) else Batch.of("0", values, range(100, 100 + len(values)))

    async def save(*_: object) -> None:
        raise AssertionError("nothing here commits")

    processor = BatchProcessor(
        instance, PartitionInfo("p", "h", "0", 1, filled, None, structlog.get_logger()), parse_schema(kind.schema_for(filled)), settings,
        Clock(1), save=save, draining=anyio.Event(), threads=HandlerThreads(2, Clock(1)), limit=DeadLetterLimit(settings),
    )  # fmt: skip
    outcome = await processor.process(batch)
    letters = {sequence: orjson.loads(line) for sequence, line in outcome.letters.items()}
    return Result(pa.concat_tables(outcome.tables) if outcome.tables else None, letters)
