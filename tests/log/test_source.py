"""The log as a source: positions, ends, times, waiting, corrupt segments."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorproc.config.settings import Settings
from actorproc.errors import CorruptObject, RecordsLost, SourceError, UsageError
from actorproc.log.metadata import create_log
from actorproc.log.segment import ROW_GROUP_BYTES
from actorproc.produce.appender import Appender
from actorproc.produce.hint_writer import HintWriter
from actorproc.produce.producer import Producer
from actorproc.records import RECORD_SCHEMA, Batch
from actorproc.retention.boundary import raise_boundary
from actorproc.runtime.budget import ByteBudget, ReadBudget
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.faults import LATENCY_ONLY, FaultyBackend
from actorproc.simulation.loop import run
from actorproc.sources import LogSource, open_source
from actorproc.sources.protocol import End, list_partitions
from actorproc.storage.backend import Listing, Stored
from actorproc.storage.names import log_boundary, log_dir, log_file
from actorproc.storage.store import Store, StoreLimits
from actorproc.stores.memory import MemoryStore
from tests.log.reading import batches, log_contents, values

DAY = datetime(2013, 1, 1, tzinfo=UTC)


def times(*seconds: float) -> list[datetime]:
    return [DAY + timedelta(seconds=s) for s in seconds]


async def append(store: Store, texts: list[str], at: list[datetime] | None = None, **options: Any) -> None:
    """One file in partition 0."""
    async with Producer(store, partitions=1, clock=store.clock, **options) as producer:
        await producer.send_many(texts, timestamps=at)


_opened: list[LogSource] = []


@pytest.fixture(autouse=True)
async def _closed() -> AsyncIterator[None]:
    yield
    while _opened:
        await _opened.pop().close()


async def opened(store: Store, **options: Any) -> LogSource:
    source = LogSource(store, settings=Settings.load(**options), clock=store.clock)
    await source.open()
    _opened.append(source)
    return source


async def test_sent_records_are_read_on_every_store(store: Store) -> None:
    async with Producer(store, partitions=3, linger=0.01) as producer:
        sent = [await producer.send(f"v{i}", key=f"k{i % 7}", headers={"n": str(i)}) for i in range(50)]
        await producer.flush()
        sent += [await producer.send(f"v{i}", key=f"k{i % 7}", headers={"n": str(i)}) for i in range(50, 100)]
        placed = [await delivery for delivery in sent]
    source = await opened(store)
    assert await source.partitions() == ["0", "1", "2"]
    found = {}
    for partition in await list_partitions(source):
        end = await source.end(partition)
        assert end == End(str((end.sequence or 0) + 1), end.sequence)
        assert await source.start(partition, "latest") == end.position
        for batch in await batches(source, partition, await source.start(partition, "earliest")):
            for record in batch:
                found[record.partition, record.sequence] = record
    assert len(found) == 100
    for number, place in enumerate(placed):
        record = found[place]
        assert (record.text, record.key) == (f"v{number}", b"k%d" % (number % 7))
        assert record.headers == (("n", str(number).encode()),)
        assert record.timestamp is not None
        assert abs(record.timestamp - datetime.now(UTC)) < timedelta(minutes=5)


async def test_reading_goes_on_at_every_position_that_was_handed_out(store: Store) -> None:
    await append(store, ["x" * 3 * 2**20, "y" * 3 * 2**20, "z" * 3 * 2**20, "tail"], batch_bytes="64MiB")
    await append(store, ["next"])
    source = await opened(store)
    whole, positions = [], []
    async with aclosing(source.read("0", "0")) as chunks:
        async for chunk in chunks:
            if not len(chunk.batch):
                break
            assert chunk.batch.nbytes <= 2 * ROW_GROUP_BYTES
            whole.append(chunk.batch)
            positions.append(chunk.next)
    assert len(whole) > 2, "a large file comes in pieces"
    assert sum(map(len, whole)) == 5
    for index, position in enumerate(positions):
        rest = [batch.sequences for batch in await batches(source, "0", position)]
        assert rest == [batch.sequences for batch in whole[index + 1 :]]


async def test_the_time_of_the_record_at_a_position_is_known(store: Store) -> None:
    await append(store, ["a", "b", "c"], times(1, 2, 3))
    source = await opened(store)
    assert [await source.time_at("0", position) for position in ("0", "0+2", "3")] == [*times(1, 3), None]


async def test_the_bytes_of_a_lag_are_those_of_the_files(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    for number in range(6):
        await append(store, ["x" * 1000 * number] * 10)
        sizes.append((await store.list(log_dir("0"))).entries[-1].size)
    source = await opened(store)
    end = await source.end("0")

    async def size(position: str) -> int:
        return await source.bytes_between("0", position, end)

    assert [await size(p) for p in ("0", "20", "50", "60")] == [sum(sizes), sum(sizes[2:]), sizes[5], 0]
    assert await size("50+5") == round(sizes[5] / 2)
    assert await source.bytes_between("0", "0", End("20", 19)) == sum(sizes[:2])
    monkeypatch.setattr("actorproc.log.positions._MOST_LISTED", 3)
    assert await size("0") == round(sum(sizes[:2]) / 20 * 60), "an estimate by the files of one listing"


async def test_an_empty_log_has_its_end_at_its_start() -> None:
    store = Store(MemoryStore())
    await create_log(store, 2)
    source = await opened(store)
    assert await source.start("0", "earliest") == await source.start("0", "latest") == "0"
    assert await source.start("0", DAY) == "0"
    assert await source.end("1") == End("0", None)
    assert await values(source, "0") == []


async def test_a_record_of_the_next_day_is_found_by_its_time(store: Store) -> None:
    for hour in range(6):
        await append(store, [f"{hour}:{minute}" for minute in (0, 30)], times(hour * 3600, hour * 3600 + 1800))
    source = await opened(store)
    for at, first in [(0, "0:0"), (1, "0:30"), (3600, "1:0"), (3601, "1:30"), (4 * 3600 + 1800, "4:30"), (-9e9, "0:0")]:
        position = await source.start("0", DAY + timedelta(seconds=at))
        assert (await values(source, "0", position))[0] == first.encode()
    after = await source.start("0", DAY + timedelta(days=1))
    assert await values(source, "0", after) == []
    await append(store, ["late"])
    assert await values(source, "0", after) == [b"late"]


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_time_finds_the_first_record_at_or_after_it(data: st.DataObject) -> None:
    """Timestamps in any order, several producers that know nothing of each other's latest files, any time asked."""
    files = data.draw(
        st.lists(
            st.tuples(st.integers(0, 2), st.lists(st.integers(0, 50), min_size=1, max_size=4)), min_size=1, max_size=12
        )
    )

    questions = data.draw(st.lists(st.integers(-1, 51), min_size=1, max_size=6))

    async def main() -> None:
        clock = VirtualClock("t")
        store = Store(MemoryStore(clock=clock), clock=clock)
        await create_log(store, 1)
        # Appenders remember where the end was when they last wrote: each finds others' files in its way.
        appenders = [Appender(store, "0", f"p{i}", compression="zstd", hint=0, clock=clock) for i in range(3)]
        written: list[int] = []
        for who, seconds in files:
            batch = Batch.of("0", [b"x"] * len(seconds), range(len(seconds)), timestamps=times(*seconds))
            table = batch.to_arrow().select(RECORD_SCHEMA.names)
            assert await appenders[who].append(table, deadline=1e9) == len(written)
            written += seconds
        source = await opened(store)
        for asked in questions:
            position = await source.start("0", DAY + timedelta(seconds=asked))
            found = [sequence for batch in await batches(source, "0", position) for sequence in batch.sequences]
            expected = next((i for i, second in enumerate(written) if second >= asked), len(written))
            assert found == list(range(expected, len(written)))

    run(main())


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False])
def test_the_end_of_a_long_partition_is_found_in_few_requests(known: bool) -> None:
    async def main() -> None:
        clock = VirtualClock("t")
        store = Store(MemoryStore(clock=clock), clock=clock)
        async with Producer(store, partitions=1, linger=0, clock=clock) as producer:
            for number in range(3000):
                await (await producer.send(str(number)))
        if not known:
            for entry in (await store.list("heads/")).entries:
                await store.delete(entry.key)
        source = await opened(store)
        store.requests.clear()
        assert await source.end("0") == End("3000", 2999)
        assert store.requests.total() <= (4 if known else 30)
        # A producer that starts now finds it as well.
        await append(store, ["on"])
        assert await source.end("0") == End("3001", 3000)

    run(main())


