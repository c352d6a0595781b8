"""The commands for checkpoints: their arguments and help texts."""

from __future__ import annotations

from typing import Annotated

import typer

from actorproc.cli.parameters import Config, Container, Json, Name, Reason, Set, SourceOption, location
from actorproc.cli.usage import Group

app = typer.Typer(
    name="checkpoints",
    cls=Group,
    no_args_is_help=True,
    help="""Show how far partitions are committed, and reset them.

    \b
      actorproc checkpoints show --name Delays --container state
      actorproc checkpoints reset --to earliest --name Delays --container state
      actorproc checkpoints undo --name Delays --container state
    """,
)

Partitions = Annotated[
    list[str] | None, typer.Option("--partition", metavar="P", help="Only this partition; repeatable. Default: all.")
]
OwnSource = Annotated[
    str | None,
    typer.Option(
        "--source",
        metavar="URL",
        callback=location,
        envvar="ACTORPROC_SOURCE",
        help="The source that is processed. Default: the recorded one.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it. Without it, only the effect is shown.")]
Id = Annotated[str, typer.Option("--id", metavar="ID", help="Carry on the command of this id, which was cut short.")]


@app.command()
def show(
    name: Name,
    container: Container,
    partition: Partitions = None,
    as_json: Json = False,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Show the committed cursor of each partition, and its latest reset.

    \b
      actorproc checkpoints show --name Delays --container state
    """
    from actorproc.cli.checkpoints import show
    from actorproc.cli.common import opened_processor

    show(opened_processor(name, container, config, settings), partition or (), as_json)


@app.command()
def reset(
    to: Annotated[
        str, typer.Option("--to", metavar="GOAL", help="earliest, latest, a time, a sequence, or -N to go back N.")
    ],
    name: Name,
    container: Container,
    partition: Partitions = None,
    source: OwnSource = None,
    yes: Yes = False,
    reason: Reason = "",
    command: Id = "",
    as_json: Json = False,
    config: Config = None,
    settings: Set = None,
    source_option: SourceOption = None,
) -> None:
    """Process records again, or skip some. Shows the effect; acts with --yes, whether hosts run or not.

    \b
      actorproc checkpoints reset --to earliest --name Delays --container state
      actorproc checkpoints reset --to earliest --name Delays --container s --yes
      actorproc checkpoints reset --to 2026-01-31T12Z --name Delays --container s
      actorproc checkpoints reset --to -1000 --name Delays --container s
      actorproc checkpoints reset --to 41203 --partition 3 --name D --container s

    Rows of repeated records are in the output twice. Keyed state is cleared by `--to earliest`; back to any other
    record, a partition with state is refused.
    """
    from actorproc.cli.checkpoints import reset
    from actorproc.cli.common import opened_processor

    opened = opened_processor(name, container, config, settings, source_options=source_option)
    reset(opened, to, partition or (), source, yes, reason, command, as_json)


@app.command()
def undo(
    name: Name,
    container: Container,
    partition: Partitions = None,
    source: OwnSource = None,
    yes: Yes = False,
    reason: Reason = "",
    command: Id = "",
    as_json: Json = False,
    config: Config = None,
    settings: Set = None,
    source_option: SourceOption = None,
) -> None:
    """Go back to where the partitions were before the latest reset. Shows the effect; acts with --yes.

    \b
      actorproc checkpoints undo --name Delays --container state
      actorproc checkpoints undo --name Delays --container state --yes

    An undo is a reset, too: the next one goes to where the partitions were before it.
    """
    from actorproc.cli.checkpoints import reset
    from actorproc.cli.common import opened_processor

    opened = opened_processor(name, container, config, settings, source_options=source_option)
    reset(opened, None, partition or (), source, yes, reason, command, as_json)
