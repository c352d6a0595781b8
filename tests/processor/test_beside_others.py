"""`run(until_end=True)` beside other hosts that own the partitions it waits for."""

from __future__ import annotations

from typing import Any, ClassVar

import anyio
import pytest

from actorproc import Batch, Decision, PartitionContext, Processor, errors
from actorproc.host.partition_slot import FAILURES_FOR_GOOD
from actorproc.output.checkpoint import Checkpoint
from actorproc.records import Cursor
from actorproc.runtime.nudge import Nudges
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.sources.protocol import End, Start
from actorproc.storage.backend import Stored
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource
from tests.processor.doubling import Double, _partitions, fed, rows


def at_defaults(source: Any, **settings: Any) -> tuple[Store, dict[str, Any]]:
    """A store in virtual time, and the arguments that hosts with default timers share."""
    clock = VirtualClock("a")
    store = Store(MemoryStore(clock=clock), clock=clock)
    return store, {"source": source, "container": store, "name": "Double", "nudges": Nudges(), **settings}


@pytest.mark.parametrize("emits", [True, False])
def test_at_most_once_the_run_waits_for_another_hosts_batch(emits: bool) -> None:
    class Slow(Double):
        at_it: ClassVar[list[bool]] = []

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            self.at_it.append(True)
            await anyio.sleep(100)
            if emits:
                await super().process(batch, ctx)
            self.at_it.append(False)

    async def main() -> None:
        store, both = at_defaults(fed(1), delivery="at-most-once")
        async with Processor(Slow, host="a", clock=VirtualClock("a"), **both):
            while not Slow.at_it:
                await anyio.sleep(0.1)
            await Processor(Double, host="b", clock=VirtualClock("b"), **both).run(until_end=True)
            assert Slow.at_it == [True, False]
            assert await rows(store) == ([2 * n for n in range(10)] if emits else [])

    run(main())


class Stopping(Double):
    """Cannot go on in partition 1."""

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        if ctx.partition == "1":
            raise ValueError("poison")
        await super().process(batch, ctx)

    def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision | None:
        return Decision.STOP


def test_a_partition_that_keeps_failing_elsewhere_is_given_up() -> None:
    async def main() -> None:
        store, both = at_defaults(fed(2), rebalance_delay=10_000.0)
        async with Processor(Stopping, host="a", clock=VirtualClock("a"), **both) as service:
            while len(_partitions(service)) < 2:
                await anyio.sleep(0.1)
            says = r"1 of 2 partitions has .*\npartition 1: on a: fails .* again and again: .*: poison"
            with pytest.raises(errors.EndNotReached, match=says):
                await Processor(Double, host="b", clock=VirtualClock("b"), **both).run(until_end=True)
            assert await rows(store) == [2 * n for n in range(10)]

    run(main())


def test_a_partition_given_up_by_another_run_is_tried_here_too() -> None:
    async def main() -> None:
        store, both = at_defaults(fed(2), rebalance_delay=10_000.0)
        async with anyio.create_task_group() as tasks:

            async def first() -> None:
                with pytest.raises(errors.EndNotReached, match="poison"):
                    await Processor(Stopping, host="a", clock=VirtualClock("a"), **both).run(until_end=True)

            tasks.start_soon(first)
            await anyio.sleep(1)
            await Processor(Double, host="b", clock=VirtualClock("b"), **both).run(until_end=True)
        assert await rows(store) == sorted([2 * n for n in range(10)] * 2)

    run(main())


def test_a_host_that_fails_a_while_and_gets_on_is_waited_for() -> None:
    class Outage(Double):
        failures: ClassVar[int] = 0

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            if type(self).failures <= FAILURES_FOR_GOOD:
                type(self).failures += 1
                raise ValueError("away")
            await super().process(batch, ctx)

        def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision | None:
            return Decision.STOP

    async def main() -> None:
        store, both = at_defaults(fed(1), rebalance_delay=10_000.0)
        async with Processor(Outage, host="a", clock=VirtualClock("a"), **both):
            await anyio.sleep(1)
            await Processor(Double, host="b", clock=VirtualClock("b"), **both).run(until_end=True)
        assert Outage.failures > FAILURES_FOR_GOOD
        assert await rows(store) == [2 * n for n in range(10)]

    run(main())


