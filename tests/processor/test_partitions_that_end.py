"""Partitions that split, merge, vanish and come back, as a processor meets them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import anyio
import pytest
import structlog

from actorproc import Batch, CloseReason, PartitionContext, PartitionHandler, PartitionInfo, Processor
from actorproc.admin.fleet_watch import FleetWatch
from actorproc.group.membership import GroupDocument, read_group
from actorproc.output.chain import OutputChain
from actorproc.output.checkpoint import read_checkpoint
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource
from tests.processor.doubling import QUICK, Double, rows

LAYOUT = ProcessorLayout("Double")
SETTINGS = {**QUICK, "partition_refresh_interval": 0.1}


def numbers(*values: int) -> list[bytes]:
    return [b"%d" % value for value in values]


def split() -> MemorySource:
    """Partition 0 with three records has been split in two, with two records each."""
    source = MemorySource(1)
    source.append("0", numbers(1, 2, 3))
    source.add_partition("0a", parents=["0"])
    source.add_partition("0b", parents=["0"])
    source.append("0a", numbers(4, 5))
    source.append("0b", numbers(6, 7))
    return source


async def until_end(
    source: MemorySource, store: Store, handler: type[PartitionHandler] = Double, **settings: Any
) -> None:
    with anyio.fail_after(30):
        processor = Processor(handler, name="Double", source=source, container=store, **{**SETTINGS, **settings})
        await processor.run(until_end=True)


@asynccontextmanager
async def running(source: MemorySource, store: Store, *hosts: str, **settings: Any) -> AsyncIterator[None]:
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            processors = [
                Processor(Double, source=source, container=store, host=host, **{**SETTINGS, **settings})
                for host in hosts or ("a",)
            ]
            for processor in processors:
                tasks.start_soon(processor.run)
            yield
            for processor in processors:
                processor.stop()


async def group(store: Store) -> GroupDocument:
    return await read_group(store, LAYOUT) or GroupDocument.of()


async def eventually(what: Callable[[], Awaitable[object]]) -> None:
    while not await what():
        await anyio.sleep(0.01)


async def test_a_split_partition_ends_and_its_children_go_on() -> None:
    source, store = split(), Store(MemoryStore())
    await until_end(source, store)
    assert await rows(store) == [2, 4, 6, 8, 10, 12, 14]
    document = await group(store)
    assert list(document.ended) == ["0"]
    assert document.leases.keys() == {"0", "0a", "0b"}
    checkpoint = await read_checkpoint(store, LAYOUT, "0")
    assert checkpoint is not None
    assert checkpoint.ended
    last = await OutputChain(store, LAYOUT, "0").read(checkpoint.number - 1)
    assert last is not None
    assert last.ended
    assert not last.rows


async def test_no_child_is_shown_to_a_handler_before_its_parents_have_ended() -> None:
    class Order(Double):
        seen: ClassVar[list[str]] = []

        async def opened(self, ctx: PartitionInfo) -> None:
            self.seen.append(f"{ctx.partition} opened")

        async def closing(self, ctx: Any, reason: CloseReason) -> None:
            self.seen.append(f"{ctx.partition} {reason.value}")

    source = MemorySource(2)
    source.append("0", numbers(1))
    source.append("1", numbers(2))
    source.add_partition("01", parents=["0", "1"])
    source.append("01", numbers(3))
    await until_end(source, Store(MemoryStore()), Order)
    assert Order.seen[-2] == "01 opened"
    assert {"0 ended", "1 ended"} <= set(Order.seen[:-2])


async def test_a_split_spreads_over_the_hosts_while_they_run() -> None:
    source, store = MemorySource(1), Store(MemoryStore())
    source.append("0", numbers(1))

    async def is_spread() -> bool:
        document = await group(store)
        return {lease.owner for lease in document.leases.values() if not lease.closed} == {"a", "b"}

    async with running(source, store, "a", "b"):
        await eventually(lambda: _has_rows(store, 1))
        source.add_partition("0a", parents=["0"])
        source.add_partition("0b", parents=["0"])
        source.append("0a", numbers(2))
        source.append("0b", numbers(3))
        await eventually(lambda: _has_rows(store, 3))
        await eventually(is_spread)
    assert await rows(store) == [2, 4, 6]


async def test_a_worker_that_finds_the_end_in_the_chain_commits_nothing() -> None:
    source, store = split(), Store(MemoryStore())
    await until_end(source, store)
    files = await _files(store, "0")
    await store.delete(LAYOUT.group)  # the end is forgotten there

    async def is_closed_again() -> bool:
        return list((await group(store)).ended) == ["0"]

    async with running(source, store):
        await eventually(is_closed_again)
    assert await _files(store, "0") == files


async def test_with_latest_children_begin_at_their_beginning() -> None:
    source, store = MemorySource(1), Store(MemoryStore())
    source.append("0", numbers(1))
    await until_end(source, store, start="latest")
    source.append("0", numbers(2))
    source.add_partition("0a", parents=["0"])
    source.append("0a", numbers(3))
    await until_end(source, store, start="latest")
    assert await rows(store) == [4, 6]


async def test_a_forgotten_partition_with_a_child_is_sealed_and_its_loss_reported() -> None:
    source, store = MemorySource(1), Store(MemoryStore())
    source.append("0", numbers(1))
    await until_end(source, store)
    source.append("0", numbers(2))
    source.add_partition("0a", parents=["0"])
    source.append("0a", numbers(3))
    source.forget("0")
    with structlog.testing.capture_logs() as logs:
        await until_end(source, store)
    assert await rows(store) == [2, 6]
    assert [log["partition"] for log in logs if log["event"] == "partition.records_lost"] == ["0"]
    checkpoint = await read_checkpoint(store, LAYOUT, "0")
    assert checkpoint is not None
    last = await OutputChain(store, LAYOUT, "0").read(checkpoint.number - 1)
    assert last is not None
    assert last.ended
    assert last.vanished


async def test_a_forgotten_partition_that_was_never_claimed_is_sealed() -> None:
    source, store = split(), Store(MemoryStore())

    lists = 0
    partitions = source.partitions

    async def forgetting() -> Sequence[Any]:
        nonlocal lists
        lists += 1
        if lists == 3:
            source.forget("0")
        return await partitions()

    source.partitions = forgetting  # type: ignore[method-assign]
    async with running(source, store):
        await eventually(lambda: _has_rows(store, 4))
    assert (await rows(store))[-4:] == [8, 10, 12, 14]


@pytest.mark.parametrize("others", [1, 0])  # 0: the source then lists none
async def test_a_vanished_partition_goes_on_when_it_is_back(others: int) -> None:
    source, store = MemorySource(1 + others), Store(MemoryStore())
    source.append("0", numbers(1))
    source.append(str(others), numbers(2))

    async def is_vanished() -> bool:
        return list((await group(store)).vanished) == ["0"]

    with structlog.testing.capture_logs() as logs:
        async with running(source, store):
            await eventually(lambda: _has_rows(store, 2))
            source.forget("0")
            await eventually(is_vanished)
            await anyio.sleep(0.5)
            status = await FleetWatch(store, LAYOUT, 1.0).read_all()
            assert [p.verdict == "vanished" for p in status.partitions.values()] == [True, False][: 1 + others]
            assert not any(p.error for p in status.partitions.values())
            source.list_again("0")
            source.append("0", numbers(3))
            await eventually(lambda: _has_rows(store, 3))
    assert await rows(store) == [2, 4, 6]
    assert [log["partition"] for log in logs if log["event"] == "partition.vanished"] == ["0"]


async def test_with_auto_commit_off_an_end_needs_the_handlers_commit() -> None:
    class Forgetful(PartitionHandler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None: ...

    source, store = split(), Store(MemoryStore())
    with structlog.testing.capture_logs() as logs:
        async with anyio.create_task_group() as tasks:
            processor = Processor(
                Forgetful, name="Double", source=source, container=store, auto_commit=False, **SETTINGS
            )
            tasks.start_soon(processor.run)
            with anyio.fail_after(10):
                while not any("with auto_commit off" in str(log.get("error")) for log in logs):
                    await anyio.sleep(0.01)
            processor.stop()
    assert not (await group(store)).ended


@pytest.mark.parametrize("delivery", ["at-least-once", "at-most-once"])
async def test_an_end_is_the_last_file_with_either_delivery(delivery: str) -> None:
    source, store = split(), Store(MemoryStore())
    await until_end(source, store, delivery=delivery)
    assert await rows(store) == [2, 4, 6, 8, 10, 12, 14]


async def _has_rows(store: Store, count: int) -> bool:
    return len(await rows(store)) >= count


async def _files(store: Store, partition: str) -> list[str]:
    return [entry.key for entry in (await store.list(LAYOUT.output_dir(partition))).entries]
