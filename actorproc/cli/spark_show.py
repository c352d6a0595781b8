"""How a Spark query gets on: a live table on a terminal, log lines otherwise, and what was set at the start."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from actorproc.cli.terminal import counted
from actorproc.runtime.clock import SYSTEM
from actorproc.runtime.logger import get_logger
from actorproc.spark.progress import Lag, Progress

log = get_logger(__name__)

_LINE_EVERY = 10.0  # seconds between log lines, if there is news
_TABLE_EVERY = 2.0  # the same, of the live table
_TICK = 0.25
_CONSOLE = "ConsoleTable"  # Spark's name for it


@dataclass(slots=True)
class Figures:
    """What a query did since the start; `seconds` that its micro-batches took. `latest`: Spark's latest report."""

    batches: int = 0
    rows: int = 0
    seconds: float = 0.0
    late: int = 0
    latest: Progress | None = None
    batch: Progress | None = None
    """The latest micro-batch."""

    def note(self, progress: Progress) -> None:
        """Take in one of Spark's reports."""
        self.latest = progress
        if progress.ran:
            self.batches += 1
            self.rows += progress.rows
            self.seconds += progress.seconds
            self.late += progress.late
            self.batch = progress


def say_started(facts: Mapping[str, str], told: Mapping[str, str]) -> None:
    """What runs, and what Spark was told: a block on a terminal, a log line otherwise."""
    if not sys.stderr.isatty():
        log.info("spark.started", **facts, told=dict(told))
        return
    lines = [f"  {name:<12}{value}" for name, value in facts.items()]
    lines += ["  Spark was told (--conf NAME=VALUE tells it otherwise):"]
    lines += [f"    {name}={value}" for name, value in told.items()]
    typer.echo("\n".join(lines), err=True)


class Show:
    """Shows figures until it is cancelled: on a terminal as a table that stays where it is, unless Spark's console sink prints
    there, too.

    Args:
        query: its name.
        lag: reads how far behind it is; None: not known.
    """

    def __init__(self, query: str, figures: Figures, lag: Callable[[], Awaitable[Lag | None]]) -> None:
        self._query = query
        self._figures = figures
        self._lag = lag

    async def run(self) -> None:
        figures, last = self._figures, Figures()
        while figures.latest is None:  # which tells of the sink
            await SYSTEM.sleep(_TICK)
        live = sys.stderr.isatty() and _CONSOLE not in figures.latest.sink
        every = _TABLE_EVERY if live else _LINE_EVERY
        console = Console(stderr=True, highlight=False)
        with Live(console=console, auto_refresh=False) if live else nullcontext() as table:
            due = SYSTEM.monotonic()
            while True:
                first = not last.batches and figures.batches  # the first micro-batch is shown at once
                if first or SYSTEM.monotonic() >= due:
                    lag, due = await self._lag(), SYSTEM.monotonic() + every
                    if table is not None:
                        table.update(self._table(last, lag), refresh=True)
                    elif figures.batches > last.batches or (lag is not None and lag.rows):
                        self._line(last, lag)
                    last = Figures(figures.batches, figures.rows, figures.seconds)
                await SYSTEM.sleep(_TICK)

    def _line(self, last: Figures, lag: Lag | None) -> None:
        figures = self._figures
        log.info(
            "spark.progress",
            query=self._query,
            batch=figures.batch.batch if figures.batch else None,
            batches=figures.batches,
            rows=figures.rows,
            late_rows_dropped=figures.late,
            rows_per_second=_rate(figures, last),
            batch_seconds=round(figures.batch.seconds, 3) if figures.batch else None,
            lag_rows=lag.rows if lag else None,
            lag_seconds=round(lag.seconds, 1) if lag else None,
        )

    def _table(self, last: Figures, lag: Lag | None) -> Table:
        figures = self._figures
        late = [f"{figures.late:,}"] if figures.late else []
        heads = (
            "batches",
            "rows",
            *("late, dropped" for _ in late),
            "rows per second",
            "last batch",
            "lag, rows",
            "lag, seconds",
        )
        table = Table("query", *(Column(head, justify="right") for head in heads), box=SIMPLE_HEAD)
        rate = _rate(figures, last)
        table.add_row(
            Text(self._query, style="bold"),
            f"{figures.batches:,}",
            f"{figures.rows:,}",
            *late,
            "-" if rate is None else f"{rate:,.0f}",
            f"{figures.batch.seconds:.1f} s" if figures.batch else "-",
            f"{lag.rows:,}" if lag else "-",
            f"{lag.seconds:,.0f}" if lag else "-",
        )
        return table


def _rate(figures: Figures, last: Figures) -> float | None:
    """Rows per second of the micro-batches since `last`; of the latest one, if there was none."""
    rows, seconds = figures.rows - last.rows, figures.seconds - last.seconds
    if not seconds and figures.batch:
        rows, seconds = figures.batch.rows, figures.batch.seconds
    return round(rows / seconds, 1) if seconds else None


def summary(query: str, figures: Figures, restarts: int, seconds: float) -> str:
    """The last line."""
    again = f", started again {counted(restarts, 'time')}" if restarts else ""
    batches = "micro-batch" if figures.batches == 1 else "micro-batches"
    late = f"; behind the watermark, Spark dropped {counted(figures.late, 'late row')}" if figures.late else ""
    return f"{query}: {counted(figures.rows, 'row')} in {figures.batches:,} {batches}, in {seconds:.1f} s{again}{late}"
