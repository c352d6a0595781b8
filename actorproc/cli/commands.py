"""The commands that run something: `produce`, `serve`, `demo`. Each calls one function of another module."""

from __future__ import annotations

from inspect import signature
from typing import Annotated, Any, Literal

import typer

from actorproc.cli.parameters import Config, Set, between, count, location, one_of, positive
from actorproc.cli.serve_arguments import ServeArguments

app = typer.Typer()

ALL_FLIGHTS = 336_776


@app.command()
def produce(
    file: Annotated[
        str, typer.Argument(metavar="FILE|-", help="Lines or CSV rows, one record each; '-' follows stdin.")
    ],
    log: Annotated[
        str,
        typer.Option(metavar="URL", callback=location, help="The log. With --partitions it is created if missing."),
    ],
    partitions: Annotated[
        int | None,
        typer.Option(
            parser=count,
            metavar="N",
            help="Partition count of a new log (8 is a good start); it can grow to a multiple.",
        ),
    ] = None,
    format_name: Annotated[
        Literal["json", "text", "csv"] | None,
        typer.Option(
            "--format",
            parser=one_of("json", "text", "csv"),
            metavar="json|text|csv",
            help="Default: csv if the name of the file ends in .csv, else json with --key or --timestamp, else text.",
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="JSON field or CSV column that is the key: equal keys stay in order."),
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            help="Field or column that is the time of the record: ISO 8601, or a number since 1970. Default: now.",
        ),
    ] = None,
    from_line: Annotated[
        int, typer.Option(parser=count, metavar="N", help="Pass over the lines before this one; to go on.")
    ] = 1,
    rate: Annotated[
        float | None, typer.Option(parser=positive, metavar="N", help="Records per second, at most.")
    ] = None,
    on_bad_line: Annotated[
        Literal["fail", "keep", "skip"],
        typer.Option(
            parser=one_of("fail", "keep", "skip"),
            metavar="fail|keep|skip",
            help="A line without its key or time, or that does not fit the format, ends the command (fail), is "
            "appended without a key (keep), or is left out (skip).",
        ),
    ] = "fail",
    config: Config = None,
    settings: Set = None,
) -> None:
    """Append the lines of a file to a log. A retried append never repeats a record.

    \b
      actorproc produce --log events --partitions 8 --key tail flights.jsonl
      actorproc produce --log events --timestamp hour flights.csv
      tail -f access.log | actorproc produce --log events -

    An existing log, as in the last examples, needs no --partitions.
    JSON and text lines are appended as they are, CSV rows as JSON objects.
    Running the command twice appends everything twice.
    """
    from actorproc.cli.produce import run

    run(file, log, partitions, format_name, key, timestamp, from_line, rate, on_bad_line, config, settings)


@app.command()
def serve(**arguments: Any) -> None:
    """Process a stream: one host, or several on this machine. Hosts of one --name share the partitions.

    \b
      actorproc serve app:Delays --source events --container state
      actorproc serve app:Delays --source events --container state --workers 4
      actorproc serve app:Delays --source s3://logs/flights --container s3://state
      export ACTORPROC_SOURCE=events ACTORPROC_CONTAINER=state
      actorproc serve app:Delays --until-end
      actorproc serve app:Delays --spark app:counts --spark-checkpoint spark/c
      actorproc serve actorproc.handlers:JsonRows -o 'output_schema=tail string'

    SIGTERM or Ctrl-C drains, commits and hands the leases over. A second signal aborts. The default timers suit a
    fleet, which notices a dead host after a minute. For a trial on a laptop set shorter ones in actorproc.toml.
    """
    from actorproc.cli.serve import run

    run(ServeArguments(**arguments))


serve.__signature__ = signature(ServeArguments, eval_str=True)  # type: ignore[attr-defined]  # from which Typer reads it


@app.command()
def demo(
    events: Annotated[
        int,
        typer.Option(parser=between(5_000, ALL_FLIGHTS), metavar="N", help="Number of departures, from January 1 on."),
    ] = ALL_FLIGHTS,
    check: Annotated[
        bool, typer.Option("--check", help="Only check the output of the last run, in demo-data.")
    ] = False,
) -> None:
    """See it work: a year of flights through three hosts into Spark.

    336,776 real departures become events in 8 partitions. Three host processes compute the delays. One of them is
    killed with -9 midway, and the others take over. Spark sums up the output, and the demo compares that with the same
    table computed from the CSV: exit code 1 if they differ.

    \b
      actorproc demo                   # under three minutes
      actorproc demo --events 40000    # a shorter one
      actorproc demo --check           # check it once more

    Empties ./demo-data first and keeps it afterwards. Needs Java 17 or newer.
    """
    from actorproc.cli.workers import PARENT_PIPE, command_line
    from actorproc.demo.main import run_demo

    if not run_demo(None if check else events, serve=command_line(["serve"]), lifeline=PARENT_PIPE):
        raise typer.Exit(1)