def test_a_waiting_reader_is_woken_within_the_poll_and_hint_intervals() -> None:
    async def main() -> None:
        clock = VirtualClock("t")
        store = Store(MemoryStore(clock=clock), clock=clock)
        async with Producer(store, partitions=2, linger=0, clock=clock) as producer:
            source = await opened(store, poll_interval=1)
            heard: list[float] = []

            async def listen() -> None:
                async for chunk in source.read("1", "0"):
                    heard.extend([clock.monotonic()] * len(chunk.batch))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(listen)
                for _ in range(20):
                    await clock.sleep(clock.random.uniform(0, 40))
                    before = clock.monotonic()
                    await (await producer.send_many(["x"] * 9, keys=[1] * 9)).confirmed()
                    await clock.sleep(2.3)
                    assert len(heard) == 9, "all of it was read"
                    assert heard[-1] - before <= 2.2
                    heard.clear()
                tasks.cancel_scope.cancel()

    run(main())


def test_an_idle_log_costs_one_listing_per_poll() -> None:
    async def main() -> None:
        clock = VirtualClock("t")
        store = Store(MemoryStore(clock=clock), clock=clock)
        async with Producer(store, partitions=500, partitioner="round-robin", clock=clock) as producer:
            await producer.send_many(["x"] * 1000)
        source = await opened(store, poll_interval=2)
        read = 0

        async def follow(partition: str) -> None:
            nonlocal read
            async for chunk in source.read(partition, "0"):
                read += len(chunk.batch)

        async with anyio.create_task_group() as tasks:
            for partition in await list_partitions(source):
                tasks.start_soon(follow, partition)
            await clock.sleep(30)
            assert read == 1000
            store.requests.clear()
            await clock.sleep(600)
            assert 280 <= store.requests["list"] <= 320
            assert store.requests.total() == store.requests["list"]
            tasks.cancel_scope.cancel()

    run(main())


