"""Handlers that get stuck are cancelled and started again, and said to be stuck."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import anyio
import structlog

from actorproc import Batch, PartitionContext, Processor, Site
from actorproc.group.heartbeat import read_heartbeats
from actorproc.layout import ProcessorLayout
from actorproc.store import Store
from actorproc.stores.memory import Memory
from tests.processor.doubling import QUICK, Double, fed, rows


async def test_a_stuck_handler_is_cancelled_and_its_partition_started_again() -> None:
    attempts: list[str] = []

    class Stuck(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            attempts.append(ctx.partition)
            if len(attempts) == 1:
                await anyio.sleep_forever()
            await super().process(batch, ctx)

    store = Store(Memory())
    processor = Processor(Stuck, name="Double", source=fed(1), container=store, **{**QUICK, "max_process_time": 0.1})
    with anyio.fail_after(60):
        await processor.run(until_end=True)
    assert len(await rows(store)) == 10
    assert attempts == ["0", "0"]


async def test_at_most_once_what_was_done_before_a_handler_got_stuck_is_kept() -> None:
    calls = 0

    class Stuck(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            nonlocal calls
            calls += 1
            if calls == 2:
                await anyio.sleep_forever()
            await super().process(batch, ctx)

    store = Store(Memory())
    settings = {
        **QUICK, "max_process_time": 0.1, "max_batch_records": 4, "delivery": "at-most-once", "commit_interval": 1000
    }  # fmt: skip
    processor = Processor(Stuck, name="Double", source=fed(1), container=store, **settings)
    with anyio.fail_after(60):
        await processor.run(until_end=True)
    assert await rows(store) == [2 * n for n in (0, 1, 2, 3, 8, 9)]


async def test_a_handler_that_does_not_get_through_opened_is_cancelled_and_its_partition_started_again() -> None:
    starts: list[str] = []

    class Stuck(Double):
        async def opened(self, ctx: Site) -> None:
            starts.append(ctx.partition)
            if len(starts) == 1:
                await anyio.sleep_forever()

    store = Store(Memory())
    processor = Processor(Stuck, name="Double", source=fed(1), container=store, **{**QUICK, "max_process_time": 0.1})
    with anyio.fail_after(60):
        await processor.run(until_end=True)
    assert len(await rows(store)) == 10
    assert starts == ["0", "0"]


async def test_a_stuck_handler_that_swallows_its_cancellation_is_reported_all_the_same() -> None:
    class Stubborn(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            await super().process(batch, ctx)
            while batch.last > 4 and not told.is_set():
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.01)

    async def shown() -> object:
        """In the heartbeat, which is where other hosts and `status` see it."""
        beats = await read_heartbeats(store, ProcessorLayout("Double"))
        return beats[0][0].statistics["failing"] if beats else None

    told, store = anyio.Event(), Store(Memory())
    settings = {**QUICK, "max_process_time": 0.1, "max_batch_records": 5}
    stuck = "PartitionStuck: the handler made no progress for max_process_time = 0.1 s"
    with structlog.testing.capture_logs() as logs:
        async with Processor(Stubborn, name="Double", source=fed(1), container=store, **settings) as processor:
            try:
                with anyio.fail_after(60):
                    while await shown() != {"0": stuck}:
                        await anyio.sleep(0.01)
                supervisor = processor.statistics().supervisor
            finally:
                told.set()
    assert supervisor is not None
    assert [partition.error for partition in supervisor.partitions] == [stuck]
    assert stuck in [entry["error"] for entry in logs if entry["event"] == "partition.stuck"]
