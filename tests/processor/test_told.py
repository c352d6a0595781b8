"""Reports of a host about its work and its failures: in statistics, log events and heartbeat."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
import structlog

from actorproc import Batch, Decision, PartitionContext, PartitionInfo, Processor, errors
from actorproc.group.heartbeat import read_heartbeats
from actorproc.runtime.nudge import Nudges
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource
from tests.processor.doubling import QUICK, Double, _partitions, fed


async def test_skipped_records_are_counted_even_without_other_commits() -> None:
    class Skipping(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                ctx.fail(record, ValueError("of no use"))

        def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision:
            return Decision.SKIP

    processor = Processor(Skipping, name="Double", source=fed(), container=Store(MemoryStore()), **QUICK)
    await processor.run(until_end=True)
    supervisor = processor.statistics()
    assert (supervisor.counts.records, supervisor.counts.skipped) == (40, 40)


async def test_the_statistics_of_a_host_outlive_it() -> None:
    class Poisoned(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                if record.json() == 3:
                    ctx.dead_letter(record, "three")
                else:
                    ctx.emit(record, {"n": record.json()})

    processor = Processor(Poisoned, name="Double", source=fed(), container=Store(MemoryStore()), **QUICK)
    with structlog.testing.capture_logs() as logs:
        await processor.run(until_end=True)
    supervisor = processor.statistics()
    assert (supervisor.counts.records, supervisor.counts.rows, supervisor.counts.dead_letters) == (40, 36, 4)
    told = [log for log in logs if log["event"] == "processor.dead_letters"]
    assert {log["log_level"] for log in told} == {"warning"}
    assert sum(log["new"] for log in told) == told[-1]["since_start"] == 4
    assert sum(log["errors"]["DeadLetter"] for log in told) == 4
    assert re.fullmatch(r"[0-3]:3 DeadLetter: three", told[-1]["example"])


async def test_dead_letters_are_logged_once_a_minute_and_at_the_end() -> None:
    class Poisoned(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                ctx.dead_letter(record, "always")
            await ctx.commit()

    store, source = Store(MemoryStore()), fed(4)
    with structlog.testing.capture_logs() as logs:
        settings = {**QUICK, "dead_letter_limit": 1}
        async with Processor(Poisoned, name="Double", source=source, container=store, **settings) as processor:
            for more in range(1, 6):
                source.append("0", [b"1"])
                with anyio.fail_after(60):
                    while sum(p.counts.dead_letters for p in _partitions(processor)) < 40 + more:
                        await anyio.sleep(0.01)
    told = [log for log in logs if log["event"] == "processor.dead_letters"]
    assert 1 <= len(told) <= 2, "the first letters are logged at once, the others when the host stops"
    assert sum(log["new"] for log in told) == told[-1]["since_start"] == 45


async def test_statistics_show_the_error_of_a_partition_that_waits_to_restart() -> None:
    class Half(Double):
        async def opened(self, ctx: PartitionInfo) -> None:
            if ctx.partition == "0":
                raise RuntimeError("no such table")

    async with Processor(Half, source=fed(partitions=2), container=Store(MemoryStore()), **QUICK) as processor:
        with anyio.fail_after(60):
            while {p.partition: p.state for p in _partitions(processor)} != {"0": "waiting", "1": "running"}:
                await anyio.sleep(0.001)
        errors_told = [p.error for p in _partitions(processor)]
    assert "no such table" in (errors_told[0] or "")
    assert errors_told[1] is None


async def test_a_heartbeat_shows_the_beginning_of_a_long_error() -> None:
    class Fails(Double):
        async def opened(self, ctx: PartitionInfo) -> None:
            raise RuntimeError("x" * 10_000)

    store = Store(MemoryStore())
    async with Processor(Fails, name="Double", source=fed(1), container=store, **QUICK):
        failing: dict[str, str] = {}
        with anyio.fail_after(60):
            while not failing:
                await anyio.sleep(0.01)
                for beat, _ in await read_heartbeats(store, ProcessorLayout("Double")):
                    failing = beat.report.failing
    assert failing["0"].partition(": ")[2].startswith("RuntimeError: xxx")
    assert failing["0"].endswith("xxx ...")
    assert len(failing["0"]) < 700


@pytest.mark.parametrize("method", ["open", "register", "close", "shared", "shared at its end"])
def test_a_slow_method_of_the_handler_is_logged(method: str) -> None:
    async def slow(*_: Any) -> None:
        await anyio.sleep(25)

    class Slow(Double):
        @classmethod
        @asynccontextmanager
        async def shared(cls, options: Any) -> AsyncIterator[None]:
            if method == "shared":
                await slow()
            yield
            if method == "shared at its end":
                await slow()

    async def main() -> list[Any]:
        clock = VirtualClock("a")
        source = type("SlowSource", (MemorySource,), {} if "shared" in method else {method: slow})(1)
        with structlog.testing.capture_logs() as logs:
            processor = Processor(
                Slow,
                source=source,
                container=Store(MemoryStore(clock=clock), clock=clock),
                clock=clock,
                nudges=Nudges(),
            )
            await processor.run(until_end=True)
        return [(e["waiting_for"], e["seconds"]) for e in logs if e["event"] == "processor.slow"]

    told = run(main())
    assert [seconds for _, seconds in told] == [10, 20]
    assert all(what.startswith(f"{method.split()[0]}() of the ") for what, _ in told)


def test_a_run_until_the_end_logs_partitions_without_progress() -> None:
    class Stands(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            if ctx.partition == "1":
                await anyio.sleep(45)
            await super().process(batch, ctx)

    async def main() -> list[Any]:
        clock = VirtualClock("a")
        with structlog.testing.capture_logs() as logs:
            store = Store(MemoryStore(clock=clock), clock=clock)
            await Processor(Stands, source=fed(3), container=store, clock=clock, nudges=Nudges()).run(until_end=True)
        return [e for e in logs if e["event"] == "processor.waiting_for_end"]

    told = run(main())
    assert len(told) in (3, 4)
    assert {event["here"] for event in told} == {"partition 1"}


@pytest.mark.parametrize("method", ["partitions", "end", "start"])
def test_a_source_that_never_answers_is_named(method: str) -> None:
    async def hang(*_: Any) -> None:
        await anyio.sleep_forever()

    async def main() -> None:
        clock = VirtualClock("a")
        source = type("Hanging", (MemorySource,), {method: hang})(1)
        store = Store(MemoryStore(clock=clock), clock=clock)
        await Processor(Double, source=source, container=store, clock=clock, nudges=Nudges()).run(until_end=True)

    with pytest.raises(errors.ActorprocError, match=rf"{method}\(\) of the source has not (answered|ended)"):
        run(main())
