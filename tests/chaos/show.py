"""A run's display: a live picture on a terminal, plain lines otherwise, and the final report."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import quantiles

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tests.chaos.fleet import State
from tests.chaos.run import Report, Scene

LINE_EVERY = 5.0  # seconds
SHOWN_FAULTS = 40

_STYLES = {State.UP: "green", State.PAUSED: "yellow", State.STOPPING: "cyan", State.KILLED: "red"}


class Screen:
    """Shows a run while it goes on."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._next = 0.0
        self._live: Live | None = None

    @contextmanager
    def live(self) -> Iterator[None]:
        """Within this block a terminal shows the picture below the printed lines."""
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, auto_refresh=False) as self._live:
            yield
        self._live = None

    def say(self, text: str) -> None:
        """A line of the story, with its time."""
        line = Text.assemble((f"{time.monotonic() - self._began:6.1f} s  ", "dim"), text)
        self._console.print(line, soft_wrap=True)

    def show(self, scene: Scene) -> None:
        """The state of things, now and then."""
        now = time.monotonic()
        if now < self._next:
            return
        if self._live is not None:
            self._next = now + 0.25
            self._live.update(_picture(scene), refresh=True)
        else:
            self._next = now + LINE_EVERY
            self.say(_line(scene))


def _line(scene: Scene) -> str:
    up = len(scene.fleet.living(range(scene.orders.hosts), State.UP))
    text = f"{scene.phase}: {up} of {scene.orders.hosts} hosts up, {sum(scene.troubles.values())} troubles"
    if scene.status is not None:
        status = scene.status
        members = sum(host.in_group for host in status.hosts)
        text += f", {members} members, {status.counts.records:,} records processed, lag {status.lag or 0:,}"
    for other in scene.beside:
        text += f", {other.line}"
    if scene.fleet.faults:
        text += f", {len(scene.fleet.faults)} FAULTS"
    return text


def _picture(scene: Scene) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("slot", "host", "state", "leases", "partitions"):
        table.add_column(title, no_wrap=title != "partitions")
    partitions = [] if scene.status is None else list(scene.status.partitions.values())
    for child in sorted(scene.fleet.children, key=lambda child: (child.slot, child.born)):
        own = [f"{p.partition}→" if p.next_owner else p.partition for p in partitions if p.owner == child.name]
        state = Text(child.state.value, _STYLES.get(child.state, ""))
        producer = child.slot >= scene.orders.hosts
        table.add_row(str(child.slot), child.name, state, "producer" if producer else str(len(own)), " ".join(own))
    troubles = ", ".join(f"{what} {times}" for what, times in sorted(scene.troubles.items()))
    return Group(table, Text(_line(scene), "bold"), Text(troubles, "dim"))


def show_report(console: Console, report: Report) -> None:
    """The figures, and everything that is not as it must be."""
    verdict, journal = report.verdict, report.journal
    troubles = ", ".join(f"{what} {times}" for what, times in sorted(report.troubles.items()))
    moves = ", ".join(f"{kind} {times:,}" for kind, times in journal.moves.most_common())
    failures = ", ".join(f"{kind} {times:,}" for kind, times in journal.failures.most_common())
    events = ", ".join(f"{name} {times:,}" for name, times in journal.events.most_common(14))
    seconds, partition, number = verdict.stood_still
    waits = quantiles(verdict.waits, n=100) if len(verdict.waits) > 1 else [0.0] * 99
    table = Table(box=None, show_header=False, pad_edge=False)
    for what, text in (
        *(("beside", summary) for summary in report.beside),
        ("trouble", troubles),
        ("processes", f"{report.starts} started"),
        ("records", ", ".join(f"{what} {times:,}" for what, times in verdict.seen.items())),
        ("moves", moves),
        ("partitions failed", failures),
        ("stood still", f"longest {seconds:.1f} s (partition {partition}, until commit {number}); "
                        f"median {waits[49]:.2f} s, 99 % {waits[98]:.1f} s"),
        ("converged", f"{report.converged_in:.1f} s after the last trouble"),
        ("logged", events),
    ):  # fmt: skip
        table.add_row(Text(what, "dim"), text)
    console.print(table, highlight=False)
    for fault in report.faults[:SHOWN_FAULTS]:
        console.print(Text(f"- {fault}", "red"), soft_wrap=True)
    if len(report.faults) > SHOWN_FAULTS:
        console.print(Text(f"and {len(report.faults) - SHOWN_FAULTS} more", "red"))
