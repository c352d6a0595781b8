"""Records of a `RecordHandler` that fail, with keyed state: only they are called again, and in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

import anyio
import msgspec
import pyarrow as pa
import pytest
import structlog
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from actorproc.config.settings import Settings
from actorproc.handler.base import Decision, PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.handler.returned_rows import emit_returned
from actorproc.handlers.record_handler import RecordHandler, _current, _same
from actorproc.partition.results import Results
from actorproc.records import Batch, Record
from tests.partition.running import QUICK, Run, column
from tests.partition.test_state import state


class Event(msgspec.Struct, omit_defaults=True):
    """A record's script.

    `fails`: attempts that fail. `how`: `early` before its change, `late` after it, `mark` by `ctx.fail`, `rows` midway
    in a generator of rows. `kind`: `misfit` emits a row that does not fit, `plain` uses no state.
    """

    n: int
    key: str = "a"
    fails: int = 0
    how: str = "early"
    kind: str = "sum"


class Failed(Exception):
    pass


class Sums(RecordHandler[Event]):
    """The sum after each record of a key."""

    output_schema = "n long, total long"
    State: ClassVar[Any] = int
    on_failed: ClassVar[Decision | None] = None

    def __init__(self) -> None:
        self.calls: Counter[int] = Counter()
        self.order: list[int] = []

    def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision | None:
        return self.on_failed if isinstance(error, Failed) else None

    def process_record(self, event: Event, ctx: PartitionContext) -> Any:
        self.calls[event.n] += 1
        self.order.append(event.n)
        fails = self.calls[event.n] <= event.fails
        if fails and (event.how == "early" or event.kind == "plain"):
            raise Failed(event.n)
        if event.kind == "plain":
            return (event.n, None)
        total = ctx.state.get(event.key, 0) + event.n
        ctx.state.set(event.key, total, ttl=1000 if event.n % 3 else None)
        if event.n % 2:
            ctx.state.set("odd", ctx.state.get("odd", 0) + 1)
        if event.kind == "delete":
            ctx.state.delete(event.key)
        if fails and event.how == "late":
            raise Failed(event.n)
        if fails and event.how == "mark":
            ctx.fail(self.record, Failed(event.n))
        if fails and event.how == "rows":
            return self.failing(event.n, total)
        return {"n": event.n, "total": "much" if event.kind == "misfit" else total}

    def failing(self, n: int, total: int) -> Iterator[tuple[int, int]]:
        yield (n, total)
        raise Failed(n)


class Awaited(Sums):
    async def process_record(self, event: Event, ctx: PartitionContext) -> Any:
        await anyio.lowlevel.checkpoint()
        return Sums.process_record(self, event, ctx)


class Together(Sums):
    """The same by a handler of whole batches, which keeps no journal."""

    def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record, event in ctx.decode(batch, Event):
            self._at = partial(_same, record)  # type: ignore[method-assign]
            try:
                emit_returned(self.process_record(event, ctx), record, ctx, "process_record")
            except Failed as error:
                ctx.fail(record, error)


def undeclared(handler: type[Sums]) -> type[Sums]:
    """The same without a `State`: the handler is found to use state."""
    return type(f"Undeclared{handler.__name__}", (handler,), {"State": None})


HANDLERS = [Sums, Awaited, undeclared(Sums), undeclared(Awaited)]


def batch_of(events: list[Event | None]) -> Batch:
    values = [b"no event" if event is None else msgspec.json.encode(event) for event in events]
    return Batch.of("0", values, range(100, 100 + len(values)))


def expected(
    events: list[Event | None], tries: float
) -> tuple[list[tuple[int, int | None]], dict[str, int], list[int]]:
    """Rows, state and dead letters of an ordered run over the records that are not given up."""
    rows: list[tuple[int, int | None]] = []
    held: dict[str, int] = {}
    dead: list[int] = []
    for sequence, event in enumerate(events, 100):
        if event is None or event.fails >= tries or event.kind == "misfit":
            dead.append(sequence)
        elif event.kind == "plain":
            rows.append((event.n, None))
        else:
            held[event.key] = held.get(event.key, 0) + event.n
            rows.append((event.n, held[event.key]))
            if event.n % 2:
                held["odd"] = held.get("odd", 0) + 1
            if event.kind == "delete":
                del held[event.key]
    return rows, held, dead


INSTANTLY = Settings(retry_backoff=1e-6, retry_backoff_max=1e-6)


async def run(handler: Sums, events: list[Event | None], limits: Settings = QUICK) -> tuple[Run, Results]:
    made, batch = Run(handler, limits), batch_of(events)
    found = await made(batch)
    made.commits.add(batch, batch.last, made.commits.cursor, found, 0)
    return made, found


EVENTS = st.lists(
    st.none()
    | st.builds(
        Event,
        n=st.just(0),
        key=st.sampled_from("ab"),
        fails=st.sampled_from([0, 0, 0, 1, 2, 3, 4]),
        how=st.sampled_from(["early", "late", "mark", "rows"]),
        kind=st.sampled_from(["sum", "sum", "plain", "misfit", "delete"]),
    ),
    min_size=1,
    max_size=12,
)


def numbered(events: list[Event | None]) -> list[Event | None]:
    return [event and msgspec.structs.replace(event, n=n) for n, event in enumerate(events, 1)]


@pytest.mark.parametrize("handler", [*HANDLERS, Together])
@settings(max_examples=40)
@given(EVENTS, st.sampled_from(["at-least-once", "at-most-once", "retry"]))
def test_results_are_those_of_an_ordered_run(handler: type[Sums], drawn: list[Event | None], how: str) -> None:
    assume(handler is not Together or how != "at-most-once")  # then a failed record leaves its changes
    events = numbered(drawn)
    if handler.State is None:  # a failure before the first use of state may not count: 3 could be 2 or 3 attempts
        events = [msgspec.structs.replace(e, fails=4) if e is not None and e.fails == 3 else e for e in events]
    tries = {"at-least-once": 3, "at-most-once": 1, "retry": 1000}[how]
    limits = Settings(delivery="at-most-once") if how == "at-most-once" else INSTANTLY
    one = type(handler.__name__, (handler,), {"on_failed": Decision.RETRY if how == "retry" else None})()
    made, found = anyio.run(run, one, events, limits)
    rows, held, dead = expected(events, tries)
    assert list(zip(column(found, "n"), column(found, "total"), strict=True)) == rows
    assert state(made) == held
    assert sorted(found.letters) == dead
    if handler is Together:
        bad = {event.n for event in events if event is not None and (event.fails or event.kind == "misfit")}
        for event in filter(None, events):
            assert one.calls[event.n] <= min(event.fails, tries - 1) + 1 + len(bad - {event.n})
    elif handler.State is not None:
        for event in filter(None, events):
            assert one.calls[event.n] <= min(event.fails, tries - 1) + 1
        assert one.order == sorted(one.order), "a record was called behind a later one"


@pytest.mark.parametrize("handler", HANDLERS)
async def test_good_records_are_called_once(handler: type[Sums]) -> None:
    """One record in a hundred fails nine times out of ten, and one in two hundred does not decode."""
    events: list[Event | None] = [
        None if n % 200 == 17 else Event(n, key=str(n % 7), fails=9 if n % 100 == 55 else 0, how="late")
        for n in range(1, 1001)
    ]
    one = type("One", (handler,), {"on_failed": Decision.RETRY})()
    made, found = await run(one, events, INSTANTLY)
    rows, held, dead = expected(events, 1000)
    assert (column(found, "n"), state(made), sorted(found.letters)) == ([n for n, _ in rows], held, dead)
    own = sum(event.fails for event in events if event is not None)
    assert sum(one.calls.values()) - own == len(events) - len(dead)


async def test_a_failure_before_state_is_first_used_keeps_the_order() -> None:
    events: list[Event | None] = [Event(1, kind="plain"), Event(2, fails=1), Event(3, kind="plain"), Event(4), Event(5)]
    one = undeclared(Sums)()
    _, found = await run(one, events)
    assert column(found, "total") == [None, 2, None, 6, 11]
    assert one.order == [1, 2, 3, 4, 2, 3, 4, 5]


async def test_failures_before_state_is_first_used_are_tried_again_once() -> None:
    events: list[Event | None] = [Event(1, kind="plain", fails=1), Event(2, kind="plain", fails=1), None, Event(4)]
    one = undeclared(Sums)()
    _, found = await run(one, events)
    assert (column(found, "n"), list(found.letters)) == ([1, 2, 4], [102])
    assert one.order == [1, 2, 4, 1, 2, 4]


async def test_a_row_of_a_generator_may_use_state_in_order() -> None:
    class Lazy(RecordHandler):
        output_schema = "n long"
        State = int

        def process_record(self, record: Record, ctx: PartitionContext) -> Iterator[tuple[int]]:
            total = ctx.state.get("sum", 0) + record.json()
            ctx.state.set("sum", total)
            yield (total,)

    made = Run(Lazy())
    found = await made(Batch.of("0", [b"1", b"2", b"3"], [1, 2, 3]))
    assert column(found, "n") == [1, 3, 6]


class LazySums(RecordHandler):
    """Uses state in a generator only, without a declared `State`. Threes fail midway."""

    output_schema = "n long"

    def process_record(self, record: Record, ctx: PartitionContext) -> Iterator[tuple[int]]:
        number = record.json()
        total = ctx.state.get("sum", 0) + number
        ctx.state.set("sum", total)
        yield (total,)
        if number == 3:
            raise Failed(number)


class IteratedSums(LazySums):
    def process_record(self, record: Record, ctx: PartitionContext) -> Iterator[tuple[int]]:
        return iter(super().process_record(record, ctx))


@pytest.mark.parametrize("handler", [LazySums, IteratedSums])
@pytest.mark.parametrize("count", [5, 1200])
async def test_state_that_is_first_used_in_a_generator_is_in_order(handler: type[LazySums], count: int) -> None:
    made, batch = Run(handler()), Batch.of("0", [b"%d" % n for n in range(1, count + 1)], range(count))
    for _ in range(2):
        found = await made(batch)
        made.commits.add(batch, batch.last, made.commits.cursor, found, 0)
        assert list(found.letters) == [2]
        assert len(column(found, "n")) == count - 1
    assert state(made) == {"sum": 2 * (sum(range(count + 1)) - 3)}


async def test_a_generator_that_only_looks_at_state_loses_nothing() -> None:
    class Looks(RecordHandler):
        output_schema = "n long"

        def process_record(self, record: Record, ctx: PartitionContext) -> Iterator[tuple[int]]:
            yield (record.json() + ctx.state.get("none", 0),)

    for settings_ in (QUICK, Settings(delivery="at-most-once")):
        found = await Run(Looks(), settings_)(Batch.of("0", [b"1", b"2"], [0, 1]))
        assert (column(found, "n"), len(found.letters)) == ([1, 2], 0)


async def test_no_record_is_kept_between_batches() -> None:
    class Kept(RecordHandler):
        async def process_record(self, record: Record, ctx: PartitionContext) -> None:
            assert self.record is record

    await Run(Kept())(Batch.of("0", [b"1"], [0]))
    assert _current.get(None) is None


async def test_only_the_failed_record_is_reported_as_tried_again() -> None:
    seen: list[Any] = []

    class Watched(Sums):
        def process_record(self, event: Event, ctx: PartitionContext) -> Any:
            if event.n == 3 and self.calls[3]:
                seen.append(made.processor.calls.retries.retry)
            return super().process_record(event, ctx)

    made = Run(Watched())
    await made(batch_of([Event(n, fails=1 if n == 3 else 0) for n in range(1, 6)]))
    assert [(retry.first, retry.records) for retry in seen] == [(102, 1)]


async def test_concurrent_records_that_fail_before_their_change_are_called_alone() -> None:
    class Concurrent(Awaited):
        concurrency = 4

    one = Concurrent()
    made, found = await run(one, [Event(n, key=str(n), fails=1 if n % 5 == 0 else 0) for n in range(1, 41)])
    assert sum(one.calls.values()) == 48
    assert (sorted(column(found, "n")), not found.letters) == (list(range(1, 41)), True)
    assert {key: value for key, value in state(made).items() if key != "odd"} == {str(n): n for n in range(1, 41)}


async def test_a_concurrent_record_that_fails_after_its_change_leaves_no_trace() -> None:
    class Concurrent(Awaited):
        concurrency = 4

    events: list[Event | None] = [Event(n, fails=9 if n == 5 else 0, how="late") for n in range(1, 11)]
    made, found = await run(Concurrent(), events)
    assert (state(made), list(found.letters)) == ({"a": 50, "odd": 4}, [104])


class Whole(PartitionHandler):
    """Changes state for each record, and fails one of them alone."""

    output_schema = "n long"
    how: ClassVar[str] = "fail"

    def __init__(self) -> None:
        self.calls = 0

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record, value in ctx.decode(batch, int):
            self.calls += 1
            ctx.state.set("sum", ctx.state.get("sum", 0) + value)
            ctx.emit(record, (value,))
            if value == 2 and self.how == "fail":
                ctx.fail(record, Failed(2))


async def test_a_partition_handler_that_runs_a_batch_again_says_so_once() -> None:
    one = Whole()
    made = Run(one)
    with structlog.testing.capture_logs() as logs:
        for first in (10, 20):
            await made(Batch.of("0", [b"1", b"2", b"3"], range(first, first + 3)))
    assert [line["event"] for line in logs].count("partition.batch_rerun") == 1
    assert one.calls == 2 * (3 + 1 + 2 + 1), "the batch, the records before it, it twice, those behind it"


class Unsteady(PartitionHandler):
    """Totals, by a service that fails at every fiftieth call."""

    output_schema = "n long"
    calls = 0

    def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision:
        return Decision.RETRY if self.calls < 4000 else Decision.STOP

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        async def ask(record: Record) -> None:
            self.calls += 1
            if self.calls % 50 == 0:
                raise Failed(record.sequence)
            ctx.emit(record, (record.sequence,))

        ctx.state.set("n", ctx.state.get("n", 0) + len(batch))
        await ctx.map(batch, ask)


async def test_a_batch_whose_records_fail_now_and_then_ends_soon() -> None:
    one = Unsteady()
    made = Run(one, INSTANTLY)
    batch = Batch.of("0", [b""] * 1000, range(1000))
    found = await made(batch)
    made.commits.add(batch, batch.last, made.commits.cursor, found, 0)
    assert (column(found, "n"), state(made)) == (list(range(1000)), {"n": 1000})


class ChangesTooEarly(RecordHandler[int]):
    output_schema = "n long"
    concurrency = 4

    async def process_record(self, value: int, ctx: PartitionContext) -> Any:
        ctx.state.set("sum", ctx.state.get("sum", 0) + value)
        if value == 2:
            raise Failed(2)
        return (value,)


class EmitsMisfits(RecordHandler[int]):
    output_schema = "n long"

    def process_record(self, value: int, ctx: PartitionContext) -> None:
        ctx.state.set("sum", ctx.state.get("sum", 0) + value)
        ctx.emit(self.record, ("no number" if value == 2 else value,))


@pytest.mark.parametrize(
    ("handler", "advice"),
    [
        (Whole, "A RecordHandler undoes and repeats only"),
        (ChangesTooEarly, "set concurrency = 1"),
        (EmitsMisfits, "return rows from process_record"),
    ],
)
async def test_the_advice_against_running_a_batch_again_fits_the_handler(
    handler: type[PartitionHandler], advice: str
) -> None:
    made = Run(handler())
    with structlog.testing.capture_logs() as logs:
        await made(Batch.of("0", [b"1", b"2", b"3"], [1, 2, 3]))
    [why] = [line["why"] for line in logs if line["event"] == "partition.batch_rerun"]
    assert advice in why
    assert ("A RecordHandler" in why) == (handler is Whole)


async def test_values_that_do_not_decode_make_no_other_record_run_again() -> None:
    class Decoding(Whole):
        how = "none"

    one = Decoding()
    made = Run(one)
    found = await made(Batch.of("0", [b"1", b"x", b"3"], [1, 2, 3]))
    assert (one.calls, column(found, "n"), list(found.letters)) == (2, [1, 3], [2])


async def test_columns_that_do_not_decode_make_no_other_record_run_again() -> None:
    calls: list[int] = []

    class Columns(PartitionHandler):
        output_schema = "n long"
        State = int

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            calls.append(len(batch))
            table = ctx.decode_arrow(batch, "n long")
            ctx.state.update(pa.table({"k": table["n"].cast(pa.string()), "value": table["n"]}), on="k")
            ctx.emit_arrow(table)

    made = Run(Columns())
    found = await made(Batch.of("0", [b'{"n": 1}', b"x", b'{"n": 3}'], [1, 2, 3]))
    assert (calls, column(found, "n"), list(found.letters)) == ([3], [1, 3], [2])
