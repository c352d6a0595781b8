"""Visits of a shop: pages and spent money of each one. A visit ends after a purchase, or 30 minutes without a click.

    actorproc produce --log clicks --partitions 4 --key user FILE.jsonl     # {"user": "a", "page": "/", "cents": 0}
    actorproc serve examples.sessions:Visits --source clicks --container state --set stream_idle_time=5s
    actorproc state show --name Visits --container state
    actorproc dead-letters list --name Visits --container state

Add `--option minutes=0.5` to see visits end soon: an idle partition's time goes on after `stream_idle_time`.

Clicks that are no JSON, lack a field or have a wrong price become dead letters; the visits go on without them. Time is
that of the records. So the rows are the same whenever, and on whichever host, they are processed.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

import msgspec
from pydantic import BaseModel, PositiveFloat

from actorproc import PartitionContext, RecordHandler, WakeContext

Row = tuple[str, datetime, datetime, int, int]


class Click(msgspec.Struct):
    """`user` is also the record's key: otherwise the clicks of a visit would be in several partitions."""

    user: str
    page: str
    cents: Annotated[int, msgspec.Meta(ge=0, le=10**9)] = 0


class Visit(msgspec.Struct):
    """An open visit."""

    start: datetime
    end: datetime
    pages: int = 0

    def row(self, user: str, cents: int = 0) -> Row:
        return user, self.start, self.end, self.pages, cents


class Visits(RecordHandler[Click]):
    """One row per visit that is over."""

    class Options(BaseModel):
        """`minutes` without a click end a visit."""

        minutes: PositiveFloat = 30

    State = Visit
    output_schema = "user string NOT NULL, start timestamp, end timestamp, pages int NOT NULL, cents bigint NOT NULL"

    def process_record(self, click: Click, ctx: PartitionContext) -> list[Row]:
        time = self.record.timestamp
        if time is None:
            raise ValueError("the record has no timestamp")
        gap = timedelta(minutes=ctx.options.minutes)
        over: list[Row] = []
        visit = ctx.state.get(click.user)
        if visit and time >= visit.end + gap:  # its timer fires after the batch, which is too late
            over.append(visit.row(click.user))
            visit = None
        visit = visit or Visit(time, time)
        visit.end, visit.pages = max(time, visit.end), visit.pages + 1
        if click.cents:
            ctx.state.delete(click.user)
            ctx.cancel_wake(click.user)
            return [*over, visit.row(click.user, click.cents)]
        ctx.state.set(click.user, visit)
        ctx.wake(click.user, visit.end + gap)
        return over

    def on_wake(self, user: Any, ctx: WakeContext) -> Row:
        visit: Visit = ctx.state[user]
        ctx.state.delete(user)
        return visit.row(user)
