"""Rows emitted after `process` has returned are refused, and the partition notices them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import anyio
import pyarrow as pa
import pytest
import structlog

from actorproc import errors
from actorproc.handler.base import PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.records import Batch
from tests.partition.running import Doubler, Run, column, numbers


@pytest.mark.parametrize(
    "call",
    [
        lambda ctx, batch: ctx.emit(batch[0], {"n": 1}),
        lambda ctx, batch: ctx.emit_many(batch[0], [{"n": 1}]),
        lambda ctx, batch: ctx.emit_each(batch, [{"n": 1}]),
        lambda ctx, batch: ctx.emit_arrow(pa.table({"n": [1], "_sequence": [100]})),
        lambda ctx, batch: ctx.dead_letter(batch[0], "no"),
        lambda ctx, batch: ctx.fail(batch[0], ValueError()),
        lambda ctx, batch: ctx.map(batch, anyio.sleep),
        lambda ctx, batch: asyncio.run(ctx.commit()),
    ],
)
def test_a_context_takes_nothing_after_process_has_returned(call: Callable[[PartitionContext, Batch], object]) -> None:
    kept: list[PartitionContext] = []

    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            kept.append(ctx)

    batch = numbers(1)
    asyncio.run(Run(Handler())(batch))
    with pytest.raises(errors.HandlerError, match=r"process\(\) has returned"):
        call(kept[0], batch)


async def test_a_row_emitted_while_the_rows_are_encoded_is_refused() -> None:
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


async def test_late_rows_are_logged_once_and_noticed_by_the_partition() -> None:
    stragglers: list[asyncio.Task[None]] = []

    class Leaving(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            async def straggler() -> None:
                await anyio.wait_all_tasks_blocked()
                for record in batch:
                    ctx.emit(record, {"n": 1})

            stragglers.extend(asyncio.ensure_future(straggler()) for _ in range(2))

    run = Run(Leaving())
    with structlog.testing.capture_logs() as logs:
        await run(numbers(1, 2))
        assert not run.processor.calls.late.is_set()
        await asyncio.gather(*stragglers, return_exceptions=True)
    assert [entry["event"] for entry in logs] == ["partition.emitted_too_late"]
    assert run.processor.calls.late.is_set()


async def test_late_rows_of_an_attempt_that_failed_are_refused_but_not_lost() -> None:
    stragglers: list[asyncio.Task[None]] = []

    class Failing(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            async def straggler() -> None:
                await anyio.wait_all_tasks_blocked()
                ctx.emit(batch[0], {"n": 1})

            if ctx.attempt == 1:
                stragglers.append(asyncio.ensure_future(straggler()))
                raise TimeoutError("too slow")
            ctx.emit(batch[0], {"n": 7})

    run = Run(Failing())
    assert column(await run(numbers(7)), "n") == [7]
    await asyncio.wait(stragglers)
    assert isinstance(stragglers[0].exception(), errors.HandlerError)
    assert not run.processor.calls.late.is_set()


async def test_rows_of_a_cut_off_plain_handler_are_refused_quietly() -> None:
    class Slow(PartitionHandler):
        output_schema = "n long"
        begun, go_on, over = threading.Event(), threading.Event(), threading.Event()
        refusal: Any = ""

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
    assert "no longer runs here" in Slow.refusal
    assert logs == []
