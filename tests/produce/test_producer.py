"""The producer: accepted arguments, the time of sending, and errors."""

from __future__ import annotations

import asyncio
import sys
import tracemalloc
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pyarrow as pa
import pytest

from actorproc.config.settings import Settings
from actorproc.errors import BufferFull, StoreError, StoreRefused, UsageError
from actorproc.log.key_hash import partition_of_key
from actorproc.produce.batches import DeliveryReport, ProducerBatch, weight_of
from actorproc.produce.producer import Producer
from actorproc.produce.serializers import columns
from actorproc.records import Batch, Record
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.faults import LATENCY_ONLY, FaultyBackend
from actorproc.simulation.loop import run
from actorproc.sources import LogSource
from actorproc.sources.protocol import list_partitions
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from tests.log.reading import batches, log_contents

AT = datetime(2013, 1, 1, 5, 30, 0, 123456, tzinfo=UTC)


async def records(store: Store) -> list[Record]:
    source = LogSource(store, settings=Settings.load(), clock=store.clock)
    await source.open()
    return [
        record
        for partition in await list_partitions(source)
        for batch in await batches(source, partition)
        for record in batch
    ]


def virtual() -> tuple[Store, VirtualClock]:
    clock = VirtualClock("p")
    return Store(MemoryStore(clock=clock), clock=clock), clock


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (b"\x00\xff", b"\x00\xff"), ("héllo", "héllo".encode()), (None, None), ({"a": [1, None]}, b'{"a":[1,null]}'),
        ([1, 2], b"[1,2]"), (bytearray(b"x"), b"x"), (memoryview(b"y"), b"y"), ("", b""),
    ],
)  # fmt: skip
async def test_values_are_sent_in_their_obvious_form(given: Any, stored: bytes | None) -> None:
    store = Store(MemoryStore())
    async with Producer(store, partitions=1) as producer:
        await producer.send(given)
        await producer.send_many([given, b"mixed", given])
    assert [record.value for record in await records(store)] == [stored, stored, b"mixed", stored]


@pytest.mark.parametrize("given", [1, 1.5, True, AT, object(), {1, 2}])
async def test_a_value_without_one_obvious_form_is_refused(given: Any) -> None:
    async with Producer(Store(MemoryStore()), partitions=1) as producer:
        with pytest.raises(UsageError, match=f"is of type {type(given).__name__}: send bytes, str, None, or a dict"):
            await producer.send(given)
        with pytest.raises(UsageError, match=f"is of type {type(given).__name__}: send bytes"):
            await producer.send_many([given])


async def test_a_dict_that_is_no_json_is_refused() -> None:
    async with Producer(Store(MemoryStore()), partitions=1) as producer:
        with pytest.raises(UsageError, match="cannot be sent as JSON"):
            await producer.send({"x": object()})


