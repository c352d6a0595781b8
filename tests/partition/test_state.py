"""`ctx.state` within a batch: failed attempts, bisection and commits see the state of an ordered run."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import msgspec
import pyarrow as pa
import pytest

from actorproc.config.settings import Settings
from actorproc.errors import HandlerError, HandlerMisuse, StateMismatch
from actorproc.handler.base import PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.handlers.record_handler import RecordHandler
from actorproc.records import Batch, Record
from tests.partition.running import QUICK, Run, column, letters, numbers


class Sums(PartitionHandler):
    """The running sum after each number, by whether it is even. Numbers in `bad` fail after they have been added."""

    output_schema = "n long"
    bad: frozenset[int] = frozenset()
    alone = False
    """Whether a bad record fails alone."""
    once: frozenset[int] = frozenset()
    """Numbers that fail in the first attempt."""

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            await self.add(record, ctx)

    async def add(self, record: Record, ctx: PartitionContext) -> None:
        number = record.json()
        total = ctx.state.get(number % 2, 0) + number
        ctx.state.set(number % 2, total)
        ctx.emit(record, {"n": total})
        if number in self.bad or (number in self.once and ctx.attempt == 1):
            error = ValueError(f"{number} is bad")
            if not self.alone:
                raise error
            ctx.fail(record, error)


def state(run: Run) -> dict[Any, Any]:
    """The state of the partition after its batches."""
    held = run.commits.state
    found: dict[Any, Any] = {}
    for name in held._states:
        for key, value in held.held(name).items():
            found[msgspec.msgpack.decode(key)] = msgspec.msgpack.decode(value)
    return found


async def finished(
    handler: PartitionHandler, *values: int, settings: Settings = QUICK
) -> tuple[Run, list[int], set[int]]:
    """The run, rows and dead-lettered sequences of one batch, whose results are taken over."""
    run, batch = Run(handler, settings), numbers(*values)
    results = await run(batch)
    run.commits.add(batch, batch.last, run.commits.cursor, results, 0)
    return run, column(results, "n"), set(letters(results))


@pytest.mark.parametrize("alone", [False, True])
async def test_a_failing_record_leaves_no_trace_in_state(alone: bool) -> None:
    handler = Sums()
    handler.bad, handler.alone = frozenset({5}), alone
    run, rows, dead = await finished(handler, 1, 2, 3, 5, 7, 4, 9)
    assert (rows, dead) == ([1, 2, 4, 11, 6, 20], {103})
    assert state(run) == {1: 20, 0: 6}


@pytest.mark.parametrize("alone", [False, True])
async def test_a_record_that_is_tried_again_comes_in_its_order(alone: bool) -> None:
    handler = Sums()
    handler.once, handler.alone = frozenset({3}), alone
    run, rows, dead = await finished(handler, 1, 3, 5)
    assert (rows, dead, state(run)) == ([1, 4, 9], set(), {1: 9})


@pytest.mark.parametrize("awaited", [False, True])
async def test_records_of_a_record_handler_see_an_ordered_run(awaited: bool) -> None:
    class Plain(RecordHandler):
        output_schema = "n long"

        def process_record(self, record: Record, ctx: PartitionContext) -> Any:
            number = record.json()
            total = ctx.state.get("sum", 0) + number
            ctx.state["sum"] = total
            if number == 3 or (number == 4 and ctx.attempt == 1):
                raise ValueError("bad")
            return (total,)

    class Awaited(Plain):
        async def process_record(self, record: Record, ctx: PartitionContext) -> Any:
            await anyio.lowlevel.checkpoint()
            return super().process_record(record, ctx)

    run, rows, dead = await finished((Awaited if awaited else Plain)(), 1, 2, 3, 4, 5)
    assert (rows, dead, state(run)) == ([1, 3, 7, 12], {102}, {"sum": 12})


async def test_a_row_that_does_not_fit_takes_its_changes_with_it() -> None:
    class Texts(Sums):
        async def add(self, record: Record, ctx: PartitionContext) -> None:
            await super().add(record, ctx)
            if record.json() == 3:
                ctx.emit(record, {"n": "three"})

    run, rows, dead = await finished(Texts(), 1, 3, 5)
    assert (rows, dead, state(run)) == ([1, 6], {101}, {1: 6})


async def test_a_handler_that_gives_a_record_up_keeps_its_changes() -> None:
    class Counting(Sums):
        async def add(self, record: Record, ctx: PartitionContext) -> None:
            if record.json() == 3:
                ctx.state["bad"] = ctx.state.get("bad", 0) + 1
                ctx.dead_letter(record, "three")
            else:
                await super().add(record, ctx)

    run, rows, dead = await finished(Counting(), 1, 3, 5)
    assert (rows, dead, state(run)) == ([1, 6], {101}, {1: 6, "bad": 1})


async def test_a_handler_without_state_is_still_tried_record_by_record() -> None:
    seen: list[list[int]] = []

    class Stateless(PartitionHandler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            seen.append([record.json() for record in batch])
            for record in batch:
                if record.json() == 2:
                    ctx.fail(record, ValueError("bad"))

    await finished(Stateless(), 1, 2, 3)
    assert seen == [[1, 2, 3], [2], [2]]


async def test_at_most_once_a_record_that_fails_alone_keeps_its_changes() -> None:
    handler = Sums()
    handler.bad, handler.alone = frozenset({3}), True
    run, rows, dead = await finished(handler, 1, 3, 5, settings=Settings(delivery="at-most-once"))
    assert (rows, dead, state(run)) == ([1, 9], {101}, {1: 9})


async def test_a_commit_of_the_whole_batch_commits_the_state() -> None:
    class Committing(Sums):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            await ctx.commit(batch[0])  # nothing has changed yet
            for record in batch[1:]:
                await self.add(record, ctx)
            await ctx.commit(batch[-1])
            raise ValueError("after the commit")

    run, rows, dead = await finished(Committing(), 1, 3, 5)
    assert run.saved == [([], [], 100), ([3, 8], [], 102)]
    assert (rows, dead, state(run)) == ([], set(), {1: 8})


async def test_a_commit_of_an_earlier_record_is_refused_once_the_state_has_changed() -> None:
    """After a crash the changes for later records would count twice."""

    class Early(Sums):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                await self.add(record, ctx)
            await ctx.commit(batch[1])

    with pytest.raises(HandlerMisuse, match="only the whole batch can be committed"):
        await finished(Early(), 1, 3, 5)


async def test_a_commit_that_would_stop_short_leaves_the_state_uncommitted() -> None:
    class Committing(Sums):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                await self.add(record, ctx)
            if batch.last == 102:
                ctx.fail(batch[-1], ValueError("bad"), again=False)
                await ctx.commit()

    run, rows, _ = await finished(Committing(), 1, 3, 5)
    assert run.saved == []
    assert rows == [1, 4]
    assert state(run) == {1: 4}


async def test_a_commit_that_is_not_awaited_takes_no_change_of_a_later_record() -> None:
    """The handler goes on while the commit begins, and fails behind it: its later change must not be counted twice."""

    class Careless(Sums):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            begun = asyncio.create_task(ctx.commit(batch[0]))
            await asyncio.sleep(0)  # the commit has begun, and waits for its turn
            for record in batch:
                ctx.state.set(1, ctx.state.get(1, 0) + record.json())
            if ctx.attempt == 1:
                raise ValueError("once")
            await begun

    run, _, dead = await finished(Careless(), 1, 3, 5)
    assert not dead
    assert state(run) == {1: 9}


async def test_a_change_after_process_has_returned_is_refused() -> None:
    kept: list[PartitionContext] = []

    class Late(Sums):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            kept.append(ctx)
            await super().process(batch, ctx)

    run, _, _ = await finished(Late(), 1)
    changes: list[Callable[[], None]] = [lambda: kept[0].state.set("late", 1), lambda: kept[0].state.delete(1)]
    for change in changes:
        with pytest.raises(HandlerError, match="has returned"):
            change()
    assert run.processor.calls.late.is_set()
    assert state(run) == {1: 1}


def used(call: Any, **traits: Any) -> Awaitable[Any]:
    """A batch of one record, whose handler does `call` with the state."""

    class Handler(PartitionHandler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            call(ctx.state)

    return finished(type("Handler", (Handler,), traits)(), 1)


async def test_a_read_value_is_a_copy() -> None:
    def call(state: Any) -> None:
        state["a"] = {"n": 1}
        state["a"]["n"] = 2
        assert state["a"] == {"n": 1}

    await used(call)


async def test_the_mapping_shows_changes_over_committed_values() -> None:
    seen: list[Any] = []

    class Handler(PartitionHandler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            state = ctx.state
            if batch.first == 100:
                for key in ("a1", "a2", b"b", 7, ("car", 1), ("car", 2)):
                    state[key] = key if isinstance(key, str) else [1]
                return
            state.delete("a1")
            state.set("a3", "new")
            seen.append((len(state), "a1" in state, "a3" in state, state.get("a1", "gone"), state[("car", 2)]))
            seen.append(sorted(key for key, _ in state.items(prefix="a")))
            seen.append(sorted(key for key, _ in state.items(prefix=("car",))))
            seen.append(state.get_many(["a2", "x"], 0))
            with pytest.raises(KeyError):
                state["a1"]
            with pytest.raises(KeyError):
                del state["a1"]
            assert set(state) == {"a2", "a3", b"b", 7, ("car", 1), ("car", 2)}

    run, first = Run(Handler()), numbers(1)
    run.commits.add(first, 100, run.commits.cursor, await run(first), 0)
    await run(Batch.of("0", [b"1"], [101]))
    assert seen == [(6, False, True, "gone", [1]), ["a2", "a3"], [("car", 1), ("car", 2)], ["a2", 0]]


class Session(msgspec.Struct):
    clicks: int
    pages: list[str] = []


async def test_a_declared_type_comes_back_as_declared() -> None:
    def call(state: Any) -> None:
        state["a"] = Session(1, ["/"])
        assert state["a"] == Session(1, ["/"])

    await used(call, State=Session)


async def test_a_field_of_another_type_fails_its_record() -> None:
    run, _, dead = await used(lambda state: state.set("a", Session("one")), State=Session)  # type: ignore[arg-type]
    assert (dead, state(run)) == ({100}, {})


async def test_only_named_states_may_be_declared() -> None:
    def call(state: Any) -> None:
        state("sessions")["a"] = Session(1)
        assert state("sessions")["a"] == Session(1)

    await used(call, State={"sessions": Session})


# In columns


class Total(msgspec.Struct):
    cents: int
    names: list[str] = []


async def test_join_adds_the_fields_of_each_key_and_update_sets_them() -> None:
    seen: list[Any] = []

    def call(state: Any) -> None:
        state["b"] = Total(5, ["x"])
        table = pa.table({"account": ["a", "b"], "spent": [1, 2]})
        seen.append(state.join(table, on="account").to_pylist())
        state.update(pa.table({"account": ["a", "b", "a"], "cents": [1, 7, 3]}), on="account")
        seen.append(dict(state.items()))

    await used(call, State=Total)
    assert seen == [
        [
            {"account": "a", "spent": 1, "cents": None, "names": None},
            {"account": "b", "spent": 2, "cents": 5, "names": ["x"]},
        ],
        {"a": Total(3), "b": Total(7)},
    ]


async def test_columns_of_several_keys_and_of_a_type_without_fields() -> None:
    def call(state: Any) -> None:
        state.update(pa.table({"user": ["a", "a"], "n": [1, 2], "value": [10, 20]}), on=["user", "n"])
        assert dict(state.items()) == {("a", 1): 10, ("a", 2): 20}
        joined = state.join(pa.table({"n": [2, 3], "user": ["a", "a"]}), on=("user", "n"))
        assert joined["value"].to_pylist() == [20, None]

    await used(call, State=int)


@pytest.mark.parametrize(
    ("table", "error", "text"),
    [
        ({"k": ["a"], "cent": [1]}, HandlerMisuse, "column 'cent' is no field of State: cents, names"),
        ({"k": ["a"]}, HandlerMisuse, "Missing required argument 'cents'"),
        ({"k": [None, "a"], "cents": [1, 2]}, StateMismatch, "key column 'k' has 1 nulls"),
        ({"k": [0.5], "cents": [1]}, StateMismatch, "key column 'k' is double"),
        ({"account": ["a"], "cents": [1]}, HandlerMisuse, "on = 'k', and the table has account, cents"),
        ({"k": ["a"], "cents": ["1"]}, msgspec.ValidationError, "Expected `int`, got `str`"),
        ({"k": ["a", "b"], "cents": [1, None]}, msgspec.ValidationError, "Expected `int`, got `null`"),
    ],
)
async def test_update_refuses_a_table_that_does_not_fit(table: Any, error: type[Exception], text: str) -> None:
    def call(state: Any) -> None:
        with pytest.raises(error, match=re.escape(text)):
            state.update(pa.table(table), on="k")
        assert len(state) == 0

    await used(call, State=Total)


async def test_a_state_without_a_declared_type_has_no_columns() -> None:
    with pytest.raises(HandlerMisuse, match="join and update need a State with column types"):
        await used(lambda state: state.join(pa.table({"k": ["a"]}), on="k"))


async def test_too_much_state_stops_the_partition() -> None:
    with pytest.raises(HandlerError, match="state_bytes = 1048576 allows no more"):
        await used(lambda state: state.set("a", bytes(2**20)))
