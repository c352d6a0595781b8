"""The command for schemas: its arguments and help texts."""

from __future__ import annotations

from typing import Annotated

import typer

from actorproc.cli.parameters import Config, Container, Json, Name, Set
from actorproc.cli.usage import Group

app = typer.Typer(
    name="schema",
    cls=Group,
    no_args_is_help=True,
    help="""Compare a handler with the stored output and state.

    \b
      actorproc schema check app:Totals --name Totals --container state
    """,
)


@app.callback()
def _group() -> None:
    """Keeps `check` a command of its own: typer runs the only command of a group without its name."""


@app.command()
def check(
    handler: Annotated[
        str, typer.Argument(metavar="MODULE:CLASS", help="The handler: app:Totals is class Totals of app.py.")
    ],
    name: Name,
    container: Container,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", metavar="NAME=VALUE", help="An option of the handler.")
    ] = None,
    as_json: Json = False,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Check, before a deployment, whether output_schema and State of a handler fit the stored data.

    \b
      actorproc schema check app:Totals --name Totals --container state

    Changes nothing. The exit code is 1 if something does not fit; then `serve` would refuse to start.
    """
    from actorproc.cli.check_schema import check

    check(handler, name, container, option or [], as_json, config, settings)