async def test_keys_headers_and_timestamps_arrive_as_given() -> None:
    store = Store(MemoryStore())
    headers: list[tuple[str, bytes | str | None]] = [
        ("trace", b"\x01"),
        ("trace", b"\x02"),
        ("text", "é"),
        ("none", None),
    ]
    async with Producer(store, partitions=1) as producer:
        await producer.send("plain", timestamp=AT)
        await producer.send("with", key=7, headers=headers, timestamp=AT)
        await producer.send("later plain", key="k", timestamp=AT)
        await producer.send_many(["m1", "m2"], keys=[None, 12], headers=[None, {"a": b"b"}], timestamps=AT)
        await producer.send_many(pa.array(["m3"]), keys=pa.array([b"z"]), timestamps=[AT])
        await producer.send_many(["m4"], timestamps=pa.array([AT], pa.timestamp("ns", "Europe/Berlin")))
    found = await records(store)
    assert [record.text for record in found] == ["plain", "with", "later plain", "m1", "m2", "m3", "m4"]
    assert [record.key for record in found] == [None, b"7", b"k", None, b"12", b"z", None]
    assert [record.headers for record in found] == [
        (), (("trace", b"\x01"), ("trace", b"\x02"),
        ("text", "é".encode()), ("none", None)), (), (), (("a", b"b"),), (),
        (),
    ]  # fmt: skip
    assert {record.timestamp for record in found} == {AT}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": 1.5}, "key 1.5 is of type float: send bytes, str, int or None"),
        ({"key": True}, "key True is of type bool"),
        ({"headers": {"a": 1}}, "the name is a str, the value bytes, str or None"),
        ({"headers": [1]}, "pairs of a name and a value, or a mapping"),
        ({"timestamp": datetime(2013, 1, 1)}, "an aware datetime"),  # noqa: DTZ001
        ({"timestamp": 5}, "timestamp 5: an aware datetime"),
        (
            {"timestamp": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5)))},
            "outside of the years 1 to 9999 in UTC",
        ),
        ({"headers": ("id", "42")}, r"headers \('id', '42'\): pairs of a name and a value"),
    ],
)
async def test_key_headers_and_time_of_a_value_are_checked(options: Any, message: str) -> None:
    async with Producer(Store(MemoryStore()), partitions=1) as producer:
        with pytest.raises(UsageError, match=message):
            await producer.send("x", **options)


async def test_columns_of_different_lengths_are_refused() -> None:
    async with Producer(Store(MemoryStore()), partitions=1) as producer:
        with pytest.raises(UsageError, match="1 keys for 2 values"):
            await producer.send_many(["a", "b"], keys=["k"])
        with pytest.raises(UsageError, match="timestamps with a time zone, none of them null"):
            await producer.send_many(["a"], timestamps=pa.array([1]))


