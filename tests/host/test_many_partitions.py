"""A host with many partitions, as it starts and as it is stopped meanwhile. In virtual time."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, ClassVar

import anyio
import structlog

from actorproc import Batch, PartitionContext, PartitionHandler, PartitionInfo, Processor
from actorproc.handler.base import CloseReason
from actorproc.runtime.clock import Clock
from actorproc.runtime.nudge import Nudges
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.sources.protocol import Start
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource

MANY = 160
REQUEST = 0.05
"""Seconds of a request, one after another: opening all takes half a minute."""


class BusyStore(MemoryStore):
    """Takes one request of a checkpoint at a time."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self._turn = anyio.Lock()

    async def put_if_absent(self, key: str, body: bytes) -> str:
        if "/checkpoints/" in key:
            async with self._turn:
                await anyio.sleep(REQUEST)
        return await super().put_if_absent(key, body)

    async def get(self, key: str, *, unless: str | None = None, tail: int | None = None) -> Any:
        if "/checkpoints/" in key:
            async with self._turn:
                await anyio.sleep(REQUEST)
        return await super().get(key, unless=unless, tail=tail)


class Counts(PartitionHandler):
    handled: ClassVar[set[str]]
    opened_for: ClassVar[float]
    calls: ClassVar[list[str]]

    async def opened(self, info: PartitionInfo) -> None:
        await anyio.sleep(self.opened_for)

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        self.handled.add(ctx.partition)

    async def closing(self, ctx: PartitionInfo, reason: CloseReason) -> None:
        self.calls.append(f"closing: {reason.value}")


class Host:
    """A host with `partitions`, each with a record."""

    def __init__(self, partitions: int, source: MemorySource | None = None, opened_for: float = 0.0) -> None:
        Counts.handled, Counts.calls, Counts.opened_for = set(), [], opened_for
        self.source = source or MemorySource(partitions)
        for partition in range(partitions):
            self.source.append(str(partition), [b"1"])
        clock = VirtualClock("a")
        self.processor = Processor(
            Counts, source=self.source, container=Store(BusyStore(clock), clock=clock), host="a", clock=clock,
            nudges=Nudges(), auto_commit=False,
        )  # fmt: skip

    async def until_handled(self, partitions: int) -> None:
        with anyio.fail_after(600):
            while len(Counts.handled) < partitions:
                await anyio.sleep(0.01)

    def opening(self) -> int:
        return sum(each.state == "opening" for each in self.processor.statistics().partitions)


def test_the_first_partitions_work_while_others_still_open() -> None:
    async def main() -> None:
        host = Host(MANY)
        async with host.processor:
            await host.until_handled(1)
            assert host.opening() > MANY * 3 // 4
            await host.until_handled(MANY)
            assert host.opening() == 0

    run(main())


def test_a_stop_while_partitions_open_is_quick_and_blames_no_handler() -> None:
    logs: list[MutableMapping[str, Any]]

    async def main() -> float:
        host = Host(MANY)
        async with host.processor:
            await host.until_handled(3)
            began = anyio.current_time()
        return anyio.current_time() - began

    with structlog.testing.capture_logs() as logs:
        seconds = run(main())
    assert seconds < 10  # a handoff may take 30
    assert not [entry for entry in logs if entry["log_level"] in ("warning", "error")]
    assert len(Counts.handled) < MANY // 2


def test_a_drain_waits_for_opened_and_then_calls_closing() -> None:
    async def main() -> float:
        host = Host(1, opened_for=8.0)
        async with host.processor:
            await anyio.sleep(5)
            assert host.opening() == 1
            began = anyio.current_time()
        return anyio.current_time() - began

    assert run(main()) < 9
    assert Counts.calls == ["closing: stopping"]
    assert not Counts.handled


def test_a_drain_blames_opened_if_it_does_not_end() -> None:
    async def main() -> None:
        host = Host(1, opened_for=500.0)
        async with host.processor:
            await anyio.sleep(5)

    with structlog.testing.capture_logs() as logs:
        run(main())
    (told,) = (entry["why"] for entry in logs if entry["event"] == "partition.drain_timed_out")
    assert told.startswith("the handler's opened() has not ended")


def test_partitions_that_open_for_long_do_not_hold_up_others() -> None:
    class Slow(MemorySource):
        async def start(self, partition: str, at: Start) -> str:
            if int(partition) < 100:
                await anyio.sleep(50)
            return await super().start(partition, at)

    async def main() -> float:
        host = Host(140, Slow(140))
        async with host.processor:
            began = anyio.current_time()
            await host.until_handled(40)
            return anyio.current_time() - began

    assert run(main()) < 25
