"""Seconds from sending an event until it is in the table, at 10,000 events a second.

Everything runs on this machine: `produce --rate`, a host, a stream. The clock starts when the producer takes the event,
and stops when the event's micro-batch is written. An event waits for its commit (half of `commit_interval` on average,
and the producer's linger), for the next trigger (half of the interval, or the rest of the previous micro-batch), and
for its own micro-batch. Each round runs all cases, each with a log, a host and a stream of its own.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from actorproc import Producer
from benchmarks.processes import only_warnings
from benchmarks.produce import make_lines
from benchmarks.spark.chain import PARTITIONS, Chain, actorproc, until
from benchmarks.spark.session import CORES, session

RATE = 10_000

WARM_UP = 10
"""Seconds of events that do not count."""


class Intervals(NamedTuple):
    """Seconds between two commits of a partition, and between two triggers."""

    commit: float
    trigger: float


CASES = (Intervals(5, 5), Intervals(1, 1), Intervals(0.25, 0.25))


@dataclass
class Latency:
    """Seconds, of each event: `whole` is the sum of the others."""

    commit: np.ndarray
    trigger: np.ndarray
    batch: np.ndarray

    @property
    def whole(self) -> np.ndarray:
        total: np.ndarray = self.commit + self.trigger + self.batch
        return total


def run(seconds: int = 20, cases: tuple[Intervals, ...] = CASES, rounds: int = 5) -> None:
    """Print the table."""
    only_warnings()
    found: dict[Intervals, list[tuple[Latency, float]]] = {case: [] for case in cases}
    with session() as spark, tempfile.TemporaryDirectory(prefix="actorproc-bench-") as name:
        lines = Path(name) / "events.jsonl"
        make_lines(lines, RATE * (WARM_UP + seconds))
        for turn in range(rounds):
            for case in cases:
                folder = Path(name) / f"{turn}-{case.commit:g}-{case.trigger:g}"
                folder.mkdir()
                found[case].append(_measure(spark, folder, lines, RATE * (WARM_UP + seconds), case))
                shutil.rmtree(folder)
    table = Table(
        title=f"{RATE:,} events a second for {seconds} s, {PARTITIONS} partitions, folder store, {CORES} cores; "
        f"seconds, median of {rounds} (lowest, highest)"
    )
    for heading in ("commit, trigger", "p50", "p99", "until committed", "until its trigger", "micro-batch", "events/s"):
        table.add_column(heading, justify="left" if heading.startswith("commit,") else "right")
    for case, measured in found.items():
        took, rates = zip(*measured, strict=True)
        p50, p99 = (_spread([float(np.quantile(each.whole, part)) for each in took]) for part in (0.5, 0.99))
        parts = ([float(np.median(getattr(each, part))) for each in took] for part in ("commit", "trigger", "batch"))
        table.add_row(
            f"{case.commit:g}, {case.trigger:g}", p50, p99, *(_spread(part, bold=False) for part in parts),
            f"{statistics.median(rates):,.0f}",
        )  # fmt: skip
    Console().print(table)


def _spread(seconds: Sequence[float], *, bold: bool = True) -> str:
    """Their median, lowest and highest."""
    middle = f"{statistics.median(seconds):.2f}"
    return f"{f'[bold]{middle}[/]' if bold else middle} ({min(seconds):.2f}, {max(seconds):.2f})"


def _measure(spark: Any, folder: Path, lines: Path, events: int, intervals: Intervals) -> tuple[Latency, float]:
    """What each event took, and events a second as they were sent."""
    chain = Chain(folder)
    anyio.run(_create, chain.log)
    with chain.host(commit_interval=intervals.commit, poll_interval=min(1.0, intervals.commit)):
        chain.wait_for_host()
        with chain.stream(spark, intervals.trigger) as query:
            produce = actorproc("produce", "--log", str(chain.log), "--key", "tail", "--rate", str(RATE), str(lines))
            chain.wait_for(events, query)
            if produce.wait(60):
                raise ChildProcessError(f"produce ended with {produce.returncode}")
            until(lambda: chain.done.keys() <= _triggered(query).keys(), 60, "Spark's report of the last micro-batch")
            began = _triggered(query)
    return _latency(chain, began)


async def _create(log: Path) -> None:
    async with Producer(str(log), partitions=PARTITIONS):
        pass


def _latency(chain: Chain, began: Mapping[int, float]) -> tuple[Latency, float]:
    commits = {path.name: _commits(path) for path in chain.output.iterdir()}
    sent, committed, triggered, done = (
        np.concatenate(part) for part in zip(*_rows(chain, commits, began), strict=True)
    )
    counted = sent >= sent.min() + WARM_UP
    latency = Latency(*(part[counted] for part in (committed - sent, triggered - committed, done - triggered)))
    return latency, len(sent) / (sent.max() - sent.min())


def _rows(
    chain: Chain, commits: Mapping[str, tuple[np.ndarray, np.ndarray]], began: Mapping[int, float]
) -> Iterator[tuple[np.ndarray, ...]]:
    """Of rows of the table: when they were sent, committed, taken by a trigger and done, seconds since 1970."""
    for batch, done in chain.done.items():
        for path in (chain.table / f"batch={batch}").glob("*.parquet"):
            table = pq.read_table(path, columns=["_partition", "_sequence", "sent"], partitioning=None)
            sent = table["sent"].cast(pa.timestamp("us")).cast(pa.int64()).to_numpy() / 1e6
            partitions, sequences = table["_partition"].to_numpy(), table["_sequence"].to_numpy()
            committed = np.zeros(len(sent))
            for name in np.unique(partitions):
                last, times = commits[f"partition={name}"]
                own = partitions == name
                committed[own] = times[np.searchsorted(last, sequences[own])]
            yield sent, committed, np.full(len(sent), began[batch]), np.full(len(sent), done)


def _commits(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Of each commit of a partition: its last sequence, and when it was made."""
    footers = [pq.read_metadata(path).metadata[b"actorproc.commit"] for path in sorted(folder.glob("*.parquet"))]
    commits = [orjson.loads(footer) for footer in footers]
    return np.array([each["next"][1] for each in commits]), np.array([each["time"] for each in commits])


def _triggered(query: Any) -> dict[int, float]:
    """Micro-batch -> when its trigger came, in seconds since 1970. (Triggers that found nothing report, too.)"""
    run = [each for each in query.recentProgress if "addBatch" in each["durationMs"]]
    return {each["batchId"]: datetime.fromisoformat(each["timestamp"]).timestamp() for each in run}


if __name__ == "__main__":
    run()
