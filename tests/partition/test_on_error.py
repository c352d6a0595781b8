"""`on_error` decides: skip, dead letter, retry or stop. An `on_error` that fails or returns something else."""

from __future__ import annotations

from typing import Any

import pytest
import structlog

from actorproc import errors
from actorproc.handler.base import Decision, PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.records import Batch
from actorproc.testing import run_handler
from tests.partition.running import QUICK, Doubler, Run, column, letters, numbers


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
    assert handler.seen == [[1, 2, 3], [1], [2, 3], [2], [3]]


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


async def test_a_stop_for_the_batch_is_not_hidden_by_a_record_that_failed() -> None:
    """A transaction of the handler is in doubt: only a new start can find out, whatever else failed."""

    class Doubt(Exception):
        pass

    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            self.seen.append(batch.sequences)
            ctx.fail(batch[0], ValueError("bad"), again=False)
            raise Doubt

        def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision | None:
            return Decision.STOP if isinstance(error, Doubt) else None

    handler = Handler()
    with pytest.raises(errors.HandlerError, match="Doubt"):
        await Run(handler)(numbers(1, 2, 3))
    assert len(handler.seen) == 1


@pytest.mark.parametrize("fault", ["user", "infrastructure"])
async def test_a_stop_is_the_fault_of_its_cause(fault: errors.Fault) -> None:
    class Away(errors.HandlerError):
        pass

    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            error = Away("the service is away")
            error.fault = fault
            raise error

        def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision | None:
            return Decision.STOP

    with pytest.raises(errors.HandlerError, match="is away") as stopped:
        await Run(Handler())(numbers(1))
    assert stopped.value.fault == fault


async def test_a_decision_applies_to_its_record_alone() -> None:
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


@pytest.mark.parametrize("verdict", ["skip", ZeroDivisionError("of on_error")])
async def test_a_failing_on_error_stops_the_partition(verdict: Any) -> None:
    class Handler(Doubler):
        bad = frozenset({7})

        def on_error(self, error: Exception, failed: Batch, attempt: int) -> Any:
            if isinstance(verdict, Exception):
                raise verdict
            return verdict

    with pytest.raises(errors.HandlerError, match=r"on_error (returned 'skip'|failed: ZeroDivisionError: of on_error)"):
        await Run(Handler())(numbers(7))


class Misspelt(Doubler):
    bad = frozenset({2})

    def on_error(self, error: Exception, failed: Batch, attempt: int) -> Any:
        return "skip"


async def test_a_wrong_result_of_on_error_stops_the_partition() -> None:
    with pytest.raises(errors.HandlerError, match=r"on_error returned 'skip'; allowed are Decision\.RETRY.*2 is bad"):
        await Run(Misspelt())(numbers(1, 2, 3))


async def test_a_wrong_result_of_on_error_loses_nothing_at_most_once() -> None:
    outcome = await Run(Misspelt(), QUICK.model_copy(update={"delivery": "at-most-once"}))(numbers(1, 2, 3))
    assert sorted(outcome.letters) == [100, 101, 102]


@pytest.mark.parametrize("stops", ["returns", "raises"])
async def test_at_most_once_a_stop_makes_dead_letters(stops: str) -> None:
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


async def test_skipped_records_are_logged_now_and_then() -> None:
    class Skipping(Doubler):
        bad = frozenset(range(50))

        def on_error(self, error: Exception, records: Batch, attempt: int) -> Decision:
            records.values.clear()
            return Decision.SKIP

    with structlog.testing.capture_logs() as logs:
        assert (await Run(Skipping())(numbers(*range(50)))).skipped == 50
    told = [entry for entry in logs if entry["event"] == "partition.record_skipped"]
    assert len(told) == 50
    assert len([entry for entry in told if entry["log_level"] == "warning"]) == 1


@pytest.mark.parametrize("decision", Decision)
@pytest.mark.parametrize("commits", [False, True])
async def test_a_record_given_up_is_not_asked_about_though_its_row_does_not_fit(
    decision: Decision, commits: bool
) -> None:
    class Handler(PartitionHandler):
        output_schema = "n int"

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                ctx.emit(record, {"n": record.text if record.text == "2" else 1})
                if record.text == "2":
                    ctx.dead_letter(record, "I say so", kind="Mine")
            if commits:
                await ctx.commit()

        def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision | None:
            return decision

    result = await run_handler(Handler, [b"1", b"2", b"3"])
    assert [row["_sequence"] for row in result.rows] == [0, 2]
    assert [(letter["sequence"], letter["error"]["type"]) for letter in result.dead_letters] == [(1, "Mine")]
