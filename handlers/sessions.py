"""`Sessions`: one row per session of a key, which ends when nothing of the key has come for a while."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import repeat, zip_longest
from typing import Any

import pyarrow as pa
from msgspec import Struct
from pydantic import Field

from actorproc.config.settings import Seconds
from actorproc.handler.base import PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.handler.info import PartitionInfo
from actorproc.handler.keyed_state import Key
from actorproc.handler.one_by_one import OneByOne
from actorproc.handler.wake_context import WakeContext
from actorproc.handlers.keyed import KeyOptions, keyed, record_key_of, time_of
from actorproc.records import Batch, Record

_TIME = pa.timestamp("us", "UTC")
_COLUMNS = pa.schema([("key", pa.string()), ("start", _TIME), ("end", _TIME), ("records", pa.int64())])


class SessionOptions(KeyOptions):
    """Options of Sessions."""

    gap: Seconds = Field(1800, description="A session ends when its key has had no record for this long.")
    sum: list[str] = Field([], description="Numeric fields of the value to add up: a column for each.")


class Session(Struct, array_like=True):
    """An open session of a key."""

    start: datetime
    end: datetime
    records: int
    sums: list[float]

    def row(self, key: str, sums: int) -> tuple[Any, ...]:
        """`sums`: how many there are today. One that was added to the options since counts from 0."""
        return (key, self.start, self.end, self.records, *self.sums, *repeat(0.0, sums - len(self.sums)))


class Sessions(PartitionHandler):
    """Emits a row for each session of a key: `key`, `start`, `end`, `records`, and the sums of some fields.

    Time is that of the records. A record that comes late extends the open session backwards, if it is within the gap
    of it; else it is a session of its own. So is a record right at the end of the gap, where the timer fires.
    """

    Options = SessionOptions
    State = Session

    @classmethod
    def schema_for(cls, options: Any) -> pa.Schema:
        return pa.schema([*_COLUMNS, *(pa.field(name, pa.float64()) for name in options.sum)])

    def record_key(self, key: Key, ctx: PartitionInfo) -> str | None:
        """See `PartitionHandler`."""
        return record_key_of(key, ctx)

    def process(self, batch: Batch, ctx: PartitionContext) -> None:
        """Add each record to the session of its key."""
        fields: list[str] = ctx.options.sum
        gap, alone = timedelta(seconds=ctx.options.gap), OneByOne(ctx)
        for record, key, value in keyed(batch, ctx, ctx.options.key, decode=bool(fields)):
            alone.begin()
            try:
                time, numbers = time_of(record), [_number(value, name) for name in fields]
                self._add(record, key, Session(time, time, 1, numbers), gap, ctx)
            except (ValueError, OverflowError) as error:  # a time near the year 9999 overflows
                alone.failed(record, error, again=False)

    def _add(self, record: Record, key: str, new: Session, gap: timedelta, ctx: PartitionContext) -> None:
        held: Session | None = ctx.state.get(key)
        if held is not None and new.end <= held.start - gap:
            ctx.emit(record, new.row(key, len(new.sums)))
            return
        if held is not None and new.start >= held.end + gap:  # its timer has not fired yet
            ctx.emit(record, held.row(key, len(new.sums)))
            held = None
        if held is not None:
            sums = [a + b for a, b in zip_longest(held.sums, new.sums, fillvalue=0.0)]
            new = Session(min(held.start, new.start), max(held.end, new.end), held.records + 1, sums)
        ctx.state.set(key, new)
        ctx.wake(key, new.end + gap)

    def on_wake(self, key: Any, ctx: WakeContext) -> tuple[Any, ...]:
        """The session has ended."""
        session: Session = ctx.state[key]
        ctx.state.delete(key)
        return session.row(key, len(ctx.options.sum))


def _number(value: Any, field: str) -> float:
    found = value.get(field) if isinstance(value, dict) else None
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise ValueError(f"field {field!r}, which the option sum names, is {found!r:.80}, not a number")  # noqa: TRY004
    return float(found)
