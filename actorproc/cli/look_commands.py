"""The commands that look at a processor, its output or its store. Each calls one function of another module."""

from __future__ import annotations

from typing import Annotated

import typer

from actorproc.cli.parameters import (
    Config,
    Container,
    Json,
    MaybeLog,
    MaybeSource,
    Name,
    Partition,
    Set,
    SourceOption,
    StartFrom,
    count,
    location,
    not_negative,
    positive,
)

app = typer.Typer()


@app.command()
def status(
    name: Name,
    container: Container,
    source: MaybeSource = None,
    source_option: SourceOption = None,
    start_from: StartFrom = None,
    as_json: Json = False,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every two seconds, until Ctrl-C.")] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Show what the next rebalance would change, and why. Changes nothing.")
    ] = False,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Show hosts, partitions, committed positions and lag.

    \b
      actorproc status --name Delays --container state --source events
      actorproc status --name Delays --container state --watch
      actorproc status --name Delays --container state --json | jq .partitions
      actorproc status --name Delays --container state \\
          --source kafka://broker/flights --start-from kafka-group:delays

    With --start-from it shows where partitions without a checkpoint would begin, also before the first start.
    """
    from actorproc.cli.common import opened_processor
    from actorproc.cli.status import run

    opened = opened_processor(
        name, container, config, settings, source_options=source_option, may_be_new=start_from is not None
    )
    run(opened, source, start_from, as_json, watch, plan)


@app.command()
def explain(
    partition: Annotated[str, typer.Argument(metavar="PARTITION", help="Name of the partition, such as 3.")],
    name: Name,
    container: Container,
    source: MaybeSource = None,
    source_option: SourceOption = None,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Explain one partition: where it is and why, its lag, the cause, and the remedy.

    \b
      actorproc explain 3 --name Delays --container state
      actorproc explain 3 --name Delays --container state --source events

    The lag is the one that the partition's host reports. With --source it is the one that the source tells now, also
    when no host runs.
    """
    from actorproc.cli.common import opened_processor
    from actorproc.cli.top import explain_one

    opened = opened_processor(name, container, config, settings, source_options=source_option)
    explain_one(opened, partition, source)


