"""`actorproc doctor`: shows whether a store is safe to use, and the subjects of the schema registry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from actorproc import plugins
from actorproc.admin.doctor import Examination, examine
from actorproc.admin.doctor_sinks import TriedSink, try_sinks
from actorproc.cli.common import run_async, setting_keywords, sink_settings
from actorproc.cli.terminal import console, print_json, text
from actorproc.codecs import open_decoder
from actorproc.config.settings import Settings
from actorproc.errors import SourceError, UsageError
from actorproc.storage.names import ProcessorLayout
from actorproc.stores import open_store

_SHOWN = 100
"""Subjects of the schema registry that are listed: each takes two requests."""


def run(
    url: str,
    as_json: bool,
    config: Path | None,
    given: Sequence[str] | None,
    name: str | None = None,
    sinks: tuple[Sequence[str] | None, Sequence[str] | None] = (None, None),
) -> None:
    """Print the examination; exit code 1 if a property does not hold.

    Args:
        name: the processor whose sinks are tried.
        sinks: as `--sink` and `--sink-option` give them.
    """
    settings = Settings.load(config, **setting_keywords(given, None, sink_settings(*sinks)))
    if name is None and any(sinks):
        raise UsageError("--sink needs --name: the processor whose rows the sink gets")

    async def work() -> tuple[str, str | None, Examination, dict[str, Any] | None, list[TriedSink]]:
        async with open_store(url, settings) as store:
            registry = None if settings.schema_registry is None else await _subjects(settings)
            found = await examine(store)
            tried = [] if name is None else await try_sinks(settings.sinks, store, ProcessorLayout(name))
            return store.url, store.backend.endpoint, found, registry, tried

    store_url, endpoint, found, registry, tried = run_async(work)
    try:
        if as_json:
            print_json(
                _document(store_url, endpoint, found)
                | {"schema_registry": registry, "sinks": [asdict(one) for one in tried]}
            )
        else:
            _print(store_url, endpoint, found)
            if registry is not None:
                _print_subjects(registry)
            _print_sinks(tried)
            if name is None and settings.sinks:
                console.print(text("sinks are not tried: give the --name of the processor", style="dim"))
    finally:  # also if stdout cannot be written
        if not found.safe or (registry is not None and registry["error"]) or any(one.error for one in tried):
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


def _print_sinks(tried: Sequence[TriedSink]) -> None:
    for one in tried:
        console.print(text(f"sink {one.name}: {one.url}, {one.guarantee}", style="bold"))
        if one.error is not None:
            then = "hosts refuse to start" if one.refused else "hosts start, and deliver once it answers"
            console.print(text(f"  {one.error}", style="bold red"))
            console.print(text(f"  {then}", style="red"))
        elif one.latency_ms is not None:
            console.print(text(f"  takes rows; to try it without rows takes {one.latency_ms:g} ms", style="green"))
        if one.note:
            console.print(text(f"  {one.note}", style="dim"))


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
