"""The demo from start to end: what it needs, the play, Spark, the check, and what to try next."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import anyio
from rich.console import Console

from actorproc.demo import DemoFailed
from actorproc.demo.check import ask_spark, count_letters, find_faults
from actorproc.demo.data import data_file, load_departures, truth
from actorproc.demo.needs import check_needs
from actorproc.demo.places import PROCESSOR, Places
from actorproc.demo.play import play
from actorproc.demo.show import Takeover, show_next, show_proof, show_result, show_verdict
from actorproc.demo.watch import Watcher
from actorproc.runtime.tasks import first_cause
from actorproc.storage.names import ProcessorLayout
from actorproc.stores import open_store

FOLDER = Path("demo-data")


def run_demo(count: int | None, *, serve: Sequence[str], lifeline: str) -> bool:
    """Play and check; true if the check holds.

    Args:
        count: events to play; None: only check what the last run left.
        serve: the command that runs a host, without its arguments; `lifeline`: see `Fleet`.

    Raises:
        UsageError: something that it needs is missing. Nothing was touched.
        DemoFailed: it did not get to the check.
    """
    check_needs()
    places = Places(FOLDER)
    sent = places.events() if count is None else places.prepare(count)
    console = Console()

    async def run() -> bool:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_obey_signals)
            takeover = None if count is None else await play(console, places, sent, serve=serve, lifeline=lifeline)
            equal = await _check(console, places, sent, takeover)
            tasks.cancel_scope.cancel()
        return equal

    try:
        equal = anyio.run(run)
    except ExceptionGroup as group:
        raise first_cause(group) from None
    if count is not None:
        show_next(console, places)
    return equal


async def _obey_signals() -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            raise DemoFailed(
                f"interrupted by {signal.Signals(number).name}: stopped what it had started, kept {FOLDER}/"
            )


async def _check(console: Console, places: Places, count: int, takeover: Takeover | None) -> bool:
    """Ask Spark, compare, and say what came out."""
    command = [sys.executable, "-m", "actorproc.demo.spark", str(places.output), str(data_file("airlines.csv"))]
    with console.status("Spark starts") if console.is_terminal else nullcontext():
        console.print(f"\nSpark reads {places.output}/ as plain Parquet, and sums it up:", highlight=False)
        spark = await ask_spark(command, places.logs / "spark.log")
    expected = truth(load_departures(count))
    letters = count_letters(places.dead_letters)
    faults = find_faults(expected, spark, letters)
    show_result(console, expected, spark)
    show_verdict(console, expected, spark, letters, faults)
    if faults:
        return False
    async with open_store(str(places.container)) as store:
        watcher = Watcher(store, ProcessorLayout(PROCESSOR), places.partitions)
        await watcher.look()
    show_proof(console, watcher, takeover)
    return True
