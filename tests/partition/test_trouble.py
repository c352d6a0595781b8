"""Log events and errors of records that fail, and failures without a retry."""

from __future__ import annotations

import re

import anyio
import structlog

from actorproc.handler.base import Decision
from actorproc.handler.context import PartitionContext
from actorproc.records import Batch, Record
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import current_loop, run
from tests.partition.world import Numbers, World

# Log events and shown errors


def test_retries_are_logged_now_and_then_and_shown_until_they_succeed() -> None:
    up_at = 0.0

    class Refused(ConnectionError):
        def __repr__(self) -> str:
            return "Refused(headers={'Authorization': 'Bearer secret'})"  # as that of an HTTP client's errors

    class Down(Numbers):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            async def call(record: Record) -> None:
                if record.json() in (3, 7) and current_loop().now < up_at:
                    raise Refused("503")

            await ctx.map(batch, call)

        def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision:
            return Decision.RETRY

    async def main() -> None:
        nonlocal up_at
        up_at = current_loop().now + 60
        world = World(Down, clock=VirtualClock, retry_backoff_max=2)
        world.feed(10)
        with structlog.testing.capture_logs() as logs:
            async with world.running(1) as actor:
                await anyio.sleep(50)
                assert re.fullmatch(
                    r"tries 2 records from 9 on again, after attempt \d+: Refused: 503",
                    actor.trouble.error if actor.trouble else "",
                )
                await anyio.sleep(50)
                assert actor.trouble is None
        told = [log for log in logs if log["event"] == "partition.attempt_failed"]
        warned = [log for log in told if log["log_level"] == "warning"]
        assert warned[0].items() >= {"attempt": 1, "records": 2, "first": 9, "error": "Refused: 503"}.items()
        assert 5 <= len(warned) <= 7
        assert len(told) > 25

    run(main())


async def test_a_row_that_does_not_fit_is_not_tried_again() -> None:
    class Wrong(Numbers):
        attempts = 0

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            Wrong.attempts += 1
            for record in batch:
                ctx.emit(record, {"n": "five" if record.json() % 10 == 5 else record.json() * 2})

    world = World(Wrong)
    world.feed(20)
    await world.until_end(1)
    assert (await world.letters(), Wrong.attempts) == ([5, 15], 2), "two batches, each tried once"