def test_when_the_reader_that_polls_is_cancelled_another_takes_over() -> None:
    async def main() -> None:
        clock = VirtualClock("t")
        store = Store(MemoryStore(clock=clock), clock=clock)
        async with Producer(
            store, partitions=20, linger=0, partitioner=lambda key, value, n: int(key or b"0"), clock=clock
        ) as p:
            source = await opened(store)
            read: list[bytes | None] = []
            scopes = [anyio.CancelScope() for _ in range(20)]

            async def follow(partition: int) -> None:
                with scopes[partition]:
                    async for chunk in source.read(str(partition), "0"):
                        read.extend(chunk.batch.values)

            async with anyio.create_task_group() as tasks:
                for partition in range(20):
                    tasks.start_soon(follow, partition)
                order = list(range(19))
                clock.random.shuffle(order)
                for number, partition in enumerate(order):
                    await clock.sleep(clock.random.uniform(0, 3))
                    scopes[partition].cancel()
                    await p.send(str(number), key=19)
                await clock.sleep(3)
                assert read == [str(number).encode() for number in range(19)]
                store.requests.clear()
                scopes[19].cancel()
                await clock.sleep(60)
                assert store.requests["list"] <= 1, "nobody waits, nobody asks"

    run(main())


def test_an_outage_delays_a_waiting_reader_and_does_not_end_it() -> None:
    async def main() -> None:
        clock = VirtualClock("t")
        truth = MemoryStore(clock=clock)
        network = FaultyBackend(truth, LATENCY_ONLY)
        await append(Store(truth, clock=clock), ["before"])
        source = await opened(Store(network, clock=clock), store_patience=5)
        read: list[bytes | None] = []

        async def follow() -> None:
            async for chunk in source.read("0", "0"):
                read.extend(chunk.batch.values)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            await clock.sleep(10)
            network.outage(400)
            await append(Store(truth, clock=clock), ["during"])
            await clock.sleep(500)
            assert read == [b"before", b"during"]
            tasks.cancel_scope.cancel()

    run(main())


