"""`python -m tests.simulation`: runs the simulated cluster seed by seed until an invariant is violated."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections import Counter
from functools import partial
from typing import Annotated

import structlog
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from actorproc.simulation.loop import SimulationError, current_loop
from tests.simulation.scenario import STREAMS, Result, simulate
from tests.simulation.styles import STYLES

console = Console()

_FAULTS = {
    "crash": "processes killed",
    "pause": "processes paused (2 to 200 s)",
    "stop": "processes stopped by a signal",
    "start": "processes started",
    "lost_request": "requests lost",
    "lost_reply": "replies lost (write applied)",
    "late_write": "writes applied 1 to 90 s late",
    "slow": "requests answered after 1 to 8 s",
    "busy": "times of 503 SlowDown",
    "outage": "outages of the store",
    "cut": "hosts cut off from the store, their heartbeat or the group",
    "lost_nudge": "nudges lost",
    "source_error": "reads of the source that failed",
    "clock_set": "wall clocks set by up to an hour",
    "new_partition": "partitions that appeared",
    "split": "partitions that split",
    "merge": "pairs of partitions that merged",
    "forgotten": "partitions that the source forgot, processed or not",
    "dropped_consumer": "consumers of queues whose connection was lost",
    "broker_restart": "restarts of the broker of queues",
    "redelivered": "messages of queues that came back to the broker",
    "lost_acknowledgement": "acknowledgements lost",
    "pause_act": "pauses of partitions, asked by operators",
    "drain": "hosts drained",
    "move": "partitions moved to a host",
    "reset": "resets, of one or more partitions",
    "undo": "resets undone",
    "command_killed": "commands killed midway, and run again later",
    "growth": "logs that grew to twice their partitions",
    "producer": "processes started that append to the log",
}
_CHECKED = {
    "acknowledged": "records acknowledged to producers: once in the log, at the acknowledged place",
    "sent": "records sent to the log: at most once in the log",
    "records": "records: each ended once, with the expected result",
    "lost": "records lost with at-most-once delivery, all in flight",
    "rows": "rows",
    "dead_letters": "dead letters",
    "commits": "commits: without gaps, never overwritten",
    "ends": "partitions that ended: the last commit, before all that follow them",
    "refused": "commits refused, because another host had committed",
    "resets": "resets of a partition: once, repeating and skipping what was announced",
    "promises": "commits by the handler that were durable when they returned",
    "purged": "files of dead letters purged while hosts ran",
    "calls": "handler calls: by the host that holds the lease",
    "moves": "leases that moved",
    "expired": "members removed as dead, rightly",
    "left": "members that left",
}


app = typer.Typer(add_completion=False)


@app.command()
def main(
    seeds: Annotated[int, typer.Option(help="Number of seeds.", min=1)] = 200,
    seed: Annotated[int | None, typer.Option(help="Run this seed alone, with the log of all hosts.")] = None,
    first: Annotated[int, typer.Option(help="The first seed.")] = 0,
    hours: Annotated[float, typer.Option(help="Virtual hours for each seed.", min=0.01)] = 1.0,
    hosts: Annotated[int, typer.Option(help="Hosts at the start; some come, some go.", min=1)] = 5,
    partitions: Annotated[int, typer.Option(help="Partitions at the start.", min=1)] = 6,
    style: Annotated[str | None, typer.Option(help="Style of handler for all seeds, such as 'map'.")] = None,
    stream: Annotated[str | None, typer.Option(help="Kind of stream for all seeds, such as 'log'.")] = None,
) -> None:
    """Play a cluster in virtual time, with crashes, pauses, failing stores and wrong clocks, and check that output,
    dead letters, checkpoints and leases keep the promises of the protocol. A seed that fails is printed, and plays the
    same again by itself."""
    if style is not None and style not in STYLES:
        raise typer.BadParameter(f"{style!r} is not a style; the styles are: {'; '.join(STYLES)}", param_hint="--style")
    if stream is not None and stream not in STREAMS:
        kinds = "; ".join(STREAMS)
        raise typer.BadParameter(f"{stream!r} is not a kind of stream; these are: {kinds}", param_hint="--stream")
    play = partial(simulate, hours=hours, hosts=hosts, partitions=partitions, style=style, stream=stream)
    if seed is not None:
        _log_with_virtual_time()
        _report([play(seed)], 0.0)
        return
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    results, begun = [], time.perf_counter()
    columns = TextColumn("seed {task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(str(first), total=seeds)
        for number in range(first, first + seeds):
            progress.update(task, description=str(number))
            try:
                results.append(play(number))
            except (SimulationError, ExceptionGroup) as error:
                progress.stop()
                _report(results, time.perf_counter() - begun)
                console.print(f"\n[bold red]Seed {number} breaks:[/] {error}", highlight=False)
                options = f"--seed {number} --hours {hours:g} --hosts {hosts} --partitions {partitions}"
                options += f" --style '{style}'" if style else ""
                options += f" --stream {stream}" if stream else ""
                console.print(f"Play it again, with its log: python -m tests.simulation {options}", soft_wrap=True)
                raise typer.Exit(1) from None
            gc.collect()  # a cluster's files are few objects, so Python would leave gigabytes of them for later
            progress.advance(task)
    _report(results, time.perf_counter() - begun)


def _report(results: list[Result], seconds: float) -> None:
    injected: Counter[str] = sum((result.injected for result in results), Counter())
    seen: Counter[str] = sum((result.seen for result in results), Counter())
    hours = sum(result.seconds for result in results) / 3600
    converged = sorted(second for result in results for second in result.converged)
    table = Table("what", "how often", title=f"{len(results)} seeds, {hours:.1f} cluster-hours", title_style="bold")
    table.columns[1].justify = "right"
    played = Counter(result.style for result in results)
    for name in filter(played.get, STYLES):
        table.add_row(f"clusters whose handler is of the style '{name}'", f"{played[name]:,}")
    for name, label in STREAMS.items():
        table.add_row(f"clusters that read {label}", f"{sum(result.stream == name for result in results):,}")
    table.add_section()
    for name, label in _FAULTS.items():
        table.add_row(label, f"{injected[name]:,}")
    for name in sorted(name for name in injected if name.startswith("ended: ")):
        table.add_row(f"processes that {name}, and started anew", f"{injected[name]:,}")
    table.add_section()
    for name, label in _CHECKED.items():
        table.add_row(label, f"{seen[name]:,}")
    if converged:
        table.add_section()
        table.add_row("seconds to converge after the last fault, median", f"{converged[len(converged) // 2]:.0f}")
        table.add_row("the longest", f"{converged[-1]:.0f}")
    console.print(table)
    if seconds:
        console.print(f"{seconds:.0f} s; {hours * 3600 / seconds:,.0f} virtual seconds a second")


def _log_with_virtual_time() -> None:
    def stamp(logger: object, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        event["at"] = f"{current_loop().now:.3f}"
        return event

    render = structlog.processors.KeyValueRenderer(key_order=["at", "event", "host", "partition"], drop_missing=True)
    structlog.configure(processors=[stamp, structlog.processors.format_exc_info, render])


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # a seed also decides the order of sets
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    app()
