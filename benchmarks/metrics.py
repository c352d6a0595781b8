"""What metrics cost: a host with and without its HTTP server, which Prometheus' own parser scrapes 20 times a second.

The host has one core, the scraper another one. `/metrics` has series for each partition. Runs alternate, and what
neighbouring runs differ by is the cost of their scrapes. A scrape a second would cost less than two runs of the same
work differ by, so there are twenty, and a twentieth of their cost is the result: the median of the pairs.
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
EVERY = 0.05
"""Seconds between two scrapes. Prometheus' default is a minute."""

BAR = 0.02
"""Most CPU time that a scrape each second may cost, as a share of a core: as much throughput as a busy host loses."""


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
    pairs: list[tuple[float, float, int]] = []
    most_series = 0
    with tempfile.TemporaryDirectory(prefix="actorproc-bench-") as name:
        folder = Path(name)
        anyio.run(make_backlog, folder / "log", events, PARTITIONS)
        for number in track(range(rounds), "processing", console=console, transient=True):
            without, _ = measure(folder / "log", folder / f"without-{number}", None, cores)
            served, series = measure(folder / "log", folder / f"served-{number}", port, cores)
            pairs.append((without, served, len(series)))
            most_series = max(most_series, *series)
    cost = [(served - without) / scrapes for without, served, scrapes in pairs]
    off, on, scrapes = (statistics.median(values) for values in zip(*pairs, strict=True))
    table = Table(title=f"{events:,} events, {PARTITIONS} partitions, one core")
    for heading in (
        "events per CPU second", f"scraped each {EVERY:g} s", "scrapes a run", "series",
        "CPU of a scrape, ms", "lowest, highest", "cost of one a second", "bar",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    median = statistics.median(cost)
    table.add_row(
        f"{events / off:,.0f}", f"{events / on:,.0f}", f"{scrapes:.0f}", str(most_series),
        f"{median * 1e3:.1f}", f"{min(cost) * 1e3:.1f}, {max(cost) * 1e3:.1f}",
        f"[{'green' if median <= BAR else 'red'}]{median:.1%}[/]", f"<= {BAR:.0%}",
    )  # fmt: skip
    console.print(table)


if __name__ == "__main__":
    run()
