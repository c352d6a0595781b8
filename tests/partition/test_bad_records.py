"""The bad records of a batch are found in each way of failing. All other records are processed."""

from __future__ import annotations

import asyncio

import anyio
import orjson
import pytest

from actorproc.handler.base import PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.handlers.record_handler import RecordHandler
from actorproc.records import Batch, Record
from actorproc.testing import run_handler
from tests.partition.running import QUICK, Doubler, Run, column, letters, numbers


async def test_bad_records_become_dead_letters_and_others_are_processed_in_order() -> None:
    class Handler(Doubler):
        bad = frozenset({3, 4, 9})

    outcome = await Run(Handler())(numbers(*range(20)))
    assert column(outcome, "n") == [n for n in range(20) if n not in Handler.bad]
    assert {s: (x["value"], x["error"]["type"], x["error"]["message"]) for s, x in letters(outcome).items()} == {
        100 + n: (str(n), "ValueError", f"{n} is bad") for n in Handler.bad
    }
    assert "is bad" in letters(outcome)[103]["error"]["traceback"]


async def test_a_handler_that_does_not_iterate_is_bisected() -> None:
    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            self.seen.append(batch.sequences)
            documents = [orjson.loads(value or b"") for value in batch.values]
            if 13 in documents:
                raise RuntimeError("unlucky")
            for index, number in enumerate(documents):
                ctx.emit(batch[index], {"n": number})

    handler = Handler()
    outcome = await Run(handler)(numbers(*range(64)))
    assert column(outcome, "n") == [n for n in range(64) if n != 13]
    assert list(outcome.letters) == [113]
    assert len(handler.seen) <= QUICK.max_attempts + 2 * 6 + 1  # two halves for each power of two


@pytest.mark.parametrize("stop_at", [1, 40, 63])
async def test_a_handler_that_fails_outside_of_its_loop_is_bisected(stop_at: int) -> None:
    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            self.seen.append(batch.sequences)
            for record in batch:
                if record.sequence - batch.first >= stop_at:
                    break
            if b"13" in batch.values:
                raise RuntimeError("unlucky")
            for record in batch:
                ctx.emit(record, {"n": record.json()})

    handler = Handler()
    outcome = await Run(handler)(numbers(*range(64)))
    assert column(outcome, "n") == [n for n in range(64) if n != 13]
    assert list(outcome.letters) == [113]
    assert len(handler.seen) <= QUICK.max_attempts + 3 * 3 + 2 * 6 + 1


async def test_a_misfit_row_fails_only_its_record() -> None:
    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                ctx.emit(record, {"n": record.json()})

    outcome = await Run(Handler())(numbers(1, b'"two"', 3))
    assert column(outcome, "n") == [1, 3]
    assert "n" in letters(outcome)[101]["error"]["message"]


async def test_an_unknown_column_is_a_failure_not_a_null() -> None:
    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                ctx.emit(record, {"n": 1} if record.json() else {"number": 1})

    outcome = await Run(Handler())(numbers(1, 0))
    assert column(outcome, "n") == [1]
    assert "number" in letters(outcome)[101]["error"]["message"]


async def test_good_records_survive_an_outage_while_a_bad_one_is_sought() -> None:
    class Outage(Doubler):
        bad = frozenset({3})
        away = 2

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            if batch.first > 103 and self.away:
                self.away -= 1
                raise ConnectionError("the service is away")
            await super().process(batch, ctx)

    outcome = await Run(Outage())(numbers(*range(40)))
    assert list(outcome.letters) == [103]
    assert column(outcome, "n") == [n for n in range(40) if n != 3]


async def test_records_that_fail_alone_behind_a_bad_one_are_tried_again() -> None:
    class Outage(Doubler):
        bad = frozenset({3})
        away = True

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            if batch.first > 103 and self.away:
                self.away = False
                for record in batch:
                    ctx.fail(record, ConnectionError("the service is away"))
                return
            await super().process(batch, ctx)

    outcome = await Run(Outage())(numbers(*range(40)))
    assert list(outcome.letters) == [103]
    assert column(outcome, "n") == [n for n in range(40) if n != 3]


