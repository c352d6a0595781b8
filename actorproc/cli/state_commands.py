"""The commands for keyed state: their arguments and help texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from actorproc.cli.parameters import Config, Container, Json, Name, Partition, Set, count
from actorproc.cli.usage import Group

app = typer.Typer(
    name="state",
    cls=Group,
    no_args_is_help=True,
    help="""Show and export what handlers keep in `ctx.state`.

    \b
      actorproc state show --name Totals --container state
      actorproc state get --name Totals --container state --key a
      actorproc state export --name Totals --container state totals.parquet

    Each partition is read as its newest commit has left it. Hosts may run meanwhile.
    """,
)

State = Annotated[
    str | None, typer.Option("--state", metavar="NAME", help="Only the state of this name. '': ctx.state itself.")
]


@app.command()
def show(
    name: Name,
    container: Container,
    partition: Partition = None,
    state: State = None,
    limit: Annotated[int | None, typer.Option(parser=count, metavar="N", help="At most N keys.")] = None,
    as_json: Json = False,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Show keys and values, by partition, state and key.

    \b
      actorproc state show --name Totals --container state
      actorproc state show --name Totals --container state --limit 20
      actorproc state show --name Totals --container state --json
    """
    from actorproc.cli.common import opened_processor
    from actorproc.cli.show_state import show

    show(opened_processor(name, container, config, settings), partition, state, limit, as_json)


@app.command()
def get(
    name: Name,
    container: Container,
    key: Annotated[str, typer.Option("--key", metavar="KEY", help="Text, a number, or a tuple as JSON: '[\"a\", 1]'.")],
    state: State = None,
    as_json: Json = False,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Show the value of one key.

    \b
      actorproc state get --name Totals --container state --key a
      actorproc state get --name Totals --container state --key '["car", 7]'

    Reads the state of all partitions: which one has the key is the source's affair.
    """
    from actorproc.cli.common import opened_processor
    from actorproc.cli.show_state import get

    get(opened_processor(name, container, config, settings), key, state, as_json)


@app.command()
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A Parquet file; it is replaced.")],
    name: Name,
    container: Container,
    state: State = None,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Write keys and values to a Parquet file.

    \b
      actorproc state export --name Totals --container state totals.parquet
      actorproc state export --name Totals --container state --state '' t.parquet

    Columns: partition, state, key (text or JSON), value, expires. `value` is JSON. With --state it has the type that
    the handler declares for this state, if it declares one.
    """
    from actorproc.cli.common import opened_processor
    from actorproc.cli.show_state import export

    export(opened_processor(name, container, config, settings), file, state)
