"""`actorproc sinks`: lists the sinks of a processor, pauses and resumes them, delivers again, and deletes them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from actorproc.cli.parameters import Config, Container, Json, Name, Reason, Set, Yes
from actorproc.cli.usage import Group

app = typer.Typer(
    name="sinks",
    cls=Group,
    no_args_is_help=True,
    help="""List, pause and repeat what goes to other systems. A trim keeps the commits that a sink does not have.

    \b
      actorproc sinks list --name Delays --container state
      actorproc sinks pause db --name Delays --container state
      actorproc sinks redeliver db --from 1200 --name Delays --container state

    Sinks are set where hosts start: actorproc serve --sink NAME=URL, or [sinks.NAME] in the file.
    """,
)

Sink = Annotated[str, typer.Argument(metavar="SINK", help="Its name.")]


@app.command("list")
def list_sinks(
    name: Name, container: Container, as_json: Json = False, config: Config = None, settings: Set = None
) -> None:
    """List the sinks, and how far each is behind.

    \b
      actorproc sinks list --name Delays --container state
    """
    from actorproc.cli.sink_tables import sink_document, stored_sinks
    from actorproc.cli.terminal import console, print_json, print_line

    found = _read(name, container, config, settings)
    if as_json:
        print_json([sink_document(sink, None) for sink in found])
    elif not found:
        print_line(f"{name} has no sinks")
    else:
        console.print(stored_sinks(found, {}, targets=True))


@app.command()
def show(
    sink: Sink, name: Name, container: Container, as_json: Json = False, config: Config = None, settings: Set = None
) -> None:
    """Show one sink by partition.

    \b
      actorproc sinks show db --name Delays --container state
    """
    from actorproc.cli.sink_tables import one_sink, partition_document, sink_document
    from actorproc.cli.terminal import console, print_json

    status = _one(sink, name, container, config, settings)
    if as_json:
        partitions = [partition_document(partition) for partition in status.partitions]
        print_json(sink_document(status, None) | {"partitions": partitions})
    else:
        console.print(one_sink(status))


@app.command()
def pause(
    sink: Sink, name: Name, container: Container, reason: Reason = "", config: Config = None, settings: Set = None
) -> None:
    """Stop the deliveries to a sink; its commits are kept. `sinks list` says when all owners have stopped.

    \b
      actorproc sinks pause db --name Delays --container state

    A request under way to an HTTP or ClickHouse sink may still arrive: nothing there can be fenced.
    """
    from actorproc.admin.sinks import pause

    _act(name, container, config, settings, lambda store, layout: pause(store, layout, sink, reason))


@app.command()
def resume(sink: Sink, name: Name, container: Container, config: Config = None, settings: Set = None) -> None:
    """Let a paused sink go on where it is.

    \b
      actorproc sinks resume db --name Delays --container state
    """
    from actorproc.admin.sinks import resume
    from actorproc.cli.terminal import print_line

    if not _act(name, container, config, settings, lambda store, layout: resume(store, layout, sink)):
        print_line(f"{sink} is not paused: nothing was changed")


@app.command()
def redeliver(
    sink: Sink,
    name: Name,
    container: Container,
    start: Annotated[
        int, typer.Option("--from", metavar="COMMIT", min=0, help="Number of the first commit to repeat.")
    ],
    partition: Annotated[list[str] | None, typer.Option(metavar="P", help="Only this partition; repeatable.")] = None,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Deliver commits once more, after rows were lost in the target. Rows that are still there come twice.

    \b
      actorproc sinks redeliver warehouse --from 0 --name Delays --container state
    """
    from actorproc.admin.sinks import deliver_again
    from actorproc.cli.terminal import print_line

    starts = _act(
        name, container, config, settings,
        lambda store, layout: deliver_again(store, layout, sink, start, partition or ()),
    )  # fmt: skip
    print_line(f"partitions that deliver again from commit {start} on: {', '.join(starts) or 'none'}")


@app.command()
def repair(
    sink: Sink,
    name: Name,
    container: Container,
    others: Annotated[
        Literal["refuse", "keep", "remove"],
        typer.Option(help="What to do with files elsewhere, which may have rows of the output that others rewrote."),
    ] = "refuse",
    config: Config = None,
    settings: Set = None,
) -> None:
    """Make a table what the output has, after people or a backup changed it.

    \b
      actorproc sinks repair table --name Delays --container state

    Files in the folder of the processor that are not of its output leave the table. Files of other processors stay.
    `actorproc verify` says whether a repair is needed.
    """
    from actorproc.admin.sinks import repair
    from actorproc.cli.common import opened_processor, run_async
    from actorproc.cli.terminal import counted, print_line

    async def run() -> int:
        async with opened_processor(name, container, config, settings) as (store, layout, loaded):
            return await repair(store, layout, sink, loaded.sinks, others=others)

    print_line(f"{sink} has the rows of the output, in {counted(run_async(run), 'file')}")


@app.command()
def delete(
    sink: Sink, name: Name, container: Container, yes: Yes = False, config: Config = None, settings: Set = None
) -> None:
    """Forget a sink: no commits are kept for it. Stop its hosts first, or take it out of their settings.

    \b
      actorproc sinks delete db --name Delays --container state --yes

    Without --yes it says how many commits the sink does not have. The target stays as it is. A sink that is set again
    under this name begins anew, beside the rows that are there.
    """
    from actorproc.admin.sinks import delete
    from actorproc.cli.terminal import counted, print_line

    if not yes:
        lacks = _one(sink, name, container, config, settings).behind
        print_line(f"would forget {sink}, which lacks {counted(lacks, 'commit')}; --yes does it")
        return
    _act(name, container, config, settings, lambda store, layout: delete(store, layout, sink))
    print_line(f"{sink} is forgotten; its target stays as it is")


def _one(sink: str, name: str, container: str, config: Path | None, settings: Any) -> Any:
    from actorproc.errors import UsageError

    found = {status.name: status for status in _read(name, container, config, settings)}
    if sink not in found:
        raise UsageError(f"there is no sink {sink!r}; there are: {', '.join(found) or 'none'}")
    return found[sink]


def _read(name: str, container: str, config: Path | None, settings: Any) -> Any:
    from actorproc.admin.sinks import read_sinks

    return _act(name, container, config, settings, read_sinks)


def _act(name: str, container: str, config: Path | None, settings: Any, work: Any) -> Any:
    from actorproc.cli.common import opened_processor, run_async

    async def run() -> Any:
        async with opened_processor(name, container, config, settings) as (store, layout, *_):
            return await work(store, layout)

    return run_async(run)


def _run(work: Any) -> None:
    from actorproc.cli.common import run_async

    run_async(work)
