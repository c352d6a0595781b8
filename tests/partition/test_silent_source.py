"""A `read()` of a source that hangs is noticed; one that waits at the end is begun anew."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing

import anyio
import anyio.to_thread
import structlog

from actorproc import Processor
from actorproc.records import Batch
from actorproc.runtime.nudge import Nudges
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.sources.protocol import Chunk
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource
from tests.processor.doubling import QUICK, Double, rows


class Hanging(MemorySource):
    """Its first read() yields `first` chunks and hangs. Later ones work."""

    def __init__(self, first: int) -> None:
        super().__init__(1, page=5)
        self.append("0", [b"%d" % n for n in range(10)])
        self.first = first
        self.reads = 0

    async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        self.reads += 1
        left = self.first if self.reads == 1 else 10**9
        async with aclosing(super().read(partition, position)) as chunks:
            async for chunk in chunks:
                if not left:
                    await anyio.sleep_forever()
                left -= 1
                yield chunk


def play(source: MemorySource, seconds: float) -> tuple[list[int], list[str], list[str | None]]:
    """The rows after so many seconds, the log events, and each error that the partition showed."""

    async def main() -> tuple[list[int], list[str], list[str | None]]:
        clock = VirtualClock("a")
        store = Store(MemoryStore(clock=clock), clock=clock)
        errors: list[str | None] = []
        with structlog.testing.capture_logs() as logs:
            processor = Processor(Double, source=source, container=store, clock=clock, nudges=Nudges())
            async with processor:
                for _ in range(int(seconds)):
                    await clock.sleep(1)
                    errors += [partition.error for partition in processor.statistics().partitions]
        return await rows(store), [entry["event"] for entry in logs], errors

    return run(main())


def test_a_read_that_hangs_is_reported_and_the_partition_goes_on() -> None:
    for first in (0, 1):
        source = Hanging(first)
        found, events, errors = play(source, 400)
        assert found == [2 * n for n in range(10)]
        assert events.count("partition.stuck") == events.count("partition.failed") == 1
        assert errors[-1] is None


def test_a_read_that_hangs_at_the_end_begins_anew_quietly() -> None:
    class Deaf(Hanging):
        """Its first read() does not see records that come later."""

        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            deaf = not self.reads
            async with aclosing(super().read(partition, position)) as chunks:
                async for chunk in chunks:
                    yield chunk
                    if deaf and not len(chunk.batch):
                        self.append("0", [b"10", b"11"])
                        await anyio.sleep_forever()

    source = Deaf(10**9)
    found, events, errors = play(source, 1000)
    assert found == [2 * n for n in range(12)]
    assert source.reads in (3, 4)
    assert "partition.stuck" not in events
    assert set(errors) == {None}


def test_a_source_that_says_it_is_alive_is_left_alone() -> None:
    class Alive(Hanging):
        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            self.reads += 1
            while True:
                yield Chunk(Batch.empty(partition), position)
                await anyio.sleep(200)

    source = Alive(0)
    play(source, 1000)
    assert source.reads == 1


async def test_a_read_that_hangs_in_a_thread_is_reported() -> None:
    hang = threading.Event()

    class Blocked(MemorySource):
        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            await anyio.to_thread.run_sync(hang.wait)
            yield Chunk(Batch.empty(partition), position)

    settings = {**QUICK, "max_read_time": 0.2}
    try:
        with anyio.fail_after(30):
            async with Processor(Double, source=Blocked(1), container=Store(MemoryStore()), **settings) as processor:
                while not any("yielded nothing" in (p.error or "") for p in processor.statistics().partitions):
                    await anyio.sleep(0.01)
                hang.set()
    finally:
        hang.set()
