"""The commands that keep output and logs from growing for ever: arguments and help. What they do is in `readers`, `trim`, `compact`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from actorproc.cli.help import Command, Group
from actorproc.cli.parameters import Config, Container, Json, MaybeContainer, MaybeLog, MaybeName, Name, Set, place
from actorproc.errors import UsageError


class _OfOne(Command):
    """A command on a log or on a processor's output."""

    def invoke(self, ctx: Any) -> Any:
        typed = [name for name in ("name", "container", "log") if _is_typed(ctx, name)]
        # Of the environment name and container are for all commands; typed, they may be what is meant to lose its files.
        if "log" in typed and len(typed) > 1:
            beside = " and ".join(f"--{name} {ctx.params[name]!r}" for name in typed[:-1])
            raise UsageError(
                f"--log {ctx.params['log']!r} with {beside}: --log names a log, --name and --container the output of a "
                "processor; give one of both"
            )
        return super().invoke(ctx)


def _is_typed(ctx: Any, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


app = typer.Typer()
readers = typer.Typer(
    name="readers",
    cls=Group,
    no_args_is_help=True,
    help="""Who reads an output or a log: nothing is trimmed that one of them has not read.

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
    as_json: Json = False,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Show the readers, what each reads next, and how far it is behind.

    \b
      actorproc readers list --name Delays --container state
      actorproc readers list --log events

    Processors register with the log that they read as they start, and `actorproc spark` with the output.
    """
    from actorproc.cli.readers import show

    show(name, container, log, as_json, config, settings)


@readers.command("add", cls=_OfOne)
def add_reader(
    reader: Annotated[str, typer.Argument(metavar="READER", help="A name for it.")],
    name: MaybeName = None,
    container: MaybeContainer = None,
    log: MaybeLog = None,
    spark: Annotated[
        str | None,
        typer.Option(metavar="URL", callback=place, help="A Spark query: its checkpointLocation, a folder or bucket."),
    ] = None,
    processor: Annotated[
        str | None,
        typer.Option(metavar="CONTAINER/NAME", callback=place, help="A processor, if it could not register by itself."),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[PARTITION=]NUMBER",
            help="Anything else: the number of the output file (of a log: the sequence) that it reads next; "
            "of all partitions, or of one (repeatable). Say it again to move it; partitions that are not named stay.",
        ),
    ] = None,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Register a reader: from now on what it has not read is kept.

    \b
      actorproc readers add table --spark spark/t --name Delays --container state
      actorproc readers add export --at 1200 --name Delays --container state
      actorproc readers add export --at 0=1200 --at 1=950 --log events

    One that cannot be asked how far it is, or has not begun, holds everything.
    """
    from actorproc.cli.readers import add

    add(reader, name, container, log, spark, processor, at or [], config, settings)


@readers.command("remove", cls=_OfOne)
def remove_reader(
    reader: Annotated[str, typer.Argument(metavar="READER", help="As `list` shows it.")],
    name: MaybeName = None,
    container: MaybeContainer = None,
    log: MaybeLog = None,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Forget a reader: nothing is kept for it any more.

    \b
      actorproc readers remove export --name Delays --container state

    A processor that still runs registers again at its next start.
    """
    from actorproc.cli.readers import remove

    remove(reader, name, container, log, config, settings)


@app.command(cls=_OfOne)
def trim(
    name: MaybeName = None,
    container: MaybeContainer = None,
    log: MaybeLog = None,
    older_than: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Only files older than this, such as 7d; at least 1h, in which late writes land and listed files are read.",
        ),
    ] = "1h",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do it. Without it nothing is changed.")] = False,
    as_json: Json = False,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Delete what every reader has read: show what would go, and what holds the rest; with --yes do it.

    \b
      actorproc trim --name Delays --container state
      actorproc trim --name Delays --container state --older-than 7d --yes
      actorproc trim --log events --yes

    See `actorproc readers` first: whoever reads without being registered finds a gap. Published dead letters stay.
    Killed in between, it goes on at its next run.
    """
    from actorproc.cli.trim import run

    run(name, container, log, older_than, yes, as_json, config, settings)


@app.command(cls=Command)
def compact(
    name: Name,
    container: Container,
    target_size: Annotated[
        str,
        typer.Option(
            metavar="SIZE", help="Of the files to make. A task holds one in memory; Spark reads as much in one task."
        ),
    ] = "128MiB",
    older_than: Annotated[
        str, typer.Option(metavar="TIME", help="Leave what is younger: more may come that belongs into the same file.")
    ] = "1h",
    keep: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="How long compacted files stay that were replaced by larger ones, for queries that go on; at least 1h.",
        ),
    ] = "1h",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing, show what would be done.")] = False,
    master: Annotated[
        str | None, typer.Option(metavar="MASTER", help="local[2,4], spark://host:7077; default: all cores here.")
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Any option of Spark's; wins over what is set for you; repeatable."),
    ] = None,
    as_json: Json = False,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Rewrite small committed files into well-sized ones, with Spark. Readers find each row in one place meanwhile.

    \b
      actorproc compact --name Delays --container state --dry-run
      actorproc compact --name Delays --container state
      actorproc compact --name Delays --container state --master spark://host:7077

    The originals stay until `actorproc trim --yes` deletes them, an hour later or more. Run it now and then, an hour apart or a
    day. Killed in between, it goes on at its next run; two at once do no harm, but one gives up the partitions at which the other
    is at work: it names them, with exit code 1. Needs Java 17 or newer and the extra `spark`.
    """
    from actorproc.cli.common import pairs

    try:
        import actorproc.spark  # noqa: F401
    except ImportError as error:  # no PySpark, or an old one
        raise UsageError(str(error)) from None
    from actorproc.cli.compact import run

    run(
        name,
        container,
        target_size,
        older_than,
        keep,
        dry_run,
        master,
        pairs("--conf", conf),
        as_json,
        config,
        settings,
    )


app.add_typer(readers)
