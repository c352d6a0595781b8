"""`actorproc demo`: real departures through three hosts, one killed, into Spark; checked against the raw data."""

from __future__ import annotations

from typing import Annotated

import typer


def demo(
    events: Annotated[
        int,
        typer.Option(min=5_000, max=336_776, help="How many departures, from the first of January on.", metavar="N"),
    ] = 336_776,
    check: Annotated[
        bool, typer.Option("--check", help="Only check what an earlier run left in demo-data (damage it and see).")
    ] = False,
) -> None:
    """See it work: a year of flights through three hosts, one killed with -9, into Spark.

    336,776 real departures become events in 8 partitions. Three host processes compute the delays; one is killed midway, the others take over. Spark sums up the output, beside the same table computed straight from the CSV.

    Exit code 1 if they differ. Works in ./demo-data, which is emptied first and kept. Needs Java 17 or newer.

    \b
      actorproc demo                   under three minutes
      actorproc demo --events 40000    a shorter one
      actorproc demo --check           check the data of the last run again
    """
    from actorproc.cli.workers import PARENT_PIPE, command_line
    from actorproc.demo.main import run_demo

    if not run_demo(None if check else events, serve=command_line(["serve"]), lifeline=PARENT_PIPE):
        raise typer.Exit(1)
