"""Commands for processors and logs, with their arguments and help: the public contract. What they do is in what they call."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from actorproc.cli.help import Command, Group
from actorproc.cli.parameters import (
    Config,
    Container,
    Json,
    MaybeSource,
    Name,
    Partition,
    Set,
    Source,
    SourceLog,
    place,
)

app = typer.Typer()
letters = typer.Typer(
    name="dead-letters",
    cls=Group,
    no_args_is_help=True,
    help="""Records that could not be processed: look, send them again, forget.

    \b
      actorproc dead-letters list --name Delays --container state
      actorproc dead-letters show 3:1042 --name Delays --container state
      actorproc dead-letters replay --name Delays --container state
    """,
)


class OnBadLine(StrEnum):
    """What becomes of a line that has no key."""

    FAIL = "fail"
    KEEP = "keep"
    SKIP = "skip"


@app.command(cls=Command)
def produce(
    file: Annotated[
        str, typer.Argument(metavar="FILE.jsonl|-", help="One record a line; '-' reads stdin as it comes.")
    ],
    log: Annotated[
        str,
        typer.Option(
            metavar="URL", callback=place, help="The log; with --partitions it is created if it is not there."
        ),
    ],
    partitions: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="How many, for a log that is created; 8 will do for a start. It keeps its number."
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="FIELD", help="JSON field that is the key: equal keys stay in order.")
    ] = None,
    rate: Annotated[float | None, typer.Option(min=0.001, metavar="N", help="Events per second, at most.")] = None,
    on_bad_line: Annotated[
        OnBadLine,
        typer.Option(
            metavar="fail|keep|skip",
            help="A line without the key field, or that is no JSON, ends it, goes without a key, or is left out.",
        ),
    ] = OnBadLine.FAIL,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Append the lines of a file to a log. A retried append never repeats a record.

    \b
      actorproc produce --log events --partitions 8 --key tail flights.jsonl
      actorproc produce --log s3://bucket/log --partitions 8 --rate 1000 f.jsonl
      tail -f app.log | actorproc produce --log events -

    A log that is there, as in the last example, needs no --partitions.
    Values are the lines as they are, without the newline. Running it twice appends everything twice.
    """
    from actorproc.cli.produce import run

    run(file, log, partitions, key, rate, on_bad_line.value, config, settings)


@app.command(cls=Command)
def serve(
    ctx: typer.Context,
    handler: Annotated[
        str, typer.Argument(metavar="MODULE:CLASS", help="The handler: app:Delays is class Delays of app.py.")
    ],
    source: Source,
    container: Container,
    name: Annotated[
        str | None,
        typer.Option(metavar="PROCESSOR", envvar="ACTORPROC_NAME", help="Name of the processor; default: the class's."),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", envvar="ACTORPROC_HOST", help="Unique; default: this machine's name and process id."
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Run N host processes, NAME-0 and so on; one that dies is started again."
        ),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            metavar="earliest|latest|TIME",
            help="Where to begin without a checkpoint; a time such as 2013-01-01T00:00Z.",
        ),
    ] = "earliest",
    until_end: Annotated[
        bool,
        typer.Option(
            "--until-end",
            help="Stop once everything that is there now is processed and committed; 1 if that cannot be.",
        ),
    ] = False,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            "-o",
            metavar="NAME=VALUE",
            help="An option of the handler's own (its class `Options`), a list or an object as JSON; repeatable.",
        ),
    ] = None,
    spark: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Run it over the rows, too, as a child process; 'app:delays --trigger 5s' with options of `spark`.",
        ),
    ] = None,
    spark_checkpoint: Annotated[
        str | None,
        typer.Option(metavar="URL", callback=place, help="Where Spark notes how far it is; with --spark."),
    ] = None,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Process a stream: one host, or several on this machine. Hosts of one --name share the partitions.

    \b
      actorproc serve app:Delays --source events --container state
      actorproc serve app:Delays --source events --container state --workers 4
      actorproc serve app:Delays --source s3://logs/flights --container s3://state
      export ACTORPROC_SOURCE=events ACTORPROC_CONTAINER=state
      actorproc serve app:Delays --until-end
      actorproc serve app:Delays --spark app:counts --spark-checkpoint spark/c
      actorproc serve actorproc.handlers:JsonRows -o output_schema='tail string'

    SIGTERM or Ctrl-C drains, commits and hands over; a second one aborts. For a trial on a laptop set short timers in
    actorproc.toml (the README has them): the defaults suit a fleet, which notices a death after a minute.
    """
    from actorproc.cli.serve import run

    given = ctx.parent.params if ctx.parent else {}
    root = ["--log-level", given["log_level"], *(["--debug"] if given["debug"] else [])] if given else []
    run(
        handler=handler,
        source=source,
        container=container,
        name=name,
        host=host,
        workers=workers,
        start=start,
        until_end=until_end,
        options=option or [],
        spark=spark,
        spark_checkpoint=spark_checkpoint,
        config=config,
        settings=settings or [],
        root=root,
    )


@app.command(cls=Command)
def status(
    name: Name,
    container: Container,
    source: MaybeSource = None,
    as_json: Json = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every two seconds, until Ctrl-C.")] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="What the next look at the group would change, and why. Changes nothing.")
    ] = False,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Who runs what, how far it is, and what lags.

    \b
      actorproc status --name Delays --container state --source events
      actorproc status --name Delays --container state --watch
      actorproc status --name Delays --container state --source log --json | jq .lag
    """
    from actorproc.cli.status import run

    run(name, container, source, as_json, watch, plan, config, settings)


