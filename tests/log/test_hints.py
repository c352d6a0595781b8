"""Hints may be lost, late or left behind, and strand no record."""

from __future__ import annotations

import anyio
import orjson
import pytest

from actorproc.config.settings import Settings
from actorproc.errors import ConditionFailed, StoreUnavailable
from actorproc.log.hints import SWEEP_AGES
from actorproc.produce.hint_writer import FORGET_AFTER, IDLE_AFTER
from actorproc.produce.producer import Producer
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.faults import LATENCY_ONLY, FaultyBackend
from actorproc.simulation.loop import current_loop, run
from actorproc.sources import LogSource
from actorproc.sources.protocol import list_partitions
from actorproc.storage.backend import Backend, Listing, Stored
from actorproc.storage.store import Store, StoreLimits
from actorproc.stores.memory import MemoryStore
from tests.log.reading import log_contents


async def hints_of(store: Store | Backend) -> dict[str, dict[str, object]]:
    found = {}
    for entry in (await store.list("heads/")).entries:
        stored = await store.get(entry.key)
        assert stored is not None
        found[entry.key] = orjson.loads(stored.body)
    return found


def states(found: dict[str, dict[str, object]]) -> list[str]:
    return sorted(str(hint["state"]) for hint in found.values())


class Follower:
    """Reads all partitions, for as long as the test lasts."""

    def __init__(self, store: Store, clock: VirtualClock) -> None:
        self.store, self.clock = store, clock
        self.read: list[tuple[str, bytes | None]] = []

    async def run(self) -> None:
        source = LogSource(self.store, settings=Settings.load(poll_interval=1), clock=self.clock)
        await source.open()
        async with anyio.create_task_group() as tasks:
            for partition in await list_partitions(source):
                tasks.start_soon(self._follow, source, partition)

    async def _follow(self, source: LogSource, partition: str) -> None:
        async for chunk in source.read(partition, "0"):
            self.read += [(partition, value) for value in chunk.batch.values]


class HintsLost(Backend):
    """Once `lost` is set, writes of hints do not arrive: as if their producer had died just before."""

    def __init__(self, truth: Backend) -> None:
        self.url, self.truth, self.lost = truth.url, truth, False

    async def get(self, key: str, *, unless: str | None = None, tail: int | None = None) -> Stored | None:
        return await self.truth.get(key, unless=unless, tail=tail)

    async def put(self, key: str, body: bytes) -> str:
        return await self.truth.put(key, body)

    async def put_if_absent(self, key: str, body: bytes) -> str:
        return await self.truth.put_if_absent(key, body)

    async def put_if_match(self, key: str, body: bytes, tag: str) -> str:
        if self.lost and key.startswith("heads/"):
            raise StoreUnavailable("lost")
        return await self.truth.put_if_match(key, body, tag)

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        return await self.truth.list(prefix, after, limit)

    async def delete(self, key: str) -> None:
        await self.truth.delete(key)


def by_number(key: bytes | None, value: bytes | None, partitions: int) -> int:
    return int(key or b"0")


def test_a_sweep_finds_the_segments_of_a_dead_producer() -> None:
    async def main() -> None:
        clock = VirtualClock("t")
        truth = MemoryStore(clock=clock)
        own = VirtualClock("p")
        backend = HintsLost(truth)
        follower = Follower(Store(truth, clock=clock), clock)
        host = current_loop().host("p")

        async def produce() -> None:
            limits = StoreLimits(patience=1)
            async with Producer(
                Store(backend, limits=limits, clock=own), partitions=40, linger=0, partitioner=by_number, clock=own
            ) as p:
                await (await p.send("hinted", key=3))
                await own.sleep(3)
                backend.lost = True
                for number in range(12):
                    await (await p.send(f"stranded {number}", key=7))
                host.crash()
                await own.sleep(1)

        host.start(produce())
        await clock.sleep(1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follower.run)
            await clock.sleep(10)
            assert follower.read == [("3", b"hinted")]
            assert states(await hints_of(truth)) == ["open"]
            follower.store.requests.clear()
            await clock.sleep(SWEEP_AGES[0] + 40)
            assert follower.read[1:] == [("7", f"stranded {number}".encode()) for number in range(12)]
            assert 40 <= follower.store.requests["get"] - 11 <= 90, "each partition was looked at, once or twice"
            await clock.sleep(SWEEP_AGES[-1])
            follower.store.requests.clear()
            await clock.sleep(3600)
            assert follower.store.requests["get"] == 0, "the last late write has landed; looking has an end"
            tasks.cancel_scope.cancel()

    run(main())


