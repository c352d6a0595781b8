"""Handlers that get stuck are cancelled and started again, and said to be stuck."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

import anyio
import anyio.from_thread
import pytest
import structlog

from actorproc import Batch, CloseReason, PartitionContext, PartitionInfo, Processor, errors
from actorproc.admin.fleet_watch import FleetWatch
from actorproc.group.heartbeat import read_heartbeats
from actorproc.group.membership import GroupDocument, read_group
from actorproc.partition.committer import Committer
from actorproc.server.health import problems
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from tests.processor.doubling import QUICK, Double, _partitions, fed, rows


async def test_a_stuck_handler_is_cancelled_and_its_partition_started_again() -> None:
    attempts: list[str] = []

    class Stuck(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            attempts.append(ctx.partition)
            if len(attempts) == 1:
                await anyio.sleep_forever()
            await super().process(batch, ctx)

    store = Store(MemoryStore())
    processor = Processor(Stuck, name="Double", source=fed(1), container=store, **{**QUICK, "max_process_time": 0.1})
    with anyio.fail_after(60):
        await processor.run(until_end=True)
    assert len(await rows(store)) == 10
    assert attempts == ["0", "0"]


async def test_a_partition_whose_thread_hangs_goes_on_at_another_host() -> None:
    hang, committed = threading.Event(), threading.Event()

    class Hangs(Double):
        def process(self, batch: Batch, ctx: PartitionContext) -> None:  # type: ignore[override]
            if ctx.host == "a" and ctx.partition == "0":
                hang.wait()
                with suppress(errors.HandlerError):
                    ctx.emit(batch[0], {"n": -1})
                    anyio.from_thread.run(ctx.commit)
                    committed.set()
                return
            for record in batch:
                ctx.emit(record, {"n": 2 * record.json()})

    store = Store(MemoryStore())
    settings = {**QUICK, "max_process_time": 0.3}

    async def epoch_at_b() -> int:
        group = await read_group(store, ProcessorLayout("Double"))
        lease = group.leases.get("0") if group else None
        return lease.epoch if lease is not None and lease.owner == "b" else 0

    first = Processor(Hangs, name="Double", source=fed(2), container=store, host="a", **settings)
    second = Processor(Hangs, name="Double", source=fed(2), container=store, host="b", **settings)
    with anyio.fail_after(60):
        async with first:
            while not any(partition.partition == "0" for partition in _partitions(first)):
                await anyio.sleep(0.01)
            async with second:
                try:
                    while len(await rows(store)) < 20 or not await epoch_at_b():
                        await anyio.sleep(0.01)
                    epoch = await epoch_at_b()
                    await anyio.sleep(0.5)
                    assert await epoch_at_b() == epoch, "it stays there"
                finally:
                    hang.set()
    assert not committed.is_set()
    assert await rows(store) == sorted(2 * [2 * n for n in range(10)])


async def test_a_plain_handler_that_hangs_on_every_host_is_shown_as_stuck() -> None:
    """Each host abandons the partition before its next heartbeat. The count of hangs must outlive the lease."""
    hang = threading.Event()

    class Hangs(Double):
        def process(self, batch: Batch, ctx: PartitionContext) -> None:  # type: ignore[override]
            if ctx.partition == "0":
                hang.wait()
            for record in batch:
                ctx.emit(record, {"n": 2 * record.json()})

    store = Store(MemoryStore())
    settings = {**QUICK, "max_process_time": 0.3}
    hosts = [
        Processor(Hangs, name="Double", source=fed(2), container=store, host=host, **settings) for host in ("a", "b")
    ]
    watch = FleetWatch(store, ProcessorLayout("Double"), settings["lease_expiration_interval"])

    async def seen() -> tuple[str, str, bool, list[str]]:
        """Verdict and reason, whether `status` has an error, and the partitions for which hosts are not ready."""
        view = (await watch.look()).partitions["0"]
        status = (await FleetWatch(store, ProcessorLayout("Double"), 60).read_all()).partitions["0"]
        found = [host.statistics() for host in hosts]
        ready = [problems(of, now=0.0, max_process_time=60) for of in found]
        return view.verdict, view.reason, status.error is not None, [str(p.partition) for of in ready for p in of]

    with anyio.fail_after(60):
        async with hosts[0], hosts[1]:
            try:
                while "on a and b" not in (await seen())[1]:
                    await anyio.sleep(0.01)
                for _ in range(20):
                    verdict, reason, in_status, not_ready = await seen()
                    assert (verdict, in_status, set(not_ready)) == ("stuck", True, {"0"}), reason
                    await anyio.sleep(0.05)
            finally:
                hang.set()
            while (await seen())[0] != "ok" or any(host.statistics().abandoned for host in hosts):
                await anyio.sleep(0.01)
            assert (await seen())[3] == []
    assert await rows(store) == sorted(2 * [2 * n for n in range(10)])


@pytest.mark.parametrize("plain", [False, True])
async def test_records_before_the_one_that_hangs_do_not_hide_it(plain: bool) -> None:
    """Each start processes them again, and hangs again."""
    hang, hung = threading.Event(), anyio.Event()

    class Plain(Double):
        def process(self, batch: Batch, ctx: PartitionContext) -> None:  # type: ignore[override]
            if batch.first >= 4:
                hang.wait()
            for record in batch:
                ctx.emit(record, {"n": 2 * record.json()})

    class Async(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            if batch.first >= 4:
                await hung.wait()
            await super().process(batch, ctx)

    handler = Plain if plain else Async
    store = Store(MemoryStore())
    settings = {**QUICK, "max_process_time": 0.2, "max_batch_records": 4}
    hosts = [
        Processor(handler, name="Double", source=fed(1), container=store, host=host, **settings) for host in ("a", "b")
    ]
    watch = FleetWatch(store, ProcessorLayout("Double"), settings["lease_expiration_interval"])
    with structlog.testing.capture_logs() as logs, anyio.fail_after(60):
        async with hosts[0], hosts[1]:
            try:
                reason = "on a and b" if plain else "PartitionStuck"
                while reason not in (await watch.look()).partitions["0"].reason:
                    await anyio.sleep(0.01)
                verdicts = set()
                for _ in range(40):
                    verdicts.add((await watch.look()).partitions["0"].verdict)
                    await anyio.sleep(0.02)
            finally:
                hang.set()
                hung.set()
            while len(await rows(store)) < 10:
                await anyio.sleep(0.01)
    assert verdicts == {"stuck"}
    (stack, *_) = [log["stack"] for log in logs if "stack" in log]
    assert "in process" in stack
    assert ("hang.wait()" if plain else "await hung.wait()") in stack


async def test_at_most_once_batches_before_a_stuck_one_are_kept() -> None:
    calls = 0

    class Stuck(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            nonlocal calls
            calls += 1
            if calls == 2:
                await anyio.sleep_forever()
            await super().process(batch, ctx)

    store = Store(MemoryStore())
    settings = {
        **QUICK, "max_process_time": 1.0, "max_batch_records": 4, "delivery": "at-most-once", "commit_interval": 1000
    }  # fmt: skip
    processor = Processor(Stuck, name="Double", source=fed(1), container=store, **settings)
    with anyio.fail_after(60):
        await processor.run(until_end=True)
    assert await rows(store) == [2 * n for n in (0, 1, 2, 3, 8, 9)]


async def test_at_most_once_work_before_a_stuck_batch_is_kept() -> None:
    reached = anyio.Event()

    class Slow(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            if batch.first >= 4:
                reached.set()
                await anyio.sleep_forever()
            await super().process(batch, ctx)

    store = Store(MemoryStore())
    settings = {
        **QUICK, "max_handoff_time": 0.2, "max_batch_records": 4, "delivery": "at-most-once", "commit_interval": 1000
    }  # fmt: skip
    with anyio.fail_after(60):
        async with Processor(Slow, name="Double", source=fed(1), container=store, **settings):
            await reached.wait()
    assert await rows(store) == [2 * n for n in range(4)]


async def test_a_handler_stuck_in_opened_is_cancelled_and_restarted() -> None:
    starts: list[str] = []

    class Stuck(Double):
        async def opened(self, ctx: PartitionInfo) -> None:
            starts.append(ctx.partition)
            if len(starts) == 1:
                await anyio.sleep_forever()

    store = Store(MemoryStore())
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
        """The hang is in the heartbeat, where other hosts and `status` read it."""
        beats = await read_heartbeats(store, ProcessorLayout("Double"))
        return beats[0][0].report.failing if beats else None

    told, store = anyio.Event(), Store(MemoryStore())
    settings = {**QUICK, "max_process_time": 0.1, "max_batch_records": 5}
    stuck = "PartitionStuck: the handler made no progress for max_process_time = 0.1 s"
    with structlog.testing.capture_logs() as logs:
        async with Processor(Stubborn, name="Double", source=fed(1), container=store, **settings) as processor:
            try:
                with anyio.fail_after(60):
                    while await shown() != {"0": stuck}:
                        await anyio.sleep(0.01)
                supervisor = processor.statistics()
            finally:
                told.set()
    assert [partition.error for partition in supervisor.partitions] == [stuck]
    assert stuck in [entry["error"] for entry in logs if entry["event"] == "partition.stuck"]


async def test_a_partition_behind_a_call_that_does_not_end_says_so() -> None:
    class Stubborn(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            while not (ended.is_set() or ctx.epoch > 1):
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.01)
            await super().process(batch, ctx)

    ended, store, layout = anyio.Event(), Store(MemoryStore()), ProcessorLayout("Double")
    settings = {**QUICK, "max_process_time": 0.1}
    with structlog.testing.capture_logs() as logs:
        async with Processor(Stubborn, name="Double", source=fed(1), container=store, **settings) as processor:

            async def until_error(text: str | None) -> None:
                with anyio.fail_after(60):
                    while not (found := _partitions(processor)) or (found[0].error or "")[: len(text or "") or 1] != (
                        text or ""
                    ):
                        await anyio.sleep(0.01)

            try:
                await until_error("PartitionStuck")
                group = await read_group(store, layout)
                assert group is not None
                leases = {partition: lease._replace(epoch=lease.epoch + 1) for partition, lease in group.leases.items()}
                await store.put(layout.group, GroupDocument.of(group.members, leases, put_id="another host").to_json())
                await until_error("an earlier call of the handler")
                assert [partition.state for partition in _partitions(processor)] == ["waiting"]
                assert any("an earlier call" in log["error"] for log in logs if log["event"] == "partition.stuck")
            finally:
                ended.set()
            with anyio.fail_after(60):
                while len(await rows(store)) < 10:
                    await anyio.sleep(0.01)


async def test_a_partition_that_waits_long_for_a_thread_says_so() -> None:
    go_on = threading.Event()

    class Hangs(Double):
        def process(self, batch: Batch, ctx: PartitionContext) -> None:  # type: ignore[override]
            go_on.wait(60)
            for record in batch:
                ctx.emit(record, {"n": 2 * record.json()})

    store = Store(MemoryStore())
    settings = {**QUICK, "max_process_time": 0.1, "handler_threads": 1}
    with structlog.testing.capture_logs() as logs:
        async with Processor(Hangs, name="Double", source=fed(2), container=store, **settings) as processor:
            try:
                for error in ("waits for a thread", "PartitionStuck"):
                    with anyio.fail_after(60):
                        while not any(error in (p.error or "") for p in _partitions(processor)):
                            await anyio.sleep(0.01)
                assert "partition.starved" in [log["event"] for log in logs]
            finally:
                go_on.set()
            with anyio.fail_after(60):
                while len(await rows(store)) < 20 or any(p.error for p in _partitions(processor)):
                    await anyio.sleep(0.01)


async def test_at_most_once_a_failed_commit_restarts_a_stuck_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls, closed = 0, list[CloseReason]()

    class Stuck(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            nonlocal calls
            calls += 1
            if calls == 2:
                monkeypatch.setattr(Committer, "commit", cannot)
                await anyio.sleep_forever()
            await super().process(batch, ctx)

        async def closing(self, ctx: PartitionInfo, reason: CloseReason) -> None:
            monkeypatch.setattr(Committer, "commit", commit)
            closed.append(reason)

    async def cannot(_: Committer) -> None:
        raise MemoryError("no room for a commit")

    commit, store = Committer.commit, Store(MemoryStore())
    settings = {
        **QUICK, "max_process_time": 1.0, "max_batch_records": 4, "delivery": "at-most-once", "commit_interval": 1000
    }  # fmt: skip
    processor = Processor(Stuck, name="Double", source=fed(1), container=store, **settings)
    with structlog.testing.capture_logs() as logs, anyio.fail_after(60):
        await processor.run(until_end=True)
    assert await rows(store) == [2 * n for n in (8, 9)]
    assert closed[0] is CloseReason.FAILED
    assert [log["error"] for log in logs if log["event"] == "partition.not_kept"] == [
        "MemoryError: no room for a commit"
    ]


async def test_a_plain_handler_that_is_given_up_is_refused_its_commit() -> None:
    given_up, refused, calls = threading.Event(), list[str](), 0

    class Late(Double):
        def process(self, batch: Batch, ctx: PartitionContext) -> None:  # type: ignore[override]
            nonlocal calls
            calls += 1
            for record in batch:
                ctx.emit(record, {"n": 2 * record.json()})
                if calls == 1:
                    given_up.wait(60)
                    anyio.from_thread.run(anyio.sleep, 0.01)
                    try:
                        anyio.from_thread.run(ctx.commit, record)
                    except errors.HandlerError as error:
                        refused.append(str(error))
                        raise

    store = Store(MemoryStore())
    processor = Processor(Late, name="Double", source=fed(1), container=store, **{**QUICK, "max_process_time": 0.1})
    await _run_and_call_once_stuck(processor, given_up.set)
    assert await rows(store) == [2 * n for n in range(10)]
    assert len(refused) == 1


async def test_a_plain_handler_may_be_given_up_amid_a_commit() -> None:
    class Slow(MemoryStore):
        """The first commit takes its time."""

        async def put_if_absent(self, key: str, body: bytes) -> str:
            if key.endswith("0.parquet") and not under_way.is_set():
                under_way.set()
                await go_on.wait()
            return await super().put_if_absent(key, body)

    class Commits(Double):
        def process(self, batch: Batch, ctx: PartitionContext) -> None:  # type: ignore[override]
            for record in batch:
                ctx.emit(record, {"n": 2 * record.json()})
                if record.json() == 4:
                    anyio.from_thread.run(ctx.commit, record)

    under_way, go_on, store = anyio.Event(), anyio.Event(), Store(Slow())
    processor = Processor(Commits, name="Double", source=fed(1), container=store, **{**QUICK, "max_process_time": 0.1})
    await _run_and_call_once_stuck(processor, go_on.set)
    assert under_way.is_set()
    assert await rows(store) == [2 * n for n in range(10)]


async def _run_and_call_once_stuck(processor: Processor, call: Callable[[], object]) -> None:
    with structlog.testing.capture_logs() as logs, anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:

            async def run() -> None:
                await processor.run(until_end=True)
                tasks.cancel_scope.cancel()

            tasks.start_soon(run)
            while not any(log["event"] == "partition.stuck" for log in logs):
                await anyio.sleep(0.01)
            await anyio.sleep(0.05)  # its handler was cancelled meanwhile
            call()
            await anyio.sleep_forever()
