"""`ctx.commit` within a batch: the rows it saves, up to which record, and the records left after it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import ClassVar

import anyio
import pyarrow as pa
import pytest
import structlog

from actorproc import errors
from actorproc.handler.base import PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.records import Batch
from tests.partition.running import QUICK, Doubler, Run, column, numbers


async def test_a_failure_after_a_commit_repeats_only_the_rest_of_the_batch() -> None:
    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            self.seen.append([r.json() for r in batch])
            for record in batch:
                if record.json() == 3 and ctx.attempt == 1:
                    raise OSError("later")
                ctx.emit(record, {"n": record.json()})
                if record.json() == 2:
                    await ctx.commit(record)

    handler = Handler()
    run = Run(handler)
    outcome = await run(numbers(1, 2, 3, 4))
    assert run.saved == [([1, 2], [], 101)]
    assert column(outcome, "n") == [3, 4]
    assert handler.seen == [[1, 2, 3, 4], [3, 4]]


async def test_commit_stops_short_of_a_record_that_has_failed() -> None:
    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                if record.json() == 2:
                    ctx.fail(record, ValueError("no"))
                else:
                    ctx.emit(record, {"n": record.json()})
            await ctx.commit()

    run, batch = Run(Handler()), numbers(1, 2, 3)
    outcome = await run(batch)
    assert run.saved[0] == ([1], [], 100)
    assert (column(outcome, "n"), list(outcome.letters)) == ([3], [101])
    assert run.processor.asked_for(batch, all_committed=False) == 102


async def test_an_empty_commit_saves_nothing() -> None:
    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            ctx.fail(batch[0], ValueError("not yet"))
            await ctx.commit()  # nothing before it is left
            if ctx.attempt == 1:
                return
            for record in batch:
                ctx.emit(record, {"n": record.json()})

    run = Run(Handler(), QUICK.model_copy(update={"max_attempts": 2}))
    await run(numbers(1))
    assert run.saved == []

    class InParts(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            self.seen.append(batch.sequences)
            if len(self.seen) == 1:
                ctx.emit(batch[0], {"n": 1})
                await ctx.commit(batch[0])
                raise OSError("away")
            if ctx.attempt == 2:
                ctx.fail(batch[0], ValueError("not yet"))
                await ctx.commit()
            for record in batch[1:]:
                ctx.emit(record, {"n": record.json()})

    run = Run(InParts())
    await run(numbers(1, 2, 3))
    assert run.saved == [([1], [], 100)]


async def test_a_failure_of_a_committed_record_is_logged() -> None:
    class Late(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                await ctx.commit(record)
                ctx.dead_letter(record, "too late")

    with structlog.testing.capture_logs() as logs:
        await Run(Late(), QUICK.model_copy(update={"max_attempts": 1}))(numbers(7))
    (told,) = (entry for entry in logs if entry["event"] == "partition.failed_after_commit")
    assert "record 100 fails after ctx.commit() had committed it as done" in told["error"]


@pytest.mark.parametrize("plain", [False, True])
async def test_a_failure_after_the_batch_was_committed_is_logged(plain: bool) -> None:
    class Late(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                ctx.emit(record, {"n": record.json()})
            await ctx.commit()
            raise ConnectionError("could not tell the other system")

    class LateInThread(Doubler):
        def process(self, batch: Batch, ctx: PartitionContext) -> None:  # type: ignore[override]
            for record in batch:
                ctx.emit(record, {"n": record.json()})
            anyio.from_thread.run(ctx.commit)
            raise ConnectionError("could not tell the other system")

    run = Run(LateInThread() if plain else Late())
    with structlog.testing.capture_logs() as logs:
        await run(numbers(7, 8))
    (told,) = (entry for entry in logs if entry["event"] == "partition.failed_after_commit")
    assert "could not tell the other system" in told["error"]
    assert run.saved == [([7, 8], [], 101)]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("begun", [False, True])
async def test_an_unawaited_commit_loses_and_repeats_no_row(begun: bool, fails: bool) -> None:
    class Hasty(PartitionHandler):
        output_schema = "n long"
        commits: ClassVar[list[asyncio.Task[None]]] = []

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                ctx.emit(record, {"n": record.json()})
                if record.sequence == 101:
                    self.commits.append(asyncio.create_task(ctx.commit(record)))
                    for _ in range(5 if begun else 0):
                        await anyio.sleep(0)
            if fails and ctx.attempt == 1:
                raise ValueError("fails once")

    run = Run(Hasty(), slow=20)
    outcome = await run(numbers(0, 1, 2, 3))
    await asyncio.gather(*Hasty.commits, return_exceptions=True)
    saved = [n for rows, _, _ in run.saved for n in rows]
    assert sorted(saved + column(outcome, "n")) == [0, 1, 2, 3]
    assert bool(saved) == begun


async def test_a_handler_that_has_read_the_whole_batch_commits_all_of_it() -> None:
    class Twice(PartitionHandler):
        output_schema = "n long"

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            total = sum(record.json() for record in batch)
            for record in batch:
                if record.json() < 2:
                    ctx.emit(record, {"n": total})
            await ctx.commit()

    run = Run(Twice())
    await run(numbers(0, 1, 2))
    assert run.saved == [([3, 3], [], 102)]


async def test_rows_emitted_after_a_loop_are_committed_with_the_batch() -> None:
    class Lists(PartitionHandler):
        output_schema = "n long"

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            rows = [{"n": record.json()} for record in batch]
            ctx.emit_each(batch, rows)
            await ctx.commit()

    run = Run(Lists())
    await run(numbers(0, 1, 2))
    assert run.saved == [([0, 1, 2], [], 102)]


async def test_records_given_up_behind_a_commit_are_committed_with_it() -> None:
    class ByHand(Doubler):
        bad = frozenset({3})

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                if record.json() in self.bad:
                    raise ValueError("no")
                ctx.emit(record, {"n": record.json()})
                await ctx.commit(record)

    run = Run(ByHand())
    assert list((await run(batch := numbers(1, 2, 3))).letters) == [102]
    assert run.processor.asked_for(batch, all_committed=True) == 102
    await run(batch := numbers(3))
    assert [run.processor.asked_for(batch, settled) for settled in (True, False)] == [100, -1]
    await run(batch := numbers(3, 1))
    assert run.processor.asked_for(batch, all_committed=True) == 101


async def test_an_unawaited_commit_of_a_plain_handler_loses_and_repeats_no_row() -> None:
    class Hasty(PartitionHandler):
        output_schema = "n long"

        def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                ctx.emit(record, {"n": record.json()})
            for upto in (batch[1], batch[2]):  # the second one while the first is made
                asyncio.run_coroutine_threadsafe(ctx.commit(upto), loop)

    loop = asyncio.get_running_loop()
    run = Run(Hasty(), slow=20)
    outcome = await run(numbers(0, 1, 2, 3))
    assert [n for rows, _, _ in run.saved for n in rows] + column(outcome, "n") == [0, 1, 2, 3]


async def test_rows_that_a_commit_was_cut_off_from_are_not_lost() -> None:
    class CutsShort(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            ctx.emit_each(batch, [{"n": record.json()} for record in batch])
            if ctx.attempt == 1:
                with anyio.move_on_after(0):
                    await ctx.commit()

    run = Run(CutsShort())
    outcome = await run(numbers(*range(60_000)))  # so many that they are encoded in a thread
    assert column(outcome, "n") == list(range(60_000))
    assert run.saved == []


async def test_rows_that_a_commit_could_not_encode_fail_the_attempt() -> None:
    class Swallows(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            if ctx.attempt == 1:
                ctx.emit_arrow(pa.table({"_sequence": batch.sequence_array, "unknown": batch.sequence_array}))
                with contextlib.suppress(errors.HandlerError):
                    await ctx.commit()
            else:
                await super().process(batch, ctx)

    run = Run(Swallows())
    assert column(await run(numbers(1, 2)), "attempt") == [2, 2]
    assert run.saved == []
