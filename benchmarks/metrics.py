"""What metrics cost: a host with and without its HTTP server, which Prometheus' own parser scrapes once a second.

The host has one core, the scraper another one. `/metrics` has series for each partition. Runs alternate; a ratio
compares the CPU time of neighbouring runs, which other programs on the machine hardly change, and the table shows the
median. Start and stop count, too.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import time
import urllib.request
from contextlib import AsyncExitStack
from multiprocessing.synchronize import Event
from pathlib import Path

import anyio
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.progress import track
from rich.table import Table

from actorproc import JsonRows, Processor
from actorproc.server.serving import serving
from benchmarks.backlog import make_backlog
from benchmarks.processes import in_own_process
from tests.servers import free_ports

PARTITIONS = 64
EVERY = 1.0
"""Seconds between two scrapes. Prometheus' default is a minute."""

BAR = 0.02
"""Most CPU time that it may cost, as a share. A host that has its core to itself loses as much throughput."""


class Typed(JsonRows):
    output_schema = "carrier string, origin string, minutes double, id bigint"


def process(log: Path, container: Path, port: int | None, core: int) -> float:
    """CPU seconds of a host until the end of the log."""
    os.sched_setaffinity(0, {core})
    processor = Processor(
        Typed, name="p", source=str(log), container=str(container), host="bench", http_partition_metrics=True
    )

    async def main() -> float:
        async with AsyncExitStack() as stack:
            if port is not None:
                await stack.enter_async_context(serving(processor, "127.0.0.1", port))
            began = time.process_time()
            await processor.run(until_end=True)
            return time.process_time() - began

    return anyio.run(main)


def scrape(port: int, core: int, ended: Event, series: list[int]) -> None:
    """Scrape until told to end. `series`: how many there were at each scrape."""
    os.sched_setaffinity(0, {core})
    while not ended.wait(EVERY):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                text = answer.read().decode()
        except OSError:
            continue  # it does not listen yet, or not any more
        series.append(sum(len(family.samples) for family in text_string_to_metric_families(text)))


def measure(log: Path, container: Path, port: int | None, cores: list[int]) -> tuple[float, list[int]]:
    """CPU seconds of a host, and the number of series in each scrape."""
    with multiprocessing.get_context("spawn").Manager() as manager:
        ended, series = manager.Event(), manager.list()
        scraper = multiprocessing.get_context("spawn").Process(target=scrape, args=(port, cores[1], ended, series))
        if port is not None:
            scraper.start()
        seconds = in_own_process(process, log, container, port, cores[0])
        ended.set()
        if port is not None:
            scraper.join()
        return seconds, list(series)


def run(events: int = 4_000_000, rounds: int = 7) -> None:
    """Print the table."""
    console, cores = Console(), sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        console.print("This takes two cores, and there is one.", style="red")
        return
    (port,) = free_ports(1)
    pairs: list[tuple[float, float]] = []
    scrapes: list[int] = []
    with tempfile.TemporaryDirectory(prefix="actorproc-bench-") as name:
        folder = Path(name)
        anyio.run(make_backlog, folder / "log", events, PARTITIONS)
        for number in track(range(rounds), "processing", console=console, transient=True):
            without, _ = measure(folder / "log", folder / f"without-{number}", None, cores)
            served, series = measure(folder / "log", folder / f"served-{number}", port, cores)
            pairs.append((without, served))
            scrapes += series
    cost = [served / without - 1 for without, served in pairs]
    table = Table(title=f"{events:,} events, {PARTITIONS} partitions, a scrape each {EVERY:g} s, one core")
    for heading in ("events per CPU second", "scraped", "cost", "bar", "lowest and highest", "scrapes", "series"):
        table.add_column(heading, justify="right")
    median = statistics.median(cost)
    table.add_row(
        *(f"{events / statistics.median(seconds):,.0f}" for seconds in zip(*pairs, strict=True)),
        f"[{'green' if median <= BAR else 'red'}]{median:.1%}[/]", f"<= {BAR:.0%}",
        f"{min(cost):.1%}, {max(cost):.1%}", str(len(scrapes)), str(max(scrapes, default=0)),
    )  # fmt: skip
    console.print(table)


if __name__ == "__main__":
    run()
