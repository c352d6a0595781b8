"""One host with very many partitions of an empty log, on the folder store, in real time.

Goals: 10,000 partitions run within 60 s, take 40 KiB each, and use less than 10 % of a core while idle.
"""

from __future__ import annotations

import gc
import tempfile
import time
from pathlib import Path

import anyio
from rich.console import Console
from rich.table import Table

from actorproc import Batch, PartitionContext, PartitionHandler, Processor, Producer
from benchmarks.processes import resident


class Nothing(PartitionHandler):
    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        pass


def run(partitions: int = 10_000, idle_seconds: float = 20) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory(prefix="actorproc-bench-") as folder:
        anyio.run(_measure, Path(folder), partitions, idle_seconds)


async def _measure(folder: Path, partitions: int, idle_seconds: float) -> None:
    console = Console()
    log = str(folder / "log")
    async with Producer(log, partitions=partitions):
        pass  # which creates it
    # The longest pause of the event loop is a line of the table, not of the log.
    processor = Processor(Nothing, source=log, container=str(folder / "state"), loop_block_warning=30)
    table = Table(title=f"{partitions:,} partitions of an empty log on one host, folder store")
    for heading in ("what", "measured", "bar"):
        table.add_column(heading, justify="left" if heading == "what" else "right")

    gc.collect()
    held, began, cpu_before = resident(), time.perf_counter(), time.process_time()
    with console.status("starting"):
        async with processor:
            longest = 0.0
            while _running(processor) < partitions:
                looked = time.perf_counter()
                await anyio.sleep(0.5)
                longest = max(longest, time.perf_counter() - looked - 0.5)
            seconds, cpu = time.perf_counter() - began, time.process_time() - cpu_before
            table.add_row("until all run", _coloured(seconds, 60 * partitions / 10_000, "s"), "<= 60 s for 10,000")
            table.add_row("CPU until all run", f"{cpu:.1f} s", "")
            table.add_row("longest pause of the event loop meanwhile", f"{longest:.1f} s", "")
            gc.collect()
            each = (resident() - held) / 1024 / partitions
            table.add_row("memory for each", _coloured(each, 40, "KiB"), "<= 40 KiB")

            console.print(f"all run; idle for {idle_seconds:g} s")
            await anyio.sleep(5)  # the first look at everything is over
            began, cpu_before = time.perf_counter(), time.process_time()
            await anyio.sleep(idle_seconds)
            share = 100 * (time.process_time() - cpu_before) / (time.perf_counter() - began)
            table.add_row(f"idle, over {idle_seconds:g} s", _coloured(share, 10, "% of a core"), "<= 10 %")
            began, cpu_before = time.perf_counter(), time.process_time()
    table.add_row("until stopped", f"{time.perf_counter() - began:.1f} s", "")
    table.add_row("CPU until stopped", f"{time.process_time() - cpu_before:.1f} s", "")
    requests = processor.statistics().store_requests
    table.add_row("store requests in all", ", ".join(f"{n:,} {verb}" for verb, n in sorted(requests.items())), "")
    console.print(table)
    console.print("What a partition costs before it has work: a claim of its checkpoint, two tasks and their streams.")


def _running(processor: Processor) -> int:
    supervisor = processor.statistics()
    return sum(p.state == "running" for p in supervisor.partitions) if supervisor else 0


def _coloured(value: float, bar: float, unit: str) -> str:
    return f"[{'green' if value <= bar else 'red'}]{value:.1f}[/] {unit}"


if __name__ == "__main__":
    run()
