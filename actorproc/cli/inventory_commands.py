"""The commands for whole processors, logs and sources: `processors`, `logs` and `peek`, with their help texts."""

from __future__ import annotations

from typing import Annotated

import typer

from actorproc.cli.parameters import Config, Container, Json, Name, Set, Source, SourceOption, Yes, count, location
from actorproc.cli.usage import Group

app = typer.Typer()
processors = typer.Typer(
    name="processors",
    cls=Group,
    no_args_is_help=True,
    help="""List, describe, rename and delete processors.

    \b
      actorproc processors list --container state
      actorproc processors describe --name Delays --container state
      actorproc processors rename Lateness --name Delays --container state --yes
      actorproc processors delete --name Delays --container state --yes
    """,
)
logs = typer.Typer(
    name="logs",
    cls=Group,
    no_args_is_help=True,
    help="""List, describe, create, grow and delete built-in logs.

    \b
      actorproc logs list s3://streams
      actorproc logs describe s3://streams/events
      actorproc logs create s3://streams/events --partitions 8
      actorproc logs grow s3://streams/events --partitions 16 --yes
      actorproc logs delete s3://streams/events --yes
    """,
)

Log = Annotated[str, typer.Argument(metavar="URL", callback=location, help="The log.")]


@processors.command("list")
def list_processors(container: Container, as_json: Json = False, config: Config = None, settings: Set = None) -> None:
    """List the processors of a container.

    \b
      actorproc processors list --container state
    """
    from actorproc.cli.inventory import show_processors

    show_processors(container, as_json, config, settings)


@processors.command("describe")
def describe_processor(
    name: Name, container: Container, as_json: Json = False, config: Config = None, settings: Set = None
) -> None:
    """Show the source of a processor, the readers of its output, and the size of its stored data.

    \b
      actorproc processors describe --name Delays --container state
    """
    from actorproc.cli.common import opened_processor
    from actorproc.cli.inventory import show_processor

    show_processor(opened_processor(name, container, config, settings), as_json)


@processors.command("rename")
def rename_processor(
    new: Annotated[str, typer.Argument(metavar="NEW", help="The new name.")],
    name: Name,
    container: Container,
    yes: Yes = False,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Give a processor another name: copy its objects, then delete the old ones. No host may be alive.

    \b
      actorproc processors rename Lateness --name Delays --container state
      actorproc processors rename Lateness --name Delays --container state --yes

    If it is interrupted before the new name exists, run it again.
    """
    from actorproc.cli.common import opened_processor
    from actorproc.cli.inventory import rename

    rename(opened_processor(name, container, config, settings), new, yes)


@processors.command("delete")
def delete_processor(
    name: Name, container: Container, yes: Yes = False, config: Config = None, settings: Set = None
) -> None:
    """Delete everything that a processor owns: checkpoints, output, dead letters, state. No host may be alive.

    \b
      actorproc processors delete --name Delays --container state
      actorproc processors delete --name Delays --container state --yes
    """
    from actorproc.cli.common import opened_processor
    from actorproc.cli.inventory import delete

    delete(opened_processor(name, container, config, settings), yes)


@logs.command("list")
def list_logs(
    folder: Annotated[str, typer.Argument(metavar="URL", callback=location, help="Folder or bucket that holds logs.")],
    as_json: Json = False,
    config: Config = None,
    settings: Set = None,
) -> None:
    """List the logs directly below a folder or prefix.

    \b
      actorproc logs list s3://streams
    """
    from actorproc.cli.inventory import show_logs

    show_logs(folder, as_json, config, settings)


@logs.command("describe")
def describe_log(log: Log, as_json: Json = False, config: Config = None, settings: Set = None) -> None:
    """Show the partitions of a log with their ends and sizes, and its registered readers.

    \b
      actorproc logs describe s3://streams/events
    """
    from actorproc.cli.inventory import show_log

    show_log(log, as_json, config, settings)


@logs.command("create")
def create_log(
    log: Log,
    partitions: Annotated[
        int,
        typer.Option(parser=count, metavar="N", help="Partition count (8 is a good start); it can grow."),
    ],
    config: Config = None,
    settings: Set = None,
) -> None:
    """Create an empty log. One that exists with as many partitions stays as it is.

    \b
      actorproc logs create s3://streams/events --partitions 8
    """
    from actorproc.cli.inventory import create

    create(log, partitions, config, settings)


@logs.command("grow")
def grow_log(
    log: Log,
    partitions: Annotated[
        int, typer.Option(parser=count, metavar="N", help="New partition count: a multiple of the present one.")
    ],
    own_partitioner: Annotated[
        bool,
        typer.Option(
            "--own-partitioner",
            help="Producers choose partitions by other means than the hash of the key. Keyed state then goes whole to "
            "each partition that follows.",
        ),
    ] = False,
    yes: Yes = False,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Give a log more partitions. Each partition ends, and others follow it; records of a key stay in order.

    \b
      actorproc logs grow s3://streams/events --partitions 16
      actorproc logs grow s3://streams/events --partitions 16 --yes

    Producers and hosts may run meanwhile, if all of them have this version. If it is interrupted, run it again.
    """
    from actorproc.cli.inventory import grow

    grow(log, partitions, own_partitioner, yes, config, settings)


@logs.command("delete")
def delete_log(log: Log, yes: Yes = False, config: Config = None, settings: Set = None) -> None:
    """Delete a log. Stop its producers first; registered readers must be removed.

    \b
      actorproc logs delete s3://streams/events
      actorproc logs delete s3://streams/events --yes
    """
    from actorproc.cli.inventory import drop_log

    drop_log(log, yes, config, settings)


@app.command()
def peek(
    source: Source,
    source_option: SourceOption = None,
    partition: Annotated[
        list[str] | None, typer.Option("--partition", metavar="P", help="Only this partition; repeatable.")
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="earliest|latest|SEQUENCE|-N|TIME",
            help="Where to begin: latest waits for new records, -N shows the last N of each partition; TIME such as "
            "2013-01-01T00:00Z.",
        ),
    ] = "earliest",
    limit: Annotated[int, typer.Option(parser=count, metavar="N", help="At most N records of each partition.")] = 10,
    as_json: Json = False,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Show records of a source, without a processor. Nothing is committed.

    \b
      actorproc peek --source events
      actorproc peek --source kafka://broker/events --partition 3 --from -5 --json
      actorproc peek --source s3://streams/events --from 2013-01-01T00:00Z

    A SEQUENCE and -N read a partition from its beginning. A queue is refused: its messages would be taken.
    """
    from actorproc.cli.inventory import peek

    peek(source, source_option or [], partition or [], start, limit, as_json, config, settings or [])


app.add_typer(processors)
app.add_typer(logs)
