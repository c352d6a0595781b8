"""Retries of a failed batch: their number and pauses, during a drain, and with at-most-once delivery."""

from __future__ import annotations

import anyio
import orjson
import pytest
import structlog

from actorproc.handler.base import Decision, PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.partition.retry_pause import Interrupted
from actorproc.records import Batch
from tests.partition.running import QUICK, Doubler, Run, column, letters, numbers


async def test_a_failed_attempt_leaves_no_rows() -> None:
    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            await super().process(batch, ctx)
            if ctx.attempt == 1:
                raise OSError("a hiccup")

    outcome = await Run(Handler())(numbers(1, 2))
    assert column(outcome, "attempt") == [2, 2]
    assert not outcome.letters


async def test_a_bad_record_is_tried_max_attempts_times_and_twice_alone() -> None:
    class Handler(Doubler):
        bad = frozenset({5})

    handler = Handler()
    outcome = await Run(handler, QUICK.model_copy(update={"max_attempts": 4}))(numbers(4, 5, 6))
    assert handler.seen == [[4, 5, 6]] * 4 + [[4], [5, 6], [5], [5], [6]]
    assert letters(outcome)[101]["attempts"] == 6


async def test_errors_of_new_classes_of_one_name_count_together() -> None:
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
    assert letters(outcome)[101]["attempts"] == QUICK.max_attempts + 2
    assert column(outcome, "n") == [4, 6]


async def test_a_drain_cuts_the_wait_for_the_next_attempt_short() -> None:
    class Handler(Doubler):
        bad = frozenset({1})

    run = Run(Handler(), QUICK.model_copy(update={"retry_backoff": 1e6, "retry_backoff_max": 1e6}))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_set_soon, run.draining)
        with pytest.raises(Interrupted):
            await run(numbers(1))


async def test_a_drain_sits_out_at_most_a_second_of_pauses() -> None:
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


async def test_at_most_once_delivery_retries_nothing() -> None:
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


async def test_a_drain_sits_out_a_short_pause() -> None:
    class Handler(Doubler):
        bad = frozenset({3})

    run = Run(Handler(), QUICK.model_copy(update={"retry_backoff": 0.002, "max_attempts": 3}))
    run.draining.set()
    outcome = await run(numbers(*range(5)))
    assert (column(outcome, "n"), list(letters(outcome))) == ([0, 1, 2, 4], [103])


@pytest.mark.parametrize(("records", "told"), [(1, 2), (2, 3)])
async def test_only_retries_are_logged_as_retries(records: int, told: int) -> None:
    class Bad(Doubler):
        bad = frozenset(range(10))

    with structlog.testing.capture_logs() as logs:
        await Run(Bad(), QUICK.model_copy(update={"max_attempts": 3}))(numbers(*range(records)))
    assert len([entry for entry in logs if entry["event"] == "partition.attempt_failed"]) == told
