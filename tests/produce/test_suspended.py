"""Producers on a machine that is suspended for hours confirm only readable records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import pytest

from actorproc.admin.retained import RetainedLog
from actorproc.admin.trim import trim
from actorproc.config.settings import Settings
from actorproc.errors import ActorprocError, ConditionFailed, StoreUnavailable
from actorproc.produce.producer import Producer
from actorproc.retention.boundary import read_boundary
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.sources import LogSource
from actorproc.storage.backend import Backend, Listing, Stored
from actorproc.storage.names import log_boundary, log_file
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from tests.log.reading import batches

T = TypeVar("T")
HOUR = 3600.0
SETTINGS = Settings.load()


class World:
    """A log of one partition. Hours pass on the wall clock alone; the monotonic clock stops while suspended."""

    def __init__(self) -> None:
        self.clock = VirtualClock("world")
        self.truth = MemoryStore(clock=self.clock)
        self.store = Store(self.truth, clock=self.clock)
        self.seen: dict[int, bytes | None] = {}  # values read so far, by sequence

    def producer(self, backend: Backend | None = None) -> Producer:
        store = self.store if backend is None else Store(backend, clock=self.clock)
        return Producer(store, partitions=1, linger=0, clock=self.clock)

    async def append(self, *values: str) -> None:
        """Somebody else does, a file for each."""
        async with self.producer() as producer:
            for value in values:
                await (await producer.send(value))

    async def wait(self, hours: float) -> None:
        """Let `hours` pass, then read and trim the log."""
        self.clock.offset += hours * HOUR
        await self.read()
        await trim(RetainedLog(self.store), SETTINGS)

    async def late_files(self) -> None:
        """Others that slept create theirs, of a hundred records each, wherever a file was trimmed: they are void."""
        elsewhere = World()
        async with elsewhere.producer() as producer:
            await producer.send_many(["void"] * 100)
        stored = await elsewhere.store.get(log_file("0", 0))
        assert stored is not None
        for base in range((await read_boundary(self.store, log_boundary("0"))).lowest):
            with suppress(ConditionFailed):
                await self.truth.put_if_absent(log_file("0", base), stored.body)

    async def read(self) -> None:
        """Read the whole log. No sequence is missing, and a sequence that was read before has the same value."""
        source = LogSource(self.store, settings=SETTINGS, clock=self.clock)
        await source.open()
        start = await source.start("0", "earliest")
        found = {
            sequence: value
            for batch in await batches(source, "0", start)
            for sequence, value in zip(batch.sequences, batch.values, strict=True)
        }
        assert list(found) == list(range(int(start), int(start) + len(found)))
        assert not self.seen or max(self.seen) in range(int(start) - 1, int(start) + len(found))
        assert all(self.seen.get(sequence, value) == value for sequence, value in found.items())
        self.seen |= found


class Interrupted(Backend):
    """A machine that is suspended for as long as `asleep` takes, before request `number` (from 0) is sent, or
    after it was carried out."""

    def __init__(self, truth: Backend, number: int, after: bool, asleep: Callable[[], Awaitable[None]]) -> None:
        self.url, self._truth = truth.url, truth
        self.number, self.after, self.asleep = number, after, asleep
        self.requests: int | None = None  # are not counted before it is 0

    async def get(self, key: str, *, unless: str | None = None, tail: int | None = None) -> Stored | None:
        return await self._pass(lambda: self._truth.get(key, unless=unless, tail=tail))

    async def put(self, key: str, body: bytes) -> str:
        return await self._truth.put(key, body)  # hints

    async def put_if_absent(self, key: str, body: bytes) -> str:
        return await self._pass(lambda: self._truth.put_if_absent(key, body))

    async def put_if_match(self, key: str, body: bytes, tag: str) -> str:
        return await self._truth.put_if_match(key, body, tag)

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        return await self._pass(lambda: self._truth.list(prefix, after, limit))

    async def delete(self, key: str) -> None:
        await self._truth.delete(key)

    async def _pass(self, send: Callable[[], Awaitable[T]]) -> T:
        now = self.requests == self.number
        if self.requests is not None:
            self.requests += 1
        if now and not self.after:
            await self.asleep()
        answer = await send()
        if now and self.after:
            await self.asleep()
        return answer


@pytest.mark.parametrize("late_files", [False, True])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("known", "number"), [*((False, n) for n in range(6)), *((True, n) for n in range(3))])
def test_a_producer_suspended_at_any_request_confirms_only_readable_records(
    number: int, after: bool, known: bool, late_files: bool
) -> None:
    async def main() -> None:
        world = World()
        await world.append("first")

        async def asleep() -> None:
            await world.append("second", "third")
            await world.wait(3)
            if late_files:
                await world.late_files()

        backend = Interrupted(world.truth, number, after, asleep)
        async with world.producer(backend) as producer:
            if known:  # where the end is
                await (await producer.send("before"))
            backend.requests = 0
            confirmed, failed = {}, 0
            for value in ("of the sleeper", "next", "last"):
                try:
                    confirmed[(await (await producer.send(value))).sequence] = value.encode()
                except ActorprocError:
                    failed += 1
            with suppress(ActorprocError):
                await producer.flush()
        assert backend.requests > number
        assert failed <= 1, "that one, and those after it find the end"
        await world.read()
        assert confirmed.items() <= world.seen.items()

    run(main())


def test_the_age_of_the_end_counts_from_before_a_slow_append() -> None:
    """Another producer's file came right after it, and is trimmed when it is an hour old."""

    async def main() -> None:
        world = World()
        await world.append("first")

        async def asleep() -> None:
            await world.append("right after")
            await world.wait(0.9)

        backend = Interrupted(world.truth, 0, True, asleep)
        async with world.producer(backend) as producer:
            await (await producer.send("before"))
            backend.requests = 0
            assert (await (await producer.send("slow"))).sequence == 2
            await world.append("others")
            await world.wait(0.15)
            await world.append("others again")
            sent = await (await producer.send("next"))
        await world.read()
        assert world.seen[sent.sequence] == b"next"

    run(main())


def test_an_append_does_not_pass_a_void_segment() -> None:
    async def main() -> None:
        world = World()
        await world.append("0", "1", "2")

        async def asleep() -> None:
            await world.append(*"34567")
            await world.wait(3)
            await world.late_files()

        backend = Interrupted(world.truth, 0, False, asleep)
        async with world.producer(backend) as producer:
            await (await producer.send("before"))
            backend.requests = 0
            with pytest.raises(
                StoreUnavailable, match="trimmed beyond their place meanwhile; they may be in the log or not"
            ):
                await (await producer.send("of the sleeper"))
            with pytest.raises(StoreUnavailable):
                await producer.flush()
            assert (await (await producer.send("next"))).sequence == 9
        await world.read()
        assert max(world.seen) == 9

    run(main())