@pytest.mark.parametrize("late", [60.0, 500.0, 1200.0])
def test_an_append_that_lands_long_after_its_producer_died_is_found(late: float) -> None:
    async def main() -> None:
        clock = VirtualClock("t")
        truth = MemoryStore(clock=clock)
        own = VirtualClock("p")
        host = current_loop().host("p")
        follower = Follower(Store(truth, clock=clock), clock)
        held: list[tuple[str, bytes]] = []

        class Holds(HintsLost):
            async def put_if_absent(self, key: str, body: bytes) -> str:
                if not key.startswith("partition="):
                    return await super().put_if_absent(key, body)
                held.append((key, body))
                host.crash()
                await own.sleep(1)
                raise AssertionError("a crashed host goes on")

        async def produce() -> None:
            async with Producer(Store(Holds(truth), clock=own), partitions=4, linger=0, clock=own) as producer:
                await producer.send("late", key="a")
                await own.sleep(9)

        host.start(produce())
        await clock.sleep(1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follower.run)
            await clock.sleep(late)
            ((key, body),) = held
            await truth.put_if_absent(key, body)
            await clock.sleep(SWEEP_AGES[-1])
            assert [value for _, value in follower.read] == [b"late"]
            tasks.cancel_scope.cancel()

    run(main())


def test_a_hint_is_open_while_appends_are_not_in_it() -> None:
    async def main() -> None:
        clock = VirtualClock("t")
        truth = MemoryStore(clock=clock)
        seen: list[tuple[str, object]] = []

        class Watched(HintsLost):
            async def put_if_absent(self, key: str, body: bytes) -> str:
                seen.append(
                    ("append", None) if key.startswith("partition=") else ("hint", orjson.loads(body).get("state"))
                )
                return await super().put_if_absent(key, body)

            async def put_if_match(self, key: str, body: bytes, tag: str) -> str:
                hint = orjson.loads(body)
                seen.append(("hint", (hint["state"], hint["newest"])))
                return await super().put_if_match(key, body, tag)

        async with Producer(Store(Watched(truth), clock=clock), partitions=1, linger=0, clock=clock) as producer:
            await (await producer.send("a"))
            await clock.sleep(IDLE_AFTER + 5)
            await (await producer.send("b"))
        assert seen[1:] == [
            ("hint", "open"),
            ("append", None),
            ("hint", ("open", {"0": 0})),
            ("hint", ("idle", {"0": 0})),
            ("hint", ("open", {"0": 0})),
            ("append", None),
            ("hint", ("closed", {"0": 1})),
        ] or seen[1:] == [
            ("hint", "open"),
            ("append", None),
            ("hint", ("open", {"0": 0})),
            ("hint", ("idle", {"0": 0})),
            ("hint", ("open", {"0": 0})),
            ("append", None),
            ("hint", ("open", {"0": 1})),
            ("hint", ("closed", {"0": 1})),
        ]

    run(main())


def test_a_busy_producer_writes_a_hint_a_second() -> None:
    async def main() -> None:
        clock = VirtualClock("t")
        store = Store(MemoryStore(clock=clock), clock=clock)
        async with Producer(store, partitions=4, linger=0.01, clock=clock) as producer:
            for number in range(1000):
                await producer.send("x", key=number)
                await clock.sleep(0.01)
        assert store.requests["put_if_match"] <= 13
        assert store.requests["put_if_absent"] > 300

    run(main())


def test_with_an_append_unsettled_a_hint_stays_open() -> None:
    async def main() -> None:
        clock = VirtualClock("t")
        truth = MemoryStore(clock=clock)

        class Silent(HintsLost):
            async def put_if_absent(self, key: str, body: bytes) -> str:
                if key.startswith("partition=0/"):
                    raise StoreUnavailable("no answer")
                return await super().put_if_absent(key, body)

        store = Store(Silent(truth), limits=StoreLimits(patience=1), clock=clock)
        with pytest.raises(StoreUnavailable):
            async with Producer(
                store, partitions=2, linger=0, partitioner=by_number, delivery_timeout=5, clock=clock
            ) as p:
                await p.send("lost", key=0)
                await (await p.send("kept", key=1))
                await clock.sleep(60)
                assert states(await hints_of(truth)) == ["idle", "open"]
        assert states(await hints_of(truth)) == ["closed", "open"]

    run(main())


