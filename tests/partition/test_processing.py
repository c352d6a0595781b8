"""One batch through a handler: attempts, isolation, dead letters, decisions, commits from within."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import anyio
import orjson
import pyarrow as pa
import pytest
import structlog

from actorproc import errors
from actorproc.clock import Clock
from actorproc.context import PartitionContext, Site
from actorproc.handler import Decision, PartitionHandler
from actorproc.partition.handler_threads import HandlerThreads
from actorproc.partition.letter_limit import LetterLimit
from actorproc.partition.outcome import Outcome
from actorproc.partition.processing import BatchProcessor
from actorproc.partition.retrying import Interrupted
from actorproc.records import Batch, Record
from actorproc.rows.schema import parse_schema
from actorproc.settings import Settings

SITE = Site("p", "h", "0", 1, None, None, structlog.get_logger())
QUICK = Settings(retry_backoff=0.001, retry_backoff_max=0.002)


class Doubler(PartitionHandler):
    """Emits a row per number; what `bad` names raises; keeps count of what it saw."""

    output_schema = "n long, attempt int"
    bad: frozenset[int] = frozenset()

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        self.seen.append([record.json() for record in batch])
        for record in batch:
            number = record.json()
            if number in self.bad:
                raise ValueError(f"{number} is bad")
            ctx.emit(record, {"n": number, "attempt": ctx.attempt})


def numbers(*values: int | bytes) -> Batch:
    return Batch.of(
        "0", [v if isinstance(v, bytes) else str(v).encode() for v in values], range(100, 100 + len(values))
    )


class Run:
    """A handler on one batch after another, and what was saved from within."""

    def __init__(self, handler: PartitionHandler, settings: Settings = QUICK, limit: LetterLimit | None = None) -> None:
        self.lost: list[str] = []
        self.saved: list[tuple[list[int], list[int], int]] = []
        self.draining = anyio.Event()
        self.processor = BatchProcessor(
            handler, SITE, parse_schema(handler.output_schema), settings, Clock(1),
            save=self.save, draining=self.draining, threads=HandlerThreads(2, Clock(1)),
            limit=limit or LetterLimit(settings), lost=self.lost.append,
        )  # fmt: skip

    async def save(self, batch: Batch, outcome: Outcome, upto: int) -> None:
        self.saved.append((column(outcome, "n"), sorted(outcome.letters), upto))

    async def __call__(self, batch: Batch) -> Outcome:
        return await self.processor.process(batch)


@pytest.fixture
def collector_off() -> Iterator[None]:
    """What is not freed by counting stays."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def column(outcome: Outcome, name: str) -> list[Any]:
    return pa.concat_tables(outcome.tables)[name].to_pylist() if outcome.tables else []


def letters(outcome: Outcome) -> dict[int, dict[str, Any]]:
    return {sequence: orjson.loads(line) for sequence, line in outcome.letters.items()}


async def test_rows_carry_the_sequence_of_their_record() -> None:
    outcome = await Run(Doubler())(numbers(7, 8))
    assert column(outcome, "_sequence") == [100, 101]
    assert column(outcome, "n") == [7, 8]


async def test_records_that_fail_alone_become_dead_letters_and_all_others_are_processed_in_order() -> None:
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
async def test_a_handler_that_fails_after_its_loop_or_leaves_it_early_is_bisected_all_the_same(stop_at: int) -> None:
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


async def test_a_batch_that_fails_once_is_tried_again_and_leaves_no_rows_of_the_failed_attempt() -> None:
    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            await super().process(batch, ctx)
            if ctx.attempt == 1:
                raise OSError("a hiccup")

    outcome = await Run(Handler())(numbers(1, 2))
    assert column(outcome, "attempt") == [2, 2]
    assert not outcome.letters


async def test_a_poison_record_is_tried_max_attempts_times_with_its_batch_and_once_alone() -> None:
    class Handler(Doubler):
        bad = frozenset({5})

    handler = Handler()
    outcome = await Run(handler, QUICK.model_copy(update={"max_attempts": 4}))(numbers(4, 5, 6))
    assert handler.seen == [[4, 5, 6]] * 4 + [[4], [5], [6]]
    assert letters(outcome)[101]["attempts"] == 5


