"""User code is contained: its exceptions, its stray cancellations, and the cancellation requests that it leaves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import anyio
import pytest
import structlog

from actorproc import Batch, CloseReason, Partition, PartitionContext, PartitionInfo, Processor, errors
from actorproc.runtime.user_code import user_code
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource
from tests.processor.doubling import QUICK, Double, fed, rows
from tests.simulation.handler_styles import leave_cancellation_behind

LOUD = {"error", "critical"}


class Stumbling(Double):
    """Runs a failing asyncio.TaskGroup in each batch, which before Python 3.13 leaves a cancellation request behind."""

    closed: ClassVar[list[CloseReason]] = []

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.closed = []

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        await leave_cancellation_behind()
        await super().process(batch, ctx)

    async def closing(self, ctx: PartitionInfo, reason: CloseReason) -> None:
        self.closed.append(reason)


def host(handler: type[Double], source: MemorySource, store: Store, name: str, **settings: Any) -> Processor:
    return Processor(handler, name="Double", source=source, container=store, host=name, **QUICK | settings)


async def until_done(store: Store, count: int) -> None:
    with anyio.fail_after(60):
        while len(await rows(store)) < count:
            await anyio.sleep(0.01)


async def test_a_stop_fails_no_partition() -> None:
    class Handler(Stumbling): ...

    store = Store(MemoryStore())
    with structlog.testing.capture_logs() as logs:
        async with host(Handler, fed(), store, "a"):
            await until_done(store, 40)
    assert set(Handler.closed) == {CloseReason.STOPPING}
    assert not [entry for entry in logs if entry["log_level"] in LOUD]


async def test_a_handoff_fails_no_partition() -> None:
    class Handler(Stumbling): ...

    store, source = Store(MemoryStore()), fed()
    with structlog.testing.capture_logs() as logs:
        async with host(Handler, source, store, "a") as first:
            await until_done(store, 40)
            async with host(Handler, source, store, "b"):
                with anyio.fail_after(60):
                    while len(Handler.closed) < 2:
                        await anyio.sleep(0.01)
                assert set(Handler.closed) == {CloseReason.HANDOFF}
            assert first.statistics().running
    assert not [entry for entry in logs if entry["log_level"] in LOUD]


@pytest.mark.parametrize("amid", [False, True])
async def test_a_host_that_fences_itself_resumes_its_partitions(amid: bool) -> None:
    class Handler(Stumbling):
        blocked: ClassVar[bool] = False

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            if not Handler.blocked:
                Handler.blocked = True
                if amid:
                    await leave_cancellation_behind()  # the fence comes into this very call
                time.sleep(1.5)  # on purpose: longer than the lease
                await anyio.sleep(1)
            await super().process(batch, ctx)

    store, source = Store(MemoryStore()), fed()
    with structlog.testing.capture_logs() as logs:
        async with host(Handler, source, store, "a", loop_block_warning=10) as processor:
            await until_done(store, 40)
            source.append("0", [b"77"])
            await until_done(store, 41)
            assert processor.statistics().running
    assert "supervisor.fenced_itself" in [entry["event"] for entry in logs]
    assert "partition.failed" not in [entry["event"] for entry in logs]


async def test_a_stuck_handler_is_reported_as_stuck() -> None:
    class Handler(Stumbling):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            await super().process(batch, ctx)
            if batch.partition == "0" and not [entry for entry in logs if entry["event"] == "partition.failed"]:
                await anyio.sleep_forever()

    store = Store(MemoryStore())
    with structlog.testing.capture_logs() as logs:
        async with host(Handler, fed(), store, "a", max_process_time=0.1):
            await until_done(store, 40)
    (failed,) = [entry for entry in logs if entry["event"] == "partition.failed"]
    assert failed["error"] == "PartitionStuck: the handler made no progress for max_process_time = 0.1 s"


async def test_source_shared_and_opened_may_leave_cancellations_behind() -> None:
    class Source(MemorySource):
        async def partitions(self) -> Sequence[str | Partition]:
            await leave_cancellation_behind()
            return await super().partitions()

        async def open(self) -> None:
            await leave_cancellation_behind()

    class Handler(Stumbling):
        @classmethod
        @asynccontextmanager
        async def shared(cls, options: Any) -> AsyncIterator[None]:
            await leave_cancellation_behind()
            yield

        async def opened(self, ctx: PartitionInfo) -> None:
            await leave_cancellation_behind()

        async def closing(self, ctx: PartitionInfo, reason: CloseReason) -> None:
            await leave_cancellation_behind()
            await super().closing(ctx, reason)

    source, store = Source(4), Store(MemoryStore())
    for partition in range(4):
        source.append(str(partition), [b"1"])
    with structlog.testing.capture_logs() as logs, anyio.CancelScope() as around:
        async with host(Handler, source, store, "a", partition_refresh_interval=0.1):
            await until_done(store, 4)
            await anyio.sleep(0.3)
        around.cancel()
        await anyio.sleep(0)
    assert around.cancelled_caught, "nothing is left in the application's own task"
    assert set(Handler.closed) == {CloseReason.STOPPING}
    assert not [entry for entry in logs if entry["log_level"] in LOUD]


@pytest.mark.parametrize("task", ["_renew_forever", "_fence_in_time"])
async def test_a_host_with_a_cancelled_task_ends_with_an_error(task: str) -> None:
    class Meddling(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for each in asyncio.all_tasks():
                if each.get_name().endswith(task):
                    each.cancel()
            await super().process(batch, ctx)

    with anyio.fail_after(60), pytest.raises(errors.ActorprocError, match="this host has ended, and nobody stopped it"):
        await host(Meddling, fed(), Store(MemoryStore()), "a").run()


async def test_a_block_whose_host_is_cancelled_ends_with_an_error() -> None:
    store = Store(MemoryStore())
    processor = host(Double, fed(), store, "a")
    with anyio.fail_after(60), pytest.raises(errors.ActorprocError, match="this host has ended, and nobody stopped it"):
        async with processor:
            await until_done(store, 40)
            for each in asyncio.all_tasks() - {asyncio.current_task()}:
                each.cancel()
            await anyio.sleep_forever()
    assert "nobody stopped it" in (processor.statistics().error or "")


@pytest.mark.parametrize("task", ["_stop_after", "RunUntilEnd.watch"])
async def test_a_run_with_a_cancelled_task_ends_with_an_error(task: str) -> None:
    class Meddling(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for each in asyncio.all_tasks():
                if each.get_name().endswith(task):
                    each.cancel()
            await anyio.sleep_forever()

    run = host(Meddling, fed(), Store(MemoryStore()), "a").run(signals=True, until_end=True)
    with anyio.fail_after(60), pytest.raises(errors.ActorprocError, match="this host has ended, and nobody stopped it"):
        await run


async def test_a_host_survives_the_cancellation_of_its_watchdog() -> None:
    class Meddling(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for each in asyncio.all_tasks():
                if "watchdog" in each.get_name():
                    each.cancel()
            await super().process(batch, ctx)

    store, done = Store(MemoryStore()), False
    async with host(Meddling, fed(), store, "a"):
        await until_done(store, 40)
        done = True
    assert done


async def clean_up() -> None:
    """As one writes it: the error is that the task's cancellation comes out here."""
    task = asyncio.ensure_future(anyio.sleep_forever())
    await anyio.sleep(0)
    task.cancel()
    await task


