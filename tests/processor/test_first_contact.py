"""A start while store or source are away: it is tried again until they answer, and a wrong configuration ends it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
import structlog

from actorproc import Processor
from actorproc.errors import Aborted, EndNotReached, SourceError, StoreRefused, StoreUnavailable, UsageError
from actorproc.runtime.nudge import Nudges
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.storage.backend import Stored
from actorproc.storage.store import Store, StoreLimits
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource
from tests.processor.doubling import Double, rows

HOUR = 3600.0


class Closed(MemorySource):
    """A source that cannot be opened before `opens_at`, on the clock's `monotonic`."""

    def __init__(self, clock: VirtualClock, opens_at: float, error: Exception) -> None:
        super().__init__(1)
        self.append("0", [b"1", b"2"])
        self._clock, self._opens_at, self._error = clock, opens_at, error

    async def open(self) -> None:
        if self._clock.monotonic() < self._opens_at:
            raise self._error


class Unavailable(MemoryStore):
    """A store that does not answer reads before `answers_at`."""

    answers_at = 0.0

    async def get(self, key: str, *, unless: str | None = None, tail: int | None = None) -> Stored | None:
        if self._clock.monotonic() < self.answers_at:
            raise StoreUnavailable("503 SlowDown")
        return await super().get(key, unless=unless, tail=tail)


class Place:
    """A processor over a store and a source that are away for `store_away` and `source_away` seconds."""

    def __init__(self, *, store_away: float = 0.0, source_away: float = 0.0, error: Exception | None = None) -> None:
        self.clock = VirtualClock("a")
        now = self.clock.monotonic()
        backend = Unavailable(clock=self.clock)
        backend.answers_at = now + store_away
        self.store = Store(backend, limits=StoreLimits(), clock=self.clock)
        source = Closed(self.clock, now + source_away, error or OSError("no route"))
        self.processor = Processor(
            Double, source=source, container=self.store, host="a", clock=self.clock, nudges=Nudges()
        )

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        while not await condition():
            await self.clock.sleep(1.0)

    async def has_rows(self) -> bool:
        return await rows(self.store) == [2, 4]


@pytest.mark.parametrize("away", [{"store_away": HOUR}, {"source_away": HOUR}])
def test_a_host_starts_once_store_and_source_are_back(away: dict[str, Any]) -> None:
    async def main() -> None:
        with structlog.testing.capture_logs() as logs:
            place = Place(**away)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(place.processor.run)
                await place.clock.sleep(HOUR / 2)
                shown = place.processor.statistics().error
                await place.clock.sleep(HOUR / 2)
                with anyio.fail_after(400):
                    await place.until(place.has_rows)
                assert place.processor.statistics().error is None
                place.processor.stop()
        failed = [entry for entry in logs if entry["event"] == "processor.start_failed"]
        assert shown
        assert failed[0]["error"] == shown
        assert 1 < len(failed) < HOUR / 10, "now and then"

    run(main())


def test_a_wrong_configuration_ends_the_start_at_once() -> None:
    async def main() -> None:
        for error in (UsageError("no such table"), StoreRefused("no right")):
            place = Place(source_away=HOUR, error=error)
            began = place.clock.monotonic()
            with pytest.raises(type(error), match=str(error)):
                await place.processor.run()
            assert place.clock.monotonic() - began < 1

    run(main())


def test_a_stop_while_the_source_is_away_ends_the_run() -> None:
    async def main() -> None:
        place = Place(source_away=HOUR)
        with anyio.fail_after(120):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(place.processor.run)
                await place.clock.sleep(60)
                place.processor.stop()
        assert not place.processor.statistics().running

    run(main())


def test_a_run_that_is_stopped_before_it_begins_does_not_wait_for_the_source() -> None:
    async def main() -> None:
        place = Place(source_away=HOUR)
        place.processor.stop()
        with anyio.fail_after(1):
            await place.processor.run()

    run(main())