async def test_a_record_found_bad_is_retried_during_the_search() -> None:
    seen: set[int] = set()

    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                n = record.json()
                if n % 10 == 5:
                    raise ValueError("bad")
                if n % 4 == 0 and n not in seen:
                    seen.add(n)
                    ctx.fail(record, TimeoutError())
                    continue
                ctx.emit(record, {"n": n})

    outcome = await Run(Handler())(numbers(*range(100)))
    assert sorted(outcome.letters) == [100 + n for n in range(5, 100, 10)]
    assert sorted(column(outcome, "n")) == [n for n in range(100) if n % 10 != 5]


async def test_a_repeated_error_is_not_retried_for_each_bad_record() -> None:
    class Handler(Doubler):
        bad = frozenset(range(0, 40, 2))

    handler = Handler()
    outcome = await Run(handler)(numbers(*range(40)))
    assert len(outcome.letters) == 20
    assert len(handler.seen) <= QUICK.max_attempts + 2 * 40 + 20, "a halving has at most two parts per record"


@pytest.mark.parametrize("awaited", [False, True])
async def test_a_handler_that_cancels_its_own_task_fails_at_that_record_alone(awaited: bool) -> None:
    class Cancelling(PartitionHandler):
        output_schema = "n long"

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                if record.json() == 2:
                    task = asyncio.current_task()
                    assert task is not None
                    task.cancel()
                    if awaited:
                        await anyio.sleep(1)
                ctx.emit(record, {"n": record.json()})
            await anyio.sleep(0)

    async with anyio.create_task_group() as tasks:  # as partitions run

        async def run() -> None:
            outcome = await Run(Cancelling())(numbers(0, 1, 2, 3))
            assert column(outcome, "n") == [0, 1, 3]
            assert "cancelled from within" in letters(outcome)[102]["error"]["message"]
            await anyio.sleep(0)  # nothing of it is left

        tasks.start_soon(run)


class Panic(BaseException):
    """As the bindings of other languages raise."""


@pytest.mark.parametrize(
    ("raised", "threaded"),
    [
        (Panic, False),
        (Panic, True),
        (SystemExit, False),
        (SystemExit, True),
        (KeyboardInterrupt, True),
        (GeneratorExit, True),
    ],
)
async def test_a_base_exception_fails_its_record(raised: type[BaseException], threaded: bool) -> None:
    class InThread(PartitionHandler):
        output_schema = "n long"

        def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                if record.json() == 2:
                    raise raised("here")
                ctx.emit(record, {"n": record.json()})

    class OnLoop(InThread):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:  # type: ignore[override]
            super().process(batch, ctx)

    outcome = await Run(InThread() if threaded else OnLoop())(numbers(0, 1, 2, 3))
    assert column(outcome, "n") == [0, 1, 3]
    assert raised.__name__ in letters(outcome)[102]["error"]["message"]


async def test_an_error_without_text_costs_only_its_record() -> None:
    class NoText(ValueError):
        def __str__(self) -> str:
            raise KeyError("status")

    class Handler(RecordHandler):
        output_schema = "n string"

        def process_record(self, record: Record, ctx: PartitionContext) -> dict[str, str]:
            if record.text == "2":
                raise NoText
            return {"n": record.text}

    result = await run_handler(Handler, [b"1", b"2", b"3"])
    assert [row["n"] for row in result.rows] == ["1", "3"]
    assert [letter["sequence"] for letter in result.dead_letters] == [1]


@pytest.mark.parametrize("commits", [False, True])
async def test_a_good_record_that_fails_once_is_tried_again_beside_bad_ones(commits: bool) -> None:
    """1 fails twice, with an error of its own or that of 0; 0 always, or twice."""

    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                number = record.json()
                self.seen.append([number])
                calls = self.seen.count([number])
                if number == 0 and (not commits or calls <= 2):
                    raise ConnectionError
                if number == 1 and calls <= (2 if commits else 1):
                    raise LookupError if commits else ConnectionError
                ctx.emit(record, {"n": number})
                if commits:
                    await ctx.commit(record)

    run = Run(Handler())
    outcome = await run(numbers(0, 1))
    assert list(outcome.letters) == ([] if commits else [100])
