"""Handoff of stateful partitions under load: two partitions of 100,000 keys each, one moves to a second host.

The gap is the time from the last batch on the old owner to the first one on the new one. No record may come twice.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import ClassVar

import anyio
from rich.console import Console
from rich.table import Table

from actorproc import Batch, PartitionContext, PartitionHandler, Processor
from actorproc.testing import MemorySource

_SECONDS = 20.0
"""How long records come after the second host has joined."""


class Counts(PartitionHandler):
    """Counts by key, and notes each batch."""

    calls: ClassVar[list[tuple[float, str, str, int, int]]] = []
    """When, on which host, of which partition, first and last sequence."""

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        self.calls.append((time.monotonic(), ctx.host, ctx.partition, batch.first, batch.last))
        for key in batch.values:
            ctx.state.set(key or b"", ctx.state.get(key or b"", 0) + 1)


def run(keys: int = 100_000, rounds: int = 3) -> None:
    """Print the gap of each round."""
    table = Table("keys", "gap, s", "records again", "records", title="handoff of a stateful partition under load")
    for _ in range(rounds):
        Counts.calls.clear()
        with tempfile.TemporaryDirectory() as folder:
            anyio.run(_handoff, Path(folder), keys)
        table.add_row(f"{keys:,}", f"{_gap():.2f}", str(_again()), f"{sum(1 + c[4] - c[3] for c in Counts.calls):,}")
    Console().print(table)


async def _handoff(folder: Path, keys: int) -> None:
    source = MemorySource(2)
    for partition in "01":
        source.append(partition, [b"key %d" % n for n in range(keys)])

    def host(name: str) -> Processor:
        return Processor(Counts, name="counts", source=source, container=str(folder), host=name)

    async with host("a"):
        while sum(1 + last - first for *_, first, last in Counts.calls) < 2 * keys:
            await anyio.sleep(0.1)
        await anyio.sleep(6)  # a commit
        async with host("b"):
            until = time.monotonic() + _SECONDS
            while time.monotonic() < until:
                for partition in "01":
                    source.append(partition, [b"key %d" % (time.monotonic_ns() % keys) for _ in range(20)])
                await anyio.sleep(0.02)


def _gap() -> float:
    """Seconds without a batch of the partition that has moved."""
    for partition in "01":
        theirs = [call for call in Counts.calls if call[2] == partition]
        if moved := [call for call in theirs if call[1] == "b"]:
            return moved[0][0] - max(call[0] for call in theirs if call[1] == "a" and call[0] < moved[0][0])
    return float("nan")


def _again() -> int:
    """Records that were handled more than once."""
    counts = Counter((c[2], sequence) for c in Counts.calls for sequence in range(c[3], c[4] + 1))
    return sum(count > 1 for count in counts.values())