async def test_a_stray_cancellation_in_clean_up_is_only_logged() -> None:
    class Source(MemorySource):
        async def close(self) -> None:
            await clean_up()

    class Handler(Stumbling):
        async def closing(self, ctx: PartitionInfo, reason: CloseReason) -> None:
            await super().closing(ctx, reason)
            await clean_up()

    source, store = Source(4), Store(MemoryStore())
    source.append("0", [b"1"])
    with structlog.testing.capture_logs() as logs:
        await host(Handler, source, store, "a").run(until_end=True)
    assert set(Handler.closed) == {CloseReason.STOPPING}
    logged = [entry["event"] for entry in logs if entry["log_level"] in {"warning", "error"}]
    assert sorted(event for event in logged if event != "loop.blocked") == ["partition.closing_failed"] * 4 + [
        "source.close_failed"
    ]
    assert len([entry for entry in logs if entry["event"] == "partition.closed"]) == 4


async def test_failing_clean_up_does_not_hide_why_a_partition_failed() -> None:
    class Handler(Stumbling):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            raise errors.HandlerMisuse("the real trouble")

        async def closing(self, ctx: PartitionInfo, reason: CloseReason) -> None:
            await clean_up()

    with pytest.raises(errors.EndNotReached, match="the real trouble"):
        await host(Handler, fed(), Store(MemoryStore()), "a").run(until_end=True)


