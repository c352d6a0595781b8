"""The log sink: the checks of the test kit, deliveries that are cut off at each request, and logs that grow."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import orjson
import pyarrow as pa
import pytest
from msgspec.structs import replace

from actorproc import Producer
from actorproc.admin.logs import grow
from actorproc.connectors.log import LogSink
from actorproc.errors import StoreUnavailable
from actorproc.log.key_hash import partition_of_key
from actorproc.log.metadata import create_log, open_log
from actorproc.log.segment import Segment
from actorproc.produce.transactions import Transactions
from actorproc.records import Record
from actorproc.runtime.clock import SYSTEM
from actorproc.sinks.protocol import Delivery, Guarantee, SinkError, SinkMoved, SinkPlace, SinkRefused, SinkRow
from actorproc.storage.listing import numbered_files
from actorproc.storage.names import log_dir, log_file
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing import check_sink
from tests.sinks.matrix import tried

SCHEMA = pa.schema([("n", pa.int64()), ("word", pa.string()), pa.field("_sequence", pa.int64(), nullable=False)])
FIRST = SinkRow("x", 1, "t", 0, 0)


def sink(store: Store, **options: Any) -> LogSink:
    return LogSink("log:memory", {"key": "n", **options}, SinkPlace("log", "Copy", SYSTEM), store)


def delivery(numbers: range, was: SinkRow | None, *, partition: str = "0") -> Delivery:
    data = [pa.array(numbers, pa.int64()), pa.array([f"word {n}" for n in numbers]), pa.array(numbers, pa.int64())]
    now = replace(was or FIRST, position=(was or FIRST).position + 1)
    return Delivery(
        partition, pa.Table.from_arrays(data, schema=SCHEMA), now.position - 1, (len(numbers),), was, now
    )  # fmt: skip


async def records(store: Store) -> list[tuple[str, Record]]:
    """All of the log, by partition, in order."""
    found = []
    for partition in (await open_log(store)).names:
        for file in await numbered_files(store, log_dir(partition), 0, 1000):
            stored = await store.get(log_file(partition, file.number))
            assert stored is not None
            found += [
                (partition, record)
                for batch in Segment(partition, file.number, stored.body).batches()
                for record in batch
            ]
    return found


async def numbers(store: Store) -> list[int]:
    return [record.json()["n"] for _, record in await records(store)]


@pytest.mark.parametrize("partitions", [1, 4])
async def test_it_keeps_exactly_once(partitions: int) -> None:
    async with Store(MemoryStore()) as store:
        await create_log(store, partitions)

        async def rows() -> Sequence[int]:
            return await numbers(store)

        checked = await check_sink(lambda: sink(store), rows, ordered=partitions == 1)
        tried("log" if partitions > 1 else "log, one partition", checked, on="the built-in log")
        assert (checked.guarantee, checked.repeated) == (Guarantee.EXACTLY_ONCE, 0)


async def test_a_row_is_where_a_producer_puts_its_key() -> None:
    async with Store(MemoryStore()) as store, sink(store, partitions=5, headers="word,_partition") as found:
        await found.open(SCHEMA)
        await found.write(delivery(range(50), None))
        for partition, record in await records(store):
            n = record.json()["n"]
            assert partition == str(partition_of_key(b"%d" % n, 5))
            assert (record.key, record.headers) == (b"%d" % n, (("word", b"word %d" % n), ("_partition", b"0")))
            assert orjson.loads(record.value or b"") == {"n": n, "word": f"word {n}"}
        assert (await store.list("staged/")).entries == []


async def test_a_log_that_is_missing_is_refused() -> None:
    async with Store(MemoryStore()) as store:
        with pytest.raises(SinkRefused, match="there is no log at"):
            await sink(store).open(SCHEMA)


async def test_an_open_that_failed_leaves_nothing_and_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = LogSink(f"log:{tmp_path}", {"partitions": 1}, SinkPlace("log", "Copy", SYSTEM))
    opened, sweep, backend = Counter[str](), Transactions.sweep, found._store.backend

    async def count(name: str, method: Callable[[], Awaitable[None]]) -> None:
        opened[name] += 1
        await method()

    async def failing(self: Transactions) -> None:
        opened["sweep"] += 1
        if opened["sweep"] == 1:
            raise StoreUnavailable("no answer")
        await sweep(self)

    monkeypatch.setattr(backend, "open", partial(count, "open", backend.open))
    monkeypatch.setattr(backend, "close", partial(count, "close", backend.close))
    monkeypatch.setattr(Transactions, "sweep", failing)
    tasks = asyncio.all_tasks()
    with pytest.raises(StoreUnavailable):
        await found.open(SCHEMA)
    assert asyncio.all_tasks() == tasks
    assert opened == {"open": 1, "sweep": 1, "close": 1}
    await found.open(SCHEMA)
    await found.open(SCHEMA)  # nothing
    await found.write(delivery(range(3), None))
    await found.close()
    assert asyncio.all_tasks() == tasks
    assert opened == {"open": 2, "sweep": 2, "close": 2}


def cutting(store: Store, at: int, *, applied: bool) -> None:
    """Let the writes of `store` fail from number `at` on; the first of these may be applied."""
    writes = itertools.count()

    def cut(name: str) -> None:
        method = getattr(store, name)

        async def request(*args: Any, **more: Any) -> Any:
            number = next(writes)
            if number == at and applied:
                await method(*args, **more)
            if number >= at:
                raise StoreUnavailable("the host has died")
            return await method(*args, **more)

        setattr(store, name, request)

    for name in ("put", "create", "write", "delete"):
        cut(name)


@pytest.mark.parametrize("applied", [False, True])
async def test_a_delivery_that_is_cut_off_anywhere_is_done_once(applied: bool) -> None:
    """The next owner delivers the same commits again, in other pieces."""
    landed = Counter[str]()
    for at in range(14):
        memory = MemoryStore()
        async with Store(memory) as store, sink(store, partitions=3) as alive:
            await alive.open(SCHEMA)
            async with Store(memory) as other:
                dead = sink(other)
                await dead.open(SCHEMA)
                first = delivery(range(20), None)
                await dead.write(first)
                cutting(other, at, applied=applied)
                try:
                    await dead.write(delivery(range(20, 40), first.now))
                    landed["whole"] += 1
                except (SinkError, StoreUnavailable):
                    landed["cut"] += 1
            row = await alive.read("0")
            assert row is not None
            if row.position == 1:
                one = delivery(range(20, 30), row)
                await alive.write(one)
                await alive.write(delivery(range(30, 40), one.now))
            assert sorted(await numbers(store)) == list(range(40)), at
    assert min(landed.values()) > 1, landed


async def test_a_sleeper_in_the_middle_of_a_delivery_appends_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = MemoryStore()
    async with (
        Store(memory) as store,
        Store(memory) as other,
        sink(store, partitions=3) as alive,
        sink(other) as asleep,
    ):
        await alive.open(SCHEMA)
        await asleep.open(SCHEMA)
        creates, awake = 0, anyio.Event()
        create = other.create

        async def sleepy(*args: Any) -> Any:
            nonlocal creates
            creates += 1
            if creates > 1:
                await awake.wait()
            return await create(*args)

        monkeypatch.setattr(other, "create", sleepy)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(asleep.write, delivery(range(30), None))
            with anyio.fail_after(10):
                while creates < 2:
                    await anyio.sleep(0.01)
            row = await alive.read("0")
            assert row == delivery(range(30), None).now
            async with Producer(store) as producer:
                await producer.send(b'{"n": -1}', key=b"other")
            await alive.write(delivery(range(30, 60), row))
            awake.set()
        assert sorted(await numbers(store)) == list(range(-1, 60))
        with pytest.raises(SinkMoved):
            await asleep.write(delivery(range(30, 60), row))


async def test_a_log_that_grows_gets_each_row_once_and_in_order() -> None:
    async with Store(MemoryStore()) as store, sink(store, partitions=2, key="word") as found:
        await found.open(SCHEMA)
        row: SinkRow | None = None
        for at in range(6):
            if at in (2, 4):
                await grow(store, 2 ** (at // 2 + 1))
            step = delivery(range(at * 10, at * 10 + 10), row)
            await found.write(step)
            row = step.now
        assert sorted(await numbers(store)) == list(range(60))


async def test_other_producers_and_sinks_append_meanwhile() -> None:
    async with Store(MemoryStore()) as store, sink(store, partitions=2) as found:
        await found.open(SCHEMA)

        async def deliver(partition: int) -> None:
            row: SinkRow | None = None
            for at in range(10):
                first = 1000 * partition + at * 10
                step = delivery(range(first, first + 10), row, partition=str(partition))
                await found.write(step)
                row = step.now

        async def produce() -> None:
            async with Producer(store, linger=0.001) as producer:
                for n in range(9000, 9100):
                    await producer.send({"n": n}, key=b"%d" % n)
                    await producer.flush()

        async with anyio.create_task_group() as tasks:
            for partition in range(4):
                tasks.start_soon(deliver, partition)
            tasks.start_soon(produce)
        expected = [1000 * p + n for p in range(4) for n in range(100)] + list(range(9000, 9100))
        found_numbers = await numbers(store)
        assert sorted(found_numbers) == sorted(expected)
