"""`Processor`, as applications embed it: whole hosts on one event loop, over a memory or folder store."""

from __future__ import annotations

import asyncio
import base64
import io
import random
import re
import shutil
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, cast

import anyio
import anyio.to_thread
import orjson
import pyarrow.parquet as pq
import pytest
import structlog
from pydantic import BaseModel

from actorproc import (
    Batch,
    CloseReason,
    Decision,
    PartitionContext,
    PartitionHandler,
    Processor,
    Producer,
    Record,
    Site,
    errors,
)
from actorproc.group.heartbeat import read_heartbeats
from actorproc.host.ending import HOPELESS
from actorproc.host.running import Done
from actorproc.layout import ProcessorLayout, log_file
from actorproc.output.chain import LETTERS_LIMIT, read_cursor
from actorproc.settings import Settings
from actorproc.sources import LogSource
from actorproc.sources.protocol import Chunk, End, Start
from actorproc.store import Listing, Store
from actorproc.stores import open_store
from actorproc.stores.memory import Memory
from actorproc.testing.source import MemorySource

QUICK: dict[str, Any] = {
    "lease_acquire_interval": 0.2,
    "lease_renew_interval": 0.1,
    "lease_expiration_interval": 1.0,
    "rebalance_delay": 0.1,
    "commit_interval": 0.05,
    "retry_backoff": 0.001,
    "restart_backoff": 0.01,
    "restart_backoff_max": 0.05,
}


class Double(PartitionHandler):
    output_schema = "n long"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.emit(record, {"n": 2 * record.json()})


def fed(partitions: int = 4, each: int = 10) -> MemorySource:
    source = MemorySource(partitions)
    for partition in range(partitions):
        source.append(str(partition), [str(n).encode() for n in range(each)])
    return source


async def rows(store: Store, name: str = "Double") -> list[int]:
    found: list[int] = []
    for entry in (await store.list(f"{name}/output/")).entries:
        stored = await store.get(entry.key)
        assert stored is not None
        found += pq.read_table(io.BytesIO(stored.body))["n"].to_pylist()
    return sorted(found)


async def test_until_end_processes_what_there_is_and_returns() -> None:
    store = Store(Memory())
    await Processor(Double, source=fed(), container=store, host="a", **QUICK).run(until_end=True)
    assert await rows(store) == sorted(2 * n for n in range(10) for _ in range(4))
    assert (await store.list("Double/hosts/")).entries == []