@app.command(cls=Command)
def output(
    name: Name,
    container: Container,
    limit: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Only the N newest rows. Default: 20, or all with --json."),
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
    from actorproc.cli.output import run

    run(name, container, limit, all_rows, partition, as_json, config, settings)


Kind = Annotated[str | None, typer.Option(metavar="KIND", help="Only this type of error, such as KeyError.")]
Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="[PARTITION:SEQUENCE]...", show_default=False, help="Only these, by their ids in `list`."),
]


@letters.command("list", cls=Command)
def list_letters(
    name: Name,
    container: Container,
    partition: Partition = None,
    kind: Kind = None,
    replayed: Annotated[bool, typer.Option("--replayed", help="Only letters that were replayed.")] = False,
    not_replayed: Annotated[bool, typer.Option("--not-replayed", help="Only letters that were not.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="At most N.")] = None,
    as_json: Json = False,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Show dead letters, by partition and sequence.

    \b
      actorproc dead-letters list --name Delays --container state
      actorproc dead-letters list --name Delays --container state --kind KeyError
      actorproc dead-letters list --name Delays --container state --not-replayed
      actorproc dead-letters list --name Delays --container state --json
    """
    from actorproc.cli.dead_letters import show_all

    show_all(name, container, partition, kind, replayed, not_replayed, limit, as_json, config, settings)


@letters.command("show", cls=Command)
def show_letter(
    letter: Annotated[str, typer.Argument(metavar="PARTITION:SEQUENCE", help="As `list` shows it.")],
    name: Name,
    container: Container,
    as_json: Json = False,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Show one dead letter whole: payload, headers, error and traceback.

    \b
      actorproc dead-letters show 3:1042 --name Delays --container state
    """
    from actorproc.cli.dead_letters import show_one

    show_one(letter, name, container, as_json, config, settings)


@letters.command("replay", cls=Command)
def replay_letters(
    name: Name,
    container: Container,
    ids: Ids = None,
    source: SourceLog = None,
    partition: Partition = None,
    kind: Kind = None,
    as_json: Json = False,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Append dead letters to their log again, each once however often this runs, even if it is killed in between.

    \b
      actorproc dead-letters replay --name Delays --container state
      export ACTORPROC_NAME=Delays ACTORPROC_CONTAINER=state
      actorproc dead-letters replay --kind KeyError
      actorproc dead-letters replay 3:1042 3:1077

    Key, value, timestamp and headers are the original's; headers actorproc.dead_letter.* tell its history.
    The letters stay until they are purged.
    """
    from actorproc.cli.dead_letters import replay

    replay(ids or (), name, container, source, partition, kind, as_json, config, settings)


@letters.command("purge", cls=Command)
def purge_letters(
    name: Name,
    container: Container,
    ids: Ids = None,
    partition: Partition = None,
    kind: Kind = None,
    before: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Only letters older than this, such as 2026-01-31T12:00Z, or a time as `list --json` shows it. Those committed "
            "together go together.",
        ),
    ] = None,
    replayed: Annotated[
        bool,
        typer.Option(
            "--replayed", help="Only letters that were replayed, once all that were committed with them were."
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Forget dead letters for good.

    \b
      actorproc dead-letters purge --name Delays --container state
      actorproc dead-letters purge --name Delays --container state --replayed -y

    Those that no checkpoint has passed yet are kept: it says so, with exit code 1; try again later.
    """
    from actorproc.cli.dead_letters import purge

    purge(ids or (), name, container, partition, kind, before, replayed, yes, as_json, config, settings)


@app.command(cls=Command)
def doctor(
    url: Annotated[
        str, typer.Argument(metavar="URL", callback=place, help="A container or log, such as s3://bucket/prefix.")
    ],
    as_json: Json = False,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Prove that a store is safe to use: each property, what was done, what came back.

    \b
      actorproc doctor state
      actorproc doctor s3://bucket/state --set s3_endpoint=http://127.0.0.1:9000

    Writes a few small objects below the URL and removes them. Exit code 1 if a property does not hold.
    """
    from actorproc.cli.doctor import run

    run(url, as_json, config, settings)


app.add_typer(letters)