@pytest.mark.parametrize(("time", "unit"), [(10**18, "us"), (-(10**17), "us"), (10**17, "s"), (1, "ns")])
async def test_times_that_a_record_cannot_have_are_refused(time: int, unit: str) -> None:
    async with Producer(Store(MemoryStore()), partitions=1) as producer:
        with pytest.raises(UsageError, match=r"^timestamps"):
            await producer.send_many(["a"], timestamps=pa.array([time], pa.timestamp(unit, "UTC")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"linger": -1}, "linger = -1: at least 0"),
        ({"linger": "5 parsecs"}, "linger = '5 parsecs': write seconds"),
        ({"batch_bytes": 0}, "batch_bytes = 0: at least 1"),
        ({"buffer_bytes": "many"}, "buffer_bytes = 'many': write bytes"),
        ({"delivery_timeout": float("inf")}, "delivery_timeout = inf"),
        ({"delivery_timeout": 0}, "delivery_timeout = 0: at least 1"),
        ({"compression": "rar"}, "compression = 'rar': 'lz4'"),
        ({"partitioner": "random"}, "partitioner = 'random': 'sticky', 'round-robin' or a callable"),
    ],
)
def test_a_wrong_setting_names_itself_its_value_and_the_allowed_ones(options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Producer("memory://x", partitions=1, **options)


async def test_a_producer_that_is_not_open_says_so() -> None:
    producer = Producer("memory://x", partitions=1)
    with pytest.raises(UsageError, match="async with"):
        await producer.send("x")
    async with producer:
        pass
    with pytest.raises(UsageError, match="async with"):
        await producer.send_many(["x"])


async def test_send_many_says_where_each_record_went(store: Store) -> None:
    values = [b"%d" % i for i in range(5000)]
    keys = [f"k{i % 13}" if i % 3 else None for i in range(5000)]
    async with Producer(store, partitions=4, batch_bytes="20kB", partitioner="round-robin") as producer:
        sent = await producer.send_many(values, keys=keys)
        assert len(sent) == 5000
        places = await sent
        assert sent.counts() == Counter(place.partition for place in places)
    contents = await log_contents(store)
    assert [contents[place.partition][place.sequence] for place in places] == values
    for key, place in zip(keys, places, strict=True):
        if key is not None:
            assert place.partition == str(partition_of_key(key.encode(), 4))


async def test_a_partition_keeps_the_order_of_sends() -> None:
    store = Store(MemoryStore())
    async with Producer(store, partitions=2, linger=0.001, batch_bytes=3000) as producer:
        number = 0
        for round_ in range(60):
            if round_ % 3:
                await producer.send(f"{number}", key=number % 5)
                number += 1
            else:
                await producer.send_many(
                    [f"{number + i}" for i in range(40)], keys=[(number + i) % 5 for i in range(40)]
                )
                number += 40
    contents = await log_contents(store)
    assert sorted(int(v or b"") for values in contents.values() for v in values) == list(range(number))
    for values in contents.values():
        numbers = [int(value or b"") for value in values]
        assert numbers == sorted(numbers)


def test_a_record_waits_for_company_no_longer_than_linger() -> None:
    async def main() -> None:
        store, clock = virtual()
        async with Producer(store, partitions=1, linger="2s", clock=clock) as producer:
            began = clock.monotonic()
            first = await producer.send("a")
            await clock.sleep(1.5)
            second = await producer.send("b")
            assert not first.done
            assert (await first, await second) == (DeliveryReport("0", 0), DeliveryReport("0", 1))
            assert clock.monotonic() - began == pytest.approx(2, abs=0.01)
            assert producer.statistics().files == 1

    run(main())


def test_a_full_batch_and_a_flush_do_not_wait_for_linger() -> None:
    async def main() -> None:
        store, clock = virtual()
        async with Producer(store, partitions=1, linger=3600, batch_bytes=10_000, clock=clock) as producer:
            began = clock.monotonic()
            big = await producer.send("x" * 10_000)
            await big
            await producer.send("y")
            await producer.flush()
            assert producer.statistics()[:2] == (2, 2)
            await producer.send("z")
            assert clock.monotonic() - began < 1
        assert clock.monotonic() - began < 3
        assert (await log_contents(store))["0"][1:] == [b"y", b"z"]

    run(main())


class Refusing(MemoryStore):
    """Whose log takes nothing any more once it is `closed`."""

    closed = False

    async def put_if_absent(self, key: str, body: bytes) -> str:
        if self.closed and key.startswith("partition="):
            await anyio.sleep(0.01)
            raise StoreRefused("no rights any more")
        return await super().put_if_absent(key, body)


async def test_every_flush_raises_for_a_refused_batch() -> None:
    backend = Refusing()
    refused: list[str] = []

    async def request(name: str) -> None:
        await producer.send(name)
        await anyio.sleep(0)  # the other's is in the same batch
        try:
            await producer.flush()
        except StoreRefused:
            refused.append(name)

    async with Producer(Store(backend), partitions=1, linger=60) as producer:
        backend.closed = True
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(request, "a")
            tasks.start_soon(request, "b")
    assert sorted(refused) == ["a", "b"]


async def test_a_producer_that_is_cancelled_while_it_flushes_closes_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closing(MemoryStore):
        async def put_if_absent(self, key: str, body: bytes) -> str:
            if key.startswith("partition="):
                await anyio.sleep_forever()
            return await super().put_if_absent(key, body)

        async def close(self) -> None:
            closed.append(True)

    closed: list[bool] = []
    monkeypatch.setattr("actorproc.stores.memory.MemoryStore", Closing)

    async def use() -> None:
        async with Producer("memory://closes-when-cancelled", partitions=1) as producer:
            await producer.send("a")

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(use(), 0.2)
    assert closed == [True]


def test_send_waits_while_the_buffer_is_full_and_memory_stays_bounded() -> None:
    async def main() -> None:
        clock = VirtualClock("p")
        slow = FaultyBackend(MemoryStore(clock=clock), LATENCY_ONLY.__class__(latency=(2, 4)))
        limit = 100_000
        options = {"linger": 60, "batch_bytes": 20_000, "buffer_bytes": limit, "clock": clock}
        async with Producer(Store(slow, clock=clock), partitions=3, **options) as producer:  # type: ignore[arg-type]
            most, began = 0, clock.monotonic()
            for _ in range(40):
                await producer.send("x" * 9_000)
                most = max(most, producer.statistics().waiting_bytes)
            await producer.send_many(["y" * 5_000] * 40)
            most = max(most, producer.statistics().waiting_bytes)
            assert 50_000 < most <= limit
            assert clock.monotonic() - began > 4
            # A record larger than the buffer goes alone.
            await (await producer.send("z" * 2 * limit))
            await producer.flush()
            assert producer.statistics() == (81, producer.statistics().files, 0, 0)
        contents = await log_contents(Store(slow.truth, clock=clock))
        assert sum(map(len, contents.values())) == 81

    run(main())


@pytest.mark.parametrize("headers", [False, True])
async def test_send_many_encodes_about_one_batch_at_a_time(headers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = list[tuple[int, int]]()

    def note(*given: Any) -> pa.RecordBatch | None:
        data = columns(*given)
        taken.append((data.num_rows, data.nbytes) if data is not None else (0, 0))
        return data

    async def taken_of(values: Any, **more: Any) -> list[tuple[int, int]]:
        taken.clear()
        if headers:
            more["headers"] = [{"a": b"b"}] * len(values)
        await producer.send_many(values, **more)
        return list(taken)

    monkeypatch.setattr("actorproc.produce.producer.columns", note)
    size = 100_000
    async with Producer(Store(MemoryStore()), partitions=2, batch_bytes=size) as producer:
        small = [b"x" * 100] * 1_500
        assert (await taken_of(small))[0][0] == 64, "nothing is known of the first"
        first, _ = (await taken_of(small))[0]
        assert first == 64 if headers else first > 500
        for keys in ([b"k" * 5_000] * 1_500, [None] + ["k" * 5_000] * 1_499):
            assert (await taken_of(small, keys=keys))[0][0] <= 64
            await taken_of(small)
        same = pa.array([b"y" * 5_000] * 200).dictionary_encode()
        assert max(bytes_ for _, bytes_ in await taken_of(same)) <= 65 * 5_000 + size
        await taken_of(small)
        for large in ("y" * 5_000, b"y" * 5_000, ["y" * 5_000], {"y": "y" * 5_000}):
            found = await taken_of([b"x", *[large] * 500])
            assert max(bytes_ for _, bytes_ in found) <= 65 * 5_000 + size
            await taken_of(small)


def test_a_buffer_full_of_small_batches_is_sent_before_linger_ends() -> None:
    async def main() -> None:
        store, clock = virtual()
        async with Producer(store, partitions=50, linger=3600, buffer_bytes=50_000, clock=clock) as producer:
            began = clock.monotonic()
            for number in range(1000):
                await producer.send("x" * 100, key=number)
            assert clock.monotonic() - began < 10

    run(main())


def test_batches_stay_large_while_the_buffer_is_full() -> None:
    async def main() -> None:
        clock = VirtualClock("p")
        slow = FaultyBackend(MemoryStore(clock=clock), replace(LATENCY_ONLY, latency=(0.2, 0.2)))
        options: dict[str, Any] = {"partitions": 32, "buffer_bytes": 400_000, "compression": "none", "clock": clock}
        async with Producer(Store(slow, clock=clock), **options) as producer:
            began, sent = clock.monotonic(), 20_000
            for number in range(sent):
                await producer.send(b"x" * 100, key=str(number))
            await producer.flush()
            # The buffer holds 1300 records. A round takes two PUTs: one for records in flight, one for waiting ones.
            assert producer.statistics().files < sent / 20
            assert clock.monotonic() - began < 8

    run(main())


def test_waiting_for_buffer_space_ends_the_linger_of_batches() -> None:
    async def main() -> None:
        store, clock = virtual()
        options: dict[str, Any] = {"partitions": 50, "linger": 3600, "buffer_bytes": 5_000, "clock": clock}
        async with Producer(store, **options) as producer, anyio.create_task_group() as tasks:
            began = clock.monotonic()

            async def send(number: int) -> None:
                await producer.send("x" * (4_000 if number % 10 == 9 else 100), key=number)

            for number in range(200):
                tasks.start_soon(send, number)
            while producer.statistics().records < 180:
                await clock.sleep(0.1)
                assert clock.monotonic() - began < 10

    run(main())


async def test_an_error_in_the_block_still_flushes() -> None:
    store = Store(MemoryStore())
    with pytest.raises(ZeroDivisionError):
        async with Producer(store, partitions=1, linger=60) as producer:
            await producer.send("before")
            raise ZeroDivisionError
    assert (await log_contents(store))["0"] == [b"before"]


def test_sys_exit_in_the_block_still_flushes() -> None:
    store = Store(MemoryStore())

    async def main() -> None:
        async with Producer(store, partitions=1, linger=60) as producer:
            await producer.send("before")
            sys.exit(3)

    with pytest.raises(SystemExit) as ended:
        asyncio.run(main())
    assert ended.value.code == 3
    assert asyncio.run(log_contents(store))["0"] == [b"before"]


def test_a_cancelled_producer_reports_an_unknown_outcome() -> None:
    async def main() -> None:
        clock = VirtualClock("p")
        network = FaultyBackend(MemoryStore(clock=clock), LATENCY_ONLY)
        began = clock.monotonic()
        with anyio.move_on_after(5):
            async with Producer(Store(network, clock=clock), partitions=2, linger=0, clock=clock) as producer:
                await (await producer.send("a"))
                network.outage(1000)
                under_way, waiting = await producer.send("b", key="b"), await producer.send("c", key="c")
                await clock.sleep(100)
        assert clock.monotonic() - began < 6
        for delivery in (under_way, waiting):
            with pytest.raises(Exception, match="cancelled"):
                await delivery

    run(main())


async def test_deliveries_that_are_kept_hold_no_records() -> None:
    async with Producer(Store(MemoryStore()), partitions=1, linger=0) as producer:
        tracemalloc.start()
        kept = [await producer.send(b"%d" % number + b"x" * 100_000) for number in range(100)]
        await producer.flush()
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held < 10**6
        assert producer.statistics().waiting_bytes == 0
        assert (await kept[-1]).sequence == 99


def test_a_key_is_where_it_was_for_single_and_many() -> None:
    async def main() -> None:
        store, clock = virtual()
        async with Producer(store, partitions=16, clock=clock) as producer:
            singles = [await producer.send("x", key=f"k{i}") for i in range(200)]
            many = await producer.send_many(["x"] * 200, keys=[f"k{i}" for i in range(200)])
            await producer.flush()
            one_by_one = [(await delivery).partition for delivery in singles]
            assert one_by_one == [sent.partition for sent in await many]
            assert len(np.unique(one_by_one)) == 16

    run(main())


@pytest.mark.parametrize("many", [False, True])
async def test_a_loop_of_sends_lets_others_run(many: bool) -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with Producer(Store(MemoryStore()), partitions=1, linger=60) as producer, anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        before = turns
        if many:
            await producer.send_many([b"x"] * 100_000)
        else:
            for _ in range(5_000):
                await producer.send(b"x")
        assert turns - before >= 5
        tasks.cancel_scope.cancel()


def test_a_record_added_late_to_a_batch_keeps_most_of_its_timeout() -> None:
    class Hangs(MemoryStore):
        async def put_if_absent(self, key: str, body: bytes) -> str:
            if "partition=" in key:
                await anyio.sleep_forever()
            return await super().put_if_absent(key, body)

    async def main() -> None:
        clock = VirtualClock("p")
        store = Store(Hangs(clock=clock), clock=clock)
        times: list[float] = []

        async def sent(producer: Producer) -> None:
            delivery, began = await producer.send(b"x"), clock.monotonic()
            with suppress(StoreError):
                await delivery
            times.append(clock.monotonic() - began)

        async with Producer(store, partitions=1, linger=0, delivery_timeout=100, clock=clock) as producer:
            async with anyio.create_task_group() as tasks:
                for _ in range(100):
                    tasks.start_soon(sent, producer)
                    await anyio.sleep(1)
            with suppress(StoreError):
                await producer.flush()
        assert len(times) == 100
        assert 89 < min(times) <= max(times) < 101

    run(main())


async def test_few_records_per_partition_are_kept_without_columns() -> None:
    data = Batch.of(
        "0", [b"a", None, b"c"], range(3), keys=[b"k", None, b""], headers=[(), (("h", b"1"),), ()], timestamps=[AT] * 3
    ).data
    batch = ProducerBatch("0", 0.0)
    weights = [weight_of(data.slice(n, 1)) for n in range(3)]
    firsts = [batch.add_columns(data.slice(n, 1), weight) for n, weight in enumerate(weights)]
    assert firsts == [0, 1, 2]
    assert (batch.rows, batch.weight) == (3, sum(weights))
    assert batch.cost < batch.weight + 3 * 512, "one piece"
    assert batch.table().to_pylist() == pa.Table.from_batches([data]).to_pylist()
    many = pa.concat_batches([data] * 100)
    assert weight_of(many) > many.nbytes + 1000
    assert min(weights) > 200


async def test_a_record_goes_to_the_named_partition() -> None:
    async with Store(MemoryStore()) as store, Producer(store, partitions=4) as producer:
        deliveries = [await producer.send(b"x", key=b"k", partition=n) for n in range(4)]
        assert [await delivery for delivery in deliveries] == [(str(n), 0) for n in range(4)]
        for wrong in (4, -1, True, "1"):
            with pytest.raises(UsageError, match="from 0 to 3"):
                await producer.send(b"x", partition=wrong)  # type: ignore[arg-type]


async def test_a_callback_gets_the_report_or_the_error() -> None:
    class Refusing(MemoryStore):
        refuses = False

        async def put_if_absent(self, key: str, body: bytes) -> str:
            if self.refuses and key.startswith("partition="):
                raise StoreRefused("no")
            return await super().put_if_absent(key, body)

    told: list[tuple[DeliveryReport | None, Exception | None]] = []
    backend = Refusing()
    async with Store(backend) as store:
        async with Producer(store, partitions=1, linger=0) as producer:

            def note(report: DeliveryReport | None, error: Exception | None) -> None:
                told.append((report, error))
                raise ValueError("a callback that fails")

            await producer.send(b"a")
            await producer.send(b"b", callback=note)
            await producer.flush()
            assert told == [(("0", 1), None)]
            backend.refuses = True
            await producer.send(b"c", callback=note)
            with pytest.raises(StoreRefused):
                await producer.flush()
        assert [type(error) for _, error in told] == [type(None), StoreRefused]


def test_send_waits_for_room_no_longer_than_max_block() -> None:
    async def main() -> None:
        class Slow(MemoryStore):
            async def put_if_absent(self, key: str, body: bytes) -> str:
                if key.startswith("partition="):
                    await clock.sleep(10)
                return await super().put_if_absent(key, body)

        clock = VirtualClock("p")
        store = Store(Slow(clock=clock), clock=clock)
        async with Producer(store, partitions=1, buffer_bytes=2_000, max_block=5, clock=clock) as producer:
            await producer.send(b"x" * 1_500)
            began = clock.monotonic()
            with pytest.raises(BufferFull, match="no room for 5 s"):
                await producer.send(b"x" * 1_500)
            assert clock.monotonic() - began == pytest.approx(5, abs=0.5)
            assert producer.statistics().waiting_bytes < 2_000
        assert [record.value for record in await records(store)] == [b"x" * 1_500]

    run(main(), seed=0)
