"""A built-in log grows while hosts process it: each record once, keys in order, and their state with them."""

from __future__ import annotations

import io
from functools import partial
from typing import Any

import anyio
import pyarrow.parquet as pq
import pytest

from actorproc import Batch, PartitionContext, PartitionHandler, PartitionInfo, Processor
from actorproc.admin.fleet_watch import FleetWatch
from actorproc.group.membership import read_group
from actorproc.log.metadata import create_log
from actorproc.produce.growth import grow_log
from actorproc.produce.producer import Producer
from actorproc.sources import LogSource
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from tests.processor.doubling import QUICK

KEYS = [f"key{n}" for n in range(12)]
SETTINGS: dict[str, Any] = {**QUICK, "partition_refresh_interval": 0.1, "poll_interval": 0.05}
LAYOUT = ProcessorLayout("Order")


class Order(PartitionHandler):
    """Emits each record with the number of records of its key before it, which keyed state counts."""

    output_schema = "key string, n long, before long"

    def record_key(self, key: Any, ctx: PartitionInfo) -> str | None:
        return str(key)

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            assert record.key is not None
            key = record.key.decode()
            before = ctx.state.get(key, 0)
            ctx.state[key] = before + 1
            ctx.emit(record, {"key": key, "n": record.json(), "before": before})


async def rows(store: Store) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for entry in (await store.list("Order/output/")).entries:
        stored = await store.get(entry.key)
        assert stored is not None
        found += pq.read_table(io.BytesIO(stored.body)).to_pylist()
    return found


def check(found: list[dict[str, Any]], each: int) -> None:
    """Each key has `each` records, and keyed state has counted them in order."""
    for key in KEYS:
        assert sorted((row["n"], row["before"]) for row in found if row["key"] == key) == [(n, n) for n in range(each)]
    assert len(found) == each * len(KEYS)


def processor(log: Store, store: Store, host: str, **settings: Any) -> Processor:
    source = LogSource(log, clock=log.clock)
    return Processor(Order, source=source, container=store, host=host, **{**SETTINGS, **settings})


async def send(producer: Producer, first: int, stop: int) -> None:
    """Numbers from `first` on to each key."""
    for n in range(first, stop):
        for key in KEYS:
            await producer.send(str(n), key=key)


@pytest.mark.parametrize("by_key", [True, False])
async def test_two_hosts_and_a_producer_run_on_while_a_log_grows_twice(by_key: bool) -> None:
    log, store = Store(MemoryStore()), Store(MemoryStore())
    await create_log(log, 2)
    hosts = [processor(log, store, host) for host in "ab"]
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for host in hosts:
                tasks.start_soon(host.run)
            async with Producer(log, linger=0.01) as producer:
                for part, partitions in enumerate((4, 8, 8)):
                    await send(producer, 10 * part, 10 * part + 5)
                    tasks.start_soon(partial(grow_log, by_key=by_key), log, partitions)
                    await send(producer, 10 * part + 5, 10 * part + 10)
                    await producer.flush()
                    await anyio.sleep(0.1)
            while len(await rows(store)) < 30 * len(KEYS):
                await anyio.sleep(0.05)
            group = await read_group(store, LAYOUT)
            for host in hosts:
                host.stop()
    check(await rows(store), 30)
    assert group is not None
    assert set(group.ended) == {str(number) for number in range(6)}


@pytest.mark.parametrize("growing", [False, True])
async def test_a_new_processor_reads_a_grown_log_to_its_end(growing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    log, store = Store(MemoryStore()), Store(MemoryStore())
    await create_log(log, 2)
    async with Producer(log, linger=0) as producer:
        await send(producer, 0, 3)
        await producer.flush()
        if growing:  # only the partitions of the first key end
            with monkeypatch.context() as patched:
                patched.setattr("actorproc.produce.growth._complete", _dies)
                with pytest.raises(RuntimeError):
                    await grow_log(log, 4)
            async with Producer(log, linger=0) as other:
                await other.send("3", key=KEYS[0])
        else:
            await grow_log(log, 4)
            await producer.send("3", key=KEYS[0])
    with anyio.fail_after(30):
        await processor(log, store, "a").run(until_end=True)
    found = await rows(store)
    assert len(found) == 3 * len(KEYS) + 1
    assert {(row["n"], row["before"]) for row in found if row["key"] == KEYS[0]} == {(n, n) for n in range(4)}
    source = LogSource(log)
    await source.open()
    status = await FleetWatch(store, LAYOUT, 60).read_all(source)
    assert all(partition.lag == 0 for partition in status.partitions.values())


async def _dies(*_: object) -> None:
    raise RuntimeError


async def test_the_start_of_a_new_processor_counts_for_all_partitions() -> None:
    log, store = Store(MemoryStore()), Store(MemoryStore())
    await create_log(log, 2)
    async with Producer(log, linger=0) as producer:
        await send(producer, 0, 3)
        await producer.flush()
        await grow_log(log, 4)
        await send(producer, 3, 5)
        await producer.flush()
        hosts = processor(log, store, "a", start="latest")
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(hosts.run)
                while (group := await read_group(store, LAYOUT)) is None or len(group.leases) < 6:
                    await anyio.sleep(0.02)
                while len(group.ended) < 2:
                    group = await read_group(store, LAYOUT) or group
                    await anyio.sleep(0.02)
                await grow_log(log, 8)
                await send(producer, 5, 7)
                while len(await rows(store)) < 2 * len(KEYS):
                    await anyio.sleep(0.05)
                hosts.stop()
    assert {row["n"] for row in await rows(store)} == {5, 6}
