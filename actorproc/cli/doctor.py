"""`actorproc doctor`: shows whether a store is safe to use, property by property."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from actorproc.admin.doctor import Examination, examine
from actorproc.cli.common import load_settings, run_async
from actorproc.cli.terminal import console, print_json
from actorproc.stores import open_store


def run(url: str, as_json: bool, config: Path | None, given: Sequence[str] | None) -> None:
    """Print the examination; exit code 1 if a property does not hold."""
    settings = load_settings(config, given)

    async def work() -> tuple[str, Examination]:
        async with open_store(url, settings) as store:
            return store.url, await examine(store)

    store_url, found = run_async(work)
    endpoint = settings.s3_endpoint if store_url.startswith("s3://") else None
    try:
        if as_json:
            print_json(_document(store_url, endpoint, found))
        else:
            _print(store_url, endpoint, found)
    finally:  # also if stdout cannot be written
        if not found.safe:
            raise typer.Exit(1)


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
