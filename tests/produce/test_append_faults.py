"""Producers on faulty stores and networks lose and repeat no confirmed record."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import chain

import pytest

from actorproc.errors import ConditionFailed, StoreRefused, StoreUnavailable
from actorproc.produce.batches import Delivery
from actorproc.produce.producer import Producer
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.faults import LATENCY_ONLY, Faults, FaultyBackend
from actorproc.simulation.loop import current_loop, run
from actorproc.storage.backend import Backend, Listing, Stored
from actorproc.storage.store import Store, StoreLimits
from actorproc.stores.memory import MemoryStore
from tests.log.reading import log_contents

ROUGH = Faults(
    slow=0.02, lost_request=0.04, lost_reply=0.06, late_write=0.04, lateness=(1.0, 90.0), busy=0.002, busy_time=(1, 5)
)


class Tampered(Backend):
    """A backend that does something else when a file of the log is created: `create(key, body, really)`."""

    Create = Callable[[str, bytes, Callable[[], Awaitable[str]]], Awaitable[str]]

    def __init__(self, truth: Backend, create: Create) -> None:
        self.url, self._truth, self._create = truth.url, truth, create
        self.created: Counter[str] = Counter()

    async def get(self, key: str, *, unless: str | None = None, tail: int | None = None) -> Stored | None:
        return await self._truth.get(key, unless=unless, tail=tail)

    async def put(self, key: str, body: bytes) -> str:
        return await self._truth.put(key, body)

    async def put_if_absent(self, key: str, body: bytes) -> str:
        if not key.startswith("partition="):
            return await self._truth.put_if_absent(key, body)
        self.created[key] += 1
        return await self._create(key, body, lambda: self._truth.put_if_absent(key, body))

    async def put_if_match(self, key: str, body: bytes, tag: str) -> str:
        return await self._truth.put_if_match(key, body, tag)

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        return await self._truth.list(prefix, after, limit)

    async def delete(self, key: str) -> None:
        await self._truth.delete(key)


def test_a_lost_reply_does_not_repeat_records() -> None:
    async def main() -> None:
        clock = VirtualClock("p")
        truth = MemoryStore(clock=clock)

        async def reply_lost(key: str, body: bytes, really: Callable[[], Awaitable[str]]) -> str:
            await really()
            raise StoreUnavailable("no answer")

        store = Store(Tampered(truth, reply_lost), clock=clock)
        async with Producer(store, partitions=1, clock=clock) as producer:
            for number in range(5):
                await (await producer.send(f"{number}"))
        assert (await log_contents(Store(truth, clock=clock)))["0"] == [b"0", b"1", b"2", b"3", b"4"]

    run(main())


def test_an_append_refused_by_its_own_lost_reply_succeeds() -> None:
    async def main() -> None:
        clock = VirtualClock("p")
        truth = MemoryStore(clock=clock)

        async def applied_twice(key: str, body: bytes, really: Callable[[], Awaitable[str]]) -> str:
            await really()
            raise ConditionFailed("it exists")  # the answer to a PUT that was sent again

        store = Store(Tampered(truth, applied_twice), clock=clock)
        async with Producer(store, partitions=1, clock=clock) as producer:
            assert (await (await producer.send("x"))).sequence == 0
            assert (await (await producer.send("y"))).sequence == 1
        assert (await log_contents(Store(truth, clock=clock)))["0"] == [b"x", b"y"]

    run(main())


def test_a_base_is_not_left_before_it_is_settled() -> None:
    """The first PUT is on its way for 50 s. The producer must not try the next base meanwhile, or both would land."""

    async def main() -> None:
        clock = VirtualClock("p")
        truth = MemoryStore(clock=clock)

        async def late(key: str, body: bytes, really: Callable[[], Awaitable[str]]) -> str:
            if backend.created.total() > 1:
                raise StoreUnavailable("an outage")
            tasks.append(asyncio.create_task(apply(really)))
            raise StoreUnavailable("no answer")

        async def apply(really: Callable[[], Awaitable[str]]) -> None:
            await clock.sleep(50)
            await really()

        tasks: list[asyncio.Task[None]] = []
        backend = Tampered(truth, late)
        store = Store(backend, limits=StoreLimits(patience=0), clock=clock)
        async with Producer(store, partitions=1, clock=clock) as producer:
            sent = await (await producer.send("x"))
        assert sent.sequence == 0
        assert set(backend.created) == {"partition=0/00000000000000000000.parquet"}
        assert (await log_contents(Store(truth, clock=clock)))["0"] == [b"x"]

    run(main())


def test_an_append_that_times_out_is_unknown_and_is_never_repeated() -> None:
    async def main() -> None:
        clock = VirtualClock("p")
        truth = MemoryStore(clock=clock)
        outage = True

        async def silent(key: str, body: bytes, really: Callable[[], Awaitable[str]]) -> str:
            if outage:
                late.append(really)
                raise StoreUnavailable("no answer")
            return await really()

        late: list[Callable[[], Awaitable[str]]] = []
        store = Store(Tampered(truth, silent), limits=StoreLimits(patience=5), clock=clock)
        async with Producer(store, partitions=1, delivery_timeout=20, clock=clock) as producer:
            began = clock.monotonic()
            lost = await producer.send("lost")
            with pytest.raises(StoreUnavailable, match=r"may be in the log or not: .*no answer"):
                await lost
            assert 14 <= clock.monotonic() - began <= 26
            with pytest.raises(StoreUnavailable):  # said once more to who does not look at deliveries
                await producer.flush()
            await producer.flush()
            outage = False
            await (await producer.send("after"))
            for really in late:
                with suppress(ConditionFailed):
                    await really()
            assert producer.statistics()[:3] == (1, 1, 1)
        assert (await log_contents(Store(truth, clock=clock)))["0"] == [b"after"]

    run(main())


def test_records_sent_together_fail_together_in_an_outage() -> None:
    async def main() -> None:
        clock = VirtualClock("p")
        truth = FaultyBackend(MemoryStore(clock=clock), LATENCY_ONLY)
        store = Store(truth, clock=clock)
        async with Producer(
            store, partitions=2, batch_bytes=1, partitioner=lambda key, *_: int(key or b"0"), clock=clock
        ) as producer:
            await (await producer.send("before", key=0))
            truth.outage(10_000)
            began = clock.monotonic()
            waiting = [await producer.send(f"{number}", key=number % 2) for number in range(12)]
            for delivery in waiting:
                with pytest.raises(StoreUnavailable):
                    await delivery
            assert 119 <= clock.monotonic() - began <= 121
            with pytest.raises(StoreUnavailable):
                await producer.flush()

    run(main())


def test_batches_behind_an_unknown_append_have_their_own_timeout() -> None:
    """The store is tried for longer than records may take: the append in doubt is cut off, and may land yet."""

    async def main() -> None:
        clock = VirtualClock("p")
        truth = MemoryStore(clock=clock)
        hanging = True

        async def hangs(key: str, body: bytes, really: Callable[[], Awaitable[str]]) -> str:
            if hanging:
                late.append(really)
                await clock.sleep(1000)
            return await really()

        late: list[Callable[[], Awaitable[str]]] = []
        store = Store(Tampered(truth, hangs), clock=clock)
        async with Producer(store, partitions=1, batch_bytes=1, delivery_timeout=20, clock=clock) as producer:
            began = clock.monotonic()
            doubtful, queued = await producer.send("in doubt"), await producer.send("queued")
            await clock.sleep(10)
            in_time = await producer.send("in time")
            with pytest.raises(StoreUnavailable, match="may be in the log or not"):
                await doubtful
            with pytest.raises(
                StoreUnavailable, match=r"1 records for partition 0 were not sent within 20 s: earlier batches"
            ):
                await queued
            assert 20 <= clock.monotonic() - began <= 21
            await late[0]()  # only now
            hanging = False
            assert (await in_time).sequence == 1
            for really in late[1:]:
                with suppress(ConditionFailed):
                    await really()
            with pytest.raises(StoreUnavailable):
                await producer.flush()
        assert (await log_contents(Store(truth, clock=clock)))["0"] == [b"in doubt", b"in time"]

    run(main())


def test_the_next_append_passes_an_unknown_one_that_landed() -> None:
    async def main() -> None:
        clock = VirtualClock("p")
        truth = MemoryStore(clock=clock)

        async def silent(key: str, body: bytes, really: Callable[[], Awaitable[str]]) -> str:
            if b"PAR1" in body and not landed:
                held.append(really)
                raise StoreUnavailable("no answer")
            return await really()

        held: list[Callable[[], Awaitable[str]]] = []
        landed = False
        store = Store(Tampered(truth, silent), limits=StoreLimits(patience=5), clock=clock)
        async with Producer(store, partitions=1, delivery_timeout=10, clock=clock) as producer:
            lost = await producer.send("late")
            with pytest.raises(StoreUnavailable):
                await lost
            await held[0]()
            landed = True
            assert (await (await producer.send("after"))).sequence == 1
            with suppress(StoreUnavailable):
                await producer.flush()
        assert (await log_contents(Store(truth, clock=clock)))["0"] == [b"late", b"after"]

    run(main())


def test_a_refusal_fails_at_once_and_leaves_other_partitions_alone() -> None:
    async def main() -> None:
        clock = VirtualClock("p")
        truth = MemoryStore(clock=clock)

        async def refused(key: str, body: bytes, really: Callable[[], Awaitable[str]]) -> str:
            if key.startswith("partition=0/"):
                raise StoreRefused("access denied")
            return await really()

        store = Store(Tampered(truth, refused), clock=clock)
        async with Producer(
            store, partitions=2, partitioner=lambda key, value, n: int(key or b"0"), clock=clock
        ) as producer:
            began = clock.monotonic()
            bad, good = await producer.send("a", key=0), await producer.send("b", key=1)
            with pytest.raises(StoreRefused, match="access denied"):
                await bad
            assert (await good) == ("1", 0)
            assert clock.monotonic() - began < 5
            with pytest.raises(StoreRefused):
                await producer.flush()

    run(main())


@pytest.mark.parametrize("producers", [2, 5])
def test_producers_racing_for_a_partition_lose_nothing_and_repeat_nothing(producers: int) -> None:
    async def main() -> None:
        clock = VirtualClock("world")
        truth = MemoryStore(clock=clock)
        store = FaultyBackend(truth, seed=1)

        async def produce(name: int) -> list[tuple[int, bytes]]:
            own = VirtualClock(f"p{name}")
            placed = []
            async with Producer(
                Store(store.view(f"p{name}"), clock=own), partitions=1, linger=0, clock=own
            ) as producer:
                for number in range(30):
                    value = b"%d/%d" % (name, number)
                    placed.append(((await (await producer.send(value))).sequence, value))
            return placed

        placed = dict(chain.from_iterable(await asyncio.gather(*(produce(name) for name in range(producers)))))
        found = (await log_contents(Store(truth, clock=clock)))["0"]
        assert placed == dict(enumerate(found))
        for name in range(producers):
            assert [v for v in found if v and v.startswith(b"%d/" % name)] == [b"%d/%d" % (name, i) for i in range(30)]

    run(main())


@pytest.mark.parametrize("seed", range(12))
def test_confirmed_records_survive_faults_and_crashes_once_and_in_order(seed: int) -> None:
    """Five producers crash and restart on two partitions: each confirmed record is in the log, none is there twice."""

    async def main() -> None:
        loop = current_loop()
        clock = VirtualClock(f"{seed}/world")
        truth = MemoryStore(clock=clock)
        store = FaultyBackend(truth, ROUGH, seed=seed)
        confirmed: dict[bytes, tuple[str, int]] = {}
        sent: Counter[bytes] = Counter()

        async def produce(name: str) -> None:
            own = VirtualClock(f"{seed}/{name}")
            opened = Store(store.view(name), limits=StoreLimits(timeout=2, patience=1), clock=own)
            waiting: list[tuple[bytes, Delivery]] = []
            while not sent[f"{name}/000".encode()]:  # it could not even open the log
                with suppress(StoreUnavailable):
                    async with Producer(opened, partitions=2, linger=0.1, delivery_timeout=60, clock=own) as producer:
                        for number in range(60):
                            value = f"{name}/{number:03d}".encode()
                            sent[value] += 1
                            waiting.append((value, await producer.send(value, key=value)))
                            await own.sleep(own.random.uniform(0, 0.5))
                        for value, delivery in waiting:
                            with suppress(StoreUnavailable):
                                confirmed[value] = await delivery

        hosts = []
        for index in range(5):
            host = loop.host(f"p{index}", rate=1 + (index - 2) / 100)
            hosts.append((host, host.start(produce(f"p{index}"))))
        for index in range(3):
            await clock.sleep(clock.random.uniform(3, 12))
            hosts[index][0].crash()
            host = loop.host(f"p{index}+")
            hosts.append((host, host.start(produce(f"p{index}+"))))
        for host, task in hosts:
            if host.alive:
                await task
        await clock.sleep(200)  # late writes have landed

        contents = await log_contents(Store(truth, clock=clock))
        found = Counter(chain.from_iterable(contents.values()))
        assert max(found.values()) == 1
        assert found.keys() <= sent.keys()
        for value, (partition, sequence) in confirmed.items():
            assert contents[partition][sequence] == value
        assert len(confirmed) > 250
        for values in contents.values():
            for name in {value.split(b"/")[0] for value in values if value}:
                own = [value for value in values if value and value.startswith(name + b"/")]
                assert own == sorted(own)

    run(main(), seed=seed)
