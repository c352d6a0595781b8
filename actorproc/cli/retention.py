"""The commands for retention: readers, trim and compact, with their arguments and help texts."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from actorproc.cli.parameters import (
    Config,
    Container,
    Json,
    MaybeContainer,
    MaybeLog,
    MaybeName,
    Name,
    Set,
    SourceOption,
    location,
)
from actorproc.cli.usage import Group
from actorproc.errors import UsageError


class _OfOne(TyperCommand):
    """A command on either a log or a processor's output."""

    def invoke(self, ctx: Any) -> Any:
        typed = [name for name in ("name", "container", "log") if _is_typed(ctx, name)]
        # Name and container from the environment are for all commands. Typed ones may name the dataset to be trimmed.
        if "log" in typed and len(typed) > 1:
            beside = " and ".join(f"--{name} {ctx.params[name]!r}" for name in typed[:-1])
            raise UsageError(f"--log {ctx.params['log']!r} with {beside}: give either --log, or --name and --container")
        return super().invoke(ctx)


def _is_typed(ctx: Any, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


app = typer.Typer()
readers = typer.Typer(
    name="readers",
    cls=Group,
    no_args_is_help=True,
    help="""List, add and remove the readers of an output or a log. A trim keeps the data that a reader has not read.

    \b
      actorproc readers list --name Delays --container state
      actorproc readers list --log events
    """,
)


@readers.command("list", cls=_OfOne)
def list_readers(
    name: MaybeName = None,
    container: MaybeContainer = None,
    log: MaybeLog = None,
    source_option: SourceOption = None,
    as_json: Json = False,
    config: Config = None,
    settings: Set = None,
) -> None:
    """List the readers with their positions and their lag.

    \b
      actorproc readers list --name Delays --container state
      actorproc readers list --log events

    A processor registers with its source at its start, and `actorproc spark` with the output.
    """
    from actorproc.cli.readers import chosen_dataset, show

    show(chosen_dataset(name, container, log, config, settings, source_option), as_json)


@readers.command("add", cls=_OfOne)
def add_reader(
    reader: Annotated[str, typer.Argument(metavar="READER", help="Name of the new reader.")],
    name: MaybeName = None,
    container: MaybeContainer = None,
    log: MaybeLog = None,
    source_option: SourceOption = None,
    spark: Annotated[
        str | None,
        typer.Option(metavar="URL", callback=location, help="A Spark query, by its checkpointLocation."),
    ] = None,
    processor: Annotated[
        str | None,
        typer.Option(metavar="CONTAINER/NAME", callback=location, help="A processor that could not register itself."),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[PARTITION=]NUMBER",
            help="Another reader, by the number that it reads next: of an output file, or a sequence of a log. Without "
            "PARTITION for all partitions; repeatable. Add the reader again to move it.",
        ),
    ] = None,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Register a reader: a trim keeps the data that it has not read.

    \b
      actorproc readers add table --spark spark/t --name Delays --container state
      actorproc readers add export --at 1200 --name Delays --container state
      actorproc readers add export --at 0=1200 --at 1=950 --log events

    A reader that has not begun, or whose position cannot be read, holds everything.
    """
    from actorproc.cli.readers import add, chosen_dataset

    add(reader, chosen_dataset(name, container, log, config, settings, source_option), spark, processor, at or [])


@readers.command("remove", cls=_OfOne)
def remove_reader(
    reader: Annotated[str, typer.Argument(metavar="READER", help="Its name in `list`.")],
    name: MaybeName = None,
    container: MaybeContainer = None,
    log: MaybeLog = None,
    source_option: SourceOption = None,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Remove a reader: no data is kept for it any more.

    \b
      actorproc readers remove export --name Delays --container state

    A processor that still runs registers again at its next start.
    """
    from actorproc.cli.readers import chosen_dataset, remove

    remove(reader, chosen_dataset(name, container, log, config, settings, source_option))


@app.command(cls=_OfOne)
def trim(
    name: MaybeName = None,
    container: MaybeContainer = None,
    log: MaybeLog = None,
    source_option: SourceOption = None,
    older_than: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Only files older than this, such as 7d; at least 1h.",
        ),
    ] = "1h",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete. Without it nothing is changed.")] = False,
    as_json: Json = False,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Delete the files that every reader has read.

    Without --yes only show them, and the readers that hold other files.

    \b
      actorproc trim --name Delays --container state
      actorproc trim --name Delays --container state --older-than 7d --yes
      actorproc trim --log events --yes

    Check `actorproc readers list` first: a reader that is not registered may find a gap. Dead letters stay. An
    interrupted trim is completed by the next one.
    """
    from actorproc.cli.readers import chosen_dataset
    from actorproc.cli.trim import run

    run(chosen_dataset(name, container, log, config, settings, source_option), older_than, yes, as_json)


@app.command()
def compact(
    name: Name,
    container: Container,
    target_size: Annotated[str, typer.Option(metavar="SIZE", help="Size of the new files.")] = "128MiB",
    older_than: Annotated[str, typer.Option(metavar="TIME", help="Only files older than this.")] = "1h",
    keep: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="How long replaced compacted files stay, for running queries; at least 1h.",
        ),
    ] = "1h",
    at_once: Annotated[
        int,
        typer.Option(
            metavar="NUMBER",
            min=1,
            help="Partitions at a time. Each takes a new file and 150 MiB more of memory.",
        ),
    ] = 2,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan, change nothing.")] = False,
    as_json: Json = False,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Rewrite small committed files into large ones. Readers see each row once at any time.

    \b
      actorproc compact --name Delays --container state --dry-run
      actorproc compact --name Delays --container state

    Originals stay until `actorproc trim --yes` deletes them, an hour later or more. An interrupted run is completed by
    the next one. Two runs at once do no harm: one leaves the partitions that the other works at, with exit code 1.
    """
    from actorproc.cli.compact import run

    run(name, container, target_size, older_than, keep, at_once, dry_run, as_json, config, settings)


app.add_typer(readers)
