"""`actorproc produce` against bare loops that read the same lines and write the same Parquet files with pyarrow.

The bare loops commit nothing, retry nothing and sync nothing. One core, the order A B A B ..., ratios of neighbours,
the median of all.
"""

from __future__ import annotations

import gc
import os
import random
import shutil
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import anyio
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import track
from rich.table import Table

from actorproc import Producer
from actorproc.produce.input_formats import JsonLines
from actorproc.produce.input_producer import InputProducer

PARTITIONS = 8


def make_lines(path: Path, events: int) -> None:
    draw = random.Random(7)
    with path.open("wb") as file:
        for i in range(events):
            event = {
                "id": i, "carrier": draw.choice(["AA", "UA", "DL", "B6"]), "origin": draw.choice(["JFK", "EWR", "LGA"]),
                "dest": "LAX", "minutes": float(draw.randint(-20, 300)), "tail": f"N{draw.randint(1, 4000)}",
                "hour": "2013-01-01T05:00:00Z", "order": f"{draw.getrandbits(64):016x}",
            }  # fmt: skip
            file.write(orjson.dumps(event, option=orjson.OPT_APPEND_NEWLINE))


async def produced(lines: Path, out: Path, key: str | None) -> None:
    """The work of the command line, without its progress bar."""
    async with Producer(str(out), partitions=PARTITIONS) as producer:
        with lines.open("rb") as file:
            await InputProducer().run(JsonLines(file, key), producer)


def bare(lines: Path, out: Path, key: str) -> None:
    """Keys, partitions, eight files: a hand-written loop."""
    keys: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    values: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    with lines.open("rb") as file:
        for line in file:
            name = orjson.loads(line)[key].encode()
            partition = zlib.crc32(name) % PARTITIONS
            keys[partition].append(name)
            values[partition].append(line)
    for partition in range(PARTITIONS):
        table = pa.table({"key": pa.array(keys[partition]), "value": pa.array(values[partition])})
        pq.write_table(table, out / f"{partition}.parquet", compression="zstd")


def barest(lines: Path, out: Path) -> None:
    """Values only, dealt out: no key, no JSON."""
    with lines.open("rb") as file:
        values = file.readlines()
    for partition in range(PARTITIONS):
        table = pa.table({"value": pa.array(values[partition::PARTITIONS])})
        pq.write_table(table, out / f"{partition}.parquet", compression="zstd")


def timed(work: Callable[[Path], None], folder: Path) -> float:
    out = Path(tempfile.mkdtemp(dir=folder))
    gc.collect()
    start = time.perf_counter()
    work(out)
    seconds = time.perf_counter() - start
    shutil.rmtree(out)
    return seconds


def run(events: int = 400_000, rounds: int = 5) -> None:
    """Print the table. Pins this process to one core."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    console = Console()
    with tempfile.TemporaryDirectory(prefix="actorproc-bench-") as name:
        folder = Path(name)
        lines = folder / "events.jsonl"
        make_lines(lines, events)
        cases: list[tuple[str, str | None, Callable[[Path], None], float | None]] = [
            ("--key tail (4,000 keys) / keyed loop", "tail", lambda out: bare(lines, out, "tail"), 0.5),
            ("--key order (all differ) / keyed loop", "order", lambda out: bare(lines, out, "order"), 0.5),
            ("--key tail / values only", "tail", lambda out: barest(lines, out), None),
            ("no key / values only", None, lambda out: barest(lines, out), 0.5),
        ]
        size = lines.stat().st_size / events
        table = Table(
            title=f"{events:,} JSON events of {size:.0f} bytes, {PARTITIONS} partitions, folder store, one core, "
            f"median of {rounds}"
        )
        for heading in ("produce / bare writer", "events/s", "bare, events/s", "ratio", "lowest, highest", "bar"):
            table.add_column(heading, justify="left" if heading.startswith("produce") else "right")
        for title, key, loop, bar in cases:
            pairs = []
            for _ in track(range(rounds + 1), title, console=console, transient=True):
                b = timed(loop, folder)
                a = timed(lambda out, key=key: anyio.run(produced, lines, out, key), folder)  # type: ignore[misc]
                pairs.append((a, b))
            pairs = pairs[1:]  # the first one warms caches
            ratios = sorted(b / a for a, b in pairs)
            ours, theirs = (events / statistics.median(p[i] for p in pairs) for i in (0, 1))
            median = statistics.median(ratios)
            colour = "white" if bar is None else "green" if median >= bar else "red"
            table.add_row(
                title, f"{ours:,.0f}", f"{theirs:,.0f}", f"[{colour}]{median:.2f}[/]",
                f"{ratios[0]:.2f}, {ratios[-1]:.2f}", f">= {bar}" if bar else "",
            )  # fmt: skip
        console.print(table)


if __name__ == "__main__":
    run()
