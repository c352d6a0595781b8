"""`actorproc doctor`: proves that a store is safe to use, property by property."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import anyio
import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from actorproc.cli.common import load_settings, run_async
from actorproc.cli.terminal import console, print_json
from actorproc.errors import StoreError
from actorproc.storage.probe import Property, probe
from actorproc.storage.store import Store
from actorproc.stores import open_store

T = TypeVar("T")

_ROUNDS = 5
_PREFIX = "doctor/"


def run(url: str, as_json: bool, config: Path | None, given: Sequence[str] | None) -> None:
    """Print what was found; exit code 1 if a property does not hold."""
    settings = load_settings(config, given)

    async def work() -> tuple[list[Property], dict[str, float], float, str]:
        async with open_store(url, settings) as store:
            properties = await probe(store, _PREFIX)
            latency = await _latency(store) if all(p.held for p in properties) else {}
            return properties, latency, await _clock_difference(store), store.url

    properties, latency, difference, place = run_async(work)
    endpoint = settings.s3_endpoint if place.startswith("s3://") else None
    try:
        if as_json:
            print_json(_document(place, endpoint, properties, latency, difference))
        else:
            _print(place, endpoint, properties, latency, difference)
    finally:  # whether or not somebody reads it
        if not all(held for _, held, *_ in properties):
            raise typer.Exit(1)


async def _latency(store: Store) -> dict[str, float]:
    """Milliseconds that each verb takes, one at a time: the median of a few. Of a safe store: writes are settled."""
    clock = store.clock
    taken: dict[str, list[float]] = {}

    async def timed(verb: str, request: Awaitable[T]) -> T:
        began = clock.monotonic()
        answer = await request
        taken.setdefault(verb, []).append((clock.monotonic() - began) * 1000)
        return answer

    async def round_of(key: str) -> None:
        tag = await timed("put_if_absent", store.create(key, clock.nonce().encode()))
        await timed("put_if_match", store.swap(key, clock.nonce().encode(), tag))
        await timed("put", store.put(key, b"latency"))
        await timed("get", store.get(key))
        await timed("list", store.list(_PREFIX))
        await timed("delete", store.delete(key))

    for _ in range(_ROUNDS):
        key = f"{_PREFIX}{clock.nonce()}"
        try:
            await round_of(key)
        except BaseException:
            with anyio.CancelScope(shield=True), anyio.move_on_after(store.limits.timeout), suppress(StoreError):
                await store.delete(key)
            raise
    return {verb: round(median(times), 2) for verb, times in taken.items()}


async def _clock_difference(store: Store) -> float:
    """Seconds by which the store's clock is ahead of this host's; S3 tells whole seconds only."""
    before = store.clock.wall()
    now = (await store.list(_PREFIX, limit=1)).now
    return round(now - (before + store.clock.wall()) / 2, 1) + 0.0  # which makes -0.0 of some roundings 0.0


def _document(
    place: str, endpoint: str | None, properties: Sequence[Property], latency: dict[str, float], difference: float
) -> dict[str, Any]:
    return {
        "url": place,
        "endpoint": endpoint,
        "safe": all(p.held for p in properties),
        "properties": [p._asdict() for p in properties],
        "latency_ms": latency,
        "clock_difference": difference,
    }


def _print(
    place: str, endpoint: str | None, properties: Sequence[Property], latency: dict[str, float], difference: float
) -> None:
    console.print(Text(f"{place}{f' at {endpoint}' if endpoint else ''}", style="bold"))
    table = Table("property", "", "what was done", "what came back", box=SIMPLE_HEAD)
    for p in properties:
        held = Text("held", style="green") if p.held else Text("BROKEN", style="bold red")
        table.add_row(Text(p.name), held, Text(p.done), Text(p.found if p.held else f"{p.found}. So {p.meaning}"))
    console.print(table)
    if latency:
        console.print(Text("latency, ms: " + ", ".join(f"{verb} {ms:g}" for verb, ms in latency.items())))
    console.print(Text(f"clock: the store's is {difference:+.1f} s from this host's (nothing depends on it)"))
    broken = [p.name for p in properties if not p.held]
    if broken:
        console.print(
            Text(f"NOT safe to use: {', '.join(broken)}. Use another service, or a newer version", "bold red")
        )
    else:
        console.print(Text("safe to use", style="bold green"))
