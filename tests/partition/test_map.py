"""`ctx.map` works on many records at once; an error fails only its own record."""

from __future__ import annotations

import anyio

from actorproc.handler.context import PartitionContext
from actorproc.records import Batch, Record
from tests.partition.running import QUICK, Doubler, Run, column, letters, numbers


async def test_map_fails_records_alone_and_keeps_their_order() -> None:
    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            async def work(record: Record) -> int:
                await anyio.lowlevel.checkpoint()
                return 10 // int(record.json())

            for record, result in zip(batch, await ctx.map(batch, work, concurrency=3), strict=True):
                ctx.emit(record, {"n": result})

    outcome = await Run(Handler())(numbers(5, 0, 2, 1))
    assert column(outcome, "n") == [2, 5, 10]
    assert letters(outcome)[101]["error"]["type"] == "ZeroDivisionError"
    assert letters(outcome)[101]["attempts"] == QUICK.max_attempts


async def test_commit_stops_short_of_records_that_map_still_works_on() -> None:
    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            async def work(record: Record) -> None:
                if record.json() == 2:
                    await anyio.wait_all_tasks_blocked()
                ctx.emit(record, {"n": record.json()})
                await ctx.commit(record)

            await ctx.map(batch, work)

    run = Run(Handler())
    outcome = await run(numbers(1, 2, 3, 4))
    saved = [n for rows, _, _ in run.saved for n in rows]
    assert saved + column(outcome, "n") == [1, 2, 3, 4]
    assert all(upto < 101 or 2 in rows or index for index, (rows, _, upto) in enumerate(run.saved))


async def test_an_exit_within_map_fails_its_record() -> None:
    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            async def leave(record: Record) -> None:
                if record.json() == 3:
                    raise SystemExit(1)

            await ctx.map(batch, leave)

    assert list((await Run(Handler())(numbers(*range(5)))).letters) == [103]


async def test_a_failed_record_keeps_its_first_reason() -> None:
    class Emits(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record, row in zip(batch, await ctx.map(batch, self.work), strict=True):
                ctx.emit(record, row)  # type: ignore[arg-type]

        async def work(self, record: Record) -> dict[str, int]:
            if record.json() == 2:
                raise ValueError("price service says no")
            return {"n": record.json()}

    outcome = await Run(Emits())(numbers(1, 2, 3))
    assert column(outcome, "n") == [1, 3]
    assert letters(outcome)[101]["error"]["message"] == "price service says no"


async def test_an_inner_map_does_not_finish_the_record_of_the_outer_one() -> None:
    class Nested(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            async def parse(record: Record) -> int:
                return int(record.json())

            async def work(record: Record) -> None:
                (number,) = await ctx.map([record], parse)
                if record.sequence % 2 == 0:
                    await anyio.wait_all_tasks_blocked()
                ctx.emit(record, {"n": number})
                await ctx.commit(record)

            await ctx.map(batch, work, concurrency=4)

    run = Run(Nested())
    outcome = await run(numbers(*range(20)))
    assert [n for rows, _, _ in run.saved for n in rows] + column(outcome, "n") == list(range(20))
