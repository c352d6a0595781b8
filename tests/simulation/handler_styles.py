"""Reference handlers in the styles in which users write handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from random import Random
from typing import Any, ClassVar

import anyio
import pyarrow as pa

from actorproc.errors import ActorprocError
from actorproc.handler.base import PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.handlers.record_handler import RecordHandler
from actorproc.records import Batch, Record
from actorproc.rows.encoder import Row
from actorproc.runtime.clock import SYSTEM
from tests.simulation.reference_records import (
    SCHEMA,
    Attempt,
    PlannedResult,
)

FLAKY = 0.02
"""Share of batches at whose end the handler raises, although all was well. Not in an attempt that may be the last."""

COMMITS = 0.03
"""Share of records after which a handler that commits itself does so."""

LONGEST_WAIT = 5.0
"""Seconds that `ctx.map` awaits for one record; most take much less."""


class Reference(PartitionHandler):
    """Base class of the reference handlers."""

    output_schema = SCHEMA

    @staticmethod
    def durable(partition: str, upto: int) -> None:
        """Override: called with the sequence up to which `ctx.commit` made everything durable."""

    def grant(self, record: Record, plan: PlannedResult, ctx: PartitionContext, emitted: int = 0) -> None:
        """Emit the rows of the plan, except the first `emitted`, and end the record."""
        rows = plan.rows[emitted:]
        ctx.emit_many(record, [tuple(row.values()) for row in rows] if plan.number % 3 else rows)
        self.end_record(record, plan, ctx)

    def end_record(self, record: Record, plan: PlannedResult, ctx: PartitionContext) -> None:
        """Fail or dead-letter the record, if that is its plan."""
        if plan.kind == "letter":
            ctx.dead_letter(record, "the record asked for it")
        elif plan.kind == "fail":
            error = ValueError(f"record {record.sequence} fails")
            if plan.number % 2:
                raise error
            ctx.fail(record, error)

    def end(self, attempt: Attempt, ctx: PartitionContext) -> None:
        """Finish the batch: some attempts fail at the end."""
        if ctx.attempt < 3 and attempt.draw("end") < FLAKY:
            raise RuntimeError("the batch fails at its end")


async def leave_cancellation_behind() -> None:
    """Run a task group that fails. Before Python 3.13 it leaves a cancellation request in its task."""

    async def fail() -> None:
        raise ValueError("one of the group")

    with suppress(ExceptionGroup):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())


class Loop(Reference):
    """Emits record by record; some records run a task group that fails."""

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        attempt = Attempt(ctx)
        for record in batch:
            plan = attempt.plan(record)
            if plan.number % 4 == 0:
                await leave_cancellation_behind()
            await SYSTEM.sleep(plan.wait)
            self.grant(record, plan, ctx)
        self.end(attempt, ctx)


class Plain(Reference):
    """Emits record by record in a plain `def process`."""

    def process(self, batch: Batch, ctx: PartitionContext) -> None:
        attempt = Attempt(ctx)
        for record in batch:
            self.grant(record, attempt.plan(record), ctx)
        self.end(attempt, ctx)


class Committing(Reference):
    """Commits within the batch, and may raise after that."""

    at_end: ClassVar[float] = 0.1
    """Share of batches that end with a commit."""
    commits: ClassVar[float] = COMMITS
    """Share of records after which it commits."""

    def may_commit(self, record: Record, batch: Batch) -> bool:
        """Whether the batch may be committed up to this record."""
        return True

    def __init__(self) -> None:
        self._seen = -1

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        attempt = Attempt(ctx)
        # A commit reaches its record only if no earlier record waits for a retry.
        sure = batch.first > self._seen
        self._seen = max(self._seen, batch.last)
        for record in batch:
            plan = attempt.plan(record)
            await SYSTEM.sleep(plan.wait)
            self.grant(record, plan, ctx)
            sure = sure and plan.kind not in ("fail", "misfit")
            if (
                self.may_commit(record, batch)
                and await commit_now_and_then(attempt, record, ctx, share=self.commits)
                and sure
            ):
                self.durable(ctx.partition, record.sequence)
        self.end(attempt, ctx)
        if attempt.draw("commit") < self.at_end:
            await ctx.commit()
            if sure:
                self.durable(ctx.partition, batch.last)


class Concurrent(Reference):
    """Works on many records concurrently; emits rows before and after the wait, or a table."""

    commits: ClassVar[bool] = False
    """Whether it also commits within the work."""
    at_end: ClassVar[float] = 0.0
    """Share of batches that end with a commit."""

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        attempt = Attempt(ctx)

        async def work(record: Record) -> None:
            plan = attempt.plan(record)
            as_table = plan.number % 4 == 0
            if not as_table:
                ctx.emit_many(record, plan.rows[:1])
            if self.commits:
                await commit_now_and_then(attempt, record, ctx, within_map=True)
            await SYSTEM.sleep(plan.wait + LONGEST_WAIT * attempt.draw(plan.number, "wait") ** 6)
            if as_table:
                ctx.emit_arrow(table_of([record.sequence] * len(plan.rows), plan.rows))
                self.end_record(record, plan, ctx)
            else:
                self.grant(record, plan, ctx, emitted=1)
            if self.commits:
                await commit_now_and_then(attempt, record, ctx, "again", within_map=True)

        await ctx.map(batch, work, concurrency=4 if attempt.draw("few") < 0.5 else 32)
        self.end(attempt, ctx)
        if attempt.draw("commit") < self.at_end:
            await ctx.commit()


class Columns(Reference):
    """Emits tables of multiplied and dropped records in any order, with occasional commits between them."""

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        attempt = Attempt(ctx)
        middle = int(attempt.draw("middle") * len(batch))
        for piece in (batch[:middle], batch[middle:]):
            if not len(piece):
                continue
            plans = [attempt.plan(record) for record in piece]
            for table in self._tables(piece, plans, Random(f"{attempt.name}/{middle}")):
                ctx.emit_arrow(table)
            for record, plan in zip(piece, plans, strict=True):
                self.end_record(record, plan, ctx)
            if attempt.draw("commit") < 0.2:
                await ctx.commit(piece[-1])
        self.end(attempt, ctx)

    def _tables(self, piece: Batch, plans: list[PlannedResult], random: Random) -> Iterable[pa.Table]:
        order = random.sample(range(len(piece)), len(piece))
        indices = pa.array([i for i in order for _ in plans[i].rows], pa.int64())
        sequences = piece.to_arrow().column("_sequence").take(indices)
        table = table_of(sequences, [row for i in order for row in plans[i].rows])
        cut = random.randrange(len(table) + 1)
        return table[:cut], table[cut:]


def table_of(sequences: Any, rows: list[dict[str, Any]]) -> pa.Table:
    """The rows as columns. `sequences` has the record's sequence for each row."""
    columns = {name: pa.array([row[name] for row in rows]) for name in (rows[0] if rows else ())}
    return pa.table({"_sequence": pa.chunked_array([], pa.int64()) if not rows else sequences, **columns})


