"""`Capture`: stores records unchanged."""

from __future__ import annotations

from actorproc.handler.base import PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.records import RECORD_SCHEMA, Batch


class Capture(PartitionHandler):
    """One row per record: `key`, `value`, `headers`, `timestamp`. Columns from end to end, nothing is parsed."""

    output_schema = RECORD_SCHEMA

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        """Emit the batch's columns."""
        ctx.emit_arrow(batch.to_arrow())
