"""The last commit of a partition, the hook after each commit, and calls that look whether they should end."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import anyio
import pytest

from actorproc import Batch, CloseReason, PartitionContext, PartitionHandler, PartitionInfo, Processor
from actorproc.errors import HandlerError, StoreUnavailable
from actorproc.runtime.nudge import Nudges
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.storage.store import Store, StoreLimits
from actorproc.stores.memory import MemoryStore
from tests.processor.doubling import QUICK, Double, _partitions, fed, rows


async def processed(processor: Processor, records: int) -> None:
    with anyio.fail_after(60):
        while processor.statistics().counts.records < records:
            await anyio.sleep(0.01)


async def test_closing_commits_processed_records_with_auto_commit_off() -> None:
    class CommitsLast(Double):
        async def closing(self, ctx: PartitionInfo, reason: CloseReason) -> None:
            assert reason is CloseReason.STOPPING
            await ctx.commit()

    store = Store(MemoryStore())
    async with Processor(
        CommitsLast, name="Double", source=fed(2), container=store, **{**QUICK, "auto_commit": False}
    ) as processor:
        await processed(processor, 20)
        assert await rows(store) == []
    assert len(await rows(store)) == 20


async def test_closing_cannot_commit_a_partition_that_has_failed() -> None:
    errors: list[str] = []

    class Fails(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            raise SystemExit

        def on_error(self, error: Exception, failed: Batch, attempt: int) -> Any:
            from actorproc import Decision

            return Decision.STOP

        async def closing(self, ctx: PartitionInfo, reason: CloseReason) -> None:
            with pytest.raises(HandlerError, match="was lost or has failed") as caught:
                await ctx.commit()
            errors.append(str(caught.value))

    async with Processor(Fails, name="Double", source=fed(1), container=Store(MemoryStore()), **QUICK):
        with anyio.fail_after(60):
            while not errors:
                await anyio.sleep(0.01)


class Listening(PartitionHandler):
    """Notes the arguments of `committed`. The output has a row for every second record."""

    output_schema = "n long"
    told: ClassVar[list[tuple[int, int, str | None]]] = []

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            if record.json() % 2 == 0:
                ctx.emit(record, {"n": record.json()})
            await ctx.commit(record)

    async def committed(self, ctx: PartitionInfo, upto: int, rows: int, error: Exception | None) -> None:
        self.told.append((upto, rows, None if error is None else type(error).__name__))
        raise RuntimeError("which is only logged")


def test_committed_is_called_for_each_commit_and_for_a_failed_one() -> None:
    clock, back = VirtualClock("a"), 0.0

    class OneOutage(MemoryStore):
        async def put_if_absent(self, key: str, body: bytes) -> str:
            if key.endswith("2.parquet") and clock.monotonic() < back:
                raise StoreUnavailable("503 SlowDown")
            return await super().put_if_absent(key, body)

    async def story() -> None:
        nonlocal back
        back = clock.monotonic() + 100
        store = Store(OneOutage(clock=clock), limits=StoreLimits(), clock=clock)
        async with Processor(
            Listening, name="Double", source=fed(1, 6), container=store, clock=clock, nudges=Nudges(), auto_commit=False
        ):
            await clock.sleep(300)

    Listening.told = []
    run(story())
    told = Listening.told
    assert told[:4] == [(0, 1, None), (1, 0, None), (2, 1, None), (3, 0, None)]
    failed = told.index((4, 1, "StoreUnavailable"))
    assert told[failed + 1 : failed + 3] == [(4, 1, None), (5, 0, None)], "by the next start"


async def test_without_time_for_a_handoff_a_partition_is_given_up_at_once() -> None:
    begun = anyio.Event()

    class Slow(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            begun.set()
            await anyio.sleep(3600)

    with anyio.fail_after(30):
        async with Processor(
            Slow, name="Double", source=fed(1), container=Store(MemoryStore()), **{**QUICK, "max_handoff_time": 0}
        ):
            await begun.wait()


async def test_a_call_that_says_it_is_alive_is_not_stuck() -> None:
    calls = 0

    class Long(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            nonlocal calls
            calls += 1
            for _ in range(60):
                ctx.alive()
                await anyio.sleep(0.02)
            await super().process(batch, ctx)

    store = Store(MemoryStore())
    settings = {**QUICK, "max_process_time": 0.4}
    with anyio.fail_after(60):
        await Processor(Long, name="Double", source=fed(1), container=store, **settings).run(until_end=True)
    assert calls == 1
    assert len(await rows(store)) == 10


async def test_a_plain_handler_sees_that_it_should_end() -> None:
    begun = threading.Event()

    class Patient(Double):
        def process(self, batch: Batch, ctx: PartitionContext) -> None:  # type: ignore[override]
            begun.set()
            for record in batch:
                ctx.emit(record, {"n": 2 * record.json()})
            while not ctx.stopping:
                threading.Event().wait(0.01)

    store = Store(MemoryStore())
    with anyio.fail_after(30):
        async with Processor(Patient, name="Double", source=fed(1), container=store, **QUICK) as processor:
            while not (begun.is_set() and _partitions(processor)):
                await anyio.sleep(0.01)
    assert len(await rows(store)) == 10