def test_a_lagging_reader_prefetches_within_its_budget() -> None:
    async def main() -> None:
        clock = VirtualClock("t")
        truth = MemoryStore(clock=clock)
        async with Producer(Store(truth, clock=clock), partitions=1, linger=0, clock=clock) as producer:
            for number in range(400):
                await (await producer.send(str(number)))
        file_size = (await truth.list("partition=0/", limit=1)).entries[0].size

        async def seconds(**options: Any) -> float:
            source = await opened(Store(FaultyBackend(truth, LATENCY_ONLY), clock=clock), **options)
            began = clock.monotonic()
            assert [int(v or b"") for v in await values(source, "0")] == list(range(400))
            return clock.monotonic() - began

        one_by_one = await seconds(read_ahead_bytes=4 * file_size, max_batch_bytes=file_size)
        together = await seconds()
        assert together < one_by_one / 3

    run(main())


def test_a_reader_at_the_head_of_a_slow_log_hardly_lists_files() -> None:
    """The hints name the newest file, so there is nothing to list after it."""
    listed = Counter[str]()

    class Counting(MemoryStore):
        async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
            listed[prefix] += 1
            return await super().list(prefix, after, limit)

    async def main() -> None:
        clock, read = VirtualClock("t"), list[bytes | None]()
        truth = Counting(clock=clock)
        await create_log(Store(truth, clock=clock), 1)
        source = await opened(Store(FaultyBackend(truth, LATENCY_ONLY), clock=clock))

        async def follow() -> None:
            async for chunk in source.read("0", "0"):
                read.extend(chunk.batch.values)

        async with (
            Producer(Store(truth, clock=clock), linger=0, clock=clock) as producer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(follow)
            for number in range(60):
                await producer.send(str(number))
                await clock.sleep(0.4)
            await clock.sleep(5)
            tasks.cancel_scope.cancel()
        assert len(read) == 60
        assert listed["heads/"] > 20
        assert listed["partition=0/"] <= 6

    run(main())


def test_a_slow_store_is_read_and_each_listed_segment_is_fetched_once() -> None:
    """A file takes three times as long as the deadline of a request without a body."""

    asked: Counter[str] = Counter()

    class Slow(MemoryStore):
        async def get(self, key: str, *, unless: str | None = None, tail: int | None = None) -> Stored | None:
            asked[key] += tail is None
            stored = await super().get(key, unless=unless, tail=tail)
            await anyio.sleep(0.01 if stored is None else 0.01 + 0.8 * len(stored.body) / 2**20)
            return stored

        async def put_if_absent(self, key: str, body: bytes) -> str:
            await anyio.sleep(0.8 * len(body) / 2**20)
            return await super().put_if_absent(key, body)

    async def main() -> None:
        clock = VirtualClock("t")
        store = Store(Slow(clock=clock), limits=StoreLimits(timeout=1, patience=4), clock=clock)
        async with Producer(store, partitions=1, linger=0, compression="none", clock=clock) as producer:
            for number in range(6):
                await (await producer.send(bytes([number]) * 4 * 2**20))
        asked.clear()
        read = await values(await opened(store), "0")
        assert [value[0] for value in read if value] == list(range(6))
        assert [asked[log_file("0", base)] for base in range(6)] == [2, 2, 1, 1, 1, 1]

    run(main())


def test_readers_of_many_partitions_share_the_read_budget() -> None:
    partitions, file_size = 12, 2**20

    class Counting(MemoryStore):
        fetched = 0

        async def get(self, key: str, **options: Any) -> Stored | None:
            stored = await super().get(key, **options)
            self.fetched += len(stored.body) if stored and key.startswith("partition=") else 0
            return stored

    async def main() -> None:
        clock = VirtualClock("t")
        backend = Counting(clock=clock)
        store = Store(backend, clock=clock)
        budget, may_finish, seen = ByteBudget(4 * file_size), anyio.Event(), 0

        async def read(partition: str) -> None:
            nonlocal seen
            room = ReadBudget(budget)
            async with aclosing(source.read_within(partition, "0", room)) as chunks:
                async for chunk in chunks:
                    if not len(chunk.batch):
                        break
                    size = chunk.batch.nbytes
                    await room.take(size)
                    await may_finish.wait()
                    room.give_back(size)
                    seen += len(chunk.batch)
            room.close()

        async with Producer(
            store, partitions=partitions, partitioner="round-robin", compression="none", clock=clock
        ) as p:
            await p.send_many([b"x" * 2**18] * (4 * partitions))
        source = await opened(store)
        backend.fetched = 0
        async with anyio.create_task_group() as tasks:
            for partition in range(partitions):
                tasks.start_soon(read, str(partition))
            await clock.sleep(60)
            assert file_size <= backend.fetched <= 6 * file_size
            may_finish.set()
        assert seen == 4 * partitions
        assert budget.used == 0

    run(main())


def test_files_that_are_on_their_way_count_as_fetched_ahead() -> None:
    async def main() -> None:
        clock = VirtualClock("t")
        truth = MemoryStore(clock=clock)
        async with Producer(
            Store(truth, clock=clock), partitions=6, partitioner="round-robin", clock=clock
        ) as producer:
            for _ in range(12):
                await producer.send_many([b"x" * 1000] * 6)
                await producer.flush()
        file_size = (await truth.list("partition=0/", limit=1)).entries[0].size
        allowed, most = 4 * file_size, 0
        source = await opened(
            Store(FaultyBackend(truth, LATENCY_ONLY), clock=clock),
            read_ahead_bytes=4 * allowed,
            max_batch_bytes=allowed,
        )

        async def read(partition: str) -> None:
            nonlocal most
            async with aclosing(source.read(partition, "0")) as chunks:
                async for chunk in chunks:
                    most = max(most, source._prefetching.bytes_held)
                    if not len(chunk.batch):
                        return

        async with anyio.create_task_group() as tasks:
            for partition in range(6):
                tasks.start_soon(read, str(partition))
        assert file_size < most <= 1.1 * allowed
        assert source._prefetching.bytes_held == 0

    run(main())


async def test_a_corrupt_file_is_named_and_never_passed_over(store: Store) -> None:
    key = log_file("0", 3)
    await append(store, ["a", "b", "c"])
    await append(store, [f"{i}" * 50 for i in range(200)])
    await append(store, ["d"])
    stored = await store.get(key)
    assert stored is not None
    body = stored.body
    middle, footer = len(body) // 3, int.from_bytes(body[-8:-4], "little") + 8
    for broken in (
        body[:-10],
        body[: len(body) // 2],
        b"",
        b"not parquet at all",
        body[:middle] + bytes([body[middle] ^ 0x10]) + body[middle + 1 :],
        body[:-footer] + b"\0" * 30 + body[30 - footer :],
    ):
        await store.put(key, broken)
        source = await opened(store)
        read: list[bytes | None] = []
        with pytest.raises(CorruptObject, match=key):
            async for chunk in source.read("0", "0"):
                read.extend(chunk.batch.values)
                assert len(chunk.batch), "it must not wait either"
        assert read == [b"a", b"b", b"c"]
    await store.put(key, body)
    assert len((await log_contents(store))["0"]) == 204


async def test_files_that_were_deleted_before_they_were_read_are_an_error() -> None:
    store = Store(MemoryStore())
    for text in "abc":
        await append(store, [text])
    await store.delete(log_file("0", 0))
    await store.delete(log_file("0", 1))
    source = await opened(store, poll_interval="10ms")
    assert await source.start("0", "earliest") == "2"
    assert await values(source, "0", "2") == [b"c"]
    with pytest.raises(SourceError, match=r"partition 0 .* from position 0 on \(the next begin at 2\)"):
        async for chunk in source.read("0", "0"):
            assert not len(chunk.batch)


@pytest.mark.parametrize(("policy", "expected"), [("earliest", [b"c", b"d"]), ("latest", [])])
@pytest.mark.parametrize("trimmed", [False, True], ids=["deleted by hand", "trimmed"])
async def test_deleted_records_are_passed_over_if_the_user_says_so(
    policy: str, expected: list[bytes], trimmed: bool
) -> None:
    store = Store(MemoryStore())
    for text in "abcd":
        await append(store, [text])
    if trimmed:
        await raise_boundary(store, log_boundary("0"), 2)
    await store.delete(log_file("0", 0))
    await store.delete(log_file("0", 1))
    source = await opened(store, poll_interval="10ms", on_out_of_range=policy)
    found: list[bytes | None] = []
    with anyio.fail_after(60):
        async with aclosing(source.read("0", "0")) as chunks:
            while (chunk := await anext(chunks)).next != "4" or len(chunk.batch):
                found += chunk.batch.values
    assert found == expected


async def test_the_error_counts_the_deleted_records() -> None:
    store = Store(MemoryStore())
    for texts in (["a", "b", "c"], ["d"]):
        await append(store, texts)
    await store.delete(log_file("0", 0))
    source = await opened(store, poll_interval="10ms")
    with pytest.raises(RecordsLost, match=r"from position 1 on \(the next begin at 3\): 2 records were deleted"):
        async for chunk in source.read("0", "0+1"):
            assert not len(chunk.batch)


@pytest.mark.parametrize("position", ["3", "2+1"])
@pytest.mark.parametrize("since", [[], ["d"], ["d", "e", "f", "g"]], ids=["nothing", "less", "more"])
async def test_a_position_beyond_the_end_is_an_error(position: str, since: list[str]) -> None:
    """Files that begin or end there again by chance are an exception: no reader can notice them."""
    store = Store(MemoryStore())
    for texts in (["a"], ["b"], ["c"]):
        await append(store, texts)
    await store.delete(log_file("0", 2))
    await store.delete(log_file("0", 1))
    if since:
        await append(store, since)
    source = await opened(store, poll_interval="10ms")
    with (
        anyio.fail_after(60),
        pytest.raises(
            SourceError,
            match=r"partition 0 of the log .*(ends at [12], and|has lost its records from position [23] on)",
        ),
    ):
        async for chunk in source.read("0", position):
            assert not len(chunk.batch)


async def test_checking_a_position_at_the_end_takes_one_request() -> None:
    store = Store(MemoryStore())
    for text in "abc":
        await append(store, [text])
    source = await opened(store)
    await source.end("0")
    before = Counter(store.requests)
    async with aclosing(source.read("0", "3")) as chunks:
        assert not len((await anext(chunks)).batch)
    assert Counter(store.requests) - before == {"get": 3}  # the boundary, no file there, the footer of the newest


async def test_a_position_of_another_source_is_refused() -> None:
    store = Store(MemoryStore())
    await append(store, ["a"])
    source = await opened(store)
    with pytest.raises(SourceError, match="'12:34' is not a position in partition 0 of a log"):
        await anext(source.read("0", "12:34"))
    with pytest.raises(UsageError, match="a datetime with a time zone"):
        await source.start("0", datetime(2013, 1, 1))  # noqa: DTZ001


async def test_a_missing_log_is_a_usage_error_with_a_command() -> None:
    with pytest.raises(
        UsageError, match=r"no log at memory://nothing-here: check the URL, or create it with .*actorproc produce --log"
    ):
        await open_source("memory://nothing-here").open()


async def test_the_store_is_closed_again_where_there_is_no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[MemoryStore] = []

    async def close(self: MemoryStore) -> None:
        closed.append(self)

    monkeypatch.setattr(MemoryStore, "close", close)
    source = open_source("memory://nothing-here")
    with pytest.raises(UsageError):
        await source.open()
    assert len(closed) == 1
    await source.close()
    assert len(closed) == 1


def test_an_unknown_kind_of_source_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"there is no 'redis' source.*s3://, file:// or a path.*docs/sources.md"):
        open_source("redis://x")
    source = LogSource(Store(MemoryStore()))
    assert open_source(source) is source


async def test_a_corrupt_hint_stops_no_reader_or_producer() -> None:
    store = Store(MemoryStore())
    await append(store, ["a"])
    for number, body in enumerate([b"", b"[]", b'{"version":1,"newest":{"0":"x"}}', b'{"version":7}']):
        await store.put(f"heads/{number}.json", body)
    await append(store, ["b"])
    source = await opened(store)
    assert await values(source, "0") == [b"a", b"b"]
    assert await source.end("0") == End("2", 1)
    await HintWriter(store, store.clock).read_others()