class Records(RecordHandler):
    """Returns rows in every form that `process_record` allows."""

    output_schema = SCHEMA

    def process_record(self, record: Record, ctx: PartitionContext) -> Any:
        return returned(Attempt(ctx).plan(record), record, ctx)


class AwaitedRecords(RecordHandler):
    """Returns rows in every form, for several records concurrently."""

    output_schema = SCHEMA
    concurrency = 8

    async def process_record(self, record: Record, ctx: PartitionContext) -> Any:
        attempt = Attempt(ctx)
        plan = attempt.plan(record)
        await SYSTEM.sleep(plan.wait + LONGEST_WAIT * attempt.draw(plan.number, "wait") ** 6)
        return returned(plan, record, ctx)


def returned(plan: PlannedResult, record: Record, ctx: PartitionContext) -> Row | Iterable[Row] | None:
    """The value that `process_record` returns for a plan."""
    if plan.kind == "letter":
        ctx.dead_letter(record, "the record asked for it")
    elif plan.kind == "fail":
        if plan.number % 3 == 0:
            return failing(plan.rows)
        if plan.number % 3 == 1:
            ctx.fail(record, ValueError("fails"))
        else:
            raise ValueError("fails")
    match plan.rows:
        case []:
            return None
        case [row]:
            return row if plan.number % 3 else tuple(row.values())
    return plan.rows if plan.number % 2 else iter(plan.rows)


def failing(rows: list[dict[str, Any]]) -> Iterable[Row]:
    """Yield rows, then raise."""
    yield from rows
    raise ValueError("fails midway")


async def commit_now_and_then(
    attempt: Attempt,
    record: Record,
    ctx: PartitionContext,
    when: str = "",
    *,
    within_map: bool = False,
    share: float = COMMITS,
) -> bool:
    """Commit in one of the careful and careless ways of users. Returns whether it reached `record` for sure."""
    drawn = attempt.draw(record.sequence, "commit", when) / share
    if drawn < 0.6:
        await ctx.commit(record)
    elif drawn < 0.9:
        await ctx.commit(None if within_map else record)
    elif drawn < 0.95:
        with suppress(ActorprocError):  # a lost partition must stop all the same
            await ctx.commit(record)
            return True
        return False
    elif drawn < 0.98:
        with anyio.move_on_after(drawn - 0.94):
            await ctx.commit(record)
            return True
        return False
    elif drawn < 1:
        _begun.add(task := asyncio.ensure_future(ctx.commit(record)))
        task.add_done_callback(_forgotten)
        return False
    return drawn < 1


_begun: set[asyncio.Future[None]] = set()


def _forgotten(task: asyncio.Future[None]) -> None:
    """Take the error of a commit that nothing awaits."""
    _begun.discard(task)
    if not task.cancelled():
        task.exception()
