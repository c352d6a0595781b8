"""Rows per second from the log through `ctx.emit` and committed output into a table that a stream fills.

A backlog, one host and one Spark on this machine. The stream reads while the host works. The table also shows the host
alone, and the stream alone over the finished output. Times include start and end of the host.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio
from rich.console import Console
from rich.table import Table

from benchmarks.backlog import make_backlog
from benchmarks.processes import only_warnings
from benchmarks.spark.chain import PARTITIONS, Chain
from benchmarks.spark.session import CORES, session

INTERVAL = 1.0
COMMIT_INTERVAL = "1s"


def run(events: int = 1_000_000, rounds: int = 5) -> None:
    """Print the table."""
    only_warnings()
    with session() as spark, tempfile.TemporaryDirectory(prefix="actorproc-bench-") as name:
        folder = Path(name)
        anyio.run(make_backlog, folder / "warm" / "log", 10_000, PARTITIONS)
        _both(spark, folder / "warm", 10_000)
        anyio.run(make_backlog, folder / "log", events, PARTITIONS)
        seconds: dict[str, list[float]] = {"host alone": [], "stream alone": [], "both at once": []}
        for turn in range(rounds):
            here = folder / f"{turn}"
            for case in ("apart", "both"):
                (here / case).mkdir(parents=True)
                (here / case / "log").symlink_to(folder / "log")
            host, stream = _apart(spark, here / "apart", events)
            seconds["host alone"].append(host)
            seconds["stream alone"].append(stream)
            seconds["both at once"].append(_both(spark, here / "both", events))
            shutil.rmtree(here)
    table = Table(
        title=f"{events:,} JSON events, {PARTITIONS} partitions, folder store, {CORES} cores, median of {rounds}"
    )
    for heading in ("from emit to table", "rows/s", "lowest, highest", "of the host alone", "lowest, highest"):
        table.add_column(heading, justify="left" if heading.startswith("from") else "right")
    for case, took in seconds.items():
        rates = sorted(events / each for each in took)
        ratios = sorted(a / b for a, b in zip(seconds["host alone"], took, strict=True))
        table.add_row(
            case, f"{statistics.median(rates):,.0f}", f"{rates[0]:,.0f}, {rates[-1]:,.0f}",
            f"{statistics.median(ratios):.2f}", f"{ratios[0]:.2f}, {ratios[-1]:.2f}",
        )  # fmt: skip
    Console().print(table)


def _apart(spark: Any, folder: Path, events: int) -> tuple[float, float]:
    """Seconds of the host, then of the stream."""
    chain = Chain(folder)
    began = time.time()
    with chain.host("--until-end", commit_interval=COMMIT_INTERVAL) as host:
        host.wait()
    served = time.time()
    with chain.stream(spark, INTERVAL) as query:
        return served - began, chain.wait_for(events, query) - served


def _both(spark: Any, folder: Path, events: int) -> float:
    """Seconds from the start of the host until all is in the table."""
    chain = Chain(folder)
    began = time.time()
    with chain.host(commit_interval=COMMIT_INTERVAL):
        chain.wait_for_host()
        with chain.stream(spark, INTERVAL) as query:
            return chain.wait_for(events, query) - began


if __name__ == "__main__":
    run()