async def test_an_error_of_a_type_that_is_made_anew_each_time_is_not_tried_for_ever() -> None:
    class Handler(PartitionHandler):
        output_schema = "n long"

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                if record.text == "5":

                    class Refused(Exception):
                        pass

                    raise Refused("no")
                ctx.emit(record, {"n": int(record.text)})

    with anyio.fail_after(60):
        outcome = await Run(Handler())(numbers(4, 5, 6))
    assert letters(outcome)[101]["attempts"] == QUICK.max_attempts + 1
    assert column(outcome, "n") == [4, 6]


async def test_a_row_that_does_not_fit_is_the_failure_of_its_record_alone() -> None:
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


async def test_map_makes_an_exception_the_failure_of_its_record_and_keeps_order() -> None:
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


async def test_a_handler_may_dead_letter_a_record_itself() -> None:
    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                ctx.emit(record, {"n": record.json()})
            ctx.dead_letter(batch[1], "not today")

    outcome = await Run(Handler())(numbers(1, 2, 3))
    assert column(outcome, "n") == [1, 3]
    assert letters(outcome)[101]["error"] == {"type": "DeadLetter", "message": "not today", "traceback": None}


@pytest.mark.parametrize(("decision", "dead", "skipped"), [(Decision.SKIP, [], 1), (Decision.DEAD_LETTER, [101], 0)])
async def test_on_error_may_skip_or_dead_letter_without_trying_again(
    decision: Decision, dead: list[int], skipped: int
) -> None:
    class Handler(Doubler):
        bad = frozenset({2})

        def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision | None:
            return decision

    handler = Handler()
    outcome = await Run(handler)(numbers(1, 2, 3))
    assert (list(outcome.letters), outcome.skipped) == (dead, skipped)
    assert column(outcome, "n") == [1, 3]
    assert handler.seen == [[1, 2, 3], [1], [2], [3]]


async def test_on_error_may_retry_for_ever() -> None:
    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            if ctx.attempt < 9:
                raise ConnectionError("the database is down")
            await super().process(batch, ctx)

        def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision | None:
            return Decision.RETRY if isinstance(error, ConnectionError) else None

    assert column(await Run(Handler())(numbers(1)), "attempt") == [9]


async def test_on_error_may_stop_the_partition() -> None:
    class Handler(Doubler):
        bad = frozenset({1})

        def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision | None:
            return Decision.STOP

    with pytest.raises(errors.HandlerError, match="1 is bad"):
        await Run(Handler())(numbers(1))


async def test_too_many_dead_letters_stop_the_partition() -> None:
    class Handler(Doubler):
        bad = frozenset(range(50, 100))

    settings = QUICK.model_copy(update={"dead_letter_limit": 0.3, "dead_letter_window": 100})
    with pytest.raises(errors.TooManyDeadLetters, match=r"31 of the latest 100.*dead_letter_limit = 0\.3"):
        await Run(Handler(), settings)(numbers(*range(100)))


async def test_dead_letters_that_came_back_and_die_again_do_not_count_towards_the_limit() -> None:
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


async def test_a_drain_cuts_the_wait_for_the_next_attempt_short() -> None:
    class Handler(Doubler):
        bad = frozenset({1})

    run = Run(Handler(), QUICK.model_copy(update={"retry_backoff": 1e6, "retry_backoff_max": 1e6}))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_set_soon, run.draining)
        with pytest.raises(Interrupted):
            await run(numbers(1))


async def test_a_drain_sits_out_short_pauses_for_a_second_and_no_longer_whatever_on_error_says() -> None:
    class Patient(Doubler):
        bad = frozenset({1})

        def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision | None:
            return Decision.RETRY

    run = Run(Patient(), QUICK.model_copy(update={"retry_backoff": 0.3, "retry_backoff_max": 0.3}))
    run.draining.set()
    with anyio.fail_after(5), pytest.raises(Interrupted):
        await run(numbers(1))


async def _set_soon(event: anyio.Event) -> None:
    for _ in range(5):
        await anyio.lowlevel.checkpoint()
    event.set()


async def test_at_most_once_never_shows_a_record_twice() -> None:
    class Handler(Doubler):
        bad = frozenset({2})

    handler = Handler()
    outcome = await Run(handler, QUICK.model_copy(update={"delivery": "at-most-once"}))(numbers(1, 2, 3))
    assert handler.seen == [[1, 2, 3]]
    assert sorted(outcome.letters) == [100, 101, 102]