async def test_a_stray_cancellation_at_the_end_of_shared_is_a_handler_error() -> None:
    class Handler(Stumbling):
        @classmethod
        @asynccontextmanager
        async def shared(cls, options: Any) -> AsyncIterator[None]:
            yield
            await clean_up()

    store = Store(MemoryStore())
    with pytest.raises(errors.HandlerError, match=r"Handler\.shared was cancelled from within"):
        await host(Handler, fed(), store, "a").run(until_end=True)
    assert len(await rows(store)) == 40


@pytest.mark.parametrize("at", ["entering", "leaving"])
async def test_a_time_limit_around_a_run_works_within_shared(at: str) -> None:
    class Handler(Stumbling):
        @classmethod
        @asynccontextmanager
        async def shared(cls, options: Any) -> AsyncIterator[None]:
            if at == "entering":
                await anyio.sleep(60)
            yield
            await anyio.sleep(60)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(host(Handler, fed(), Store(MemoryStore()), "a").run(until_end=True), 2)


@pytest.mark.parametrize("raised", [ValueError("x"), SystemExit("x"), ExceptionGroup("", [ValueError("x")])])
async def test_any_exception_becomes_an_error_of_the_given_kind(raised: BaseException) -> None:
    says = r"read failed: (ValueError|SystemExit): x"
    with pytest.raises(errors.SourceError, match=says) as caught, user_code("read", errors.SourceError):
        raise raised
    assert isinstance(caught.value.__cause__, ValueError | SystemExit)


async def test_our_own_errors_come_out_unchanged() -> None:
    with pytest.raises(errors.Fenced), user_code("on_error", errors.HandlerError):
        raise errors.Fenced("another owner")


async def test_without_a_kind_an_exception_comes_out_unchanged() -> None:
    with pytest.raises(ValueError, match=r"^x$"), user_code("process"):
        raise ValueError("x")
    with pytest.raises(errors.HandlerError, match="process raised SystemExit: x"), user_code("process"):
        raise SystemExit("x")


@pytest.mark.parametrize("raised", [KeyboardInterrupt, GeneratorExit])
async def test_interruptions_come_out_unchanged(raised: type[BaseException]) -> None:
    with pytest.raises(raised), user_code("process", errors.HandlerError):
        raise raised


async def test_the_cause_begins_in_user_code() -> None:
    with pytest.raises(errors.HandlerError) as caught, user_code("process", errors.HandlerError):
        await clean_up_wrongly()
    cause = caught.value.__cause__
    assert cause is not None
    assert cause.__traceback__ is not None
    assert cause.__traceback__.tb_frame.f_globals["__name__"] == __name__


async def clean_up_wrongly() -> None:
    raise ValueError("x")


async def test_a_stray_cancellation_becomes_an_error_and_the_task_goes_on() -> None:
    with pytest.raises(errors.HandlerError, match="process was cancelled from within"), user_code("process"):
        await clean_up()
    await anyio.sleep(0)


async def test_a_cancellation_of_a_scope_comes_out_unchanged() -> None:
    with anyio.move_on_after(0.01) as scope, user_code("process", errors.HandlerError):
        await anyio.sleep_forever()
    assert scope.cancelled_caught


async def test_a_cancellation_by_the_application_comes_out_unchanged() -> None:
    async def wait() -> None:
        with user_code("open", errors.SourceError, application_task=True):
            await anyio.sleep_forever()

    task = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
