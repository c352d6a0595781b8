"""`Latest`: the last value of each key, emitted whenever it changes."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
from pydantic import Field

from actorproc.handler.base import PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.handler.info import PartitionInfo
from actorproc.handler.keyed_state import Key
from actorproc.handler.one_by_one import OneByOne
from actorproc.handlers.keyed import KeyOptions, keyed, record_key_of
from actorproc.records import Batch, Record
from actorproc.rows.output_schema import parse_schema

_KEY = pa.field("key", pa.string(), nullable=False)
_TEXT = pa.schema([("value", pa.string())])


class LatestOptions(KeyOptions):
    """Options of Latest."""

    output_schema: str | None = Field(
        None, description="Fields of the decoded value to keep, as Spark DDL. Default: the value as text, in `value`."
    )


class Latest(PartitionHandler):
    """Emits a row, `key` and the fields, whenever a field of a key has another value than the last record of the key.

    A record without a value (a tombstone) forgets its key, and emits a row in which only `key` is set.
    """

    Options = LatestOptions

    @classmethod
    def schema_for(cls, options: Any) -> pa.Schema:
        fields = _TEXT if options.output_schema is None else parse_schema(options.output_schema)
        return pa.schema([_KEY, *fields])

    def record_key(self, key: Key, ctx: PartitionInfo) -> str | None:
        """See `PartitionHandler`."""
        return record_key_of(key, ctx)

    def process(self, batch: Batch, ctx: PartitionContext) -> None:
        """Compare each record with the latest one of its key."""
        names = None if ctx.options.output_schema is None else ctx.output_schema.names[1:]
        columns = len(ctx.output_schema) - 1
        alive = [index for index, value in enumerate(batch.values) if value is not None]
        values = batch if len(alive) == len(batch) else batch.take(alive)
        found = {
            record.sequence: (key, self._fields(value, record.value, names))
            for record, key, value in keyed(values, ctx, ctx.options.key, decode=names is not None)
        }
        alone = OneByOne(ctx)
        for record in batch:
            alone.begin()
            try:
                if record.value is None:
                    self._forget(record, columns, ctx)
                elif record.sequence in found:
                    self._remember(record, *found[record.sequence], ctx)
            except (ValueError, OverflowError) as error:
                alone.failed(record, error, again=False)

    @staticmethod
    def _remember(record: Record, key: str, fields: list[Any], ctx: PartitionContext) -> None:
        before, stored = ctx.state.get(key), as_stored(fields)
        if before != stored:
            ctx.state.set(key, stored)
            ctx.emit(record, (key, *fields))

    @staticmethod
    def _fields(value: Any, raw: bytes | None, names: list[str] | None) -> list[Any]:
        if names is None:
            return [(raw or b"").decode()]
        return [value.get(name) for name in names] if isinstance(value, dict) else [None] * len(names)

    def _forget(self, record: Record, columns: int, ctx: PartitionContext) -> None:
        if record.key is None:
            raise ValueError("the record has neither a value nor a key that it would forget")
        if (key := record.key.decode()) in ctx.state:
            ctx.state.delete(key)
            ctx.emit(record, (key, *[None] * columns))


def as_stored(value: Any) -> Any:
    """The value as state gives it back: a date or a decimal as text, for example."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value))