def test_closing_after_an_unknown_append_leaves_the_hint_open() -> None:
    async def main() -> None:
        clock = VirtualClock("t")
        backend = LateAppends(MemoryStore(clock=clock))
        store = Store(backend, limits=StoreLimits(patience=1), clock=clock)
        backend.late = True
        with pytest.raises(StoreUnavailable):
            async with Producer(store, partitions=1, linger=0, delivery_timeout=5, clock=clock) as producer:
                await producer.send("lost")
        assert "open" in states(await hints_of(store))
        assert "closed" not in states(await hints_of(store))

    run(main())


class LateAppends(HintsLost):
    """While `late`, files for partition 0 are held back, and their writers get no answer."""

    late = False

    def __init__(self, truth: Backend) -> None:
        super().__init__(truth)
        self.held: list[tuple[str, bytes]] = []
        self.looks = 0

    async def get(self, key: str, *, unless: str | None = None, tail: int | None = None) -> Stored | None:
        self.looks += key.startswith("partition=0/")
        return await super().get(key, unless=unless, tail=tail)

    async def put_if_absent(self, key: str, body: bytes) -> str:
        if self.late and key.startswith("partition=0/"):
            self.held.append((key, body))
            raise StoreUnavailable("no answer")
        return await super().put_if_absent(key, body)


def test_a_late_record_is_found_while_its_producer_is_busy() -> None:
    async def main() -> None:
        clock = VirtualClock("t")
        backend = LateAppends(MemoryStore(clock=clock))
        store = Store(backend, limits=StoreLimits(patience=1), clock=clock)
        follower = Follower(Store(backend, clock=clock), clock)
        async with Producer(
            store, partitions=2, linger=0, partitioner=by_number, delivery_timeout=5, clock=clock
        ) as producer:
            await (await producer.send("first", key=0))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(follower.run)

                async def be_busy() -> None:
                    while True:
                        await (await producer.send("busy", key=1))
                        await clock.sleep(5)

                tasks.start_soon(be_busy)
                backend.late = True
                with pytest.raises(StoreUnavailable):
                    await (await producer.send("late", key=0))
                await clock.sleep(50)
                await backend.truth.put_if_absent(*backend.held[0])
                await clock.sleep(2)
                assert ("0", b"late") not in follower.read
                await clock.sleep(SWEEP_AGES[1] + 40)
                assert ("0", b"late") in follower.read
                assert states(await hints_of(store)) == ["open", "open"]
                await clock.sleep(SWEEP_AGES[-1])
                backend.looks = 0
                await clock.sleep(1200)
                assert backend.looks == 0, "looking has an end, however busy the producer"
                tasks.cancel_scope.cancel()
            with pytest.raises(StoreUnavailable):
                await producer.flush()

    run(main())


def test_many_unknown_appends_leave_one_second_hint() -> None:
    async def main() -> None:
        clock = VirtualClock("t")
        backend = LateAppends(MemoryStore(clock=clock))
        store = Store(backend, limits=StoreLimits(patience=1), clock=clock)
        follower = Follower(Store(backend, clock=clock), clock)
        async with Producer(
            store, partitions=2, linger=0, partitioner=by_number, delivery_timeout=5, clock=clock
        ) as producer:
            await (await producer.send("first", key=0))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(follower.run)
                backend.late = True
                for turn in range(200):
                    if turn == 100:
                        await backend.truth.put_if_absent(*backend.held[0])
                    await producer.send("late", key=0)
                    await (await producer.send("busy", key=1))
                    await clock.sleep(5)
                assert len(await hints_of(store)) == 2
                assert store.requests["put_if_match"] < 1100, "a hint a second, and little more"
                assert ("0", b"late") in follower.read, (
                    "though doubts went on: between them a hint is left alone for a while"
                )
                tasks.cancel_scope.cancel()
            with pytest.raises(StoreUnavailable):
                await producer.flush()

    run(main())


