"""Memory for records read ahead and rows before their commit is bounded over all partitions of a host."""

from __future__ import annotations

import anyio
import structlog

from actorproc import Batch, Decision, PartitionContext, Processor
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource
from tests.processor.doubling import QUICK, Double, fed, rows


async def test_retrying_partitions_leave_the_read_ahead_to_others() -> None:
    class Stubborn(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            if ctx.partition != "3":
                raise OSError("the database is away")
            await super().process(batch, ctx)

        def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision:
            return Decision.RETRY

    store, source = Store(MemoryStore()), MemorySource(4)
    for partition in range(4):
        source.append(str(partition), [b"%d" % n for n in range(100)])
    one_batch = Batch.of("0", [b"%d" % n for n in range(10)], range(10)).nbytes
    settings = QUICK | {
        "max_batch_records": 10, "max_batch_bytes": 3 * one_batch, "read_ahead_bytes": 3 * one_batch,
        "retry_backoff": 0.05
    }  # fmt: skip
    async with Processor(Stubborn, source=source, container=store, host="a", name="Double", **settings):
        with anyio.fail_after(60):
            while await rows(store) != sorted(2 * n for n in range(100)):
                await anyio.sleep(0.01)


async def test_rows_that_wait_for_a_commit_are_bounded_over_all_partitions() -> None:
    most = 0

    class Watched(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            nonlocal most
            statistics = processor.statistics()
            assert statistics is not None
            most = max(most, sum(p.counts.records - p.counts.rows for p in statistics.partitions))
            await super().process(batch, ctx)

    store, source = Store(MemoryStore()), fed(partitions=8, each=1_000)
    settings = QUICK | {"max_batch_records": 10, "commit_interval": 1000, "uncommitted_bytes": 16 * 100}
    processor = Processor(Watched, source=source, container=store, host="a", name="Double", **settings)
    await processor.run(until_end=True)
    assert len(await rows(store)) == 8_000
    assert 100 <= most <= 500  # rows of 16 bytes; commits under way count as well


async def test_unbounded_rows_that_are_never_committed_are_an_error() -> None:
    class Forgetful(Double):
        pass

    settings = QUICK | {"auto_commit": False, "max_batch_records": 10, "uncommitted_bytes": 16 * 100}
    processor = Processor(Forgetful, source=fed(1, 1_000), container=Store(MemoryStore()), host="a", **settings)
    with anyio.fail_after(60), structlog.testing.capture_logs() as logs:
        async with processor:
            while not any("uncommitted_bytes = 1600" in entry.get("error", "") for entry in logs):
                await anyio.sleep(0.01)
