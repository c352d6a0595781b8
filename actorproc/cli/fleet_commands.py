"""The commands that act on a fleet: their arguments and help texts."""

from __future__ import annotations

from typing import Annotated

import typer

from actorproc.cli.parameters import (
    Config,
    Container,
    Json,
    MaybeContainer,
    MaybeLog,
    MaybeName,
    Name,
    Reason,
    Set,
    count,
)

app = typer.Typer()

Partitions = Annotated[
    list[str] | None,
    typer.Option("--partition", metavar="P", help="Only this partition; repeatable. Default: all, also new ones."),
]


@app.command()
def pause(
    name: Name,
    container: Container,
    partition: Partitions = None,
    reason: Reason = "",
    config: Config = None,
    settings: Set = None,
) -> None:
    """Stop partitions until `actorproc resume`. They commit first, and go on where they stopped.

    \b
      actorproc pause --name Delays --container state
      actorproc pause --name Delays --container state --partition 3

    Works from any machine, also while no host runs. Hosts keep running; a new host gets no paused partition.
    """
    from actorproc.cli.common import opened_processor
    from actorproc.cli.fleet import carry_out

    carry_out(opened_processor(name, container, config, settings), lambda group: group.pause(partition or ()), reason)


@app.command()
def resume(
    name: Name,
    container: Container,
    partition: Partitions = None,
    reason: Reason = "",
    config: Config = None,
    settings: Set = None,
) -> None:
    """End a pause.

    \b
      actorproc resume --name Delays --container state
      actorproc resume --name Delays --container state --partition 3
    """
    from actorproc.cli.common import opened_processor
    from actorproc.cli.fleet import carry_out

    carry_out(opened_processor(name, container, config, settings), lambda group: group.resume(partition or ()), reason)


@app.command()
def drain(
    host: Annotated[str, typer.Argument(metavar="HOST", help="Its name in `actorproc status`.")],
    name: Name,
    container: Container,
    reason: Reason = "",
    config: Config = None,
    settings: Set = None,
) -> None:
    """Take all partitions from a host, and give it none until `actorproc release --host`.

    \b
      actorproc drain worker-7 --name Delays --container state

    The other hosts run its partitions. If there is no other host, nobody does.
    """
    from actorproc.cli.common import opened_processor
    from actorproc.cli.fleet import carry_out

    carry_out(opened_processor(name, container, config, settings), lambda group: group.drain(host), reason)


@app.command()
def move(
    partition: Annotated[str, typer.Argument(metavar="PARTITION")],
    host: Annotated[str, typer.Argument(metavar="HOST", help="Its name in `actorproc status`.")],
    name: Name,
    container: Container,
    reason: Reason = "",
    config: Config = None,
    settings: Set = None,
) -> None:
    """Run a partition on this host while it is alive, until `actorproc release`.

    \b
      actorproc move 3 worker-7 --name Delays --container state

    The balance of the other partitions takes it into account.
    """
    from actorproc.cli.common import opened_processor
    from actorproc.cli.fleet import carry_out

    carry_out(opened_processor(name, container, config, settings), lambda group: group.move(partition, host), reason)


@app.command()
def release(
    name: Name,
    container: Container,
    partition: Annotated[str | None, typer.Argument(metavar="PARTITION", help="Ends its move.")] = None,
    host: Annotated[str | None, typer.Option(metavar="HOST", help="Ends the drain of this host.")] = None,
    reason: Reason = "",
    config: Config = None,
    settings: Set = None,
) -> None:
    """End a move or a drain: the balance decides again.

    \b
      actorproc release 3 --name Delays --container state
      actorproc release --host worker-7 --name Delays --container state
    """
    from actorproc.cli.common import opened_processor
    from actorproc.cli.fleet import carry_out, release

    carry_out(opened_processor(name, container, config, settings), release(partition, host), reason)


@app.command()
def audit(
    name: MaybeName = None,
    container: MaybeContainer = None,
    log: MaybeLog = None,
    limit: Annotated[int | None, typer.Option(parser=count, metavar="N", help="The latest N.")] = None,
    as_json: Json = False,
    config: Config = None,
    settings: Set = None,
) -> None:
    """List the acts of operators: time, operator, act and effect.

    \b
      actorproc audit --name Delays --container state
      actorproc audit --container state
      actorproc audit --log events

    The audit of a container has the processors that were deleted; that of a log its growths, trims and removed readers.
    """
    from actorproc.cli.fleet import opened_audit, show_audit

    show_audit(opened_audit(name, container, log, config, settings), limit, as_json)