async def test_until_end_says_which_partition_cannot_go_on_after_the_others_have_reached_theirs() -> None:
    class Stopping(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            if ctx.partition == "2":
                raise ValueError("poison")
            await super().process(batch, ctx)

        def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision | None:
            return Decision.STOP

    store = Store(Memory())
    processor = Processor(Stopping, name="Double", source=fed(), container=store, **QUICK)
    says = rf"1 of 4 partitions has not reached the end it had .*\npartition 2: failed at least {HOPELESS} times.*on_error said stop: ValueError: poison"
    with anyio.fail_after(60), pytest.raises(errors.EndNotReached, match=says):
        await processor.run(until_end=True)
    assert await rows(store) == sorted(2 * n for n in range(10) for _ in range(3))
    assert (await store.list("Double/hosts/")).entries == [], "it has left in good order"


async def test_until_end_gives_up_at_once_on_a_mistake_in_the_handler_itself_and_brings_the_others_to_their_end() -> (
    None
):
    class Mistaken(Double):
        calls: ClassVar[list[str]] = []

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            if ctx.partition in "12":
                self.calls.append(ctx.partition)
                ctx.emit_each(batch, [])
            await super().process(batch, ctx)

    store, slowly = Store(Memory()), QUICK | {"restart_backoff": 30, "restart_backoff_max": 60}
    processor = Processor(Mistaken, name="Double", source=fed(), container=store, **slowly)
    says = r"partitions 1-2: failed, and would again until the handler is mended: HandlerMisuse: 0 rows for"
    with anyio.fail_after(20), pytest.raises(errors.EndNotReached, match=says):
        await processor.run(until_end=True)
    assert sorted(Mistaken.calls) == ["1", "2"]
    assert await rows(store) == sorted(2 * n for n in range(10) for _ in range(2))


async def test_until_end_is_no_success_where_the_handler_committed_records_and_emitted_for_them_afterwards() -> None:
    class Hasty(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for index in range(len(batch)):
                ctx.emit(batch[index], {"n": batch[index].json()})
                if index == 3:
                    await ctx.commit()

    store = Store(Memory())
    processor = Processor(Hasty, name="Double", source=fed(1), container=store, **QUICK)
    with (
        anyio.fail_after(60),
        pytest.raises(errors.EndNotReached, match=r"rows were lost .*\npartition 0: .* and is lost"),
    ):
        await processor.run(until_end=True)
    assert await rows(store) == [0, 1, 2, 3]


async def test_until_end_is_no_success_where_rows_came_after_process_had_returned() -> None:
    tasks: set[asyncio.Task[None]] = set()

    class Hasty(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            async def later(record: Record) -> None:
                await asyncio.sleep(0)
                with suppress(errors.HandlerError):
                    ctx.emit(record, {"n": 1})

            tasks.update(asyncio.ensure_future(later(record)) for record in batch)

    processor = Processor(Hasty, name="Double", source=fed(1), container=Store(Memory()), **QUICK)
    with (
        anyio.fail_after(60),
        pytest.raises(errors.EndNotReached, match=r"rows were lost .*\npartition 0: .*after process\(\) had returned"),
    ):
        await processor.run(until_end=True)


async def test_until_end_is_no_success_where_the_source_ends_before_what_was_its_newest_record() -> None:
    class Gap(MemorySource):
        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            async for chunk in super().read(partition, position):
                yield Chunk(chunk.batch[: 7 - int(position)], "7")
                yield Chunk(chunk.batch[:0], "7")
                await anyio.sleep_forever()

    store, source = Store(Memory()), Gap(1)
    source.append("0", [b"%d" % n for n in range(10)])
    processor = Processor(Double, source=source, container=store, **QUICK)
    says = r"(?s)1 of 1 partition has not .*nothing more of partition 0 after sequence 6, .* its newest record was 9"
    with anyio.fail_after(60), pytest.raises(errors.EndNotReached, match=says):
        await processor.run(until_end=True)
    assert await rows(store) == [2 * n for n in range(7)]


async def test_until_end_is_no_success_where_the_source_does_not_even_begin() -> None:
    class Lagging(MemorySource):
        """Its first look finds nothing of what `end` tells."""

        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            yield Chunk(Batch.of(partition, [], []), position)
            await anyio.sleep_forever()

    source = Lagging(1)
    source.append("0", [b"%d" % n for n in range(10)])
    processor = Processor(Double, source=source, container=Store(Memory()), **QUICK)
    says = r"(?s)1 of 1 partition has not .*nothing more of partition 0 after sequence -1, .* its newest record was 9"
    with anyio.fail_after(60), pytest.raises(errors.EndNotReached, match=says):
        await processor.run(until_end=True)


async def test_until_end_is_there_where_an_earlier_run_began_at_the_end_in_the_sources_own_words() -> None:
    class Named(MemorySource):
        async def start(self, partition: str, at: Any) -> str:
            return "$" if at == "latest" else await super().start(partition, at)

        def sequence_before(self, partition: str, position: str) -> int | None:
            return None

        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            yield Chunk(Batch.of(partition, [], []), position)
            await anyio.sleep_forever()

    store, source = Store(Memory()), Named(1)
    source.append("0", [b"%d" % n for n in range(10)])
    for start in ("latest", "earliest"):  # the second has a checkpoint, and its start does not count
        processor = Processor(Double, source=source, container=store, start=start, **QUICK)
        with anyio.fail_after(60):
            await processor.run(until_end=True)
    assert await rows(store) == []


async def test_until_end_is_there_although_the_newest_records_were_deleted_meanwhile() -> None:
    class Shrinks(MemorySource):
        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            del self._values[partition][7:]
            async for chunk in super().read(partition, position):
                yield chunk

    store, source = Store(Memory()), Shrinks(1)
    source.append("0", [b"%d" % n for n in range(10)])
    with anyio.fail_after(60):
        await Processor(Double, source=source, container=store, **QUICK).run(until_end=True)
    assert await rows(store) == [2 * n for n in range(7)]


async def test_until_end_from_the_latest_record_on_is_there_although_the_source_has_grown_meanwhile() -> None:
    class Grows(MemorySource):
        async def start(self, partition: str, at: Start) -> str:
            if at == "latest":
                self.append(partition, [b"1"] * 5)
            return await super().start(partition, at)

        def sequence_before(self, partition: str, position: str) -> int | None:
            return None

    source = Grows(1)
    source.append("0", [b"%d" % n for n in range(10)])
    store = Store(Memory())
    with anyio.fail_after(60):
        await Processor(Double, source=source, container=store, start="latest", **QUICK).run(until_end=True)
    assert await rows(store) == []


async def test_until_end_brings_the_others_to_theirs_where_partitions_cannot_tell_their_ends() -> None:
    log, container = open_store("memory://damaged"), Store(Memory())
    for _ in range(2):
        async with Producer(log, partitions=5) as producer:
            for n in range(50):
                await producer.send(str(n), key=f"k{n}")
    newest = {}
    for partition in "13":
        newest[partition] = key = (await log.list(f"partition={partition}/")).entries[-1].key
        await log.put(key, b"PAR1 damaged PAR1")
    processor = Processor(Double, source=LogSource(log), container=container, **QUICK)
    says = (
        r"^2 of 5 partitions have not reached the end they had at the start\n"
        rf"partition 1: could not tell where it ends: memory://damaged/{newest['1']}: .*\npartition 3: .*{newest['3']}"
    )
    with anyio.fail_after(60), pytest.raises(errors.EndNotReached, match=says):
        await processor.run(until_end=True)
    layout, whole = ProcessorLayout("Double"), LogSource(log)
    await whole.open()
    for partition in "024":
        cursor = await read_cursor(container, layout, partition)
        assert cursor is not None
        assert cursor.sequence == (await whole.end(partition)).sequence


async def test_until_end_has_patience_with_a_partition_that_gets_on_between_its_failures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("actorproc.host.ending.END_POLL", 0.001)  # it looks between any two failures

    class Stumbling(Double):
        failures: ClassVar[int] = 0

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                if record.sequence and type(self).failures < record.sequence:
                    type(self).failures += 1
                    raise ValueError("once for each record")
                ctx.emit(record, {"n": record.json()})
                await ctx.commit(record)

        def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision | None:
            return Decision.STOP

    store = Store(Memory())
    with anyio.fail_after(60):
        await Processor(Stumbling, name="Double", source=fed(1, HOPELESS + 2), container=store, **QUICK).run(
            until_end=True
        )
    assert Stumbling.failures == HOPELESS + 1
    assert await rows(store) == list(range(HOPELESS + 2))


async def test_until_end_that_is_stopped_before_does_not_return_as_if_it_had_got_there() -> None:
    class Slow(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            if ctx.partition == "1":
                asking.set()
                await anyio.sleep_forever()
            await super().process(batch, ctx)

    asking = anyio.Event()
    processor = Processor(Slow, name="Double", source=fed(2), container=Store(Memory()), **QUICK, max_handoff_time=0.1)
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            with pytest.raises(errors.EndNotReached, match=r"1 of 2 partitions.*\npartition 1: not there yet"):
                await processor.run(until_end=True)

        tasks.start_soon(run)
        with anyio.fail_after(60):
            await asking.wait()
            while sum(p.rows for p in _partitions(processor)) < 10:
                await anyio.sleep(0.01)
        processor.stop()


async def test_what_a_host_has_done_is_known_when_it_has_stopped() -> None:
    class Poisoned(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                if record.json() == 3:
                    ctx.dead_letter(record, "three")
                else:
                    ctx.emit(record, {"n": record.json()})

    processor = Processor(Poisoned, name="Double", source=fed(), container=Store(Memory()), **QUICK)
    with structlog.testing.capture_logs() as logs:
        await processor.run(until_end=True)
    supervisor = processor.statistics().supervisor
    assert supervisor is not None
    assert supervisor.done == Done(records=40, rows=36, dead_letters=4)
    told = [log for log in logs if log["event"] == "processor.dead_letters"]
    assert {log["log_level"] for log in told} == {"warning"}
    assert sum(log["new"] for log in told) == told[-1]["since_start"] == 4
    assert sum(log["errors"]["DeadLetter"] for log in told) == 4
    assert re.fullmatch(r"[0-3]:3 DeadLetter: three", told[-1]["latest"])


async def test_dead_letters_are_told_once_in_a_renew_interval_however_many_there_are() -> None:
    class Poisoned(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                ctx.dead_letter(record, "always")
            await ctx.commit()

    store, source = Store(Memory()), fed(4)
    with structlog.testing.capture_logs() as logs:
        settings = {**QUICK, "lease_renew_interval": 100, "lease_expiration_interval": 1000, "dead_letter_limit": 1}
        async with Processor(Poisoned, name="Double", source=source, container=store, **settings) as processor:
            for _ in range(5):
                before = sum(p.dead_letters for p in _partitions(processor))
                source.append("0", [b"1"])
                with anyio.fail_after(60):
                    while sum(p.dead_letters for p in _partitions(processor)) <= before:
                        await anyio.sleep(0.01)
    assert len([log for log in logs if log["event"] == "processor.dead_letters"]) == 1, "when it stops"


async def test_a_failure_in_shared_names_the_handler_and_the_place() -> None:
    class Sharing(Double):
        @classmethod
        @asynccontextmanager
        async def shared(cls, options: Any) -> AsyncIterator[None]:
            if options is not None:
                raise ConnectionError("no database")
            yield

    with pytest.raises(
        errors.HandlerError, match=r"Sharing.shared failed: ConnectionError: no database \(in .*py:\d+\)"
    ):
        await Processor(Sharing, source=fed(), container=Store(Memory()), **QUICK).run()


async def test_a_failure_at_the_end_of_shared_is_the_handlers_and_other_errors_pass() -> None:
    class Sharing(Double):
        @classmethod
        @asynccontextmanager
        async def shared(cls, options: Any) -> AsyncIterator[None]:
            yield
            raise BrokenPipeError("the pool is gone")

    with pytest.raises(
        errors.HandlerError, match=r"Sharing.shared failed: BrokenPipeError: the pool is gone \(in .*py:\d+\)"
    ):
        await Processor(Sharing, source=fed(), container=Store(Memory()), **QUICK).run(until_end=True)

    class Tidy(Double):
        @classmethod
        @asynccontextmanager
        async def shared(cls, options: Any) -> AsyncIterator[None]:
            yield

    class Grouped(Double):
        @classmethod
        @asynccontextmanager
        async def shared(cls, options: Any) -> AsyncIterator[None]:
            async with anyio.create_task_group():
                yield

    class Refuses(MemorySource):
        async def register(self, processor: str, container: str) -> None:
            raise errors.UsageError("what comes after shared was entered")

    with pytest.raises(errors.UsageError, match="what comes after"):
        await Processor(Grouped, source=Refuses(1), container=Store(Memory()), **QUICK).run()
    block = ValueError("the block's own")
    with pytest.raises(ValueError, match="the block's own"):
        async with Processor(Tidy, source=fed(), container=Store(Memory()), **QUICK):
            raise block


async def test_the_folder_of_a_processor_is_refused_as_a_container(tmp_path: Path) -> None:
    await Processor(Double, source=fed(), container=str(tmp_path), **QUICK).run(until_end=True)
    inside = Processor(Double, source=fed(), container=str(tmp_path / "Double"), **QUICK)
    with pytest.raises(errors.UsageError, match=rf"processor 'Double' itself; its container is file://{tmp_path}$"):
        await inside.run(until_end=True)
    deeper = Processor(Double, source=fed(), container=str(tmp_path / "Double" / "output"), **QUICK)
    with pytest.raises(
        errors.UsageError, match=rf"inside what processor 'Double' keeps; its container is file://{tmp_path}$"
    ):
        await deeper.run(until_end=True)
    assert not (tmp_path / "Double" / "Double").exists()


async def test_until_end_of_an_empty_stream_returns() -> None:
    await Processor(Double, source=MemorySource(3), container=Store(Memory()), **QUICK).run(until_end=True)


async def test_two_hosts_share_the_partitions_and_both_return_at_the_end() -> None:
    store, source = Store(Memory()), fed(partitions=8)
    async with anyio.create_task_group() as tasks:
        for host in "ab":
            processor = Processor(Double, source=source, container=store, host=host, **QUICK)
            tasks.start_soon(lambda processor=processor: processor.run(until_end=True))  # type: ignore[misc]
    assert await rows(store) == sorted(2 * n for n in range(10) for _ in range(8))


async def test_embedded_it_runs_in_the_background_and_drains_when_the_block_ends() -> None:
    store, source = Store(Memory()), fed()
    async with Processor(Double, source=source, container=store, host="a", **QUICK) as processor:
        with anyio.fail_after(60):
            while await rows(store) != sorted(2 * n for n in range(10) for _ in range(4)):
                await anyio.sleep(0.01)
        statistics = processor.statistics()
        assert statistics.running
        assert statistics.supervisor is not None
        assert [p.partition for p in statistics.supervisor.partitions] == ["0", "1", "2", "3"]
        assert sum(p.rows for p in statistics.supervisor.partitions) == 40
        assert statistics.store_requests["put_if_absent"] >= 4
    assert not processor.statistics().running
    assert (await store.list("Double/hosts/")).entries == []


async def test_what_was_processed_but_not_due_yet_is_committed_when_the_block_ends() -> None:
    store, source = Store(Memory()), fed(1)
    settings = {**QUICK, "commit_interval": 1000}
    async with Processor(Double, source=source, container=store, **settings) as processor:
        with anyio.fail_after(60):
            while not any(p.records for p in _partitions(processor)):
                await anyio.sleep(0.01)
        assert await rows(store) == []
    assert await rows(store) == [2 * n for n in range(10)]


def _partitions(processor: Processor) -> list[Any]:
    supervisor = processor.statistics().supervisor
    return [] if supervisor is None else supervisor.partitions


async def test_statistics_tell_of_a_partition_that_fails_also_while_it_waits_to_start_again() -> None:
    class Half(Double):
        async def opened(self, ctx: Site) -> None:
            if ctx.partition == "0":
                raise RuntimeError("no such table")

    async with Processor(Half, source=fed(partitions=2), container=Store(Memory()), **QUICK) as processor:
        with anyio.fail_after(60):
            while {p.partition: p.state for p in _partitions(processor)} != {"0": "waiting", "1": "running"}:
                await anyio.sleep(0.001)
        errors_told = [p.error for p in _partitions(processor)]
    assert "no such table" in errors_told[0]
    assert errors_told[1] is None


@pytest.mark.parametrize("where", ["opened", "__init__", "shared", "schema_for"])
async def test_a_handler_that_ends_the_process_fails_and_does_not_end_a_run_as_if_all_were_well(where: str) -> None:
    def leave(*_: Any) -> Any:
        sys.exit(0)

    async def leave_later(*_: Any) -> None:
        sys.exit(0)

    how: Any = {"opened": leave_later, "__init__": leave}.get(where, classmethod(leave))
    leaving: Any = type("Leaving", (Double,), {where: how})
    with pytest.raises(errors.ActorprocError, match="SystemExit"):
        await Processor(leaving, source=fed(2), container=Store(Memory()), **QUICK).run(until_end=True)


async def test_several_processors_live_in_one_process() -> None:
    store, source = Store(Memory()), fed()
    async with anyio.create_task_group() as tasks:
        for name in ("one", "two"):
            processor = Processor(Double, name=name, source=source, container=store, **QUICK)
            tasks.start_soon(lambda processor=processor: processor.run(until_end=True))  # type: ignore[misc]
    assert await rows(store, "one") == await rows(store, "two")
    assert len(await rows(store, "one")) == 40


async def test_two_hosts_without_names_in_one_process_share_the_partitions() -> None:
    store, source = Store(Memory()), fed(partitions=8)
    one, two = (Processor(Double, source=source, container=store, **QUICK) for _ in range(2))
    assert one.host != two.host
    async with one, two:
        with anyio.fail_after(60):
            while [len(_partitions(one)), len(_partitions(two))] != [4, 4]:
                await anyio.sleep(0.01)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("cancel", ["anyio", "asyncio"])
async def test_a_block_that_is_cancelled_while_it_drains_leaves_nothing_running(cancel: str, fails: bool) -> None:
    class Stands(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            begun.set()
            await anyio.sleep_forever()

    begun = anyio.Event()
    processor = Processor(Stands, source=fed(1), container=Store(Memory()), **QUICK)

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


async def test_an_error_in_the_block_still_drains_and_comes_through_as_it_is() -> None:
    store = Store(Memory())
    with pytest.raises(KeyError):
        async with Processor(Double, source=fed(), container=store, **{**QUICK, "commit_interval": 1000}) as processor:
            with anyio.fail_after(60):
                while sum(p.records for p in _partitions(processor)) < 40:
                    await anyio.sleep(0.01)
            raise KeyError("mine")
    assert len(await rows(store)) == 40
    assert (await store.list("Double/hosts/")).entries == []


async def test_a_second_host_of_the_same_name_replaces_the_first_which_says_so() -> None:
    store, source = Store(Memory()), fed()
    with pytest.raises(errors.Fenced, match=r"another host.*'a'"):
        async with Processor(Double, source=source, container=store, host="a", **QUICK):
            await anyio.sleep(0.1)
            async with Processor(Double, source=source, container=store, host="a", **QUICK):
                with anyio.fail_after(60):
                    await anyio.sleep_forever()


async def test_hooks_options_and_what_a_host_shares() -> None:
    events: list[str] = []

    class Hooked(PartitionHandler):
        instances: ClassVar[int] = 0

        class Options(BaseModel):
            factor: int

        def __init__(self) -> None:
            type(self).instances += 1

        @classmethod
        @asynccontextmanager
        async def shared(cls, options: Any) -> AsyncIterator[list[int]]:
            events.append(f"enter {options.factor}")
            yield []
            events.append("exit")

        async def opened(self, ctx: Site) -> None:
            events.append(f"opened {ctx.partition}")

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            ctx.shared.append(ctx.options.factor * len(batch))
            events.append(f"process {ctx.partition} {len(ctx.shared)}")

        async def closing(self, ctx: Site, reason: CloseReason) -> None:
            events.append(f"closing {ctx.partition} {reason.value}")

    processor = Processor(Hooked, source=fed(2), container=Store(Memory()), options={"factor": "3"}, **QUICK)
    await processor.run(until_end=True)
    assert events[0] == "enter 3"
    assert events[-1] == "exit"
    assert sorted(e for e in events if e.startswith(("opened", "closing"))) == [
        "closing 0 stopping", "closing 1 stopping", "opened 0", "opened 1",
    ]  # fmt: skip
    assert {e.split()[2] for e in events if e.startswith("process")} == {"1", "2"}
    assert Hooked.instances == 2


async def test_a_bug_in_one_partition_never_stops_the_others() -> None:
    class Buggy(Double):
        async def opened(self, ctx: Site) -> None:
            if ctx.partition == "1":
                raise RuntimeError("cannot open")

    store, source = Store(Memory()), fed(3)
    async with Processor(Buggy, name="Double", source=source, container=store, host="a", **QUICK) as processor:
        with anyio.fail_after(60):
            while len(await rows(store)) < 20:
                await anyio.sleep(0.01)
        assert processor.statistics().running


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


async def test_a_run_until_the_end_gives_up_on_a_plain_handler_that_hangs_and_the_others_get_to_theirs() -> None:
    hang = threading.Event()

    class Hangs(PartitionHandler):
        output_schema = "n long"

        def process(self, batch: Batch, ctx: PartitionContext) -> None:
            if ctx.partition == "0":
                hang.wait()
            for record in batch:
                ctx.emit(record, {"n": record.json()})

    store = Store(Memory())
    settings = {**QUICK, "max_process_time": 0.1, "read_ahead_bytes": 4000, "max_batch_bytes": 4000}
    try:
        with (
            anyio.fail_after(60),
            pytest.raises(errors.EndNotReached, match=r"partition 0: failed at least 5 times .*has not ended"),
        ):
            await Processor(Hangs, name="Double", source=fed(3), container=store, **settings).run(until_end=True)
    finally:
        hang.set()
    assert len(await rows(store)) == 20


async def test_what_is_done_is_committed_although_the_source_waits_in_a_thread() -> None:
    hang = threading.Event()

    class Waits(MemorySource):
        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            async with aclosing(super().read(partition, position)) as chunks:
                yield await anext(chunks)
            await anyio.to_thread.run_sync(hang.wait)

    store, source = Store(Memory()), Waits(1)
    source.append("0", [b"1", b"2"])
    processor = Processor(Double, source=source, container=store, **{**QUICK, "commit_interval": 3600})
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(processor.run)
            with anyio.fail_after(30):
                while not (did := processor.statistics().supervisor) or did.done.records < 2:
                    await anyio.sleep(0.01)
                processor.stop()
                while await rows(store) != [2, 4]:
                    await anyio.sleep(0.01)
            hang.set()
    finally:
        hang.set()


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


async def test_a_heartbeat_shows_the_beginning_of_a_long_error() -> None:
    class Fails(Double):
        async def opened(self, ctx: Site) -> None:
            raise RuntimeError("x" * 10_000)

    store = Store(Memory())
    async with Processor(Fails, name="Double", source=fed(1), container=store, **QUICK):
        failing: dict[str, str] = {}
        with anyio.fail_after(60):
            while not failing:
                await anyio.sleep(0.01)
                for beat, _ in await read_heartbeats(store, ProcessorLayout("Double")):
                    failing = cast("dict[str, str]", beat.statistics["failing"])
    assert failing["0"].partition(": ")[2].startswith("RuntimeError: xxx")
    assert failing["0"].endswith("xxx ...")
    assert len(failing["0"]) < 700


async def test_until_end_of_a_log_that_has_lost_what_was_read_is_an_error() -> None:
    log, container = Store(Memory()), Store(Memory())
    for each in (b"1", b"2"):
        async with Producer(log, partitions=1) as producer:
            await producer.send(each)
    processor = Processor(Double, source=LogSource(log), container=container, **QUICK)
    await processor.run(until_end=True)
    await log.delete(log_file("0", 1))
    processor = Processor(Double, source=LogSource(log), container=container, **QUICK)
    with (
        anyio.fail_after(60),
        pytest.raises(errors.EndNotReached, match="ends at 1, and this processor has read up to 2"),
    ):
        await processor.run(until_end=True)


async def test_a_torn_checkpoint_stops_its_partition_alone_and_once_restored_nothing_is_lost_or_repeated() -> None:
    store, source = Store(Memory()), fed(partitions=3)
    await Processor(Double, source=source, container=store, **QUICK).run(until_end=True)
    for partition in range(3):
        source.append(str(partition), [b"100"])
    key = ProcessorLayout("Double").checkpoint("1")
    whole = await store.get(key)
    assert whole is not None
    await store.put(key, whole.body[:-9])
    with (
        anyio.fail_after(60),
        pytest.raises(errors.EndNotReached, match=rf"1 of 3 partitions .*\n.*{key}: is no checkpoint"),
    ):
        await Processor(Double, source=source, container=store, **QUICK).run(until_end=True)
    assert (await rows(store)).count(200) == 2
    await store.put(key, whole.body)
    await Processor(Double, source=source, container=store, **QUICK).run(until_end=True)
    assert await rows(store) == sorted([2 * n for n in range(10)] * 3 + [200] * 3)


async def test_output_with_another_schema_is_refused_at_start(tmp_path: Path) -> None:
    class Changed(Double):
        output_schema = "n string"

    container = str(tmp_path)
    await Processor(Double, source=fed(), container=container, **QUICK).run(until_end=True)
    with pytest.raises(errors.SchemaError, match=r"n.*bigint.*string"):
        await Processor(Changed, name="Double", source=fed(), container=container, **QUICK).run(until_end=True)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"handler": PartitionHandler}, "no process"),
        ({"handler": Processor}, "must subclass"),
        ({"name": "a/b"}, "processor name 'a/b'"),
        ({"host": "a b"}, "host name 'a b'"),
        ({"container": "ftp://x"}, "ftp"),
        ({"name": 7}, "name = 7: a text, or None"),
        ({"host": b"a"}, "host = b'a': a text, or None"),
        ({"container": 3}, "container = 3: the URL of a store as text, such as 's3://bucket/state', a folder"),
        ({"nme": "x"}, "nme = 'x': Processor has no such argument; did you mean name"),
        ({"option": {}}, "did you mean options"),
        ({"Keyword": 1}, "Keyword = 1: there is no such setting"),
        ({"source": "kafka://x"}, "kafka"),
        ({"commit_intervall": 1}, "commit_intervall = 1: there is no such setting; did you mean commit_interval"),
        ({"options": {"x": 1}}, "no option x"),
        ({"start": "yesterday"}, "start = 'yesterday'"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_touched(wrong: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"handler": Double, "source": "memory://s", "container": "memory://c", **wrong}
    with pytest.raises(errors.UsageError, match=message):
        Processor(arguments.pop("handler"), **arguments)


async def test_manual_commits_survive_a_handoff() -> None:
    class Manual(PartitionHandler):
        output_schema = "n long"

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                ctx.emit(record, {"n": orjson.loads(record.value or b"")})
            await ctx.commit()

    store, source = Store(Memory()), fed(4)
    settings = {**QUICK, "auto_commit": False}
    async with anyio.create_task_group() as tasks:
        for host in "abc":
            processor = Processor(Manual, name="Double", source=source, container=store, host=host, **settings)
            tasks.start_soon(lambda processor=processor: processor.run(until_end=True))  # type: ignore[misc]
    assert await rows(store) == sorted(n for n in range(10) for _ in range(4))


async def test_manual_commits_reach_an_end_up_to_which_the_source_gives_no_more_records() -> None:
    class Filtering(MemorySource):
        """Has passed over records of others, up to position 1000."""

        async def end(self, partition: str) -> End:
            return End("1000", None)

        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            async for chunk in super().read(partition, position):
                yield chunk if len(chunk.batch) else Chunk(chunk.batch, "1000")

    class Manual(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            await super().process(batch, ctx)
            await ctx.commit()

    store, source = Store(Memory()), Filtering(2)
    source.append("0", [b"1", b"2"])  # and nothing in the other one
    settings = {**QUICK, "auto_commit": False}
    with anyio.fail_after(60):
        await Processor(Manual, name="Double", source=source, container=store, **settings).run(until_end=True)
    assert await rows(store) == [2, 4]
    for partition in ("0", "1"):
        cursor = await read_cursor(store, ProcessorLayout("Double"), partition)
        assert cursor is not None
        assert cursor.position == "1000"


async def test_a_lost_group_document_does_not_lock_its_own_hosts_out() -> None:
    store, source = Store(Memory()), fed(2)
    for host in "abc":  # each takes over from the one before: epochs grow
        await Processor(Double, source=source, container=store, host=host, **QUICK).run(until_end=True)
    await store.delete("Double/group.json")
    for partition in ("0", "1"):
        source.append(partition, [b"100"])
    with anyio.fail_after(60):
        await Processor(Double, source=source, container=store, host="d", **QUICK).run(until_end=True)
    assert (await rows(store))[-2:] == [200, 200]


async def test_until_end_sees_what_an_ordinary_host_has_committed() -> None:
    store, source = Store(Memory()), fed(4)
    async with Processor(Double, source=source, container=store, host="a", **QUICK):
        with anyio.fail_after(60):
            while len(await rows(store)) < 40:
                await anyio.sleep(0.01)
            await Processor(Double, source=source, container=store, host="b", **QUICK).run(until_end=True)


class Stray(Double):
    """Awaits something that was cancelled, once for each way to do so."""

    way: ClassVar[str] = ""
    struck: ClassVar[bool] = False

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        if self.way == "process":
            await self.strike()
        if self.way == "map":
            await ctx.map(batch, lambda record: self.strike())
        await super().process(batch, ctx)

    async def opened(self, ctx: Site) -> None:
        if self.way == "opened":
            await self.strike()

    @classmethod
    async def strike(cls) -> None:
        if not cls.struck:
            cls.struck = True
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future


@pytest.mark.parametrize("way", ["process", "map", "opened"])
async def test_a_cancellation_out_of_something_awaited_is_a_failure_and_loses_nothing(way: str) -> None:
    Stray.way, Stray.struck = way, False
    store = Store(Memory())
    with anyio.fail_after(60):
        await Processor(Stray, name="Double", source=fed(1), container=store, **QUICK).run(until_end=True)
    assert Stray.struck
    assert await rows(store) == [2 * n for n in range(10)]


async def test_commits_from_many_records_at_once_repeat_and_lose_nothing() -> None:
    class Committing(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            async def work(record: Record) -> None:
                for _ in range(record.sequence % 5):
                    await anyio.lowlevel.checkpoint()
                ctx.emit(record, {"n": record.json()})
                await ctx.commit(record)

            await ctx.map(batch, work, concurrency=8)

    store = Store(Memory())
    with anyio.fail_after(60):
        source = fed(1, each=300)
        await Processor(Committing, name="Double", source=source, container=store, **QUICK).run(until_end=True)
    assert await rows(store) == list(range(300))


async def test_a_commit_in_the_loop_goes_as_far_as_it_says() -> None:
    class InLoop(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for index, record in enumerate(batch):
                ctx.emit(record, {"n": record.json()})
                if index % 10 == 9:
                    await ctx.commit(record)

    store = Store(Memory())
    source = fed(1, each=95)
    await Processor(InLoop, name="Double", source=source, container=store, **QUICK).run(until_end=True)
    assert await rows(store) == list(range(95))


async def test_a_source_that_cannot_list_its_partitions_for_a_while_stops_nothing() -> None:
    class Moody(MemorySource):
        calls = 0

        async def partitions(self) -> Sequence[str]:
            self.calls += 1
            if self.calls % 2 == 0:
                raise ConnectionError("not now")
            return await super().partitions()

    store, source = Store(Memory()), Moody(1)
    settings = {**QUICK, "partition_refresh_interval": 0.01}
    async with Processor(Double, source=source, container=store, **settings):
        with anyio.fail_after(60):
            while source.calls < 6:
                await anyio.sleep(0.01)
            source.append("0", [b"1"])
            while await rows(store) != [2]:
                await anyio.sleep(0.01)


async def test_a_stream_that_was_made_anew_is_refused_instead_of_read_from_old_positions(tmp_path: Path) -> None:
    log, container = tmp_path / "log", tmp_path / "state"
    for values, wrong in (([b"1", b"2"], False), ([b"3"], True)):
        async with Producer(str(log), partitions=1) as producer:
            await producer.send_many(values)
        processor = Processor(Double, source=str(log), container=container, **QUICK)
        if wrong:
            with pytest.raises(errors.UsageError, match="made anew"):
                await processor.run(until_end=True)
        else:
            await processor.run(until_end=True)
            shutil.rmtree(log)


async def test_a_partition_that_fails_while_draining_holds_nobody_up() -> None:
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
        async with Processor(Failing, source=fed(2), container=Store(Memory()), **settings) as processor:
            with anyio.fail_after(10):  # less than the pause before a partition is started again
                await at_work.wait()
                processor.stop()
                while not any(entry["event"] == "supervisor.leaving" for entry in logs):
                    await anyio.sleep(0.01)
                stopping.set()
                while _partitions(processor):
                    await anyio.sleep(0.01)


async def test_partitions_that_try_again_for_ever_leave_the_read_ahead_to_the_others() -> None:
    class Stubborn(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            if ctx.partition != "3":
                raise OSError("the database is away")
            await super().process(batch, ctx)

        def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision:
            return Decision.RETRY

    store, source = Store(Memory()), MemorySource(4)
    for partition in range(4):
        source.append(str(partition), [b"%d" % n for n in range(100)])
    one_batch = Batch.of("0", [b"%d" % n for n in range(10)], range(10)).nbytes
    settings = QUICK | {
        "max_batch_records": 10, "max_batch_bytes": 3 * one_batch, "read_ahead_bytes": 3 * one_batch, "retry_backoff": 0.05
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
            statistics = processor.statistics().supervisor
            assert statistics is not None
            most = max(most, sum(p.records - p.rows for p in statistics.partitions))
            await super().process(batch, ctx)

    store, source = Store(Memory()), fed(partitions=8, each=1_000)
    settings = QUICK | {"max_batch_records": 10, "commit_interval": 1000, "uncommitted_bytes": 16 * 100}
    processor = Processor(Watched, source=source, container=store, host="a", name="Double", **settings)
    await processor.run(until_end=True)
    assert len(await rows(store)) == 8_000
    assert 100 <= most <= 500  # rows of 16 bytes; commits under way count as well


async def test_rows_without_bound_that_the_handler_never_commits_are_an_error_not_a_full_memory() -> None:
    class Forgetful(Double):
        pass

    settings = QUICK | {"auto_commit": False, "max_batch_records": 10, "uncommitted_bytes": 16 * 100}
    processor = Processor(Forgetful, source=fed(1, 1_000), container=Store(Memory()), host="a", **settings)
    with anyio.fail_after(60), structlog.testing.capture_logs() as logs:
        async with processor:
            while not any("uncommitted_bytes = 1600" in entry.get("error", "") for entry in logs):
                await anyio.sleep(0.01)


async def test_what_was_good_is_committed_while_a_later_batch_is_tried_again_for_ever() -> None:
    class Stumbling(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            if batch.first >= 10:
                raise OSError("the database is away")
            await super().process(batch, ctx)

        def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision:
            return Decision.RETRY

    store = Store(Memory())
    settings = QUICK | {"max_batch_records": 10, "commit_interval": 0.05}
    async with Processor(Stumbling, source=fed(1, 20), container=store, host="a", name="Double", **settings):
        with anyio.fail_after(60):
            while await rows(store) != [2 * n for n in range(10)]:
                await anyio.sleep(0.01)


async def test_what_was_good_before_a_stop_is_committed_and_not_processed_again() -> None:
    calls: list[int] = []

    class Stopping(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            calls.append(batch.first)
            if batch.first >= 10:
                raise ValueError("no further")
            await super().process(batch, ctx)

        def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision:
            return Decision.STOP

    store = Store(Memory())
    settings = QUICK | {"max_batch_records": 10, "commit_interval": 1000}
    processor = Processor(Stopping, source=fed(1, 20), container=store, host="a", name="Double", **settings)
    with pytest.raises(errors.EndNotReached, match="no further"):
        await processor.run(until_end=True)
    assert await rows(store) == [2 * n for n in range(10)]
    assert calls.count(0) == 1


async def test_a_tail_that_the_handler_never_commits_ends_a_run_until_the_end_with_the_reason() -> None:
    settings = QUICK | {"auto_commit": False}
    processor = Processor(Double, source=fed(1), container=Store(Memory()), host="a", **settings)
    with (
        anyio.fail_after(60),
        pytest.raises(errors.EndNotReached, match=r"call ctx\.commit\(\) at the end of each batch"),
    ):
        await processor.run(until_end=True)


async def test_an_error_text_that_is_no_text_does_not_end_the_host() -> None:
    class Half(Double):
        async def opened(self, ctx: Site) -> None:
            if ctx.partition == "0":
                raise ValueError("\ud800")

    store = Store(Memory())
    processor = Processor(Half, source=fed(2), container=store, host="a", name="Double", **QUICK)
    with structlog.testing.capture_logs() as logs:
        async with processor:
            with anyio.fail_after(60):
                while len(await rows(store)) != 10:
                    await anyio.sleep(0.01)
                for _ in range(3):
                    await anyio.sleep(QUICK["lease_renew_interval"])
            assert processor.statistics().running
    assert any(r"ValueError: \ud800" in entry.get("error", "") for entry in logs)


async def test_closing_is_called_only_for_a_handler_that_was_opened() -> None:
    calls: list[str] = []

    class Unopened(Double):
        async def opened(self, ctx: Site) -> None:
            calls.append("opened")
            raise ValueError("no")

        async def closing(self, ctx: Site, reason: CloseReason) -> None:
            calls.append("closing")

    async with Processor(Unopened, source=fed(1), container=Store(Memory()), host="a", **QUICK):
        with anyio.fail_after(60):
            while len(calls) < 2:
                await anyio.sleep(0.01)
    assert set(calls) == {"opened"}


async def test_a_stop_asked_for_before_the_run_begins_is_kept() -> None:
    processor = Processor(Double, source=fed(), container=Store(Memory()), host="a", **QUICK)
    processor.stop()
    with anyio.fail_after(60):
        await processor.run()


async def test_a_stop_asked_for_before_the_block_begins_is_kept() -> None:
    processor = Processor(Double, source=fed(), container=Store(Memory()), host="a", **QUICK)
    processor.stop()
    with structlog.testing.capture_logs() as logs:
        async with processor:
            with anyio.fail_after(60):
                while "supervisor.leaving" not in [log["event"] for log in logs]:
                    await anyio.sleep(0.01)


async def test_a_processor_runs_again_after_its_block_and_after_a_run() -> None:
    store, source = Store(Memory()), fed(1, 5)
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


async def test_a_processor_that_runs_is_not_run_a_second_time_and_goes_on() -> None:
    store = Store(Memory())
    async with Processor(Double, source=fed(1, 5), container=store, host="a", **QUICK) as processor:
        with pytest.raises(errors.UsageError, match="runs already; make another one"):
            await processor.run(until_end=True)
        with pytest.raises(errors.UsageError, match="runs already"):
            async with processor:
                pass
        with anyio.fail_after(60):
            while await rows(store) != [0, 2, 4, 6, 8]:
                await anyio.sleep(0.01)


async def test_a_stop_does_not_wait_for_a_store_that_hangs() -> None:
    class Hanging(Memory):
        hangs = False

        async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
            if self.hangs and "/hosts/" in prefix:
                await anyio.sleep_forever()
            return await super().list(prefix, after, limit)

    backend = Hanging()
    seen: list[CloseReason] = []

    class Watched(Double):
        async def closing(self, ctx: Site, reason: CloseReason) -> None:
            seen.append(reason)

    settings = QUICK | {"commit_interval": 1000, "max_handoff_time": 0.2}
    store = Store(backend)
    async with anyio.create_task_group() as tasks:
        processor = Processor(Watched, source=fed(), container=store, host="a", name="Double", **settings)
        tasks.start_soon(processor.run)
        with anyio.fail_after(60):
            while not (s := processor.statistics().supervisor) or len(s.partitions) < 4:
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


async def test_an_error_group_of_the_block_comes_out_as_it_was_raised() -> None:
    raised = ExceptionGroup("mine", [ValueError("a"), KeyError("b")])
    with pytest.raises(ExceptionGroup) as caught:
        async with Processor(Double, source=fed(), container=Store(Memory()), host="a", **QUICK):
            raise raised
    assert caught.value is raised


def test_settings_and_a_file_of_settings_are_not_both_taken(tmp_path: Path) -> None:
    with pytest.raises(errors.UsageError, match="give settings or config, not both"):
        Processor(Double, source=fed(), container=Store(Memory()), settings=Settings(), config=tmp_path / "a.toml")


async def test_a_dead_letter_too_large_for_a_footer_is_kept_whole_and_published_by_the_next_owner_too() -> None:
    class Refusing(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                if len(record.value or b"") > 100:
                    ctx.dead_letter(record, "too long")
                else:
                    ctx.emit(record, {"n": 2 * record.json()})

    giant = random.Random(1).randbytes(LETTERS_LIMIT + 1)
    store, source = Store(Memory()), MemorySource(1)
    source.append("0", [b"1", giant, b"2"])
    processor = Processor(Refusing, source=source, container=store, host="a", name="Double", **QUICK)
    await processor.run(until_end=True)
    (published,) = (await store.list("Double/dead-letters/")).entries
    (output,) = (await store.list("Double/output/")).entries
    assert output.size < 100_000
    (checkpoint,) = (await store.list("Double/checkpoints/")).entries
    await store.delete(published.key)  # as if its first owner had died right after the commit
    await store.delete(checkpoint.key)
    await Processor(Refusing, source=source, container=store, host="b", name="Double", **QUICK).run(until_end=True)
    stored = await store.get(published.key)
    assert stored is not None
    letter = orjson.loads(stored.body)
    assert (letter["sequence"], letter["encoding"], base64.b64decode(letter["value"]) == giant) == (1, "base64", True)
    assert await rows(store) == [2, 4]


async def test_what_ends_a_program_is_a_failure_of_the_record_when_a_handler_raises_it() -> None:
    class Exiting(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                if record.json() == 3:
                    raise SystemExit(2)
                ctx.emit(record, {"n": 2 * record.json()})

    store = Store(Memory())
    await Processor(Exiting, source=fed(1), container=store, host="a", name="Double", **QUICK).run(until_end=True)
    assert await rows(store) == [2 * n for n in range(10) if n != 3]
    (letters,) = (await store.list("Double/dead-letters/")).entries
    stored = await store.get(letters.key)
    assert stored is not None
    assert "SystemExit: 2" in orjson.loads(stored.body)["error"]["message"]
