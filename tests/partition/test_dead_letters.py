"""Dead letters: which records become one, its description of the error, and how many stop the partition."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import anyio
import pyarrow as pa
import pytest

from actorproc import errors
from actorproc.config.settings import Settings
from actorproc.handler.base import PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.partition.dead_letter_limit import DeadLetterLimit
from actorproc.records import Batch, Record
from actorproc.runtime import error_text
from tests.partition.running import QUICK, Doubler, Run, column, letters, numbers


async def test_a_handler_may_dead_letter_a_record_itself() -> None:
    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                ctx.emit(record, {"n": record.json()})
            ctx.dead_letter(batch[1], "not today")

    outcome = await Run(Handler())(numbers(1, 2, 3))
    assert column(outcome, "n") == [1, 3]
    assert letters(outcome)[101]["error"] == {"type": "DeadLetter", "message": "not today", "traceback": None}


async def test_the_kind_of_a_dead_letter_is_its_error_type() -> None:
    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            ctx.dead_letter(batch[0], "no such carrier", kind="UnknownCarrier")
            ctx.dead_letter(batch[1], "too late")
            await ctx.commit(batch[0])
            ctx.dead_letter(batch[2], "no such tail", kind="UnknownTail")

    run = Run(Handler())
    found = letters(await run(numbers(1, 2, 3))) | letters(run.commits.results[0])
    assert {sequence: letter["error"]["type"] for sequence, letter in found.items()} == {
        100: "UnknownCarrier",
        101: "DeadLetter",
        102: "UnknownTail",
    }


@pytest.mark.parametrize("wrong", [{"reason": ValueError("no text")}, {"reason": "late", "kind": 7}])
async def test_reason_and_kind_of_a_dead_letter_must_be_text(wrong: dict[str, Any]) -> None:
    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            ctx.dead_letter(batch[0], **wrong)

    (letter,) = letters(await Run(Handler())(numbers(1))).values()
    assert letter["error"]["type"] == "TypeError"


async def test_too_many_dead_letters_stop_the_partition() -> None:
    class Handler(Doubler):
        bad = frozenset(range(50, 100))

    settings = QUICK.model_copy(update={"dead_letter_limit": 0.3, "dead_letter_window": 100})
    with pytest.raises(errors.TooManyDeadLetters, match=r"31 of the latest 100.*dead_letter_limit = 0\.3"):
        await Run(Handler(), settings)(numbers(*range(100)))


async def test_replayed_letters_do_not_count_towards_the_limit() -> None:
    class Handler(Doubler):
        bad = frozenset(range(100))

    batch = Batch.of(
        "0",
        [str(n).encode() for n in range(100)],
        range(100),
        headers=[[("actorproc.dead_letter.error", b"KeyError")]] * 100,
    )
    settings = QUICK.model_copy(update={"dead_letter_limit": 0.0})
    assert len((await Run(Handler(), settings)(batch)).letters) == 100


async def test_an_error_with_a_broken_text_becomes_a_dead_letter() -> None:
    class Half(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            raise ValueError("half a character: \ud800")

    (letter,) = letters(await Run(Half())(numbers(7))).values()
    assert letter["error"]["message"] == r"half a character: \ud800"


@pytest.mark.parametrize("settings", [QUICK, QUICK.model_copy(update={"dead_letter_limit": 0.0})])
async def test_an_error_that_cannot_be_shown_is_a_failure_like_any_other(settings: Settings) -> None:
    class Mute(Exception):
        def __repr__(self) -> str:
            raise RuntimeError("no repr")

        __str__ = __repr__

    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                if record.json() == 7:
                    raise Mute

    run = Run(Handler(), settings)
    if settings.dead_letter_limit == 0:
        with pytest.raises(errors.TooManyDeadLetters, match="Mute has no text: RuntimeError"):
            await run(numbers(6, 7, 8))
    else:
        (letter,) = letters(await run(numbers(6, 7, 8))).values()
        assert letter["error"]["message"] == "(Mute has no text: RuntimeError)"


def test_of_an_error_of_any_length_only_its_beginning_is_kept() -> None:
    endless = ValueError("x" * 10**6)
    assert len(error_text.error_message(endless)) < 20_000 > len(error_text.safe_repr(endless))
    assert error_text.error_message(endless).endswith("... (1000000 characters)")


async def test_a_time_that_no_datetime_can_hold_is_none() -> None:
    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                assert record.timestamp is None or record.timestamp.year == 1970
                raise ValueError("bad")

    plain = numbers(1, 2, 3)
    times = pa.array([0, 10**18, -(10**18)], pa.timestamp("us", "UTC"))
    data = plain.data.set_column(plain.data.schema.get_field_index("timestamp"), "timestamp", times)
    found = letters(await Run(Handler())(Batch("0", data, plain.sequence_array)))
    assert [letter["timestamp"] for letter in found.values()] == ["1970-01-01T00:00:00Z", None, None]


async def test_dead_letter_takes_text_and_fail_takes_an_exception() -> None:
    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                number = record.json()
                if number == 2:
                    ctx.dead_letter(record, ValueError("no text"))  # type: ignore[arg-type]
                elif number == 3:
                    ctx.fail(record, "no exception")  # type: ignore[arg-type]

    found = letters(await Run(Handler())(numbers(*range(6))))
    assert {s: letter["error"]["type"] for s, letter in found.items()} == {
        102: "TypeError", 103: "TypeError",
    }  # fmt: skip


async def test_a_handler_that_fails_everything_is_stopped_after_each_restart() -> None:
    class Broken(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            raise ValueError("all of it")

    settings = QUICK.model_copy(update={"max_attempts": 1})
    limit = DeadLetterLimit(settings)
    for _ in range(3):
        run = Run(Broken(), settings, limit)
        with pytest.raises(errors.TooManyDeadLetters, match="51 of the latest 100 records failed"):
            await run(numbers(*range(80)))


@pytest.mark.parametrize("call", ["dead_letter", "fail"])
async def test_giving_up_a_record_of_an_earlier_batch_stops_the_partition(call: str) -> None:
    class Late(PartitionHandler):
        output_schema = "n long"
        kept: ClassVar[list[Record]] = []

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            self.kept.extend(batch)
            for record in batch:
                ctx.emit(record, {"n": record.json()})
            if self.kept[0].sequence != batch.first:
                getattr(ctx, call)(self.kept[0], ValueError("late"))

    run = Run(Late())
    assert column(await run(numbers(0)), "n") == [0]
    with pytest.raises(errors.HandlerMisuse, match=r"record 100 is not among those at hand \(200 to 200\)"):
        await run(Batch.of("0", [b"7"], [200]))


async def test_a_single_error_of_a_task_group_keeps_its_type() -> None:
    class Grouped(PartitionHandler):
        output_schema = "n long"
        seen: ClassVar[list[type[Exception]]] = []

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            async with asyncio.TaskGroup() as tasks:
                for record in batch:
                    tasks.create_task(self.fetch(record.json()))
                    if record.json() == 5:
                        tasks.create_task(self.fetch(6))

        async def fetch(self, number: int) -> None:
            raise ConnectionError(f"no {number}")

        def on_error(self, error: Exception, failed: Batch, attempt: int) -> None:
            self.seen.append(type(error))

    found = [letter["error"] for letter in letters(await Run(Grouped())(numbers(4))).values()]
    assert [(error["type"], error["message"]) for error in found] == [("ConnectionError", "no 4")]
    assert set(Grouped.seen) == {ConnectionError}
    (error,) = [letter["error"] for letter in letters(await Run(Grouped())(numbers(5))).values()]
    assert error["type"] == "ExceptionGroup"
    assert error["message"].endswith("(2 sub-exceptions): ConnectionError: no 5; ConnectionError: no 6")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda ctx, batch: ctx.emit_arrow({"n": [1]}), "emit_arrow takes a pyarrow Table or RecordBatch, not a dict"),
        (lambda ctx, batch: ctx.map(batch, anyio.sleep, concurrency=0), "concurrency = 0: a whole number, at least 1"),
        (lambda ctx, batch: ctx.map(["a key"], anyio.sleep), "str was given in place of a record"),
    ],
)
async def test_a_wrong_call_stops_the_partition_and_costs_no_record(call: Any, says: str) -> None:
    class Mistaken(PartitionHandler):
        output_schema = "n long"

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            if (awaited := call(ctx, batch)) is not None:
                await awaited

    with pytest.raises(errors.HandlerMisuse, match=says):
        await Run(Mistaken())(numbers(1, 2))
