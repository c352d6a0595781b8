"""The commands for dead letters: their arguments and help texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from actorproc.cli.parameters import (
    Config,
    Container,
    Into,
    Json,
    Name,
    Partition,
    Set,
    SourceLog,
    SourceOption,
    count,
)
from actorproc.cli.usage import Group

app = typer.Typer(
    name="dead-letters",
    cls=Group,
    no_args_is_help=True,
    help="""List, show, replay and purge records that failed.

    \b
      actorproc dead-letters list --name Delays --container state
      actorproc dead-letters show 3:1042 --name Delays --container state
      actorproc dead-letters replay --name Delays --container state
    """,
)

top_level = typer.Typer()

Kind = Annotated[str | None, typer.Option(metavar="KIND", help="Only this type of error, such as KeyError.")]
Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="PARTITION:SEQUENCE", show_default=False, help="Only these, by their ids in `list`."),
]


@app.command("list")
def list_letters(
    name: Name,
    container: Container,
    partition: Partition = None,
    kind: Kind = None,
    replayed: Annotated[bool, typer.Option("--replayed", help="Only letters that were replayed.")] = False,
    not_replayed: Annotated[bool, typer.Option("--not-replayed", help="Only letters that were not.")] = False,
    limit: Annotated[int | None, typer.Option(parser=count, metavar="N", help="At most N.")] = None,
    as_json: Json = False,
    config: Config = None,
    settings: Set = None,
) -> None:
    """List dead letters, by partition and sequence.

    \b
      actorproc dead-letters list --name Delays --container state
      actorproc dead-letters list --name Delays --container state --kind KeyError
      actorproc dead-letters list --name Delays --container state --not-replayed
      actorproc dead-letters list --name Delays --container state --json
    """
    from actorproc.cli.common import opened_processor
    from actorproc.cli.manage_dead_letters import show_all

    show_all(
        opened_processor(name, container, config, settings), partition, kind, replayed, not_replayed, limit, as_json
    )


@app.command("show")
def show_letter(
    letter: Annotated[str, typer.Argument(metavar="PARTITION:SEQUENCE", help="Its id in `list`.")],
    name: Name,
    container: Container,
    as_json: Json = False,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Show one dead letter whole: record, headers, error and traceback.

    \b
      actorproc dead-letters show 3:1042 --name Delays --container state
    """
    from actorproc.cli.common import opened_processor
    from actorproc.cli.manage_dead_letters import show_one

    show_one(letter, opened_processor(name, container, config, settings), as_json)


@app.command("replay")
def replay_letters(
    name: Name,
    container: Container,
    ids: Ids = None,
    source: SourceLog = None,
    into: Into = None,
    source_option: SourceOption = None,
    partition: Partition = None,
    kind: Kind = None,
    value: Annotated[
        str | None,
        typer.Option(metavar="TEXT|@FILE", help="Append this value instead of the letter's own. For one letter."),
    ] = None,
    as_json: Json = False,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Append dead letters to their stream again. Each is appended once, however often this runs or is killed.

    \b
      actorproc dead-letters replay --name Delays --container state
      export ACTORPROC_NAME=Delays ACTORPROC_CONTAINER=state
      actorproc dead-letters replay --kind KeyError
      actorproc dead-letters replay 3:1042 3:1077
      actorproc dead-letters replay 3:1042 --value @corrected.json
      actorproc dead-letters replay --into s3://bucket/letters

    Key, value, timestamp and headers are those of the original record. Headers actorproc.dead_letter.* are added with
    its history. The letters stay until they are purged. Streams without transactions (Kinesis, Event Hubs over AMQP,
    queues) may get a letter twice if this is killed.
    """
    from actorproc.cli.common import opened_processor
    from actorproc.cli.manage_dead_letters import replay

    opened = opened_processor(name, container, config, settings, source_options=None if into else source_option)
    replay(ids or (), opened, source, into, source_option, partition, kind, value, as_json)


@app.command("purge")
def purge_letters(
    name: Name,
    container: Container,
    ids: Ids = None,
    partition: Partition = None,
    kind: Kind = None,
    before: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only letters older than this, such as 2026-01-31T12:00Z."),
    ] = None,
    replayed: Annotated[bool, typer.Option("--replayed", help="Only letters that were replayed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Delete dead letters for good.

    \b
      actorproc dead-letters purge --name Delays --container state
      actorproc dead-letters purge --name Delays --container state --replayed -y

    Letters of one commit are purged together, once all of them are chosen. Letters that no checkpoint has passed are
    kept, with exit code 1: try again later.
    """
    from actorproc.cli.common import opened_processor
    from actorproc.cli.manage_dead_letters import purge

    purge(
        ids or (), opened_processor(name, container, config, settings), partition, kind, before, replayed, yes, as_json
    )


@top_level.command()
def debug(
    letter: Annotated[str, typer.Argument(metavar="PARTITION:SEQUENCE", help="Its id in `dead-letters list`.")],
    handler: Annotated[str, typer.Argument(metavar="MODULE:CLASS", help="The handler, as for `serve`.")],
    name: Name,
    container: Container,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", metavar="NAME=VALUE", help="An option of the handler, as for `serve`."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", help="The test to write. Default: test_letter_PARTITION_SEQUENCE.py."),
    ] = None,
    no_run: Annotated[bool, typer.Option("--no-run", help="Only write the file.")] = False,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Write a test that repeats a dead letter, and run it: the debugger stops where the handler fails.

    \b
      actorproc debug 3:1042 app:Delays --name Delays --container state
      actorproc debug 3:1042 app:Delays --no-run --file tests/test_1042.py

    The test has the record, the handler's options, the epoch, and the state of the partition as it is now. It needs
    neither store nor source. Options from the environment are read from there when it runs.
    """
    from actorproc.cli.common import opened_processor
    from actorproc.cli.debug import run

    opened = opened_processor(name, container, config, settings)
    run(letter, handler, opened, option or [], file, no_run, config, settings or [])
