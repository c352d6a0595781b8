"""`actorproc state`: shows, finds and exports committed keyed state."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow.parquet as pq
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from actorproc.admin.read_state import StateEntry, state_batches, state_entries
from actorproc.admin.state_table import table_schema
from actorproc.cli.common import OpenedProcessor, chosen_partitions, run_async
from actorproc.cli.streams import warn
from actorproc.cli.terminal import SafeConsole, print_json, print_table
from actorproc.errors import UsageError
from actorproc.handler.keyed_state import Key
from actorproc.output.schema_document import read_state_type
from actorproc.state.reading import key_text, value_text, without_passed_on

COLUMNS = ("partition", "state", "key", "value", "expires")


def show(opened: OpenedProcessor, partition: str | None, state: str | None, limit: int | None, as_json: bool) -> None:
    """Print keys and values."""

    async def work() -> None:
        async with opened as (store, layout, _):
            partitions = await chosen_partitions(store, layout, partition)
            await _print(_first(state_entries(store, layout, partitions, state=state), limit), as_json, "no state")

    run_async(work)


def get(opened: OpenedProcessor, key: str, state: str | None, as_json: bool) -> None:
    """Print the value of a key, in each partition that has it."""
    wanted = _keys(key)

    async def work() -> None:
        async with opened as (store, layout, _):
            partitions = await chosen_partitions(store, layout, None)
            found = [e async for e in state_entries(store, layout, partitions, state=state) if e.key in wanted]
            if not found:
                raise UsageError(f"no partition has the key {key!r}{'' if state is None else f' in state {state!r}'}")
            await _print(_each(found), as_json, "")

    run_async(work)


def export(opened: OpenedProcessor, file: Path, state: str | None) -> None:
    """Write a Parquet file."""

    async def work() -> int:
        async with opened as (store, layout, _):
            partitions = await without_passed_on(store, layout, await chosen_partitions(store, layout, None))
            value = None if state is None else await read_state_type(store, layout, state)
            keys = 0
            with pq.ParquetWriter(file, table_schema(value)) as writer, _progress() as progress:
                for partition in progress.track(partitions):
                    async for batch in state_batches(store, layout, [partition], state=state, value=value):
                        writer.write_batch(batch)
                        keys += batch.num_rows
        return keys

    warn(f"{run_async(work)} keys in {file}")


def _progress() -> Progress:
    """A bar of partitions, on a terminal."""
    stderr = SafeConsole(stderr=True)
    columns = BarColumn(), MofNCompleteColumn(), TextColumn("partitions"), TimeRemainingColumn()
    return Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal)


async def _print(entries: AsyncIterator[StateEntry], as_json: bool, empty: str) -> None:
    if as_json:
        async for entry in entries:
            value = json.loads(value_text(entry.value))
            expires = entry.expires and entry.expires.isoformat()
            print_json(
                dict(zip(COLUMNS, (entry.partition, entry.state, key_text(entry.key), value, expires), strict=True))
            )
        return
    cells = ([e.partition, e.state, key_text(e.key), value_text(e.value), e.expires] async for e in entries)
    await print_table(COLUMNS, cells, empty=empty, cut=("key", "value"))


def _keys(text: str) -> set[Key]:
    """The keys that a text may mean: itself, its bytes, or the number or tuple that it is as JSON."""
    keys: set[Key] = {text, text.encode()}
    try:
        parsed = json.loads(text)
    except ValueError:
        return keys
    if type(parsed) is int:
        keys.add(parsed)
    elif type(parsed) is list and all(type(item) in (int, str) for item in parsed):
        keys.add(tuple(parsed))
    return keys


async def _first(entries: AsyncIterator[StateEntry], limit: int | None) -> AsyncIterator[StateEntry]:
    left = limit
    async for entry in entries:
        if left is not None:
            if not left:
                return
            left -= 1
        yield entry


async def _each(found: list[StateEntry]) -> AsyncIterator[StateEntry]:
    for entry in found:
        yield entry
