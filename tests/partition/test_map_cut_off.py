"""`ctx.map` under a handler's own time limit: the outcome of records that were cut off."""

from __future__ import annotations

import asyncio
import contextlib

import anyio
import pytest

from actorproc.handler.context import PartitionContext
from actorproc.records import Batch, Record
from tests.partition.running import QUICK, Doubler, Run, column, letters, numbers


async def test_a_handler_may_give_a_map_only_so_much_time() -> None:
    done: set[int] = set()

    async def work(record: Record) -> None:
        await anyio.sleep(0 if record.json() == 1 else 3600)
        done.add(record.sequence)

    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            with anyio.move_on_after(0.5):
                await ctx.map(batch, work)
            for record in batch:
                if record.sequence not in done:
                    ctx.dead_letter(record, "too slow")

    outcome = await Run(Handler())(numbers(1, 2))
    assert list(letters(outcome)) == [101]


class CutOff(Doubler):
    """Maps a batch and is cut off while the calls for 3 and later numbers have emitted a row and wait."""

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        with anyio.CancelScope() as self.scope:
            await ctx.map(batch, lambda record: self.work(record, ctx))
        await self.then(batch, ctx)

    async def work(self, record: Record, ctx: PartitionContext) -> None:
        ctx.emit(record, {"n": record.json(), "attempt": ctx.attempt})
        if record.json() >= 3:
            self.scope.cancel()
            await anyio.sleep_forever()

    async def then(self, batch: Batch, ctx: PartitionContext) -> None: ...


async def test_unfinished_records_of_a_map_that_was_cut_off_have_failed_alone() -> None:
    class Once(CutOff):
        async def work(self, record: Record, ctx: PartitionContext) -> None:
            if ctx.attempt == 1 or record.json() == 4:
                await super().work(record, ctx)
            else:
                ctx.emit(record, {"n": 10 * record.json()})

    outcome = await Run(Once())(numbers(1, 2, 3, 4, 5))
    assert column(outcome, "n") == [1, 2, 30, 50]
    assert list(letters(outcome)) == [103]
    assert "ctx.map was cut off before its call for this record had ended" in letters(outcome)[103]["error"]["message"]


async def test_a_time_limit_of_asyncio_cuts_a_map_off() -> None:
    class Timed(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await ctx.map(batch, self.work)

        async def work(self, record: Record) -> None:
            if record.json() == 2:
                await anyio.sleep_forever()

    assert list(letters(await Run(Timed())(numbers(1, 2)))) == [101]


async def test_records_of_a_cut_off_map_may_be_given_up() -> None:
    class GivesUp(CutOff):
        async def then(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch[2:]:
                ctx.dead_letter(record, "late")
            await ctx.commit(batch[-1])

    run = Run(GivesUp())
    outcome = await run(numbers(1, 2, 3, 4))
    assert run.saved == [([1, 2], [102, 103], 103)]
    assert (column(outcome, "n"), letters(outcome)) == ([], {})


async def test_a_commit_stops_before_records_of_a_cut_off_map() -> None:
    class Commits(CutOff):
        async def then(self, batch: Batch, ctx: PartitionContext) -> None:
            await ctx.commit(batch[-1])

    run = Run(Commits(), QUICK.model_copy(update={"max_attempts": 1}))
    outcome = await run(numbers(1, 2, 3, 4))
    assert run.saved == [([1, 2], [], 101)]
    assert list(letters(outcome)) == [102, 103]


@pytest.mark.parametrize("where", ["within the call", "again"])
async def test_a_later_or_outer_map_finishes_a_record_that_was_cut_off(
    where: str,
) -> None:
    async def forever(record: Record) -> None:
        await anyio.sleep_forever()

    async def limited(record: Record, ctx: PartitionContext) -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await ctx.map([record], forever)

    class Patient(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            async def work(record: Record) -> None:
                if where == "within the call":
                    await limited(record, ctx)

            if where == "again":
                for record in batch:
                    await limited(record, ctx)
            await ctx.map(batch, work)
            await ctx.commit()

    run = Run(Patient())
    outcome = await run(numbers(1, 2))
    assert run.saved == [([], [], 101)]
    assert letters(outcome) == {}