def test_a_stop_during_start_up_names_the_missing_source() -> None:
    async def main() -> None:
        place = Place(source_away=HOUR)
        asyncio.get_running_loop().call_later(60, place.processor.stop)
        with anyio.fail_after(61), pytest.raises(Aborted, match=r"stopped before it had started.*: OSError: no route"):
            async with place.processor:
                pass

    run(main())


@pytest.mark.parametrize("hangs", ["open", "shared"])
def test_a_stop_cancels_a_start_that_hangs(hangs: str) -> None:
    did: list[str] = []

    async def hang() -> None:
        try:
            async with anyio.create_task_group():
                await anyio.sleep_forever()
        finally:
            await anyio.sleep(1)
            did.append("cleaned up")

    class Hanging(MemorySource):
        async def open(self) -> None:
            if hangs == "open":
                await hang()

        async def close(self) -> None:
            await anyio.sleep(1)
            did.append("closed")

    class Pooled(Double):
        @classmethod
        @asynccontextmanager
        async def shared(cls, options: object) -> AsyncIterator[None]:
            await hang()
            yield

    async def main() -> None:
        clock = VirtualClock("a")
        store = Store(MemoryStore(clock=clock), clock=clock)
        processor = Processor(Pooled, source=Hanging(1), container=store, clock=clock, nudges=Nudges())
        asyncio.get_running_loop().call_later(60, processor.stop)
        with anyio.fail_after(70):
            await processor.run()
        assert did == (["cleaned up", "closed"] if hangs == "shared" else ["cleaned up"])
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    run(main())


@pytest.mark.parametrize(
    ("away", "error"), [({"store_away": HOUR}, StoreUnavailable), ({"source_away": HOUR}, SourceError)]
)
def test_a_run_until_the_end_gives_up_after_a_while(away: dict[str, Any], error: type[Exception]) -> None:
    async def main() -> None:
        place = Place(**away)
        began = place.clock.monotonic()
        with pytest.raises(error):
            await place.processor.run(until_end=True)
        assert 5 < place.clock.monotonic() - began < 120

    run(main())


class Slow(Closed):
    """Takes long for each attempt, as a client does that tries again itself."""

    async def open(self) -> None:
        await self._clock.sleep(61)
        await super().open()


def test_a_run_until_the_end_gives_up_in_time_if_each_attempt_is_slow() -> None:
    async def main() -> None:
        place = Place()
        source = Slow(place.clock, place.clock.monotonic() + HOUR, SourceError("no route"))
        slow = Processor(Double, source=source, container=place.store, host="a", clock=place.clock, nudges=Nudges())
        began = place.clock.monotonic()
        with pytest.raises(SourceError, match=r"no route \(given up after 61 s and 1 attempt: .*store_patience = 60 s"):
            await slow.run(until_end=True)
        assert place.clock.monotonic() - began < 65

    run(main())


@pytest.mark.parametrize("away", [{"store_away": HOUR}, {"source_away": HOUR}])
def test_a_start_that_is_given_up_says_after_how_long(away: dict[str, Any]) -> None:
    async def main() -> None:
        with structlog.testing.capture_logs() as logs, pytest.raises((StoreUnavailable, SourceError)) as error:
            await Place(**away).processor.run(until_end=True)
        assert "given up after" in str(error.value)
        assert "store_patience = 60 s" in str(error.value)
        told = [line["gives_up_in"] for line in logs if line["event"] == "processor.start_failed"]
        assert all(0 < seconds <= 60 for seconds in told)
        assert bool(told) is ("source_away" in away)

    run(main())


def test_a_stopped_run_until_the_end_says_that_nothing_was_begun() -> None:
    async def main() -> None:
        place = Place(source_away=HOUR)

        async def stop() -> None:
            await place.clock.sleep(1)
            place.processor.stop()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop)
            with pytest.raises(EndNotReached, match="nothing was begun"):
                await place.processor.run(until_end=True)

    run(main())
