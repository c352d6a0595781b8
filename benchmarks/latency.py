"""From `send` to the handler, and through a chain of two processors, at 100 records a second in a folder.

Everything runs in one process: a producer, and one host for each processor.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import ClassVar

import anyio
from rich.console import Console
from rich.table import Table

from actorproc import Batch, PartitionContext, PartitionHandler, Processor, Producer

PARTITIONS = 8


class Timed(PartitionHandler):
    """Notes how old each record is, and emits when it was sent."""

    output_schema = "sent double"
    ages: ClassVar[list[float]] = []

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        now = time.time()
        for record in batch:
            sent = record.json()
            self.ages.append(now - sent)
            ctx.emit(record, (sent,))


class Second(Timed):
    """Follows the output of `Timed`."""

    ages: ClassVar[list[float]] = []

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        now = time.time()
        for record in batch:
            sent = record.json()["sent"]
            self.ages.append(now - sent)
            ctx.emit(record, (sent,))


async def _send(log: str, seconds: float, linger: float, rate: float = 100.0) -> None:
    async with Producer(log, partitions=PARTITIONS, linger=linger) as producer:
        start, sent = time.monotonic(), 0
        while (due := start + sent / rate) < start + seconds:
            await anyio.sleep(max(0.0, due - time.monotonic()))
            await producer.send(repr(time.time()), key=b"%d" % sent)
            sent += 1
        await producer.flush()
        await anyio.sleep(2)  # a producer that has gone tells nobody


async def _measure(folder: Path, seconds: float, linger: float, commit_interval: float, *, chain: bool) -> list[float]:
    log, state = str(folder / "log"), folder / "state"
    Timed.ages.clear()
    Second.ages.clear()
    async with Producer(log, partitions=PARTITIONS):
        pass
    first = Processor(Timed, source=log, container=state, commit_interval=commit_interval)
    async with first:
        if not chain:
            await _send(log, seconds, linger)
            return list(Timed.ages)
        source = f"actorproc+file://{state}/Timed"
        async with Processor(Second, source=source, container=state, commit_interval=commit_interval):
            await _send(log, seconds, linger)
            return list(Second.ages)


def run(seconds: float = 30.0) -> None:
    """Print the table."""
    cases = [
        ("send to handler, defaults", 0.2, 5.0, False, "p50 <= 0.3, p99 <= 0.6"),
        ("send to handler, linger = 0.02", 0.02, 5.0, False, "p50 <= 0.06, p99 <= 0.2"),
        ("send to the second processor, commit_interval = 0.25", 0.2, 0.25, True, "p99 <= 1"),
        ("the same, linger = 0.02", 0.02, 0.25, True, ""),
    ]
    table = Table(title=f"100 records a second, {PARTITIONS} partitions, folder store, {seconds:g} s each")
    for heading in ("way", "records", "p50, s", "p99, s", "bar"):
        table.add_column(heading, justify="left" if heading == "way" else "right")
    for title, linger, interval, chain, bar in cases:
        with tempfile.TemporaryDirectory(prefix="actorproc-bench-") as name:
            ages = anyio.run(lambda: _measure(Path(name), seconds, linger, interval, chain=chain))  # noqa: B023
        ages = ages[200:]  # the first seconds: the reader learns where the producer is
        cut = statistics.quantiles(ages, n=100)
        table.add_row(title, f"{len(ages):,}", f"{cut[49]:.3f}", f"{cut[98]:.3f}", bar)
    Console().print(table)
