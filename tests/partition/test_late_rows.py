"""Rows emitted after `process` has returned are refused, and told as lost where they are."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, ClassVar

import anyio
import pyarrow as pa
import pytest
import structlog

from actorproc import errors
from actorproc.handler.base import PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.records import Batch, Record
from tests.partition.running import Doubler, Run, column, numbers


async def test_emitting_after_process_returned_is_refused() -> None:
    kept: list[PartitionContext] = []

    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            kept.append(ctx)

    batch = numbers(1)
    await Run(Handler())(batch)
    with pytest.raises(errors.HandlerError, match="after process"):
        kept[0].emit(batch[0], {"n": 1})


async def test_a_row_emitted_while_the_rows_are_encoded_is_refused_and_not_lost() -> None:
    refused: list[str] = []

    class Handler(PartitionHandler):
        output_schema = "n long"

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            async def later() -> None:
                try:
                    ctx.emit(batch[0], {"n": -1})
                except errors.HandlerError as error:
                    refused.append(str(error))

            ctx.emit_each(batch, [{"n": record.json()} for record in batch])
            self.task = asyncio.create_task(later())

    outcome = await Run(Handler())(numbers(*range(60_000)))  # so many that they are encoded in a thread
    assert len(column(outcome, "n")) == 60_000
    assert len(refused) == 1
    assert "after process() had returned" in refused[0]


async def test_what_is_emitted_too_late_where_nobody_sees_the_error_is_in_the_log_once() -> None:
    class Leaving(PartitionHandler):
        output_schema = "n long"
        left: ClassVar[list[asyncio.Task[None]]] = []

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            async def late(record: Record) -> None:
                await anyio.wait_all_tasks_blocked()
                ctx.emit(record, {"n": 1})

            self.left.extend(asyncio.ensure_future(late(record)) for record in batch)

    with structlog.testing.capture_logs() as logs:
        await Run(Leaving())(numbers(1, 2))
        await asyncio.gather(*Leaving.left, return_exceptions=True)
    assert [entry["event"] for entry in logs] == ["partition.emitted_too_late"]


async def test_a_plain_handler_whose_partition_is_lost_meanwhile_is_refused_and_not_blamed_in_the_log() -> None:
    class Slow(PartitionHandler):
        output_schema = "n long"
        begun, go_on, over = threading.Event(), threading.Event(), threading.Event()
        refusal = ""

        def process(self, batch: Batch, ctx: PartitionContext) -> None:
            self.begun.set()
            self.go_on.wait(30)
            try:
                ctx.emit(batch[0], {"n": 1})
            except errors.HandlerError as error:
                type(self).refusal = str(error)
            finally:
                self.over.set()

    with structlog.testing.capture_logs() as logs:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Run(Slow()), numbers(1))
            await anyio.to_thread.run_sync(Slow.begun.wait, 30)
            tasks.cancel_scope.cancel()
        Slow.go_on.set()
        await anyio.to_thread.run_sync(Slow.over.wait, 30)
    assert "no longer run here" in Slow.refusal
    assert logs == []


@pytest.mark.parametrize("failed", [False, True])
async def test_rows_that_come_too_late_are_lost_only_where_their_records_are_done(failed: bool) -> None:
    stragglers: list[asyncio.Task[None]] = []

    class Impatient(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            async def late() -> None:
                await anyio.sleep(0.05)
                ctx.emit(batch[0], {"n": 1})

            if ctx.attempt == 1:
                stragglers.append(asyncio.ensure_future(late()))
                if failed:
                    ctx.fail(batch[0], TimeoutError("it is late"))
                return
            ctx.emit(batch[0], {"n": 7})

    run = Run(Impatient())
    outcome = await run(numbers(7))
    await asyncio.wait(stragglers)
    assert all(isinstance(straggler.exception(), errors.HandlerError) for straggler in stragglers)
    assert column(outcome, "n") == ([7] if failed else [])
    assert len(run.lost) == (0 if failed else 1)


async def test_rows_that_come_too_late_for_a_record_that_is_done_are_lost_though_another_is_tried_again() -> None:
    stragglers: list[asyncio.Task[None]] = []

    class Impatient(Doubler):
        failing, late = 100, 100

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            async def straggler(record: Record) -> None:
                await anyio.sleep(0.05)
                ctx.emit(record, {"n": 1})

            for record in batch:
                if ctx.attempt == 1 and record.sequence == self.late:
                    stragglers.append(asyncio.ensure_future(straggler(record)))
                if ctx.attempt == 1 and record.sequence == self.failing:
                    ctx.fail(record, TimeoutError("it is late"))

    for late in (100, 101):
        Impatient.late = late
        run = Run(Impatient())
        await run(numbers(7, 8))
        await asyncio.wait(stragglers)
        assert len(run.lost) == (1 if late == 101 else 0)


async def test_rows_that_come_too_late_for_what_a_failed_attempt_has_committed_are_lost() -> None:
    stragglers: list[asyncio.Task[None]] = []

    class Impatient(Doubler):
        late = 0

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            async def straggler() -> None:
                await anyio.sleep(0.05)
                ctx.emit_arrow(pa.table({"n": [1], "attempt": [1], "_sequence": [batch.first + self.late]}))

            if ctx.attempt == 1:
                stragglers.append(asyncio.ensure_future(straggler()))
                await ctx.commit(batch[0])
                raise ValueError("fails once")

    for late in (0, 1):
        Impatient.late = late
        run = Run(Impatient())
        await run(numbers(7, 8))
        await asyncio.wait(stragglers)
        assert len(run.lost) == 1 - late


@pytest.mark.parametrize(
    "given",
    [pa.table({"n": [1]}), pa.table({"n": [1, 2], "attempt": [1, 1], "_sequence": [None, 100]}), {"n": 1}],
    ids=["no sequences", "a null", "no table"],
)
async def test_late_columns_are_refused_like_rows_whatever_they_are(given: Any) -> None:
    refused: list[asyncio.Task[None]] = []

    class Impatient(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            async def straggler() -> None:
                await anyio.sleep(0.05)
                ctx.emit_arrow(given)

            refused.append(asyncio.ensure_future(straggler()))

    run = Run(Impatient())
    await run(numbers(7))
    await asyncio.wait(refused)
    assert isinstance(refused[0].exception(), errors.HandlerError)
    assert len(run.lost) == 1


async def test_late_rows_of_a_record_that_was_given_up_are_dropped_and_not_lost() -> None:
    stragglers: list[asyncio.Task[None]] = []

    class Impatient(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            async def straggler() -> None:
                await anyio.sleep(0.05)
                ctx.emit(batch[0], {"n": 1})

            stragglers.append(asyncio.ensure_future(straggler()))
            ctx.dead_letter(batch[0], "no")

    run = Run(Impatient())
    await run(numbers(7, 8))
    await asyncio.wait(stragglers)
    assert run.lost == []
