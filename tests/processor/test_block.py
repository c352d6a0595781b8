"""`async with Processor`: it works in the background, and has drained when the block ends, however it ends."""

from __future__ import annotations

import asyncio
import sys

import anyio
import pytest

from actorproc import Batch, PartitionContext, Processor, errors
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource
from tests.processor.doubling import QUICK, Double, _partitions, fed, rows


async def test_embedded_it_runs_in_the_background_and_drains_when_the_block_ends() -> None:
    store, source = Store(MemoryStore()), fed()
    async with Processor(Double, source=source, container=store, host="a", **QUICK) as processor:
        with anyio.fail_after(60):
            while await rows(store) != sorted(2 * n for n in range(10) for _ in range(4)):
                await anyio.sleep(0.01)
        statistics = processor.statistics()
        assert statistics.running
        assert [p.partition for p in statistics.partitions] == ["0", "1", "2", "3"]
        assert sum(p.counts.rows for p in statistics.partitions) == 40
        assert statistics.store_requests["put_if_absent"] >= 4
    assert not processor.statistics().running
    assert (await store.list("Double/hosts/")).entries == []


async def test_a_host_that_is_stopped_within_its_block_runs_no_more() -> None:
    async with Processor(Double, source=fed(), container=Store(MemoryStore()), **QUICK) as processor:
        processor.stop()
        with anyio.fail_after(60):
            while processor.statistics().running:
                await anyio.sleep(0.01)
        assert processor.statistics().error is None


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("cancel", ["anyio", "asyncio"])
async def test_a_block_that_is_cancelled_while_it_drains_leaves_nothing_running(cancel: str, fails: bool) -> None:
    class Stands(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            begun.set()
            await anyio.sleep_forever()

    begun = anyio.Event()
    processor = Processor(Stands, source=fed(1), container=Store(MemoryStore()), **QUICK)

    async def use() -> None:
        async with processor:
            await begun.wait()
            if fails:
                raise ValueError("the block's own")

    before = asyncio.all_tasks()
    if cancel == "anyio":
        with anyio.move_on_after(0.5) as scope:
            await use()
        assert scope.cancelled_caught
    else:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(use(), 0.5)
    assert begun.is_set()
    assert not processor.statistics().running
    assert asyncio.all_tasks() == before
    async with processor:  # which may be used again
        pass


async def test_an_error_in_the_block_drains_and_is_raised() -> None:
    store = Store(MemoryStore())
    with pytest.raises(KeyError):
        async with Processor(Double, source=fed(), container=store, **{**QUICK, "commit_interval": 1000}) as processor:
            with anyio.fail_after(60):
                while sum(p.counts.records for p in _partitions(processor)) < 40:
                    await anyio.sleep(0.01)
            raise KeyError("mine")
    assert len(await rows(store)) == 40
    assert (await store.list("Double/hosts/")).entries == []


def test_a_program_that_exits_within_the_block_drains_first() -> None:
    store = Store(MemoryStore())

    async def main() -> None:
        async with Processor(Double, source=fed(), container=store, **{**QUICK, "commit_interval": 1000}) as processor:
            with anyio.fail_after(60):
                while sum(p.counts.records for p in _partitions(processor)) < 40:
                    await anyio.sleep(0.01)
            sys.exit(3)

    with pytest.raises(SystemExit) as ended:
        asyncio.run(main())
    assert ended.value.code == 3
    assert len(asyncio.run(rows(store))) == 40


async def test_an_error_group_of_the_block_comes_out_as_it_was_raised() -> None:
    raised = ExceptionGroup("mine", [ValueError("a"), KeyError("b")])
    with pytest.raises(ExceptionGroup) as caught:
        async with Processor(Double, source=fed(), container=Store(MemoryStore()), host="a", **QUICK):
            raise raised
    assert caught.value is raised


async def test_a_processor_runs_again_after_its_block_and_after_a_run() -> None:
    store, source = Store(MemoryStore()), fed(1, 5)
    processor = Processor(Double, source=source, container=store, host="a", **QUICK)
    async with processor:
        pass
    await processor.run(until_end=True)
    assert await rows(store) == [0, 2, 4, 6, 8]
    source.append("0", [b"5"])
    await processor.run(until_end=True)
    async with processor:
        pass
    assert await rows(store) == [0, 2, 4, 6, 8, 10]


async def test_a_second_run_is_refused_and_the_first_goes_on() -> None:
    store = Store(MemoryStore())
    async with Processor(Double, source=fed(1, 5), container=store, host="a", **QUICK) as processor:
        with pytest.raises(errors.UsageError, match="runs already; make another one"):
            await processor.run(until_end=True)
        with pytest.raises(errors.UsageError, match="runs already"):
            async with processor:
                pass
        with anyio.fail_after(60):
            while await rows(store) != [0, 2, 4, 6, 8]:
                await anyio.sleep(0.01)


async def test_a_stop_during_the_start_counts_despite_a_refused_run() -> None:
    class Slow(MemorySource):
        async def open(self) -> None:
            opening.set()
            await go_on.wait()

    opening, go_on = anyio.Event(), anyio.Event()
    processor = Processor(Double, source=Slow(1), container=Store(MemoryStore()), **QUICK)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(processor.run)
            await opening.wait()
            processor.stop()
            with pytest.raises(errors.UsageError, match="runs already"):
                await processor.run()
            go_on.set()
