"""A full scan of output, as committed and compacted, with Spark's own Parquet reader and with the data source.

The comparison is `spark.read.parquet` over the same rows in well-sized files that Spark wrote. Each round reads all
variants in turn, twice. Ratios are within a round; the table shows their median. All six columns are read, `_partition`
and `_sequence` included. Goals: 0.9 of the well-sized files for compacted output; 0.6 of the native read of the same
files for the data source.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
from rich.console import Console
from rich.table import Table

from benchmarks.processes import only_warnings
from benchmarks.spark.committed import NAME, PARTITIONS, Writer
from benchmarks.spark.session import CORES, session

WELL, NATIVE, SOURCE = "well-sized files", "native", "data source"

COMPACTED_BAR, SOURCE_BAR = 0.9, 0.6

_WARM = 4  # rounds until Java has compiled what runs

Read = Callable[[], Any]
"""Makes a DataFrame."""


def run(rows: int = 2_000_000, rows_per_file: tuple[int, ...] = (5_000, 50_000), rounds: int = 5) -> None:
    """Print a table for each size of files."""
    only_warnings()
    with session() as spark:
        for each in rows_per_file:
            with tempfile.TemporaryDirectory(prefix="actorproc-bench-") as folder:
                _sized(spark, Path(folder), rows, each, rounds)


def _sized(spark: Any, folder: Path, rows: int, each: int, rounds: int) -> None:
    from actorproc.admin import compact
    from actorproc.spark import read_output

    state, well = str(folder / "state"), str(folder / "well-sized")
    writer = Writer(Path(state))
    for _ in range(rows // each // PARTITIONS):
        for partition in range(PARTITIONS):
            writer.commit(partition, each)
    writer.close()

    readers: dict[str, Read] = {
        WELL: lambda: spark.read.parquet(well),
        NATIVE: lambda: read_output(spark, state, NAME, native=True),
        SOURCE: lambda: read_output(spark, state, NAME, native=False),
    }
    readers[NATIVE]().coalesce(2 * CORES).write.parquet(well)
    table = Table(title=f"full scan of {rows:,} rows, {each:,} in a file: median of {rounds}")
    for heading in ("output", "reader", "rows/s", "of well-sized", "of native", "bar"):
        table.add_column(heading, justify="left" if heading in ("output", "reader") else "right")
    _add(table, "as committed", _measured(readers, rounds), rows, None)
    anyio.run(lambda: compact(container=state, name=NAME, older_than=0))
    _add(table, "compacted", _measured(readers, rounds), rows, COMPACTED_BAR)
    Console().print(table)


def _add(table: Table, what: str, seconds: dict[str, list[float]], rows: int, native_bar: float | None) -> None:
    """A line for each reader."""

    def ratio(reader: str, of: str, bar: float | None) -> str:
        """As a share of the speed of `of`."""
        found = statistics.median(a / b for a, b in zip(seconds[of], seconds[reader], strict=True))
        return f"[{'default' if bar is None else 'green' if found >= bar else 'red'}]{found:.2f}[/]"

    def line(reader: str, of_well: str, of_native: str, bar: float | None) -> None:
        speed = f"{rows / statistics.median(seconds[reader]):,.0f}"
        table.add_row(what, reader, speed, of_well, of_native, "" if bar is None else f">= {bar}")

    line(WELL, "1", "", None)
    line(NATIVE, ratio(NATIVE, WELL, native_bar), "1", native_bar)
    line(SOURCE, ratio(SOURCE, WELL, None), ratio(SOURCE, NATIVE, SOURCE_BAR), SOURCE_BAR)


def _measured(readers: dict[str, Read], rounds: int) -> dict[str, list[float]]:
    """Seconds of each reader by round: the lower of two runs, since other users only make a run slower."""
    seconds: dict[str, list[float]] = {name: [] for name in readers}
    for turn in range(_WARM + 2 * rounds):
        for name, read in readers.items():
            began = time.perf_counter()
            read().write.format("noop").mode("overwrite").save()
            if turn >= _WARM:
                seconds[name].append(time.perf_counter() - began)
    return {name: [min(a, b) for a, b in zip(found[::2], found[1::2], strict=True)] for name, found in seconds.items()}


if __name__ == "__main__":
    run()
