"""Mistakes of the handler's own code are found and said, instead of blamed on records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import anyio
import pytest

from actorproc import errors
from actorproc.handler.base import PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.records import Batch, Record
from tests.partition.running import QUICK, Doubler, Run, letters, numbers


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("threaded", [False, True])
async def test_a_map_that_is_not_awaited_stops_the_partition(threaded: bool) -> None:
    async def work(record: Record) -> None: ...

    class Awaits(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            ctx.map(batch, work)  # type: ignore[unused-coroutine]

    class Plain(PartitionHandler):
        output_schema = "n long"

        def process(self, batch: Batch, ctx: PartitionContext) -> None:
            ctx.map(batch, work)  # type: ignore[unused-coroutine]

    with pytest.raises(errors.HandlerMisuse, match=r"ctx\.map was called and not awaited"):
        await Run(Plain() if threaded else Awaits())(numbers(1, 2))


async def test_a_map_that_is_left_running_stops_the_partition() -> None:
    go_on, tasks = anyio.Event(), []

    async def work(record: Record) -> int:
        await go_on.wait()
        return record.sequence

    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            tasks.append(asyncio.create_task(ctx.map(batch, work)))
            await asyncio.sleep(0)

    with pytest.raises(errors.HandlerMisuse, match=r"ctx\.map was called and not awaited"):
        await Run(Handler())(numbers(1, 2))
    go_on.set()
    assert await tasks[0] == [100, 101]


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
async def test_a_failure_beside_an_unawaited_map_keeps_its_own_error() -> None:
    async def work(record: Record) -> None: ...

    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            ctx.map(batch, work)  # type: ignore[unused-coroutine]
            raise ValueError("first")

    outcome = await Run(Handler())(numbers(1))
    assert letters(outcome)[100]["error"]["message"] == "first"


@pytest.mark.parametrize("where", ["task group", "map"])
async def test_a_misuse_is_found_in_a_group_of_errors(where: str) -> None:
    class Mistaken(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            async def emit(record: Record) -> None:
                ctx.emit({"n": 1}, record)  # type: ignore[arg-type]  # the record comes first

            async def all_of_them(_: Record) -> None:
                async with asyncio.TaskGroup() as tasks:
                    for record in batch:
                        tasks.create_task(emit(record))

            await (all_of_them(batch[0]) if where == "task group" else ctx.map(batch[:1], all_of_them))

    with pytest.raises(errors.HandlerMisuse, match="the record comes first"):
        await Run(Mistaken())(numbers(1, 2))


@pytest.mark.parametrize("plain", [False, True])
async def test_threads_that_emit_at_once_stop_the_partition(
    plain: bool,
) -> None:
    def beside(ctx: PartitionContext, batch: Batch) -> None:
        ctx._buffer._busy.acquire()  # as another thread has it
        with pytest.raises(errors.HandlerMisuse):
            ctx.emit_each(batch, [{"n": 1}] * len(batch))

    class Pool(PartitionHandler):
        output_schema = "n long"

        def process(self, batch: Batch, ctx: PartitionContext) -> None:
            beside(ctx, batch)

    class Coroutine(PartitionHandler):
        output_schema = "n long"

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            await asyncio.to_thread(beside, ctx, batch)

    with pytest.raises(errors.HandlerMisuse, match="by several threads at once: collect what they make"):
        await Run(Pool() if plain else Coroutine())(numbers(*range(600)))


@pytest.mark.parametrize("give", ["work, batch", "batch, coroutine"])
async def test_a_map_without_a_function_stops_the_partition(give: str) -> None:
    async def work(record: Record) -> None: ...

    class Wrong(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            made = work(batch[0])
            given: list[Any] = [work, batch] if give == "work, batch" else [batch, made]
            try:
                await ctx.map(*given)
            finally:
                made.close()

    with pytest.raises(
        errors.HandlerMisuse, match=r"ctx\.map takes the batch, then a function .* await ctx\.map\(batch,"
    ):
        await Run(Wrong())(numbers(1))


@pytest.mark.parametrize("threaded", [False, True])
async def test_rows_that_process_returns_stop_the_partition(threaded: bool) -> None:
    class Returning(PartitionHandler):
        output_schema = "n long"

        async def process(self, batch: Batch, ctx: PartitionContext) -> Any:
            return [{"n": 1}]

    class Threaded(Returning):
        def process(self, batch: Batch, ctx: PartitionContext) -> Any:
            return [{"n": 1}]

    with pytest.raises(
        errors.HandlerMisuse, match=r"process returned a list: emit rows with ctx\.emit\(record, row\), and"
    ):
        await Run(Threaded() if threaded else Returning())(numbers(7))


async def test_a_plain_process_that_returns_a_coroutine_stops_the_partition() -> None:
    class Wrapped(Doubler):
        def process(self, batch: Batch, ctx: PartitionContext) -> Any:
            return super().process(batch, ctx)

    with pytest.raises(errors.HandlerMisuse, match="process returned a coroutine"):
        await Run(Wrapped())(numbers(7))


class Reading(NamedTuple):
    sequence: int


@pytest.mark.parametrize("row", [{"n": 1}, (1, 100, b"x"), Reading(100)])
@pytest.mark.parametrize("call", ["emit", "emit_many", "emit_each"])
async def test_a_row_in_place_of_the_record_is_named(call: str, row: object) -> None:
    class Swapped(PartitionHandler):
        output_schema = "n long"

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                getattr(ctx, call)([row] if call == "emit_each" else row, [record])

    given = f"a {type(row).__name__} was given in place of a record: the record comes first"
    with pytest.raises(errors.HandlerMisuse, match=given):
        await Run(Swapped())(numbers(7))


@pytest.mark.parametrize(
    "say",
    [
        lambda ctx, record, batch: ctx.emit(record, {"n": 1}),
        lambda ctx, record, batch: ctx.emit_many(record, [{"n": 1}]),
        lambda ctx, record, batch: ctx.emit_each([record], [{"n": 1}]),
        lambda ctx, record, batch: ctx.emit_each(batch, [{"n": 1}]),
        lambda ctx, record, batch: ctx.dead_letter(record, "no"),
        lambda ctx, record, batch: ctx.fail(record, ValueError()),
    ],
)
async def test_a_record_of_another_partition_is_refused(
    say: Callable[[PartitionContext, Record, Batch], None],
) -> None:
    class Shared(PartitionHandler):
        output_schema = "n long"
        others = Batch.of("1", [b"other"], [100])  # as of a list of the class, which all partitions append to

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            ctx.emit(batch[0], {"n": 0})
            say(ctx, self.others[0], self.others)

    with pytest.raises(errors.HandlerMisuse, match="is of another partition than the batch at hand"):
        await Run(Shared())(numbers(7))


async def test_a_misuse_gives_up_records_only_at_most_once() -> None:
    class Undeclared(PartitionHandler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                ctx.emit(record, {"n": 1})

    with pytest.raises(errors.HandlerMisuse, match="the handler declares no output_schema"):
        await Run(Undeclared())(numbers(1, 2))
    outcome = await Run(Undeclared(), QUICK.model_copy(update={"delivery": "at-most-once"}))(numbers(1, 2))
    assert sorted(outcome.letters) == [100, 101]


async def test_a_plain_function_given_to_map_stops_the_partition() -> None:
    class Plain(PartitionHandler):
        output_schema = "n long"

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            work: Any = lambda record: {"n": record.json()}  # noqa: E731
            await ctx.map(batch, work)

    with pytest.raises(
        errors.HandlerMisuse, match=r"ctx\.map awaits what it is given; that returned a dict: write async def"
    ):
        await Run(Plain())(numbers(1, 2))