def test_old_hints_are_deleted_after_their_content_is_taken_over() -> None:
    async def main() -> None:
        clock = VirtualClock("t")
        store = Store(MemoryStore(clock=clock), clock=clock)
        for number in range(5):
            async with Producer(store, partitions=8, linger=0, partitioner=by_number, clock=clock) as producer:
                await producer.send("x", key=number)
        assert len(await hints_of(store)) <= 2, "a producer that starts removes those of the closed ones"
        async with Producer(store, linger=0, partitioner=by_number, clock=clock) as silent:
            await (await silent.send("y", key=5))
            (before,) = [key for key, hint in (await hints_of(store)).items() if hint["state"] == "open"]
            await clock.sleep(FORGET_AFTER / 4)
            async with Producer(store, linger=0, partitioner=by_number, clock=clock) as other:
                await (await other.send("z", key=6))
                await clock.sleep(5)
                assert states(await hints_of(store)) == ["idle", "open"]
            await clock.sleep(FORGET_AFTER)
            async with Producer(store, linger=0, partitioner=by_number, clock=clock) as other:
                await (await other.send("z", key=6))
                await clock.sleep(5)
                (hint,) = (await hints_of(store)).values()
                assert set(hint["newest"]) == {"0", "1", "2", "3", "4", "5", "6"}  # type: ignore[call-overload]
            # The silent one wakes up, and its hints arrive although its hint was removed.
            await (await silent.send("woken", key=7))
            await clock.sleep(5)
            newest = {key for hint in (await hints_of(store)).values() for key in hint["newest"]}  # type: ignore[attr-defined]
            assert "7" in newest
            # Under a new name: a removal of the old one that is still on its way takes nothing with it.
            assert before not in await hints_of(store)

    run(main())


def test_a_late_hint_does_not_overwrite_a_newer_one() -> None:
    """`idle` is held back, the producer goes on and dies before its hint: `idle` must not come and call readers off."""

    async def main() -> None:
        clock = VirtualClock("t")
        truth = MemoryStore(clock=clock)
        held: list[tuple[str, bytes, str]] = []

        class Late(HintsLost):
            async def put_if_match(self, key: str, body: bytes, tag: str) -> str:
                if orjson.loads(body)["state"] == "idle" and not held:
                    held.append((key, body, tag))
                    raise StoreUnavailable("no answer")
                return await super().put_if_match(key, body, tag)

        async with Producer(Store(Late(truth), clock=clock), partitions=1, linger=0, clock=clock) as producer:
            await (await producer.send("a"))
            await clock.sleep(IDLE_AFTER + 5)
            assert len(held) == 1
            await (await producer.send("b"))
            key, body, tag = held[0]
            with pytest.raises(ConditionFailed):
                await truth.put_if_match(key, body, tag)
            assert states(await hints_of(truth)) == ["open"]

    run(main())


@pytest.mark.parametrize("seed", range(6))
def test_followers_hear_of_everything_on_a_rough_network_with_dying_producers(seed: int) -> None:
    async def main() -> None:
        loop = current_loop()
        clock = VirtualClock(f"{seed}/w")
        truth = MemoryStore(clock=clock)
        network = FaultyBackend(truth, LATENCY_ONLY, seed=seed)
        follower = Follower(Store(network.view("reader"), clock=clock), clock)

        async def produce(name: str) -> None:
            own = VirtualClock(f"{seed}/{name}", offset=own_offset)
            store = Store(network.view(name), limits=StoreLimits(patience=20), clock=own)
            async with Producer(store, partitions=6, linger=0.05, clock=own) as producer:
                while True:
                    await producer.send(f"{name}/{own.nonce()}", key=own.nonce())
                    await own.sleep(own.random.choice([0.01, 0.1, 0.3, 0.5, 1, 3, 15, 40]))

        async with anyio.create_task_group() as tasks:
            hosts = []
            for index in range(4):
                own_offset = clock.random.uniform(-300, 300)
                hosts.append(loop.host(f"p{index}"))
                hosts[-1].start(produce(f"p{index}"))
            await clock.sleep(2)
            tasks.start_soon(follower.run)
            network.faults = network.faults.__class__(slow=0.02, lost_request=0.03, lost_reply=0.03, late_write=0.03)
            for host in hosts:
                await clock.sleep(clock.random.uniform(5, 60))
                host.crash()
            await clock.sleep(120)
            network.faults = LATENCY_ONLY
            await clock.sleep(2 * SWEEP_AGES[-1])
            contents = await log_contents(Store(truth, clock=clock))
            assert sum(map(len, contents.values())) >= 15
            for partition, values in contents.items():
                assert [value for where, value in follower.read if where == partition] == values
            tasks.cancel_scope.cancel()

    run(main(), seed=seed)
