"""Shows the demo: a live picture on a terminal, lines otherwise; then the result."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from actorproc.demo.check import Answer, Letters, pairs
from actorproc.demo.data import CarrierDelay, Truth
from actorproc.demo.folder import DemoFolder
from actorproc.demo.watch import Watcher
from actorproc.runtime.clock import SYSTEM

LINE_EVERY = 2.5
"""Seconds between two lines where there is no terminal."""

RATE_OVER = 3.0
"""Seconds over which a rate is averaged."""


class Stage:
    """Shows the demo while it runs.

    Args:
        hosts: their names.
        total: events in all.
    """

    def __init__(
        self,
        console: Console,
        watcher: Watcher,
        hosts: Sequence[str],
        total: int,
    ) -> None:
        self.sent = 0
        self.killed: set[str] = set()
        self._console = console
        self._watcher = watcher
        self._hosts = hosts
        self._total = total
        self._start = SYSTEM.monotonic()
        self._samples: deque[tuple[float, dict[str, int]]] = deque()
        self._next_line = 0.0
        self._live: Live | None = None

    @contextmanager
    def live(self) -> Iterator[None]:
        """While inside, a terminal shows the picture below the story."""
        if not self._console.is_terminal:
            yield
            return
        with Live(self._picture(), console=self._console, auto_refresh=False, transient=False) as self._live:
            yield
        self._live = None

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return SYSTEM.monotonic() - self._start

    def say(self, text: str, style: str = "") -> None:
        """One more line of the story, with its time."""
        self._console.print(Text.assemble((f"{self.elapsed:6.1f} s  ", "dim"), (text, style)), soft_wrap=True)

    def alert(self, host: str, text: str) -> None:
        """An error that a host logged."""
        self.say(f"{host}: {text}", "red")

    def refresh(self) -> None:
        """Show the present state of the watcher."""
        now = self.elapsed
        self._samples.append((now, dict(self._watcher.records)))
        while len(self._samples) > 2 and self._samples[1][0] <= now - RATE_OVER:
            self._samples.popleft()
        if self._live is not None:
            self._live.update(self._picture(), refresh=True)
        elif now >= self._next_line:
            self.say(self._line())
            self._next_line = now + LINE_EVERY

    def rate(self, host: str) -> float:
        """Records that `host` commits per second."""
        (since, before), (now, after) = self._samples[0], self._samples[-1]
        return (after.get(host, 0) - before.get(host, 0)) / (now - since) if now > since else 0.0

    def _line(self) -> str:
        w = self._watcher
        owners = " | ".join(
            f"{host} " + ("killed" if host in self.killed else ",".join(w.owned(host)) or "-") for host in self._hosts
        )
        rate = sum(map(self.rate, self._hosts))
        return f"sent {self.sent:,}  committed {w.committed:,} ({rate:,.0f}/s)  lag {self._lag:,}  partitions: {owners}"

    @property
    def _lag(self) -> int:
        return max(0, self.sent - self._watcher.committed)

    def _picture(self) -> RenderableType:
        w = self._watcher
        grid = Table(box=None, pad_edge=False, header_style="dim")
        grid.add_column("partition", min_width=17)
        for partition in w.partitions:
            grid.add_column(partition, justify="center", width=2)
        for title in ("commits", "events", "events/s"):
            grid.add_column(title, justify="right", min_width=8)
        for host in self._hosts:
            killed = host in self.killed
            name = Text.assemble(host, ("  kill -9" if killed else "", "bold red"))
            marks = [self._mark(host, partition) for partition in w.partitions]
            rate = f"{self.rate(host):,.0f}" if self._samples else ""
            grid.add_row(
                name, *marks, f"{w.commits[host]:,}", f"{w.records[host]:,}", rate, style="dim" if killed else ""
            )
        bars = Table.grid(padding=(0, 2))
        for title, done in (("sent", self.sent), ("committed", w.committed)):
            bars.add_row(title, ProgressBar(self._total, done, width=50), f"{done:,} of {self._total:,}")
        bars.add_row("lag", "", f"{self._lag:,}")
        bars.add_row("dead letters", "", f"{w.dead_letters:,}")
        return Group(Rule(style="dim"), grid, Text(), bars)

    def _mark(self, host: str, partition: str) -> Text:
        lease = self._watcher.leases.get(partition)
        if lease is None or host not in (lease.owner, lease.next):
            return Text("·", "dim")
        if lease.next == host:
            return Text("→", "yellow")
        return Text("✗", "red") if host in self.killed else Text("●", "green")


def result(truth: Truth, spark: Answer) -> Table:
    """Spark's table beside the table computed from the CSV."""
    table = Table(title="Departure delay by carrier, New York 2013", title_justify="left", box=SIMPLE_HEAD,
                  show_footer=True, padding=0, pad_edge=False, collapse_padding=True)  # fmt: skip
    mine, theirs = sum(c.flights for c in spark.carriers), sum(c.flights for c in truth.carriers)
    table.add_column("")
    table.add_column("carrier", "all", no_wrap=True)
    for title, total in (("Spark", mine), ("CSV", theirs)):
        table.add_column(f"{title}:\nflights", f"{total:,}", justify="right")
        table.add_column("\nmean delay", justify="right")
    table.add_column("\nequal", justify="right")
    for expected, found in pairs(truth.carriers, spark.carriers):
        name = next(line.name for line in (found, expected) if line)
        carrier = next(line.carrier for line in (found, expected) if line)
        equal = Text("yes", "green") if expected == found else Text("NO", "bold red")
        table.add_row(carrier, name, *_cells(found), *_cells(expected), equal)
    return table


