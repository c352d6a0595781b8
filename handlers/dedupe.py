"""`Dedupe`: lets the first record of a key pass, and drops those that follow within a time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
from pydantic import Field

from actorproc.config.settings import Seconds
from actorproc.handler.base import PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.handler.info import PartitionInfo
from actorproc.handler.keyed_state import Key
from actorproc.handler.one_by_one import OneByOne
from actorproc.handler.wake_context import WakeContext
from actorproc.handlers.keyed import KeyOptions, keyed, record_key_of, time_of
from actorproc.records import RECORD_SCHEMA, Batch
from actorproc.rows.output_schema import parse_schema


class DedupeOptions(KeyOptions):
    """Options of Dedupe."""

    within: Seconds = Field(86_400, description="Records of a key within this time after its first are dropped.")
    output_schema: str | None = Field(
        None, description="Columns as Spark DDL, taken from the decoded value. Default: the record as it is."
    )


class Dedupe(PartitionHandler):
    """Emits the first record of each key, as `Capture` or `DecodedRows` do. Later ones within a time are dropped.

    Time is that of the records. The first record after that time passes again.
    """

    Options = DedupeOptions
    State = datetime

    @classmethod
    def schema_for(cls, options: Any) -> pa.Schema:
        return RECORD_SCHEMA if options.output_schema is None else parse_schema(options.output_schema)

    def record_key(self, key: Key, ctx: PartitionInfo) -> str | None:
        """See `PartitionHandler`."""
        return record_key_of(key, ctx)

    def process(self, batch: Batch, ctx: PartitionContext) -> None:
        """Emit the records that pass."""
        within = timedelta(seconds=ctx.options.within)
        passed: set[int] = set()
        alone = OneByOne(ctx)
        for record, key, _ in keyed(batch, ctx, ctx.options.key):
            alone.begin()
            try:
                time = time_of(record)
                first = ctx.state.get(key)
                if first is None or time >= first + within:
                    ctx.state.set(key, time)
                    ctx.wake(key, time + within)
                    passed.add(record.sequence)
            except (ValueError, OverflowError) as error:  # a time near the year 9999 overflows
                passed.discard(record.sequence)
                alone.failed(record, error, again=False)
        if passed:
            kept = batch.take([index for index, sequence in enumerate(batch.sequences) if sequence in passed])
            ctx.emit_arrow(kept.to_arrow() if ctx.options.output_schema is None else ctx.decode_arrow(kept))

    def on_wake(self, key: Any, ctx: WakeContext) -> None:
        """The time of the key is over."""
        ctx.state.delete(key)
