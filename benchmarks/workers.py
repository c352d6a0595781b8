"""Scaling with workers: the same log with `actorproc serve --workers 1` and `--workers 2`, on two cores.

The handler emits row by row, so that Python is the work. The time of the same command over an empty log (interpreters,
group, partitions, end) is shown separately.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import anyio
import orjson
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.backlog import make_backlog

PARTITIONS = 8
SETTINGS = {"rebalance_delay": "100ms"}
"""All workers start at once; with the default the first would work alone for five seconds of a short run."""


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds of the whole command, and of CPU over all of its processes."""

    wall: float
    cpu: float
    by_host: Counter[str]
    """Host -> rows that it committed."""


def serve(log: Path, state: Path, workers: int, cores: Iterable[int]) -> Run:
    """Run the command line until the end of the log."""
    shutil.rmtree(state, ignore_errors=True)
    command = [
        sys.executable, "-m", "actorproc", "serve", "benchmarks.speed:Emit", "--name", "bench", "--host", "bench",
        "--source", str(log), "--container", str(state), "--workers", str(workers), "--until-end",
        *(part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")),
    ]  # fmt: skip
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)  # the command inherits it
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        os.sched_setaffinity(0, allowed)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise ChildProcessError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(wall, cpu, _rows_by_host(state))


def _rows_by_host(state: Path) -> Counter[str]:
    rows: Counter[str] = Counter()
    for path in state.glob("bench/output/*/*.parquet"):
        commit = orjson.loads(pq.read_metadata(path).metadata[b"actorproc.commit"])
        rows[commit["host"]] += commit["rows"]
    return rows


def run(events: int = 2_000_000, rounds: int = 3) -> None:
    """Print the table."""
    console = Console()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        console.print("This takes two cores, and there is one.", style="red")
        return
    cases = [
        ("1 on one core", 1, cores[:1]),
        ("1 on two cores", 1, cores[:2]),
        ("2 on two cores", 2, cores[:2]),
    ]
    with tempfile.TemporaryDirectory(prefix="actorproc-bench-") as name:
        folder = Path(name)
        anyio.run(make_backlog, folder / "log", events, PARTITIONS)
        anyio.run(make_backlog, folder / "empty", 0, PARTITIONS)
        pairs: dict[str, list[tuple[Run, Run]]] = {title: [] for title, _, _ in cases}
        for _ in track(range(rounds), "serving", console=console, transient=True):
            for title, workers, allowed in cases:
                idle, busy = (serve(folder / log, folder / "state", workers, allowed) for log in ("empty", "log"))
                if busy.by_host.total() != events:
                    raise AssertionError(f"{title}: {busy.by_host.total():,} rows of {events:,} events")
                pairs[title].append((idle, busy))
    table = Table(title=f"{events:,} JSON events, {PARTITIONS} partitions, folder store, median of {rounds}")
    for heading in ("workers", "to start", "working", "ratio", "events/s", "per CPU s", "rows, %"):
        table.add_column(heading, justify="left" if heading == "workers" else "right", no_wrap=True)
    alone = [busy.wall - idle.wall for idle, busy in pairs[cases[0][0]]]
    for title, found in pairs.items():
        working = [busy.wall - idle.wall for idle, busy in found]
        seconds, cpu = statistics.median(working), statistics.median(busy.cpu - idle.cpu for idle, busy in found)
        shares = sorted(found[-1][1].by_host.values(), reverse=True)
        table.add_row(
            title,
            f"{statistics.median(idle.wall for idle, _ in found):.1f}", f"{seconds:.1f}",
            f"{statistics.median(one / own for one, own in zip(alone, working, strict=True)):.2f}",
            f"{events / seconds:,.0f}", f"{events / cpu:,.0f}",
            " + ".join(f"{100 * rows / events:.0f}" for rows in shares),
        )  # fmt: skip
    console.print(table)
    console.print(
        "to start, working: seconds. ratio and events/s: of the time spent working. per CPU s: events per second of "
        "CPU that all processes took; as long as it stays, more workers on more cores do more. Parquet is read and "
        "written in threads, so one worker makes some use of a second core; the handler's Python needs a worker per "
        "core."
    )


if __name__ == "__main__":
    run()