async def test_at_most_once_shows_nothing_again_when_a_record_fails_alone_and_then_the_batch() -> None:
    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            self.seen.append([record.json() for record in batch])
            ctx.fail(batch[0], ValueError("alone"))
            raise RuntimeError("all")

    handler = Handler()
    outcome = await Run(handler, QUICK.model_copy(update={"delivery": "at-most-once"}))(numbers(1, 2, 3))
    assert handler.seen == [[1, 2, 3]]
    causes = [orjson.loads(letter)["error"]["message"] for _, letter in sorted(outcome.letters.items())]
    assert causes == ["alone", "all", "all"]


async def test_a_plain_def_runs_in_a_thread() -> None:
    import threading

    class Handler(PartitionHandler):
        output_schema = "n long, main boolean"

        def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                main = threading.current_thread() is threading.main_thread()
                ctx.emit(record, {"n": record.json(), "main": main})

    outcome = await Run(Handler())(numbers(1, 2))
    assert column(outcome, "main") == [False, False]


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


@pytest.mark.parametrize(
    "other",
    [Batch.of("1", [b"1"], [100]), Batch.of("0", [b"1"], [103])],
    ids=["of another partition", "of a later batch"],
)
async def test_a_commit_up_to_a_record_that_is_not_of_the_batch_is_refused(other: Batch) -> None:
    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            await ctx.commit(other[0])

    run = Run(Handler())
    with pytest.raises(
        errors.HandlerMisuse, match=r"ctx\.commit\(Record\(.*not of the batch at hand, Batch\('0', 100\.\.102"
    ):
        await run(numbers(1, 2, 3))
    assert not run.saved


@pytest.mark.parametrize("threaded", [False, True])
async def test_a_map_that_is_not_awaited_is_the_handlers_mistake_and_no_record_is_done(threaded: bool) -> None:
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


async def test_a_map_that_the_handler_leaves_running_is_its_mistake_for_the_records_are_not_done() -> None:
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


async def test_a_handler_may_give_a_map_only_so_much_time() -> None:
    done: set[int] = set()

    async def work(record: Record) -> None:
        await anyio.sleep(0 if record.json() == 1 else 3600)
        done.add(record.sequence)

    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            with anyio.move_on_after(0.01):
                await ctx.map(batch, work)
            for record in batch:
                if record.sequence not in done:
                    ctx.dead_letter(record, "too slow")

    outcome = await Run(Handler())(numbers(1, 2))
    assert list(letters(outcome)) == [101]


class CutOff(Doubler):
    """Maps a batch, which is cut off while the calls for 3 and those behind it have emitted a row and wait for another."""

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


async def test_records_that_a_map_was_cut_off_from_have_failed_each_alone_and_what_was_emitted_for_them_is_dropped() -> (
    None
):
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


