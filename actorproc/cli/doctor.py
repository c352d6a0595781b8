"""`actorproc doctor`: shows whether a store is safe to use, and the subjects of the schema registry."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from actorproc import plugins
from actorproc.admin.doctor import Examination, examine
from actorproc.cli.common import load_settings, run_async
from actorproc.cli.terminal import console, print_json, text
from actorproc.codecs import open_decoder
from actorproc.config.settings import Settings
from actorproc.errors import SourceError, UsageError
from actorproc.stores import open_store

_SHOWN = 100
"""Subjects of the schema registry that are listed: each takes two requests."""


def run(url: str, as_json: bool, config: Path | None, given: Sequence[str] | None) -> None:
    """Print the examination; exit code 1 if a property does not hold."""
    settings = load_settings(config, given)

    async def work() -> tuple[str, str | None, Examination, dict[str, Any] | None]:
        async with open_store(url, settings) as store:
            registry = None if settings.schema_registry is None else await _subjects(settings)
            return store.url, store.backend.endpoint, await examine(store), registry

    store_url, endpoint, found, registry = run_async(work)
    try:
        if as_json:
            print_json(_document(store_url, endpoint, found) | {"schema_registry": registry})
        else:
            _print(store_url, endpoint, found)
            if registry is not None:
                _print_subjects(registry)
    finally:  # also if stdout cannot be written
        if not found.safe or (registry is not None and registry["error"]):
            raise typer.Exit(1)


async def _subjects(settings: Settings) -> dict[str, Any]:
    """The latest versions in the schema registry, or why they cannot be read, from a decoder that asks it."""
    answer: dict[str, Any] = {"url": settings.schema_registry, "error": None, "subjects": [], "count": 0}
    refused = UsageError("schema_registry: no decoder asks it")
    for name in dict.fromkeys([settings.decode, *plugins.names(plugins.DECODERS)]):
        try:
            decoder = open_decoder(settings.model_copy(update={"decode": name}))
        except UsageError as error:  # such as of a format whose library is not installed
            refused = error
            continue
        try:
            if (found := await decoder.subjects(_SHOWN)) is not None:
                return answer | {"subjects": found[0], "count": found[1]}
        except SourceError as error:
            return answer | {"error": str(error)}
        finally:
            await decoder.close()
    raise refused


def _document(url: str, endpoint: str | None, found: Examination) -> dict[str, Any]:
    return {
        "url": url,
        "endpoint": endpoint,
        "safe": found.safe,
        "properties": [p._asdict() for p in found.properties],
        "latency_ms": found.latency_ms,
        "clock_difference": found.clock_difference,
        "warnings": list(found.warnings),
    }


def _print(url: str, endpoint: str | None, found: Examination) -> None:
    console.print(Text(f"{url}{f' at {endpoint}' if endpoint else ''}", style="bold"))
    table = Table("property", "", "request", "answer", box=SIMPLE_HEAD)
    for p in found.properties:
        held = Text("held", style="green") if p.held else Text("BROKEN", style="bold red")
        table.add_row(Text(p.name), held, Text(p.done), Text(p.found if p.held else f"{p.found}. So {p.meaning}"))
    console.print(table)
    if found.latency_ms:
        latency = ", ".join(f"{verb} {ms:g}" for verb, ms in found.latency_ms.items())
        console.print(Text(f"latency, ms: {latency}"))
    difference = f"{found.clock_difference:+.1f} s"
    console.print(Text(f"clock: the store's is {difference} from this machine's (nothing depends on it)"))
    for warning in found.warnings:
        console.print(Text(f"warning: {warning}", style="yellow"))
    broken = ", ".join(p.name for p in found.properties if not p.held)
    if broken:
        console.print(Text(f"NOT safe to use: {broken}. Use another service, or a newer version", "bold red"))
    else:
        console.print(Text("safe to use", style="bold green"))


def _print_subjects(registry: dict[str, Any]) -> None:
    if registry["error"]:
        console.print(text(registry["error"], style="bold red"))
        return
    console.print(Text(f"schema registry {registry['url']}", style="bold"))
    table = Table("subject", "version", "schema id", "kind", "compatibility", box=SIMPLE_HEAD)
    for one in registry["subjects"]:
        table.add_row(*(text(str(one[name])) for name in ("name", "version", "id", "kind", "compatibility")))
    console.print(table)
    if more := registry["count"] - len(registry["subjects"]):
        console.print(Text(f"and {more} more subjects"))
