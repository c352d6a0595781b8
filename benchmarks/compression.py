"""The codec of the log: what `Producer(compression=...)` costs and saves. Codecs take turns; medians.

`produce`: events with keys, sent in columns. `process`: by `JsonRows` into committed output, start and stop included.
`decode`: reading the values alone. One core, folder store.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path

import anyio
import pyarrow as pa
from rich.console import Console
from rich.progress import track
from rich.table import Table

from actorproc import Producer
from benchmarks.backlog import json_events
from benchmarks.floor import values_of
from benchmarks.speed import Typed, product, timed

CODECS = ("zstd", "lz4", "snappy", "none")
PARTITIONS = 8
_SENT = 50_000  # events at once


async def produced(log: Path, codec: str, values: pa.Array, keys: pa.Array, events: int) -> None:
    async with Producer(str(log), partitions=PARTITIONS, compression=codec) as producer:
        for start in range(0, events, _SENT):
            part = slice(start % len(values), start % len(values) + min(_SENT, events - start))
            await producer.send_many(values[part], keys=keys[part])


def decode(log: Path) -> None:
    for path in sorted(log.glob("partition=*/*.parquet")):
        values_of(path)


def run(events: int = 400_000, rounds: int = 5) -> None:
    """Print the table. Pins this process to one core."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    values = pa.array(json_events(), pa.binary())
    keys = pa.array([b"%d" % (i % 4_000) for i in range(len(values))], pa.binary())
    seconds: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    sizes: dict[str, float] = {}
    console = Console()
    with tempfile.TemporaryDirectory(prefix="actorproc-bench-") as name:
        folder = Path(name)
        for number in track(range(rounds), "codecs", console=console, transient=True):
            for codec in CODECS:
                log = folder / f"{codec}-{number}"

                def produce(_: Path, log: Path = log, codec: str = codec) -> None:
                    anyio.run(produced, log, codec, values, keys, events)

                def process(out: Path, log: Path = log) -> None:
                    product(Typed)(log, out)

                def read(_: Path, log: Path = log) -> None:
                    decode(log)

                for step, work in (("produce", produce), ("process", process), ("decode", read)):
                    seconds[codec, step].append(
                        min(timed(work, folder)[0] for _ in range(1 if step == "produce" else 2))
                    )
                sizes[codec] = sum(path.stat().st_size for path in log.glob("partition=*/*.parquet")) / events
    table = Table(title=f"{events:,} JSON events, {PARTITIONS} partitions, one core, median of {rounds}")
    for heading in ("compression", "bytes an event", "produce, events/s", "process, events/s", "decode, ns an event"):
        table.add_column(heading, justify="left" if heading == "compression" else "right")
    for codec in CODECS:
        produce_s, process_s, decode_s = (
            statistics.median(seconds[codec, step]) for step in ("produce", "process", "decode")
        )
        speeds = (f"{events / one:,.0f}" for one in (produce_s, process_s))
        table.add_row(codec, f"{sizes[codec]:.1f}", *speeds, f"{decode_s / events * 1e9:.0f}")
    console.print(table)