async def test_a_time_limit_of_asyncio_that_the_handler_catches_cuts_a_map_off_likewise() -> None:
    class Timed(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await ctx.map(batch, self.work)

        async def work(self, record: Record) -> None:
            if record.json() == 2:
                await anyio.sleep_forever()

    assert list(letters(await Run(Timed())(numbers(1, 2)))) == [101]


@pytest.mark.parametrize("way", ["rows", "columns", "letters"])
async def test_a_handler_may_say_what_becomes_of_the_records_that_a_map_was_cut_off_from_and_commit_them(
    way: str,
) -> None:
    class Says(CutOff):
        async def then(self, batch: Batch, ctx: PartitionContext) -> None:
            late = batch[2:]
            if way == "rows":
                ctx.emit_each(late, [{"n": -1}] * len(late))
            elif way == "columns":
                ctx.emit_arrow(pa.table({"_sequence": late.sequence_array, "n": [-1] * len(late)}))
            else:
                for record in late:
                    ctx.dead_letter(record, "late")
            await ctx.commit(batch[-1])

    run = Run(Says())
    outcome = await run(numbers(1, 2, 3, 4))
    rows, dead, upto = run.saved[0]
    assert (sorted(rows), dead, upto) == (
        ([1, 2], [102, 103], 103) if way == "letters" else ([-1, -1, 1, 2, 3, 4], [], 103)
    )
    assert (column(outcome, "n"), letters(outcome)) == ([], {})


async def test_a_commit_stops_short_of_records_that_a_map_was_cut_off_from() -> None:
    class Commits(CutOff):
        async def then(self, batch: Batch, ctx: PartitionContext) -> None:
            await ctx.commit(batch[-1])

    run = Run(Commits(), QUICK.model_copy(update={"max_attempts": 1}))
    outcome = await run(numbers(1, 2, 3, 4))
    assert run.saved == [([1, 2], [], 101)]
    assert list(letters(outcome)) == [102, 103]


async def test_rows_emitted_before_a_map_that_is_cut_off_stand() -> None:
    class Before(CutOff):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            ctx.emit_each(batch, [{"n": record.json()} for record in list(batch)])
            await super().process(batch, ctx)

        async def work(self, record: Record, ctx: PartitionContext) -> None:
            self.scope.cancel()
            await anyio.sleep_forever()

    outcome = await Run(Before())(numbers(1, 2))
    assert (column(outcome, "n"), letters(outcome)) == ([1, 2], {})


@pytest.mark.parametrize("where", ["within the call", "again"])
async def test_a_record_is_done_though_no_row_came_of_it_where_a_later_call_or_the_one_around_has_ended(
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


async def test_a_handler_that_fails_beside_a_map_that_it_did_not_await_fails_with_its_own_error() -> None:
    async def work(record: Record) -> None: ...

    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            ctx.map(batch, work)  # type: ignore[unused-coroutine]
            raise ValueError("first")

    outcome = await Run(Handler())(numbers(1))
    assert letters(outcome)[100]["error"]["message"] == "first"


async def test_a_commit_up_to_something_that_is_no_record_is_refused() -> None:
    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            await ctx.commit(batch.last)  # type: ignore[arg-type]

    with pytest.raises(errors.HandlerMisuse, match="a int was given in place of a record"):
        await Run(Handler())(numbers(1, 2, 3))


@pytest.mark.parametrize("row", [{"n": 1}, {"n": "no number"}])
async def test_a_row_of_another_batch_fails_the_attempt_whether_it_fits_or_not(row: dict[str, Any]) -> None:
    other = numbers(1, 2, 3)

    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            ctx.emit(other[2], row)

    outcome = await Run(Handler())(numbers(1))
    assert "a row belongs to a record of the batch" in letters(outcome)[100]["error"]["message"]


async def test_commit_within_a_batch_saves_up_to_the_record_and_a_later_failure_redoes_only_the_rest() -> None:
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
    assert run.processor.asked_for(batch, settled=False) == 102


async def test_a_commit_with_nothing_to_add_to_what_is_committed_saves_nothing() -> None:
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


async def test_rows_of_a_batch_are_gone_with_it_although_an_attempt_failed(collector_off: None) -> None:
    class Handler(Doubler):
        bad = frozenset({2})

    run = Run(Handler())
    outcome = await run(numbers(1, 2, 3))
    rows = weakref.ref(outcome.tables[0])
    assert column(outcome, "n") == [1, 3]
    del outcome
    assert rows() is None


async def test_batches_that_look_alike_are_progress() -> None:
    told: list[object] = []

    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            told.append(run.processor.progress)

    run = Run(Handler())
    for first in (0, 2):
        await run(Batch.of("0", [b"1", b"2"], [first, first + 1]))
    assert None not in told
    assert told[0] != told[1]
    assert run.processor.progress is None


async def test_columns_are_emitted_without_touching_records() -> None:
    class Handler(PartitionHandler):
        output_schema = "text string"

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            table = batch.to_arrow()
            ctx.emit_arrow(pa.table({"_sequence": table["_sequence"], "text": table["value"].cast(pa.string())}))

    outcome = await Run(Handler())(numbers(1, 2))
    assert column(outcome, "text") == ["1", "2"]
    assert column(outcome, "_sequence") == [100, 101]


async def test_columns_without_sequence_are_refused_clearly() -> None:
    class Handler(PartitionHandler):
        output_schema = "text string"

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            ctx.emit_arrow(pa.table({"text": ["a"]}))

    with pytest.raises(errors.HandlerMisuse, match="the table has no column _sequence"):
        await Run(Handler())(numbers(1))


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


async def test_what_fails_after_it_was_committed_as_done_is_an_error_and_not_silent() -> None:
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
async def test_what_fails_after_all_of_the_batch_was_committed_is_an_error_and_not_silent(plain: bool) -> None:
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


async def test_good_records_behind_a_bad_one_survive_an_outage_that_comes_while_it_is_sought() -> None:
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


async def test_an_error_that_was_tried_often_enough_is_not_tried_again_for_each_bad_record() -> None:
    class Handler(Doubler):
        bad = frozenset(range(0, 40, 2))

    handler = Handler()
    outcome = await Run(handler)(numbers(*range(40)))
    assert len(outcome.letters) == 20
    assert len(handler.seen) <= QUICK.max_attempts + 3 * 20, "each is found at its first failure, and tried once alone"


async def test_what_on_error_says_of_one_record_is_not_applied_to_another() -> None:
    class Choosing(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                if record.json() == 3:
                    raise ValueError("no record of mine")
                if record.json() == 7:
                    raise TypeError("a bug of mine")
                ctx.emit(record, {"n": record.json()})

        def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision | None:
            return Decision.SKIP if isinstance(error, ValueError) else None

    outcome = await Run(Choosing())(numbers(*range(10)))
    assert [letter["error"]["type"] for letter in letters(outcome).values()] == ["TypeError"]
    assert outcome.skipped == 1


@pytest.mark.parametrize("where", ["task group", "map"])
async def test_a_mistake_of_the_handler_is_found_in_a_group_of_errors_too(where: str) -> None:
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


async def test_an_error_whose_text_is_no_text_becomes_a_dead_letter_all_the_same() -> None:
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
        with pytest.raises(errors.TooManyDeadLetters, match="Mute has no text: RuntimeError in __str__"):
            await run(numbers(6, 7, 8))
    else:
        (letter,) = letters(await run(numbers(6, 7, 8))).values()
        assert letter["error"]["message"] == "(Mute has no text: RuntimeError in __str__)"


def test_of_an_error_of_any_length_only_its_beginning_is_kept() -> None:
    endless = ValueError("x" * 10**6)
    assert len(errors.text_of(endless)) < 20_000 > len(errors.repr_of(endless))
    assert errors.text_of(endless).endswith("... (1000000 characters)")


async def test_a_time_that_no_datetime_can_hold_is_none_and_spoils_no_other_record() -> None:
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


@pytest.mark.parametrize("verdict", ["skip", ZeroDivisionError("of on_error")])
async def test_on_error_that_fails_or_says_nothing_sensible_stops_the_partition_by_name(verdict: Any) -> None:
    class Handler(Doubler):
        bad = frozenset({7})

        def on_error(self, error: Exception, failed: Batch, attempt: int) -> Any:
            if isinstance(verdict, Exception):
                raise verdict
            return verdict

    with pytest.raises(errors.HandlerError, match=r"on_error (returned 'skip'|failed: ZeroDivisionError: of on_error)"):
        await Run(Handler())(numbers(7))


async def test_what_is_given_up_or_fails_must_be_a_record_of_the_batch_with_a_reason_of_the_right_kind() -> None:
    stranger = Batch.of("0", [b"1"], [5])[0]

    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                number = record.json()
                if number == 1:
                    ctx.dead_letter(stranger, "of another batch")
                elif number == 2:
                    ctx.dead_letter(record, ValueError("no text"))  # type: ignore[arg-type]
                elif number == 3:
                    ctx.fail(record, "no exception")  # type: ignore[arg-type]
                elif number == 4:
                    ctx.fail(stranger, ValueError("of another batch"))

    found = letters(await Run(Handler())(numbers(*range(6))))
    assert {s: letter["error"]["type"] for s, letter in found.items()} == {
        101: "HandlerError", 102: "TypeError", 103: "TypeError", 104: "HandlerError",
    }  # fmt: skip


async def test_an_exit_within_map_is_the_failure_of_its_record_and_does_not_end_the_host() -> None:
    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            async def leave(record: Record) -> None:
                if record.json() == 3:
                    raise SystemExit(1)

            await ctx.map(batch, leave)

    assert list((await Run(Handler())(numbers(*range(5)))).letters) == [103]


async def test_a_handler_that_fails_everything_is_stopped_on_a_short_stream_too_and_after_each_restart() -> None:
    class Broken(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            raise ValueError("all of it")

    settings = QUICK.model_copy(update={"max_attempts": 1})
    limit = LetterLimit(settings)
    for _ in range(3):
        run = Run(Broken(), settings, limit)
        with pytest.raises(errors.TooManyDeadLetters, match="51 of the latest 100 records failed"):
            await run(numbers(*range(80)))


async def test_a_drain_waits_out_a_short_pause_so_that_one_bad_record_does_not_cost_the_batch() -> None:
    class Handler(Doubler):
        bad = frozenset({3})

    run = Run(Handler(), QUICK.model_copy(update={"retry_backoff": 0.002, "max_attempts": 3}))
    run.draining.set()
    outcome = await run(numbers(*range(5)))
    assert (column(outcome, "n"), list(letters(outcome))) == ([0, 1, 2, 4], [103])


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("shielded", [False, True])
async def test_a_commit_that_the_handler_does_not_wait_for_neither_loses_nor_repeats_a_row(
    shielded: bool, fails: bool
) -> None:
    class Hasty(PartitionHandler):
        output_schema = "n long"
        commits: ClassVar[list[asyncio.Task[None]]] = []

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                ctx.emit(record, {"n": record.json()})
                if record.sequence == 101:
                    self.commits.append(asyncio.create_task(ctx.commit(record)))
                    if shielded:
                        await anyio.sleep(0)
            if fails and ctx.attempt == 1:
                raise ValueError("fails once")

    class Slow(Run):
        async def save(self, batch: Batch, outcome: Outcome, upto: int) -> None:
            for _ in range(20):
                await anyio.sleep(0)
            await super().save(batch, outcome, upto)

    run = Slow(Hasty())
    outcome = await run(numbers(0, 1, 2, 3))
    await asyncio.gather(*Hasty.commits, return_exceptions=True)
    saved = [n for rows, _, _ in run.saved for n in rows]
    assert sorted(saved + column(outcome, "n")) == [0, 1, 2, 3]
    assert bool(saved) == shielded


class ForgetsCommit(Doubler):
    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        await super().process(batch, ctx)
        ctx.commit()  # type: ignore[unused-coroutine]


class PlainCommit(PartitionHandler):
    output_schema = "n long"

    def process(self, batch: Batch, ctx: PartitionContext) -> None:
        ctx.commit()  # type: ignore[unused-coroutine]


@pytest.mark.parametrize("handler", [ForgetsCommit, PlainCommit])
async def test_a_commit_that_is_not_awaited_is_the_handlers_mistake(handler: type[PartitionHandler]) -> None:
    with pytest.raises(errors.HandlerMisuse, match=r"ctx\.commit was called and not awaited, so nothing was committed"):
        await Run(handler())(numbers(1, 2))


@pytest.mark.parametrize("plain", [False, True])
async def test_threads_of_the_handlers_own_that_emit_at_once_and_keep_it_to_themselves_stop_the_partition(
    plain: bool,
) -> None:
    def beside(ctx: PartitionContext, batch: Batch) -> None:
        ctx._emitted._at_work.acquire()  # as another thread has it
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
async def test_a_map_without_a_function_is_the_handlers_mistake(give: str) -> None:
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


async def test_the_reason_of_a_record_that_failed_is_its_first_also_where_none_is_emitted_for_it() -> None:
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


async def test_a_row_that_is_none_says_where_it_may_come_from() -> None:
    class Emits(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            ctx.emit(batch[0], None)  # type: ignore[arg-type]

    outcome = await Run(Emits())(numbers(1))
    assert "Of a record that failed ctx.map gives None: leave that out" in letters(outcome)[100]["error"]["message"]


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
    ("raised", "threaded"), [(Panic, False), (Panic, True), (SystemExit, False), (KeyboardInterrupt, True)]
)
async def test_what_is_no_exception_is_its_records_failure_too(raised: type[BaseException], threaded: bool) -> None:
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


async def test_a_commit_outside_of_a_loop_over_the_batch_is_refused_before_anything_is_lost() -> None:
    class Listing(PartitionHandler):
        output_schema = "n long"

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in list(batch):
                ctx.emit(record, {"n": record.json()})
                await ctx.commit()

    run = Run(Listing())
    with pytest.raises(errors.HandlerMisuse, match=r"say up to which record all is done, ctx\.commit\(record\)"):
        await run(numbers(0, 1, 2))
    assert run.saved == []


async def test_a_loop_over_a_part_of_the_batch_is_none_over_the_batch_though_it_be_all_of_it() -> None:
    class LooksAround(PartitionHandler):
        output_schema = "n long"

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                ctx.emit(record, {"n": sum(int(other.text or 0) for other in batch[:])})
                await ctx.commit()

    run = Run(LooksAround())
    with pytest.raises(errors.HandlerMisuse, match="amid its records"):
        await run(numbers(1, 2))
    assert run.saved == []

    class Sums(PartitionHandler):
        output_schema = "n long"

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for start in range(0, len(batch), 3):
                part = batch[start : start + 3]
                total = sum(int(record.text or 0) for record in part)
                ctx.emit(part[-1], {"n": total})
            await ctx.commit()

    for count in (2, 3, 7):
        run = Run(Sums())
        await run(numbers(*range(count)))
        assert [upto for *_, upto in run.saved] == [100 + count - 1]


async def test_a_commit_amid_a_loop_that_does_not_say_up_to_which_record_is_refused_before_anything_is_lost() -> None:
    class LookingAhead(PartitionHandler):
        output_schema = "n long"

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            records = iter(batch)
            ahead = next(records, None)
            while ahead is not None:
                record, ahead = ahead, next(records, None)
                ctx.emit(record, {"n": sum(batch.json())})
                await ctx.commit()

    run = Run(LookingAhead())
    with pytest.raises(errors.HandlerMisuse, match=r"amid its records, or .*all is done, ctx\.commit\(record\)"):
        await run(numbers(1, 2))
    assert run.saved == []


async def test_letters_of_a_commit_that_is_refused_for_their_number_are_not_kept_for_another_attempt() -> None:
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
    with pytest.raises(errors.TooManyDeadLetters, match="nothing of this batch was committed"):
        await run(numbers(*range(100)))
    assert run.saved == []


async def test_a_handler_that_has_gone_through_the_batch_commits_all_of_it() -> None:
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


async def test_a_handler_that_makes_all_rows_in_a_loop_and_then_emits_them_commits_all_of_the_batch() -> None:
    class Lists(PartitionHandler):
        output_schema = "n long"

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            rows = [{"n": record.json()} for record in batch]
            ctx.emit_each(batch, rows)
            await ctx.commit()

    run = Run(Lists())
    await run(numbers(0, 1, 2))
    assert run.saved == [([0, 1, 2], [], 102)]


@pytest.mark.parametrize("call", ["dead_letter", "fail"])
async def test_a_record_that_is_not_at_hand_cannot_be_given_up(call: str) -> None:
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
    later = await run(Batch.of("0", [b"7"], [200]))
    assert list(letters(later)) == [200]
    assert "record 100 is not among those at hand (200 to 200)" in letters(later)[200]["error"]["message"]


async def test_a_row_for_a_record_in_a_gap_of_the_batch_is_refused() -> None:
    class Foreign(PartitionHandler):
        output_schema = "n long"
        kept: ClassVar[list[Record]] = []

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            self.kept.extend(batch)
            for record in batch:
                ctx.emit(self.kept[0] if record.json() == 9 else record, {"n": record.json()})

    run = Run(Foreign())
    await run(numbers(0))
    later = await run(Batch.of("0", [b"1", b"9"], [99, 101]))
    assert column(later, "n") == [1]
    assert list(letters(later)) == [101]


@pytest.mark.parametrize("threaded", [False, True])
async def test_rows_that_process_returns_are_an_error_and_not_passed_over(threaded: bool) -> None:
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


async def test_a_plain_process_that_returns_a_coroutine_has_not_processed_anything() -> None:
    class Wrapped(Doubler):
        def process(self, batch: Batch, ctx: PartitionContext) -> Any:
            return super().process(batch, ctx)

    with pytest.raises(errors.HandlerMisuse, match="process returned a coroutine"):
        await Run(Wrapped())(numbers(7))


class Misspelt(Doubler):
    bad = frozenset({2})

    def on_error(self, error: Exception, failed: Batch, attempt: int) -> Any:
        return "skip"


async def test_an_on_error_that_returns_something_else_stops_the_partition_and_says_what_is_allowed() -> None:
    with pytest.raises(errors.HandlerError, match=r"on_error returned 'skip'; allowed are Decision\.RETRY.*2 is bad"):
        await Run(Misspelt())(numbers(1, 2, 3))


async def test_an_on_error_that_returns_something_else_loses_nothing_at_most_once() -> None:
    outcome = await Run(Misspelt(), QUICK.model_copy(update={"delivery": "at-most-once"}))(numbers(1, 2, 3))
    assert sorted(outcome.letters) == [100, 101, 102]


async def test_a_batch_is_forgotten_also_where_rows_hold_their_records_which_the_garbage_collector_does_not_look_at() -> (
    None
):
    batches: list[weakref.ref[Batch]] = []

    class Holding(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            batches.append(weakref.ref(batch))
            for record in batch:
                ctx.emit(record, {"n": record})

    outcome = await Run(Holding())(numbers(1, 2))
    assert list(letters(outcome)) == [100, 101]
    gc.collect()
    assert {batch() for batch in batches} == {None}


async def test_a_record_can_be_copied_and_pickled_while_its_batch_is_at_work() -> None:
    class Copying(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                for copied in (copy.deepcopy(record), pickle.loads(pickle.dumps(record))):
                    assert (copied.sequence, copied.value, copied.key) == (record.sequence, record.value, record.key)
                    ctx.emit(copied, {"n": record.json()})

    assert column(await Run(Copying())(numbers(5, 6)), "n") == [5, 5, 6, 6]


def test_records_of_a_batch_are_equal_where_they_are_the_same() -> None:
    batch, other = numbers(5, 5), numbers(5, 5)
    assert [record == batch[0] for record in batch] == [True, False]
    assert len({*batch, *batch}) == 2
    assert batch[0] != other[0]


class Reading(NamedTuple):
    sequence: int


@pytest.mark.parametrize("row", [{"n": 1}, (1, 100, b"x"), Reading(100)])
@pytest.mark.parametrize("call", ["emit", "emit_many", "emit_each"])
async def test_a_row_given_in_place_of_the_record_is_said_to_be_one(call: str, row: object) -> None:
    class Swapped(PartitionHandler):
        output_schema = "n long"

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                getattr(ctx, call)([row] if call == "emit_each" else row, [record])

    given = f"a {type(row).__name__} was given in place of a record: the record comes first"
    with pytest.raises(errors.HandlerMisuse, match=given):
        await Run(Swapped())(numbers(7))


async def test_a_mistake_in_the_handler_gives_no_record_up_but_at_most_once_where_they_would_be_lost() -> None:
    class Undeclared(PartitionHandler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                ctx.emit(record, {"n": 1})

    with pytest.raises(errors.HandlerMisuse, match="the handler declares no output_schema"):
        await Run(Undeclared())(numbers(1, 2))
    outcome = await Run(Undeclared(), QUICK.model_copy(update={"delivery": "at-most-once"}))(numbers(1, 2))
    assert sorted(outcome.letters) == [100, 101]


async def test_a_map_within_a_map_does_not_free_the_record_that_the_outer_one_still_works_on() -> None:
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


@pytest.mark.parametrize("stops", ["returns", "raises"])
async def test_at_most_once_a_stop_would_lose_the_batch_so_its_records_become_dead_letters(stops: str) -> None:
    class Stopping(Doubler):
        bad = frozenset({2})

        def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision:
            if stops == "raises":
                raise RuntimeError("no idea")
            return Decision.STOP

    with pytest.raises(errors.HandlerError):
        await Run(Stopping())(numbers(1, 2, 3))
    outcome = await Run(Stopping(), QUICK.model_copy(update={"delivery": "at-most-once"}))(numbers(1, 2, 3))
    assert sorted(outcome.letters) == [100, 101, 102]


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


async def test_a_record_given_up_at_the_end_needs_no_commit_of_the_handler_which_cannot_make_it() -> None:
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
    assert run.processor.asked_for(batch, settled=True) == 102
    await run(batch := numbers(3))
    assert [run.processor.asked_for(batch, settled) for settled in (True, False)] == [100, -1]
    await run(batch := numbers(3, 1))
    assert run.processor.asked_for(batch, settled=True) == 101


async def test_a_plain_function_given_to_map_is_a_mistake_and_no_records_failure() -> None:
    class Plain(PartitionHandler):
        output_schema = "n long"

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            work: Any = lambda record: {"n": record.json()}  # noqa: E731
            await ctx.map(batch, work)

    with pytest.raises(
        errors.HandlerMisuse, match=r"ctx\.map awaits what it is given; that returned a dict: write async def"
    ):
        await Run(Plain())(numbers(1, 2))


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
