"""`ctx.commit` that would lose rows, or that cannot be meant as it is written, is refused, and nothing is saved."""

from __future__ import annotations

import pytest

from actorproc import errors
from actorproc.handler.base import PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.records import Batch
from tests.partition.running import QUICK, Doubler, Run, numbers


@pytest.mark.parametrize(
    "other",
    [Batch.of("1", [b"1"], [100]), Batch.of("0", [b"1"], [103])],
    ids=["of another partition", "of a later batch"],
)
async def test_a_commit_of_a_foreign_record_is_refused(other: Batch) -> None:
    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            await ctx.commit(other[0])

    run = Run(Handler())
    with pytest.raises(
        errors.HandlerMisuse, match=r"ctx\.commit\(Record\(.*not of the batch at hand, Batch\('0', 100\.\.102"
    ):
        await run(numbers(1, 2, 3))
    assert not run.saved


async def test_a_commit_up_to_something_that_is_no_record_is_refused() -> None:
    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            await ctx.commit(batch.last)  # type: ignore[arg-type]

    says = r"an int was given in place of a record: ctx\.commit\(record\) commits up to it"
    with pytest.raises(errors.HandlerMisuse, match=says):
        await Run(Handler())(numbers(1, 2, 3))


async def test_a_commit_with_too_many_dead_letters_stops_the_partition() -> None:
    class Losing(PartitionHandler):
        output_schema = "n long"

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                if ctx.attempt == 1 and record.json() % 2:
                    ctx.dead_letter(record, "a look-up took too long")
                else:
                    ctx.emit(record, {"n": record.json()})
            await ctx.commit()

    run = Run(Losing(), QUICK.model_copy(update={"dead_letter_limit": 0.1}))
    with pytest.raises(errors.TooManyDeadLetters, match="no more of this batch is committed"):
        await run(numbers(*range(100)))
    assert run.saved == []
