"""One of two hosts is killed: how long its partitions wait, and which records come twice. For a source's benchmark.

Records are numbered, and record n goes to partition n modulo the number of partitions. A row counts once it is where
the next program finds it: in the output, or in the file to which a host appends.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pyarrow.dataset import dataset
from rich.console import Console
from rich.table import Table

from actorproc import Batch, PartitionContext, PartitionHandler, Settings

W = TypeVar("W")

EVERY = 0.1  # seconds between two requests of the feed
RECORDS = 10  # of a request and partition
EXPIRATION, RENEW, ACQUIRE = 20.0, 5.0, 5.0
SETTLING = 45.0  # seconds until both hosts read, and no partition moves any more
PATIENCE = 120.0  # seconds after which a step counts as failed

spawn = multiprocessing.get_context("spawn")


class Row(NamedTuple):
    """A record that a host has processed, and when (seconds since 1970)."""

    n: int
    host: str
    at: float


Rows = Callable[[Path], list[Row]]
Host = Callable[[str, W, str], None]
"""Runs the host of this name on the stream at this place, until it is killed. Its files are in the folder."""

Feed = Callable[[W, Any, Any], None]
"""Sends records to the stream, and adds them to a shared number, until an event is set."""


class Notes(PartitionHandler):
    """A row per record, with the host and the time."""

    output_schema = "n bigint, host string, at double"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.emit(record, {"n": record.json()["n"], "host": ctx.host, "at": time.time()})


def settings() -> Settings:
    """The timers of a host."""
    timers = {"lease_renew_interval": RENEW, "lease_acquire_interval": ACQUIRE, "lease_expiration_interval": EXPIRATION}
    return Settings(**timers)


def rows_of_output(folder: Path) -> list[Row]:
    """The rows of hosts that run `Notes`, with the folder as their container."""
    output = folder / "Notes" / "output"
    table = dataset(output, format="parquet").to_table(["n", "host", "at"]) if output.exists() else None
    return [] if table is None else [Row(**row) for row in table.to_pylist()]


def note(folder: Path, host: str, numbers: Sequence[int]) -> None:
    """Append rows to the host's file, as durable as those of the others."""
    with (folder / f"{host}.jsonl").open("a") as file:
        file.writelines(json.dumps(Row(n, host, time.time())) + "\n" for n in numbers)


def rows_of_notes(folder: Path) -> list[Row]:
    """The rows of hosts that `note`."""
    lines = [line for file in folder.glob("*.jsonl") for line in file.read_text().splitlines(keepends=True)]
    return [Row(*json.loads(line)) for line in lines if line.endswith("\n")]


class Result(NamedTuple):
    """Seconds from the kill to the next row of each of the dead host's partitions; rows too many, records too few."""

    waits: Sequence[float]
    repeated: int
    lost: int


def killed(host: Host[W], rows: Rows, feed: Feed[W], place: W, folder: Path, partitions: int) -> Result:
    """Kill a host, and wait until all records are rows."""
    sent, stop = spawn.Value("q", 0), spawn.Event()
    first, second = (spawn.Process(target=host, args=(name, place, str(folder)), daemon=True) for name in ("a", "b"))
    feeder = spawn.Process(target=feed, args=(place, sent, stop), daemon=True)
    processes: list[BaseProcess] = [feeder, first, second]
    try:
        feeder.start()
        first.start()
        wait_until(lambda: len(rows(folder)) > 0)
        second.start()
        time.sleep(SETTLING)
        first.kill()
        at = time.time()
        owners = {row.n % partitions: row.host for row in sorted(rows(folder), key=lambda row: row.at)}
        dead = {partition for partition, owner in owners.items() if owner == "a"}
        wait_until(lambda: dead <= {row.n % partitions for row in rows(folder) if row.host == "b" and row.at > at})
        stop.set()
        feeder.join()
        wait_until(lambda: {row.n for row in rows(folder)} >= set(range(sent.value)))
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()
    found = rows(folder)
    numbers = [row.n for row in found]
    taken = [row for row in found if row.host == "b" and row.at > at]
    waits = [min(row.at for row in taken if row.n % partitions == partition) - at for partition in dead]
    return Result(waits, len(numbers) - len(set(numbers)), sent.value - len(set(numbers)))


def wait_until(condition: Callable[[], bool]) -> None:
    """Raises TimeoutError: it does not become true within PATIENCE."""
    give_up = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > give_up:
            raise TimeoutError(f"a step has taken longer than {PATIENCE:g} s")
        time.sleep(0.5)


def show(found: Mapping[str, Sequence[Result]], partitions: int) -> None:
    """Print the table: all rounds of each program together."""
    table = Table("program", "seconds until taken over", "repeated", "lost", title="kill -9")
    for program, results in found.items():
        waits = [wait for result in results for wait in result.waits]
        repeated, lost = (", ".join(str(result[field]) for result in results) for field in (1, 2))
        table.add_row(program, f"{min(waits):.1f} to {max(waits):.1f}", repeated, lost)
    console = Console()
    console.print(table)
    rate = partitions * RECORDS / EVERY
    console.print(f"Expiration {EXPIRATION:g} s, acquire interval {ACQUIRE:g} s; {rate:g} records a second.")
