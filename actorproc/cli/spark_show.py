"""Shows a Spark query: its settings at the start, then its progress as a live table on a terminal or as log lines."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from actorproc.cli.streams import warn
from actorproc.cli.terminal import SafeConsole, counted
from actorproc.runtime.clock import SYSTEM
from actorproc.runtime.logger import get_logger
from actorproc.spark.progress import Lag, Progress

logger = get_logger(__name__)

_LINE_EVERY = 10.0  # seconds between log lines, if there is something new
_TABLE_EVERY = 2.0  # seconds between updates of the live table
_TICK = 0.25
_CONSOLE = "ConsoleTable"  # Spark's name for it


@dataclass(slots=True)
class Totals:
    """Sums over all micro-batches since the start. `seconds`: their duration. `latest`: Spark's latest report."""

    batches: int = 0
    rows: int = 0
    seconds: float = 0.0
    late: int = 0
    latest: Progress | None = None
    batch: Progress | None = None
    """The latest micro-batch."""

    def add(self, progress: Progress) -> None:
        """Add one of Spark's reports."""
        self.latest = progress
        if progress.ran:
            self.batches += 1
            self.rows += progress.rows
            self.seconds += progress.seconds
            self.late += progress.late
            self.batch = progress


def show_started(facts: Mapping[str, str], options: Mapping[str, str]) -> None:
    """Show the query and Spark's options: as a block on a terminal, otherwise as a log line."""
    if not sys.stderr.isatty():
        logger.info("spark.started", **facts, options=dict(options))
        return
    lines = [f"  {name:<12}{value}" for name, value in facts.items()]
    lines += ["  Spark's options (override with --conf NAME=VALUE):"]
    lines += [f"    {name}={value}" for name, value in options.items()]
    for line in lines:
        warn(line)


class Display:
    """Shows the totals until it is cancelled.

    On a terminal it is a table that is updated in place, unless Spark's console sink prints there, too.

    Args:
        query: MODULE:FUNCTION.
        lag: reads the lag; returns None if it is unknown.
    """

    def __init__(self, query: str, totals: Totals, lag: Callable[[], Awaitable[Lag | None]]) -> None:
        self._query = query
        self._totals = totals
        self._lag = lag

    async def run(self) -> None:
        totals, last = self._totals, Totals()
        while totals.latest is None:  # it names the sink
            await SYSTEM.sleep(_TICK)
        live = sys.stderr.isatty() and _CONSOLE not in totals.latest.sink
        every = _TABLE_EVERY if live else _LINE_EVERY
        console = SafeConsole(stderr=True)
        with Live(console=console, auto_refresh=False) if live else nullcontext() as table:
            due = SYSTEM.monotonic()
            while True:
                first = not last.batches and totals.batches  # the first micro-batch is shown at once
                if first or SYSTEM.monotonic() >= due:
                    lag, due = await self._lag(), SYSTEM.monotonic() + every
                    figures = self._figures(last, lag)
                    if table is not None:
                        table.update(self._table(figures), refresh=True)
                    elif totals.batches > last.batches or (lag is not None and lag.rows):
                        number = totals.batch.batch if totals.batch else None
                        logger.info("spark.progress", query=self._query, batch=number, **figures)
                    last = Totals(totals.batches, totals.rows, totals.seconds)
                await SYSTEM.sleep(_TICK)

    def _figures(self, last: Totals, lag: Lag | None) -> dict[str, float | None]:
        """By their names in the log; None: unknown."""
        totals = self._totals
        return {
            "batches": totals.batches,
            "rows": totals.rows,
            "late_rows_dropped": totals.late,
            "rows_per_second": _rate(totals, last),
            "batch_seconds": round(totals.batch.seconds, 3) if totals.batch else None,
            "lag_rows": lag.rows if lag else None,
            "lag_seconds": round(lag.seconds, 1) if lag else None,
        }

    def _table(self, figures: Mapping[str, float | None]) -> Table:
        heads = (Column(name.replace("_", " "), justify="right") for name in figures)
        table = Table("query", *heads, box=SIMPLE_HEAD)
        table.add_row(
            Text(self._query, style="bold"), *("-" if found is None else f"{found:,}" for found in figures.values())
        )
        return table


def _rate(totals: Totals, last: Totals) -> float | None:
    """Rows per second of the micro-batches since `last`; if there was none, of the latest one."""
    rows, seconds = totals.rows - last.rows, totals.seconds - last.seconds
    if not seconds and totals.batch:
        rows, seconds = totals.batch.rows, totals.batch.seconds
    return round(rows / seconds, 1) if seconds else None


def summary(query: str, totals: Totals, restarts: int, seconds: float) -> str:
    """The last line of the command."""
    again = f", started again {counted(restarts, 'time')}" if restarts else ""
    batches = "micro-batch" if totals.batches == 1 else "micro-batches"
    late = f"; behind the watermark, Spark dropped {counted(totals.late, 'late row')}" if totals.late else ""
    return f"{query}: {counted(totals.rows, 'row')} in {totals.batches:,} {batches}, in {seconds:.1f} s{again}{late}"