def _cells(line: CarrierDelay | None) -> tuple[str, str]:
    return (f"{line.flights:,}", f"{line.mean:.6f}") if line else ("-", "-")


def verdict(truth: Truth, spark: Answer, letters: Letters, faults: Sequence[str]) -> list[Text]:
    """Lines that say whether the check holds, and if not, all reasons."""
    if faults:
        reasons = [Text(f"  - {fault}", "red") for fault in faults]
        return [Text("NOT EQUAL: the check failed.", "bold red"), *reasons]
    types = ", ".join(f"{kind} {count:,}" for kind, count in sorted(letters.types.items()))
    sum_ = f"{spark.rows:,} rows + {letters.count:,} dead letters ({types}) = {truth.events:,} events"
    return [
        Text("EQUAL: Spark's table is the one computed straight from the CSV.", "bold green"),
        Text(f"  {sum_}; no (partition, _sequence) occurs twice."),
    ]


def table_verdict(polars: Answer, version: int, faults: Sequence[str]) -> list[Text]:
    """Lines that say whether the Delta table is the output."""
    if faults:
        reasons = [Text(f"  - {fault}", "red") for fault in faults]
        return [Text("NOT EQUAL: the table is not the output.", "bold red"), *reasons]
    flights = sum(line.flights for line in polars.carriers)
    return [
        Text("EQUAL: the table has the same flights and delays for each carrier.", "bold green"),
        Text(f"  {polars.rows:,} rows, {flights:,} flights, version {version} of the table."),
    ]


def show_next(console: Console, folder: DemoFolder) -> None:
    """The contents of the folder, and commands to try next."""
    console.print(f"\n[bold]{folder.path}/ stays[/] (until the next run):", highlight=False)
    width = max(len(path) for path, _ in folder.contents())
    for path, what in folder.contents():
        console.print(f"  {path:{width}}  [dim]{what}[/]", soft_wrap=True, highlight=False)
    console.print("\n[bold]Try next:[/]")
    for command, what in folder.next_steps():
        console.print(f"  [dim]# {what}[/]", highlight=False)
        console.print(Text(f"  {command}", "cyan"), soft_wrap=True)
