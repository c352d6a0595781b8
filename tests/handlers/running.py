"""Runs a handler on a batch as a partition does, without the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pyarrow as pa
import structlog

from actorproc.codecs import JsonDecoder
from actorproc.config.settings import Settings
from actorproc.handler.base import PartitionHandler
from actorproc.handler.checks import checked_handler
from actorproc.handler.info import PartitionInfo
from actorproc.handler.options import load_options
from actorproc.records import Batch
from actorproc.rows.output_schema import parse_schema
from tests.partition.running import QUICK, processor


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
    """The result of a batch of these values; records are numbered from 100."""
    instance = handler if isinstance(handler, PartitionHandler) else handler()
    kind = checked_handler(type(instance))
    filled = load_options(kind, options, environment={})
    batch = values if isinstance(values, Batch) else Batch.of("0", values, range(100, 100 + len(values)))

    decoder, schema = JsonDecoder(), parse_schema(kind.schema_for(filled))
    info = PartitionInfo("p", "h", "0", 1, filled, None, structlog.get_logger(), decoder, schema)
    results = await processor(instance, settings, info=info).process(batch)
    letters = {sequence: orjson.loads(line) for sequence, line in results.letters.items()}
    return Result(pa.concat_tables(results.tables) if results.tables else None, letters)
