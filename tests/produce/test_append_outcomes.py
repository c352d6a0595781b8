"""The errors of an append that gives up: refused, or outcome unknown."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from actorproc.errors import StoreRefused, StoreUnavailable
from actorproc.produce.producer import Producer
from actorproc.retention.boundary import RETENTION
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.storage.backend import Stored
from actorproc.storage.names import log_file
from actorproc.storage.store import Store, StoreLimits
from actorproc.stores.memory import MemoryStore
from tests.log.reading import log_contents
from tests.produce.test_append_faults import Tampered

Really = Callable[[], Awaitable[str]]


class Expiring(Tampered):
    """Once `expired`, every read is refused."""

    expired = False

    async def get(self, key: str, *, unless: str | None = None, tail: int | None = None) -> Stored | None:
        if self.expired:
            raise StoreRefused("ExpiredToken")
        return await super().get(key, unless=unless, tail=tail)


def test_a_refusal_after_a_lost_reply_is_unknown() -> None:
    async def main() -> None:
        clock = VirtualClock("p")
        truth = MemoryStore(clock=clock)

        async def lost_reply(key: str, body: bytes, really: Really) -> str:
            await really()
            backend.expired = True
            raise StoreUnavailable("the reply was lost")

        backend = Expiring(truth, lost_reply)
        async with Producer(Store(backend, clock=clock), partitions=1, linger=0, clock=clock) as producer:
            with pytest.raises(StoreUnavailable, match=r"may be in the log or not: .*ExpiredToken"):
                await (await producer.send("paid"))
            with pytest.raises(StoreUnavailable):
                await producer.flush()
            backend.expired = False
        assert (await log_contents(Store(truth, clock=clock)))["0"] == [b"paid"]

    run(main())


def test_an_append_that_was_applied_and_refused_is_in_the_log_once() -> None:
    async def main() -> None:
        clock = VirtualClock("p")
        truth = MemoryStore(clock=clock)

        async def applied_and_refused(key: str, body: bytes, really: Really) -> str:
            await really()
            raise StoreRefused("403 from a proxy")

        store = Store(Tampered(truth, applied_and_refused), clock=clock)
        async with Producer(store, partitions=1, linger=0, clock=clock) as producer:
            await (await producer.send("paid"))
            await (await producer.send("again"))
        assert (await log_contents(Store(truth, clock=clock)))["0"] == [b"paid", b"again"]

    run(main())


def test_a_refusal_after_an_unknown_attempt_is_unknown() -> None:
    async def main() -> None:
        clock = VirtualClock("p")
        truth = MemoryStore(clock=clock)
        late: list[Really] = []

        async def silent_then_refused(key: str, body: bytes, really: Really) -> str:
            late.append(really)
            if clock.monotonic() - began < 10:
                raise StoreUnavailable("no answer")
            raise StoreRefused("ExpiredToken")

        store = Store(Tampered(truth, silent_then_refused), limits=StoreLimits(patience=1), clock=clock)
        async with Producer(store, partitions=1, linger=0, clock=clock) as producer:
            began = clock.monotonic()
            with pytest.raises(StoreUnavailable, match=r"may be in the log or not: .*ExpiredToken"):
                await (await producer.send("late"))
            assert clock.monotonic() - began < 60, "a refusal is not tried again"
            await late[0]()
            with pytest.raises(StoreUnavailable):
                await producer.flush()
        assert (await log_contents(Store(truth, clock=clock)))["0"] == [b"late"]

    run(main())


def test_a_late_append_is_unknown_while_the_boundary_is_unreadable() -> None:
    async def main() -> None:
        clock = VirtualClock("p")
        truth = MemoryStore(clock=clock)

        async def slow(key: str, body: bytes, really: Really) -> str:
            await clock.sleep(RETENTION)
            backend.expired = True
            return await really()

        backend = Expiring(truth, slow)
        store = Store(backend, limits=StoreLimits(timeout=2 * RETENTION), clock=clock)
        async with Producer(store, partitions=1, linger=0, delivery_timeout=2 * RETENTION, clock=clock) as producer:
            with pytest.raises(StoreUnavailable, match="may be in the log or not: ExpiredToken"):
                await (await producer.send("slept"))
            with pytest.raises(StoreUnavailable):
                await producer.flush()
            backend.expired = False

    run(main())


def test_who_loses_every_race_gives_up_in_time() -> None:
    async def main() -> None:
        clock = VirtualClock("p")
        truth = MemoryStore(clock=clock)
        rival: Stored | None = None

        async def faster(key: str, body: bytes, really: Really) -> str:
            if rival is not None:
                await clock.sleep(0.1)
                await truth.put_if_absent(key, rival.body)
            return await really()

        backend = Tampered(truth, faster)
        async with Producer(
            Store(backend, clock=clock), partitions=1, linger=0, delivery_timeout=5, clock=clock
        ) as producer:
            await (await producer.send("a"))
            rival = await truth.get(log_file("0", 0))
            with anyio.fail_after(6), pytest.raises(StoreUnavailable, match="may be in the log or not"):
                await (await producer.send("b"))
            assert len(backend.created) > 10
            rival = None
            with pytest.raises(StoreUnavailable):
                await producer.flush()
        assert b"b" not in (await log_contents(Store(truth, clock=clock)))["0"]

    run(main())