@app.command()
def trace(
    record: Annotated[str, typer.Argument(metavar="PARTITION:SEQUENCE", help="The record, such as 3:1042.")],
    name: Name,
    container: Container,
    source: MaybeSource = None,
    source_option: SourceOption = None,
    as_json: Json = False,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Show the outcome of a record: its commits, its rows, its dead letter, and the record itself.

    \b
      actorproc trace 3:1042 --name Delays --container state
      actorproc trace 3:1042 --name Delays --container state --json | jq .passes
    """
    from actorproc.cli.common import opened_processor
    from actorproc.cli.trace import run

    run(opened_processor(name, container, config, settings, source_options=source_option), record, source, as_json)


@app.command()
def top(
    name: Name,
    container: Container,
    every: Annotated[
        float, typer.Option("--every", parser=positive, metavar="SECONDS", help="Time between two looks.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look once and end.")] = False,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Watch hosts and partitions, the worst first, until Ctrl-C. Cheap also for thousands of partitions.

    \b
      actorproc top --name Delays --container state
    """
    from actorproc.cli.common import opened_processor
    from actorproc.cli.top import run

    run(opened_processor(name, container, config, settings), every, once)


@app.command()
def dashboard(
    container: Container,
    http: Annotated[
        str,
        typer.Option("--http", metavar="HOST:PORT", help="Where to listen. Other than loopback needs a token."),
    ] = "127.0.0.1:8600",
    config: Config = None,
    settings: Set = None,
) -> None:
    """Serve the dashboard of all processors in a container, until Ctrl-C.

    \b
      actorproc dashboard --container state
      actorproc dashboard --container s3://logs/state --http :8600

    Replaying and purging dead letters needs the token ACTORPROC_HTTP_TOKEN. Reading needs a token unless the address
    is a loopback one.
    """
    from actorproc.cli.dashboard import run

    run(container, http, config, settings)


@app.command()
def output(
    name: Name,
    container: Container,
    limit: Annotated[
        int | None,
        typer.Option(parser=count, metavar="N", help="Only the N newest rows. Default: 20, or all with --json."),
    ] = None,
    all_rows: Annotated[bool, typer.Option("--all", help="All rows.")] = False,
    partition: Partition = None,
    as_json: Json = False,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Show the newest committed rows, by partition and sequence.

    \b
      actorproc output --name Delays --container state
      actorproc output --name Delays --container state --limit 5
      actorproc output --name Delays --container state --json > rows.jsonl

    The rows are Parquet files, so Spark, DuckDB, Polars and Trino can read CONTAINER/PROCESSOR/output directly. After
    `actorproc compact`, read them with this command or actorproc.spark.
    """
    from actorproc.cli.common import opened_processor
    from actorproc.cli.show_output import run

    run(opened_processor(name, container, config, settings), limit, all_rows, partition, as_json)


@app.command()
def doctor(
    url: Annotated[
        str, typer.Argument(metavar="URL", callback=location, help="A container or log, such as s3://bucket/prefix.")
    ],
    name: Annotated[
        str | None, typer.Option(metavar="PROCESSOR", help="Try its sinks, too: those of --sink and the settings.")
    ] = None,
    sink: Annotated[
        list[str] | None, typer.Option(metavar="NAME=URL", help="A sink to try, with --name; repeatable.")
    ] = None,
    sink_option: Annotated[
        list[str] | None, typer.Option(metavar="NAME.OPTION=VALUE", help="An option of a sink; repeatable.")
    ] = None,
    as_json: Json = False,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Check that a store is safe to use, property by property, and that sinks would take rows.

    \b
      actorproc doctor state
      actorproc doctor state --name Delays --sink db=postgresql://me@db/flights
      actorproc doctor s3://bucket/state --set s3_endpoint=http://127.0.0.1:9000

    Writes a few small objects below the URL and deletes them. With the setting schema_registry it also lists the
    subjects there. Exit code 1 if a property does not hold, the registry does not answer, or a
    sink is wrong or away. A sink is tried without leaving rows; in a SQL database all is rolled back.
    """
    from actorproc.cli.doctor import run

    run(url, as_json, config, settings, name, (sink, sink_option))


@app.command()
def cost(
    hosts: Annotated[int, typer.Option(parser=count, metavar="N", help="Hosts that run.")] = 1,
    partitions: Annotated[int, typer.Option(parser=count, metavar="N", help="Partitions of the source.")] = 8,
    records: Annotated[
        float, typer.Option(parser=not_negative, metavar="N", help="Records per second, over all partitions.")
    ] = 0.0,
    no_log: Annotated[
        bool, typer.Option("--no-log", help="The source is no built-in log: it costs no requests to the store.")
    ] = False,
    linger: Annotated[
        float, typer.Option(parser=positive, metavar="SECONDS", help="How long the log's producer collects records.")
    ] = 0.2,
    state: Annotated[bool, typer.Option("--state", help="The handler keeps state.")] = False,
    as_json: Json = False,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Compute requests and their price per month on S3. Nothing is opened.

    \b
      actorproc cost --hosts 3 --partitions 64
      actorproc cost --hosts 3 --partitions 64 --records 1000
      actorproc cost --hosts 3 --partitions 64 --records 1000 \\
          --set commit_interval=30s --set poll_interval=5s

    Settings are those of the environment, the file and --set. Hosts, partitions and timers cost; records hardly do.
    """
    from actorproc.admin.cost import Load
    from actorproc.cli.cost import run

    load = Load(
        hosts=hosts, partitions=partitions, records=records, log=not no_log, linger=linger, state=state
    )  # fmt: skip
    run(load, as_json, config, settings)


@app.command()
def verify(
    name: Name,
    container: Container,
    log: MaybeLog = None,
    source_option: SourceOption = None,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Repair what is safe: dead letters that a commit still has, and heartbeats."),
    ] = False,
    as_json: Json = False,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Read everything that is stored, and list missing and altered objects.

    \b
      actorproc verify --name Delays --container state
      actorproc verify --name Delays --container state --log events
      actorproc verify --name Delays --container state --repair

    Checks checksums, numbering, sequences and totals of every commit, the published dead letters, the checkpoints, and
    with --log every segment of the log. Hosts may run meanwhile. Exit code 1 if anything is damaged and not repaired.
    """
    from actorproc.cli.common import opened_processor
    from actorproc.cli.verify import run

    run(opened_processor(name, container, config, settings), log, source_option, repair, as_json)