def test_at_most_once_a_dead_hosts_batch_is_not_waited_for() -> None:
    async def main() -> None:
        store, both = at_defaults(fed(1), delivery="at-most-once")
        left_behind = Checkpoint(1, 0, Cursor("10", 9), ahead=True)
        await store.put(ProcessorLayout("Double").checkpoint("0"), left_behind.to_json())
        async with Processor(Double, host="a", clock=VirtualClock("a"), **both) as service:
            while not _partitions(service):
                await anyio.sleep(0.1)
            with anyio.fail_after(100):
                await Processor(Double, host="b", clock=VirtualClock("b"), **both).run(until_end=True)
        assert await rows(store) == []

    run(main())


def test_a_stream_that_ends_before_another_hosts_position_is_reported() -> None:
    class Restored(MemorySource):
        lost = 0

        async def end(self, partition: str) -> End:
            return End(str(10 - self.lost), 9 - self.lost)

    async def main() -> None:
        source = Restored(1)
        source.append("0", [b"1"] * 10)
        store, both = at_defaults(source)
        async with Processor(Double, host="a", clock=VirtualClock("a"), **both):
            while len(await rows(store)) < 10:
                await anyio.sleep(1)
            source.lost = 4
            says = "partition 0: its newest record is 5, and this processor has read up to 9"
            with pytest.raises(errors.EndNotReached, match=says):
                await Processor(Double, host="b", clock=VirtualClock("b"), **both).run(until_end=True)

    run(main())


class Live(MemorySource):
    """Knows no first record, and no sequence before a position."""

    async def start(self, partition: str, at: Start) -> str:
        if at == "earliest":
            raise errors.UsageError("start = 'earliest': this stream keeps nothing")
        return await super().start(partition, at)

    def sequence_before(self, partition: str, position: str) -> int | None:
        return None


def test_a_source_without_earliest_runs_to_its_end_from_the_latest_record() -> None:
    async def main() -> None:
        source = Live(2)
        for partition in "01":
            source.append(partition, [b"1"] * 3)
        store, both = at_defaults(source, start="latest")
        async with Processor(Double, host="a", clock=VirtualClock("a"), **both) as service:
            while len(_partitions(service)) < 2:
                await anyio.sleep(0.1)
            await Processor(Double, host="b", clock=VirtualClock("b"), **both).run(until_end=True)
        assert await rows(store) == []

    run(main())


def test_a_growing_source_without_earliest_reaches_its_end() -> None:
    class Grows(Live):
        async def start(self, partition: str, at: Start) -> str:
            if at == "latest":
                self.append(partition, [b"1"])
            return await super().start(partition, at)

    async def main() -> None:
        source = Grows(1)
        source.append("0", [b"1"])
        _, both = at_defaults(source, start="latest")
        await Processor(Double, clock=VirtualClock("a"), **both).run(until_end=True)

    run(main())


def test_a_passing_refusal_ends_no_waiting_run() -> None:
    class Refusing(MemoryStore):
        refusing = False

        async def get(self, key: str, *, unless: str | None = None, tail: int | None = None) -> Stored | None:
            if self.refusing and "/checkpoints/" in key:
                raise errors.CredentialsExpired("for a second")
            return await super().get(key, unless=unless, tail=tail)

    async def main() -> None:
        a, b = VirtualClock("a"), VirtualClock("b")
        theirs, ours = MemoryStore(clock=a, name="both"), Refusing(clock=a, name="both")
        _, both = at_defaults(fed(1))
        here = both | {"container": Store(ours, clock=b), "clock": b}
        there = both | {"container": Store(theirs, clock=a), "clock": a}
        async with Processor(Slowly, host="a", **there), anyio.create_task_group() as tasks:
            await anyio.sleep(5)
            tasks.start_soon(lambda: Processor(Slowly, host="b", **here).run(until_end=True))
            await anyio.sleep(20)
            ours.refusing = True
            await anyio.sleep(2)
            ours.refusing = False
        assert await rows(there["container"]) == [2 * n for n in range(10)]

    class Slowly(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            await anyio.sleep(100)
            await super().process(batch, ctx)

    run(main())
