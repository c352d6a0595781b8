"""What a host tells of its work and its failures: in its statistics, its log and its heartbeat."""

from __future__ import annotations

import re
from typing import cast

import anyio
import structlog

from actorproc import Batch, PartitionContext, Processor, Site
from actorproc.group.heartbeat import read_heartbeats
from actorproc.host.running import Done
from actorproc.layout import ProcessorLayout
from actorproc.store import Store
from actorproc.stores.memory import Memory
from tests.processor.doubling import QUICK, Double, _partitions, fed


async def test_what_a_host_has_done_is_known_when_it_has_stopped() -> None:
    class Poisoned(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                if record.json() == 3:
                    ctx.dead_letter(record, "three")
                else:
                    ctx.emit(record, {"n": record.json()})

    processor = Processor(Poisoned, name="Double", source=fed(), container=Store(Memory()), **QUICK)
    with structlog.testing.capture_logs() as logs:
        await processor.run(until_end=True)
    supervisor = processor.statistics().supervisor
    assert supervisor is not None
    assert supervisor.done == Done(records=40, rows=36, dead_letters=4)
    told = [log for log in logs if log["event"] == "processor.dead_letters"]
    assert {log["log_level"] for log in told} == {"warning"}
    assert sum(log["new"] for log in told) == told[-1]["since_start"] == 4
    assert sum(log["errors"]["DeadLetter"] for log in told) == 4
    assert re.fullmatch(r"[0-3]:3 DeadLetter: three", told[-1]["latest"])


async def test_dead_letters_are_told_once_in_a_renew_interval_however_many_there_are() -> None:
    class Poisoned(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                ctx.dead_letter(record, "always")
            await ctx.commit()

    store, source = Store(Memory()), fed(4)
    with structlog.testing.capture_logs() as logs:
        settings = {**QUICK, "lease_renew_interval": 100, "lease_expiration_interval": 1000, "dead_letter_limit": 1}
        async with Processor(Poisoned, name="Double", source=source, container=store, **settings) as processor:
            for _ in range(5):
                before = sum(p.dead_letters for p in _partitions(processor))
                source.append("0", [b"1"])
                with anyio.fail_after(60):
                    while sum(p.dead_letters for p in _partitions(processor)) <= before:
                        await anyio.sleep(0.01)
    assert len([log for log in logs if log["event"] == "processor.dead_letters"]) == 1, "when it stops"


async def test_statistics_tell_of_a_partition_that_fails_also_while_it_waits_to_start_again() -> None:
    class Half(Double):
        async def opened(self, ctx: Site) -> None:
            if ctx.partition == "0":
                raise RuntimeError("no such table")

    async with Processor(Half, source=fed(partitions=2), container=Store(Memory()), **QUICK) as processor:
        with anyio.fail_after(60):
            while {p.partition: p.state for p in _partitions(processor)} != {"0": "waiting", "1": "running"}:
                await anyio.sleep(0.001)
        errors_told = [p.error for p in _partitions(processor)]
    assert "no such table" in errors_told[0]
    assert errors_told[1] is None


async def test_a_heartbeat_shows_the_beginning_of_a_long_error() -> None:
    class Fails(Double):
        async def opened(self, ctx: Site) -> None:
            raise RuntimeError("x" * 10_000)

    store = Store(Memory())
    async with Processor(Fails, name="Double", source=fed(1), container=store, **QUICK):
        failing: dict[str, str] = {}
        with anyio.fail_after(60):
            while not failing:
                await anyio.sleep(0.01)
                for beat, _ in await read_heartbeats(store, ProcessorLayout("Double")):
                    failing = cast("dict[str, str]", beat.statistics["failing"])
    assert failing["0"].partition(": ")[2].startswith("RuntimeError: xxx")
    assert failing["0"].endswith("xxx ...")
    assert len(failing["0"]) < 700
