"""RecordHandler: one record in, its rows out, failures one by one."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from actorproc import RecordHandler
from actorproc.errors import HandlerDefinitionError, HandlerMisuse
from actorproc.handler.base import Decision, PartitionHandler
from actorproc.handler.checks import checked_handler
from actorproc.handler.context import PartitionContext
from actorproc.records import Batch, Record
from tests.handlers.running import run
from tests.partition.running import QUICK

NUMBERS = [str(n).encode() for n in range(20)]


async def test_a_returned_dict_is_a_row_of_its_record() -> None:
    class Double(RecordHandler):
        output_schema = "n int, thread string"

        def process_record(self, record: Record, ctx: PartitionContext) -> dict[str, Any]:
            return {"n": record.json() * 2, "thread": threading.current_thread().name}

    result = await run(Double, NUMBERS)
    assert [(row["_sequence"], row["n"]) for row in result.rows] == [(100 + n, n * 2) for n in range(20)]
    assert threading.main_thread().name not in {row["thread"] for row in result.rows}  # a plain def blocks no one


async def test_rows_may_be_none_one_or_many_and_also_emitted() -> None:
    class Mixed(RecordHandler):
        output_schema = "n int"

        def process_record(self, record: Record, ctx: PartitionContext) -> Any:
            n = record.json()
            if n == 3:
                ctx.emit(record, {"n": 30})
                ctx.dead_letter(record, "a three")
            if n == 4:
                ctx.emit(record, {"n": 40})
            return [None, {"n": n}, [{"n": n}, {"n": -n}], ({"n": n + i} for i in range(3))][n % 4]

    result = await run(Mixed, NUMBERS[:5])
    assert [(row["_sequence"], row["n"]) for row in result.rows] == [(101, 1), (102, 2), (102, -2), (104, 40)]
    assert {s: letter["error"]["message"] for s, letter in result.letters.items()} == {103: "a three"}


class Failing(RecordHandler):
    """Fails for the records in `bad`; counts its calls."""

    output_schema = "n int NOT NULL"
    bad = frozenset({3, 4, 9})

    def __init__(self) -> None:
        self.seen: list[int] = []

    def process_record(self, record: Record, ctx: PartitionContext) -> Any:
        n = record.json()
        self.seen.append(n)
        ctx.emit(record, {"n": -n})
        if n in self.bad:
            raise ValueError(f"{n} is bad")
        return {"n": n}


async def test_a_failing_record_fails_alone_and_no_other_is_processed_again() -> None:
    handler = Failing()
    result = await run(handler, NUMBERS)
    assert [row["n"] for row in result.rows] == [m for n in range(20) if n not in Failing.bad for m in (-n, n)]
    assert {s: letter["error"]["message"] for s, letter in result.letters.items()} == {
        100 + n: f"{n} is bad" for n in Failing.bad
    }
    assert result.letters[103]["attempts"] == QUICK.max_attempts
    assert "process_record" in result.letters[103]["error"]["traceback"]
    assert handler.seen == [*range(20), 3, 4, 9, 3, 4, 9]


class Panic(BaseException):
    """As that of an extension in Rust."""


async def _cancelled() -> None:
    task = asyncio.ensure_future(asyncio.sleep(1))
    task.cancel()
    await task


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize("delivery", ["at-least-once", "at-most-once"])
@pytest.mark.parametrize("raised", [SystemExit(1), Panic("at once"), asyncio.CancelledError(), None])
async def test_any_exception_fails_only_the_record_that_raised_it(
    raised: BaseException | None, delivery: str, awaited: bool
) -> None:
    seen: Counter[int] = Counter()

    def of(record: Record) -> dict[str, int]:
        seen[record.sequence] += 1
        if record.json() == 7 and raised is not None:
            raise raised
        return {"n": record.json()}

    class Plain(RecordHandler):
        output_schema = "n int"

        def process_record(self, record: Record, ctx: PartitionContext) -> Any:
            return {10**5000: 1} if raised is None and record.json() == 7 else of(record)

    class Awaited(RecordHandler):
        output_schema = "n int"

        async def process_record(self, record: Record, ctx: PartitionContext) -> Any:
            if raised is None and record.json() == 7:
                await _cancelled()
            return of(record)

    settings = QUICK.model_copy(update={"delivery": delivery})
    result = await run(Awaited if awaited else Plain, NUMBERS, settings=settings)
    assert [row["n"] for row in result.rows] == [n for n in range(20) if n != 7]
    assert list(result.letters) == [107]
    assert {seen[100 + n] for n in range(20) if n != 7} == {1}


async def test_a_record_that_succeeds_later_is_no_dead_letter() -> None:
    class Flaky(Failing):
        def process_record(self, record: Record, ctx: PartitionContext) -> Any:
            if ctx.attempt == 2:
                self.bad = frozenset()
            return super().process_record(record, ctx)

    result = await run(Flaky, NUMBERS)
    assert result.letters == {}
    assert [row["n"] for row in result.rows] == [m for n in range(20) for m in (-n, n)]


async def test_on_error_decides_for_each_record() -> None:
    class Choosy(Failing):
        def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision | None:
            assert len(failed) == 1
            return Decision.SKIP if failed[0].json() == 3 else Decision.DEAD_LETTER

    handler = Choosy()
    result = await run(handler, NUMBERS)
    assert sorted(result.letters) == [104, 109]
    assert handler.seen == [*range(20)]


async def test_a_row_that_does_not_fit_is_its_records_failure() -> None:
    class Wrong(RecordHandler):
        output_schema = "n int"

        def process_record(self, record: Record, ctx: PartitionContext) -> Any:
            return {1: {"n": "x"}, 2: {"m": 2}, 3: 5, 4: "n", 5: ["n"]}.get(n := record.json(), {"n": n})

    result = await run(Wrong, NUMBERS[:7])
    assert [row["n"] for row in result.rows] == [0, 6]
    messages = [result.letters[100 + n]["error"]["message"] for n in range(1, 6)]
    assert messages[0].startswith("column 'n': 'x' (str) does not fit int")
    assert messages[1].startswith("there is no column 'm'")
    assert messages[2] == "process_record returned 5 (int); return a dict or tuple, several in a list, or None"
    assert messages[3] == "process_record returned 'n' (str); return a dict or tuple, several in a list, or None"
    assert messages[4] == "a row is a dict of column to value, or a tuple in the order of the columns, not 'n' (str)"


async def test_a_generator_that_fails_midway_leaves_no_row() -> None:
    class Generating(RecordHandler):
        output_schema = "n int"

        def process_record(self, record: Record, ctx: PartitionContext) -> Iterator[dict[str, Any]]:
            for m in range(3):
                if record.json() == 1 and m == 2:
                    raise ValueError("too far")
                yield {"n": m}

    result = await run(Generating, NUMBERS[:3])
    assert [row["_sequence"] for row in result.rows] == [100] * 3 + [102] * 3
    assert result.letters[101]["error"]["message"] == "too far"


async def test_async_records_overlap_and_keep_their_order() -> None:
    class Waiting(RecordHandler):
        output_schema = "n int"
        concurrency = 4
        working = most = 0

        async def process_record(self, record: Record, ctx: PartitionContext) -> dict[str, Any]:
            self.working += 1
            self.most = max(self.most, self.working)
            n = record.json()
            for _ in range(5 - n % 5):  # later ones are ready first
                await anyio.lowlevel.checkpoint()
            self.working -= 1
            if n == 7:
                raise ValueError("seven")
            return {"n": n}

    handler = Waiting()
    result = await run(handler, NUMBERS)
    assert [row["n"] for row in result.rows] == [n for n in range(20) if n != 7]
    assert list(result.letters) == [107]
    assert handler.most == 4

    class OneByOne(Waiting):
        concurrency = 1

    alone = OneByOne()
    assert [row["n"] for row in (await run(alone, NUMBERS)).rows] == [n for n in range(20) if n != 7]
    assert alone.most == 1


@pytest.mark.parametrize("style", ["plain", "async"])
async def test_commit_inside_process_record_is_refused(style: str) -> None:
    class Committing(RecordHandler):
        output_schema = "n int"

        async def process_record(self, record: Record, ctx: PartitionContext) -> dict[str, Any]:
            await ctx.commit(record)
            return {"n": 1}

    class CommittingInThread(RecordHandler):
        output_schema = "n int"

        def process_record(self, record: Record, ctx: PartitionContext) -> dict[str, Any]:
            anyio.from_thread.run(ctx.commit, record)
            return {"n": 1}

    with pytest.raises(HandlerMisuse, match="process_record cannot commit"):
        await run(Committing if style == "async" else CommittingInThread, NUMBERS[:2])


async def test_a_process_of_its_own_may_commit_after_the_records() -> None:
    class Committing(RecordHandler):
        output_schema = "n int"

        def process_record(self, record: Record, ctx: PartitionContext) -> Any:
            return {"n": self.record.json()}

        def process(self, batch: Batch, ctx: PartitionContext) -> None:
            super().process(batch, ctx)
            anyio.from_thread.run(ctx.commit)

    assert (await run(Committing, NUMBERS[:3])).rows == []  # they are committed, not left for a commit


@pytest.mark.parametrize("style", ["plain", "async"])
async def test_between_batches_a_handler_has_no_record(style: str) -> None:
    class Plain(RecordHandler):
        def process_record(self, record: Record, ctx: PartitionContext) -> Any:
            assert self.record is record or self.record == record

    class Awaited(RecordHandler):
        async def process_record(self, record: Record, ctx: PartitionContext) -> Any:
            assert self.record is record

    handler = Plain() if style == "plain" else Awaited()
    assert (await run(handler, NUMBERS[:3])).letters == {}
    with pytest.raises(HandlerMisuse, match="while process_record runs"):
        _ = handler.record


def test_a_handler_without_process_record_is_refused() -> None:
    class Empty(RecordHandler):
        pass

    with pytest.raises(HandlerDefinitionError, match="Empty is abstract: it has no process_record"):
        checked_handler(Empty)


def test_an_async_generator_is_refused_where_it_is_defined() -> None:
    with pytest.raises(HandlerDefinitionError, match=r"Streaming\.process_record is an async generator; collect"):

        class Streaming(RecordHandler):
            async def process_record(self, record: Record, ctx: PartitionContext) -> Any:
                yield {"n": 1}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("awaited", [False, True])
async def test_a_coroutine_in_place_of_rows_is_misuse(awaited: bool) -> None:
    async def later(record: Record) -> dict[str, Any]:
        return {"n": 1}

    class Plain(RecordHandler):
        output_schema = "n long"

        def process_record(self, record: Record, ctx: PartitionContext) -> Any:
            return None if record.json() == 1 else later(record)

    class Awaited(RecordHandler):
        output_schema = "n long"

        async def process_record(self, record: Record, ctx: PartitionContext) -> Any:
            return later(record)

    with pytest.raises(HandlerMisuse, match="process_record returned a coroutine, which has not run"):
        await run(Awaited if awaited else Plain, [b"1", b"2", b"3"])


async def test_a_subclass_may_change_the_style_and_keep_its_own_process() -> None:
    class Plain(Failing):
        bad = frozenset()

    class Awaited(Plain):
        async def process_record(self, record: Record, ctx: PartitionContext) -> Any:
            return {"n": record.json()}

    class Counted(Plain):
        calls = 0

        def process(self, batch: Batch, ctx: PartitionContext) -> None:
            self.calls += 1
            super().process(batch, ctx)

    class Inheriting(Counted):
        pass

    assert [row["n"] for row in (await run(Awaited, NUMBERS)).rows] == list(range(20))
    handler: PartitionHandler = Inheriting()
    assert len((await run(handler, NUMBERS)).rows) == 40
    assert handler.calls == 1  # type: ignore[attr-defined]


async def test_a_tuple_is_one_row_and_a_list_of_them_several() -> None:
    class Tuples(RecordHandler):
        output_schema = "n int, sign string"

        def process_record(self, record: Record, ctx: PartitionContext) -> Any:
            n = record.json()
            return (n, "+") if n % 2 else [(n, "+"), (-n, "-")]

    result = await run(Tuples, NUMBERS[:3])
    assert [(row["_sequence"], row["n"], row["sign"]) for row in result.rows] == [
        (100, 0, "+"), (100, 0, "-"), (101, 1, "+"), (102, 2, "+"), (102, -2, "-"),
    ]  # fmt: skip


@pytest.mark.parametrize("typed", [False, True])
async def test_records_fail_alone_among_thousands(typed: bool) -> None:
    def row(handler: RecordHandler[Any], n: int) -> Any:
        if n % 1000 == 999:
            raise ValueError(f"{n} at {handler.record.sequence}")
        return iter([{"n": handler.record.sequence}]) if n % 700 == 1 else (n + 100,)

    class Plain(RecordHandler):
        output_schema = "n int"

        def process_record(self, record: Record, ctx: PartitionContext) -> Any:
            return row(self, record.json())

    class Typed(RecordHandler[int]):
        output_schema = "n int"

        def process_record(self, n: int, ctx: PartitionContext) -> Any:
            return row(self, n)

    result = await run(Typed if typed else Plain, [str(n).encode() for n in range(5000)])
    assert [row["n"] for row in result.rows] == [n + 100 for n in range(5000) if n % 1000 != 999]
    assert all(row["n"] == row["_sequence"] for row in result.rows)
    assert {s: letter["error"]["message"] for s, letter in result.letters.items()} == {
        n + 100: f"{n} at {n + 100}" for n in range(999, 5000, 1000)
    }


async def test_lazy_rows_of_async_records_know_their_record() -> None:
    class Lazy(RecordHandler[int]):
        output_schema = "n int"
        concurrency = 2

        async def process_record(self, n: int, ctx: PartitionContext) -> Any:
            return ({"n": self.record.sequence} for _ in range(2))

    assert [row["n"] for row in (await run(Lazy, NUMBERS[:2])).rows] == [100, 100, 101, 101]


@pytest.mark.parametrize("lazy", [False, True])
async def test_rows_that_come_lazily_know_their_record_too(lazy: bool) -> None:
    class Lazy(RecordHandler[int]):
        output_schema = "n int"

        def process_record(self, n: int, ctx: PartitionContext) -> Any:
            return ({"n": self.record.sequence} for _ in range(2)) if n == 1 or lazy else None

    result = await run(Lazy, NUMBERS[:3])
    assert [row["n"] for row in result.rows] == ([100, 100, 101, 101, 102, 102] if lazy else [101, 101])


@pytest.mark.parametrize("concurrency", [0, -1, 2.5, True, "8"])
def test_a_wrong_concurrency_is_refused_at_definition(concurrency: Any) -> None:
    with pytest.raises(HandlerDefinitionError, match=r"Wrong\.concurrency = .*: a whole number, 1 or more"):
        type("Wrong", (Failing,), {"concurrency": concurrency})


def test_a_concurrency_of_calls_that_cannot_wait_is_refused() -> None:
    with pytest.raises(HandlerDefinitionError, match="it needs an `async def process_record`"):
        type("Wrong", (Failing,), {"concurrency": 8})
