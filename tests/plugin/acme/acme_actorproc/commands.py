"""`actorproc acme-hello`, and the group `actorproc acme`."""

from __future__ import annotations

from typing import Annotated

import anyio
import typer

from actorproc.errors import UsageError
from actorproc.spi import Settings, open_source, open_store

group = typer.Typer(help="Look at what Acme keeps.")


def hello(name: Annotated[str, typer.Argument(metavar="NAME", help="To greet.")] = "world") -> None:
    """Say hello."""
    if not name.strip():
        raise UsageError("acme-hello: the name is empty")
    typer.echo(f"Acme says hello to {name}.")


@group.command()
def objects(url: Annotated[str, typer.Argument(metavar="URL")]) -> None:
    """Count the objects of a store."""

    async def work() -> int:
        async with open_store(url, Settings.load()) as store:
            return len((await store.backend.list("")).entries)

    typer.echo(f"{anyio.run(work)} objects")


@group.command()
def partitions(url: Annotated[str, typer.Argument(metavar="URL")]) -> None:
    """List the partitions of a source."""

    async def work() -> list[str]:
        source = open_source(url)
        await source.open()
        try:
            return [str(partition) for partition in await source.partitions()]
        finally:
            await source.close()

    typer.echo("\n".join(anyio.run(work)))
