"""`actorproc demo`: a year of flights through three hosts, one of them killed, into Spark; checked against the CSV."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from actorproc.cli.parameters import between

_ALL = 336_776


def demo(
    events: Annotated[
        int,
        typer.Option(parser=between(5_000, _ALL), metavar="N", help="Number of departures, from January 1 on."),
    ] = _ALL,
    record: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Record the live picture as an animated SVG.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only check the output of the last run, in demo-data.")
    ] = False,
) -> None:
    """See it work: a year of flights through three hosts into Spark.

    336,776 real departures become events in 8 partitions. Three host processes compute the delays. One of them is
    killed with -9 midway, and the others take over. Spark sums up the output, and the demo compares that with the same table
    computed from the CSV: exit code 1 if they differ.

    \b
      actorproc demo                   # under three minutes
      actorproc demo --events 40000    # a shorter one
      actorproc demo --check           # check it once more
      actorproc demo --record demo.svg

    Empties ./demo-data first and keeps it afterwards. Needs Java 17 or newer.
    """
    from actorproc.cli.workers import PARENT_PIPE, command_line
    from actorproc.demo.main import run_demo

    if not run_demo(None if check else events, serve=command_line(["serve"]), lifeline=PARENT_PIPE, record=record):
        raise typer.Exit(1)
