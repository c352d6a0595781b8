"""`stop()` commits finished batches, and no hanging or failing part delays it for ever."""

from __future__ import annotations

import gc
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import anyio
import anyio.to_thread
import pytest
import structlog

from actorproc import Batch, CloseReason, Decision, PartitionContext, PartitionInfo, Processor, errors
from actorproc.runtime.nudge import Nudges
from actorproc.sources.protocol import Chunk
from actorproc.storage.backend import Listing
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource
from tests.processor.doubling import QUICK, Double, _partitions, fed, rows


async def test_processed_records_are_committed_while_the_source_waits_in_a_thread() -> None:
    hang = threading.Event()

    class Waits(MemorySource):
        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            async with aclosing(super().read(partition, position)) as chunks:
                yield await anext(chunks)
            await anyio.to_thread.run_sync(hang.wait)

    store, source = Store(MemoryStore()), Waits(1)
    source.append("0", [b"1", b"2"])
    processor = Processor(Double, source=source, container=store, **{**QUICK, "commit_interval": 3600})
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(processor.run)
            with anyio.fail_after(30):
                while not (did := processor.statistics()) or did.counts.records < 2:
                    await anyio.sleep(0.01)
                processor.stop()
                while await rows(store) != [2, 4]:
                    await anyio.sleep(0.01)
            hang.set()
    finally:
        hang.set()


async def test_a_partition_that_fails_while_draining_delays_no_other() -> None:
    at_work, stopping = anyio.Event(), anyio.Event()

    class Failing(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            at_work.set()
            await stopping.wait()
            raise RuntimeError("always")

        def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision:
            return Decision.STOP

    settings = {**QUICK, "restart_backoff": 20, "restart_backoff_max": 20, "max_handoff_time": 30}
    with structlog.testing.capture_logs() as logs:
        async with Processor(Failing, source=fed(2), container=Store(MemoryStore()), **settings) as processor:
            with anyio.fail_after(10):  # less than the pause before a partition is started again
                await at_work.wait()
                processor.stop()
                while not any(entry["event"] == "supervisor.leaving" for entry in logs):
                    await anyio.sleep(0.01)
                stopping.set()
                while _partitions(processor):
                    await anyio.sleep(0.01)


async def test_a_stop_asked_for_before_the_run_begins_is_kept() -> None:
    processor = Processor(Double, source=fed(), container=Store(MemoryStore()), host="a", **QUICK)
    processor.stop()
    with anyio.fail_after(60):
        await processor.run()


async def test_a_block_that_is_stopped_before_it_begins_does_not_begin() -> None:
    processor = Processor(Double, source=fed(), container=Store(MemoryStore()), host="a", **QUICK)
    processor.stop()
    with pytest.raises(errors.Aborted, match="stopped before it had started"):
        async with processor:
            raise AssertionError


async def test_a_stop_does_not_wait_for_a_store_that_hangs() -> None:
    class Hanging(MemoryStore):
        hangs = False

        async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
            if self.hangs and "/hosts/" in prefix:
                await anyio.sleep_forever()
            return await super().list(prefix, after, limit)

    backend = Hanging()
    seen: list[CloseReason] = []

    class Watched(Double):
        async def closing(self, ctx: PartitionInfo, reason: CloseReason) -> None:
            seen.append(reason)

    settings = QUICK | {"commit_interval": 1000, "max_handoff_time": 0.2}
    store = Store(backend)
    async with anyio.create_task_group() as tasks:
        processor = Processor(Watched, source=fed(), container=store, host="a", name="Double", **settings)
        tasks.start_soon(processor.run)
        with anyio.fail_after(60):
            while not (s := processor.statistics()) or len(s.partitions) < 4:
                await anyio.sleep(0.01)
        await anyio.sleep(0.05)
        backend.hangs = True
        await anyio.sleep(0.3)  # the next look hangs
        processor.stop()
        with anyio.fail_after(10):  # less than a request may take
            while len(seen) < 4:
                await anyio.sleep(0.01)
        assert await rows(store) == sorted(2 * n for n in range(10) for _ in range(4))
        backend.hangs = False


async def test_a_host_that_is_cancelled_before_it_listens_leaves_nothing_open() -> None:
    starting = anyio.Event()

    class Slow(Nudges):
        async def open(self, on_nudge: Callable[[], None]) -> None:
            starting.set()
            await anyio.sleep_forever()

    processor = Processor(Double, source=fed(), container=Store(MemoryStore()), nudges=Slow(), **QUICK)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(processor.run)
        with anyio.fail_after(60):
            await starting.wait()
        tasks.cancel_scope.cancel()
    assert not processor.statistics().running
    del processor
    gc.collect()  # a mailbox that is still open warns, which is an error here
