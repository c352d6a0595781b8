"""A log grows while producers send: each record is in the log once, and records of a key stay in order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from itertools import count

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from actorproc.admin.damage import Verification
from actorproc.admin.logs import describe_log, plan_growth
from actorproc.admin.verify_log import verify_log
from actorproc.errors import CorruptObject, UsageError
from actorproc.log.generations import Generations
from actorproc.log.metadata import LogMetadata, create_log, open_log
from actorproc.log.segment import SegmentFooter
from actorproc.produce.growth import grow_log
from actorproc.produce.producer import Producer
from actorproc.produce.staged_files import StagedFile, encode_staged
from actorproc.produce.transactions import Transactions
from actorproc.records import Batch, Record
from actorproc.sources import LogSource
from actorproc.sources.protocol import list_partitions
from actorproc.storage.names import log_file, log_staged
from actorproc.storage.store import Store, StoreLimits
from actorproc.stores.memory import MemoryStore
from tests.fragile import CLOCK, Fate, Fragile, Killed, Shuffled

KEYS = [f"key{n}" for n in range(12)]


async def contents(store: Store) -> dict[str, list[Record]]:
    """The records by partition, as a processor would read them: those that follow others after them.

    Checks that every partition that others follow has ended, and no other one.
    """
    source = LogSource(store, clock=store.clock)
    await source.open()
    partitions = await list_partitions(source)
    followed = {parent for parents in partitions.values() for parent in parents}
    found: dict[str, list[Record]] = {}
    for partition, parents in partitions.items():
        assert set(parents) <= found.keys()
        found[partition] = []
        async with aclosing(source.read(partition, "0")) as chunks:
            async for chunk in chunks:
                found[partition] += chunk.batch
                if not len(chunk.batch):
                    assert chunk.ended == (partition in followed)
                    break
        assert [record.sequence for record in found[partition]] == list(range(len(found[partition])))
    await source.close()
    return found


def by_key(found: Mapping[str, Sequence[Record]]) -> dict[str, list[int]]:
    """The numbers in the values of each key, in the order in which a processor reads them."""
    numbers = defaultdict(list)
    for records in found.values():
        for record in records:
            assert record.key is not None
            assert record.value is not None
            numbers[record.key.decode()].append(int(record.value))
    return dict(numbers)


async def new_log(truth: MemoryStore, partitions: int = 2) -> Store:
    store = Store(truth)
    await create_log(store, partitions)
    return store


# Partitions


def test_a_partition_follows_the_one_that_had_its_keys() -> None:
    log = Generations((2, 4, 12))
    assert (log.total, log.count, log.first, list(log.before)) == (18, 12, 6, [2, 3, 4, 5])
    assert [list(log.children(number)) for number in (0, 1, 3, 17)] == [[2, 4], [3, 5], [7, 11, 15], []]
    assert log.ancestors(15) == [3, 1]
    for key in (key.encode() for key in KEYS):
        places = [number for number in range(log.total) if log.has_key(number, key)]
        assert log.ancestors(places[2]) == [places[1], places[0]]


async def test_a_log_grows_to_a_multiple_only() -> None:
    store = await new_log(MemoryStore())
    assert await plan_growth(store, 4) == (["0", "1"], ["2", "3", "4", "5"])
    for partitions in (1, 3):
        with pytest.raises(UsageError, match=f"partitions = {partitions}: .* has 2, and grows to a multiple of that"):
            await grow_log(store, partitions)
    grown = await grow_log(store, 4)
    assert (grown.generations.counts, grown.growing) == ((2, 4), False)
    assert await grow_log(store, 4) == grown
    assert await plan_growth(store, 4) == ((), ())


async def test_a_grown_log_keeps_its_identity_and_opens_by_each_of_its_counts() -> None:
    store = await new_log(MemoryStore())
    before = await open_log(store)
    await grow_log(store, 4)
    assert before.identity == (await create_log(store, 2)).identity == (await create_log(store, 4)).identity
    with pytest.raises(UsageError, match="has 4 partitions, not 3"):
        await create_log(store, 3)


async def test_earlier_releases_refuse_a_grown_log(monkeypatch: pytest.MonkeyPatch) -> None:
    store = await new_log(MemoryStore())
    source = LogSource(store)
    await source.open()
    await grow_log(store, 4)
    monkeypatch.setattr(LogMetadata, "newest_format_version", 1)
    monkeypatch.setattr(SegmentFooter, "newest_format_version", 1)
    with pytest.raises(CorruptObject, match=r"has format version 2, .* update actorproc here"):
        await open_log(store)
    with pytest.raises(CorruptObject, match=r"has format version 2, .* update actorproc here"):
        await anext(source.read("0", "0"))  # a reader that was open before


async def test_verification_misses_the_end_of_a_partition() -> None:
    store = await new_log(MemoryStore())
    async with Producer(store, linger=0) as producer:
        await producer.send_many(["x"] * 12, keys=KEYS)
    await grow_log(store, 4)
    sound = Verification()
    ends = await verify_log(store, sound)
    assert not sound.damages
    await store.delete(log_file("1", ends["1"]))
    found = Verification()
    await verify_log(store, found)
    assert [damage.what for damage in found.damages] == [
        "the end of the partition is missing, and other partitions follow it"
    ]


async def test_the_start_by_time_of_a_partition_that_has_ended() -> None:
    store = await new_log(MemoryStore(), 1)
    times = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3)]
    async with Producer(store, linger=0) as producer:
        await (await producer.send("x", timestamp=times[0]))
        await (await producer.send("x", timestamp=times[1]))
        await grow_log(store, 2)
    source = LogSource(store)
    await source.open()
    assert [await source.start("0", time) for time in times] == ["0", "1", "2"]
    assert await source.start("0", "latest") == "2"
    assert await source.start("1", times[2]) == "0"


# Producers


async def test_a_producer_goes_on_where_the_partitions_have_ended() -> None:
    store = await new_log(MemoryStore())
    numbers = count()
    async with Producer(store, linger=0) as producer:
        for partitions in (2, 4, 8):
            await grow_log(store, partitions)
            sent = [await producer.send(str(next(numbers)), key=key) for key in KEYS * 2]
            keys = KEYS * 3
            many = await producer.send_many([str(next(numbers)) for _ in keys], keys=keys)
            reports = [await delivery for delivery in sent] + await many
            found = await contents(store)
            for report in reports:
                assert len(found[report.partition]) > report.sequence
        assert producer.partitions == 8
    assert [len(found[name]) > 0 for name in ("0", "2", "6")] == [True] * 3
    ordered = by_key(found)
    assert all(numbers == sorted(numbers) for numbers in ordered.values())
    assert sorted(n for numbers in ordered.values() for n in numbers) == list(range(3 * 5 * len(KEYS)))


async def test_a_batch_that_meets_the_end_is_reported_where_its_records_are() -> None:
    store = await new_log(MemoryStore())
    reports = []
    async with Producer(store, linger=60) as producer:
        first = [await producer.send(str(n), key=key) for n, key in enumerate(KEYS)]
        many = await producer.send_many([str(n) for n in range(100)], keys=[KEYS[n % 12] for n in range(100)])
        await producer.send("100", key=KEYS[0], callback=lambda report, error: reports.append((report, error)))
        await grow_log(store, 4)
        await producer.flush()
        found = await contents(store)
        for n, delivery in enumerate(first):
            partition, sequence = await delivery
            assert found[partition][sequence].value == str(n).encode()
        for n, (partition, sequence) in enumerate(await many):
            assert found[partition][sequence].value == str(n).encode()
    ((report, error),) = reports
    assert error is None
    assert report is not None
    assert found[report.partition][report.sequence].value == b"100"
    assert not found["0"]
    assert not found["1"]


async def test_records_of_a_named_partition_stay_in_order() -> None:
    store = await new_log(MemoryStore())
    async with Producer(store, linger=60) as producer:
        for n in range(10):
            await producer.send(str(n), key=f"key{n}", partition=1)
        await grow_log(store, 4)
        await producer.flush()
        for n in range(10, 20):
            await producer.send(str(n), key=f"key{n}", partition=1)
    found = await contents(store)
    assert [int(record.value or b"") for record in found["3"]] == list(range(20))


async def test_records_without_a_key_go_on_too() -> None:
    store = await new_log(MemoryStore())
    async with Producer(store, linger=60, partitioner="round-robin") as producer:
        await producer.send_many([str(n) for n in range(10)])
        await grow_log(store, 4)
        await producer.flush()
        await producer.send_many([str(n) for n in range(10, 20)])
    found = await contents(store)
    assert sorted(int(r.value or b"") for records in found.values() for r in records) == list(range(20))


async def test_a_partitioner_is_asked_again_with_the_new_count() -> None:
    store = await new_log(MemoryStore())
    async with Producer(store, linger=60, partitioner=lambda key, value, n: int(key or b"") % n) as producer:
        await producer.send_many([str(n) for n in range(12)], keys=[str(n) for n in range(12)])
        await grow_log(store, 4)
        await producer.flush()
    found = await contents(store)
    assert [[int(r.key or b"") for r in found[str(p)]] for p in (2, 3, 4, 5)] == [
        [0, 4, 8],
        [1, 5, 9],
        [2, 6, 10],
        [3, 7, 11],
    ]


@pytest.mark.parametrize("seed", range(12))
async def test_many_producers_and_two_growths_at_once(seed: int) -> None:
    CLOCK.random.seed(seed)
    truth = MemoryStore()
    await new_log(truth)

    async def produce(name: int) -> None:
        # Each record is a batch, so that batches wait behind each other when a partition ends.
        async with Producer(Store(Shuffled(truth, Fate())), linger=0, batch_bytes=1) as producer:
            for n in range(40):
                await producer.send(str(n), key=f"{name}-{n % 5}")
                for _ in range(CLOCK.random.randrange(20)):
                    await anyio.lowlevel.checkpoint()

    async def grow(partitions: int) -> None:
        for _ in range(CLOCK.random.randrange(300)):
            await anyio.lowlevel.checkpoint()
        await grow_log(Store(Shuffled(truth, Fate())), partitions)

    async with anyio.create_task_group() as tasks:
        for name in range(3):
            tasks.start_soon(produce, name)
        tasks.start_soon(grow, 4)
        tasks.start_soon(grow, 4)
    await grow_log(Store(truth), 8)
    found = by_key(await contents(Store(truth)))
    assert found == {f"{name}-{key}": list(range(key, 40, 5)) for name in range(3) for key in range(5)}


@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize("killed_at", range(7))
async def test_a_growth_that_dies_is_finished_by_producers_or_the_next_one(how: str, killed_at: int) -> None:
    truth = MemoryStore()
    store = await new_log(truth)
    async with Producer(store, linger=0) as before, Producer(store, linger=0) as also:
        await before.send_many([str(n) for n in range(12)], keys=KEYS)
        await before.flush()
        with suppress(Killed, BaseExceptionGroup):
            await grow_log(Store(Fragile(truth, Fate(killed_at, how)), limits=StoreLimits(patience=0)), 4)
        async with Producer(store, linger=0) as after:
            for n, key in enumerate(KEYS):
                for round_, producer in enumerate((after, before, also, after)):
                    await (await producer.send(str(12 * (round_ + 1) + n), key=key))
        growing = (await describe_log(store)).growing
        found = await contents(store) if not growing else {}
    await grow_log(store, 4)
    assert (await open_log(store)).growing is False
    found = found or await contents(store)
    assert by_key(found) == {key: [12 * round_ + n for round_ in range(5)] for n, key in enumerate(KEYS)}


# Transactions


async def commit(store: Store, batch: int, rows: Sequence[tuple[str, int]], partitions: Generations) -> None:
    """Stage a record for each key and number, in two files, and commit them."""
    staged = []
    for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
        keys, values = [key.encode() for key, _ in part], [b"%d" % n for _, n in part]
        data = Batch.of("", values, range(len(part)), keys=keys, timestamps=[datetime.now(UTC)] * len(part)).data
        named = range(partitions.first, partitions.total)
        chosen = [next(n for n in named if partitions.has_key(n, key)) for key in keys]
        body, numbers = encode_staged([(data, np.array(chosen, np.uint32))])
        key = log_staged("t", batch, store.clock.nonce())
        await store.put(key, body)
        staged.append(StagedFile(key, data.nbytes, numbers))
    async with Transactions.opened(store) as transactions:
        await transactions.commit("t", batch, staged)


ROWS = [(key, 12 * round_ + n) for round_ in range(4) for n, key in enumerate(KEYS)]


@pytest.mark.parametrize("how", ["before", "after", "late"])
@pytest.mark.parametrize("killed_at", range(20))
async def test_a_transaction_that_was_staged_before_a_growth_goes_on(
    how: str, killed_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actorproc.produce.transactions.GROUP_BYTES", 1)
    truth = MemoryStore()
    store = await new_log(truth)
    partitions = (await open_log(store)).generations
    fate = Fate(killed_at, how)
    with suppress(Killed, BaseExceptionGroup):
        await commit(Store(Fragile(truth, fate), limits=StoreLimits(patience=0)), 0, ROWS, partitions)
    await grow_log(store, 4)
    await fate.land()
    again = Fate(killed_at // 2, how)
    with suppress(Killed, BaseExceptionGroup):
        await commit(Store(Fragile(truth, again), limits=StoreLimits(patience=0)), 0, ROWS, partitions)
    await again.land()
    await grow_log(store, 8)
    await commit(store, 0, ROWS, partitions)
    assert by_key(await contents(store)) == {
        key: [12 * round_ + n for round_ in range(4)] for n, key in enumerate(KEYS)
    }


async def test_a_transaction_ends_the_partitions_before_those_that_get_its_records() -> None:
    truth = MemoryStore()
    store = await new_log(truth)
    async with Producer(store, linger=0) as before:
        with suppress(Killed, BaseExceptionGroup):  # after log.json names the next generation
            await grow_log(Store(Fragile(truth, Fate(1, "before")), limits=StoreLimits(patience=0)), 4)
        found = await open_log(store)
        assert found.growing
        await commit(store, 0, ROWS, found.generations)
        for n, key in enumerate(KEYS):
            await before.send(str(48 + n), key=key)
        await before.flush()
    await grow_log(store, 4)
    assert by_key(await contents(store)) == {
        key: [12 * round_ + n for round_ in range(5)] for n, key in enumerate(KEYS)
    }
