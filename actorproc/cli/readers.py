"""`actorproc readers`: shows, registers and forgets readers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import typer

from actorproc.admin.reader_positions import Standing, standings
from actorproc.admin.readers import add_to, opened_kept
from actorproc.admin.retained import RetainedDataset
from actorproc.cli.common import console, counted, load_settings, print_json, print_table, run_async
from actorproc.config.environment import mistyped
from actorproc.config.settings import Settings
from actorproc.errors import CorruptObject, UsageError, locate
from actorproc.group.locations import missing_processor
from actorproc.retention.readers import Reader, read_registry
from actorproc.retention.readers import remove as remove_from
from actorproc.runtime.tasks import gather
from actorproc.storage.document import whole_number
from actorproc.storage.names import natural
from actorproc.stores import open_store

_NAMED = 5  # partitions in a warning
_NAME, _CONTAINER = "ACTORPROC_NAME", "ACTORPROC_CONTAINER"


@asynccontextmanager
async def asked_for(
    name: str | None, container: str | None, log: str | None, config: Path | None, given: Sequence[str] | None
) -> AsyncIterator[tuple[RetainedDataset, Settings]]:
    """The log, or else the output of the processor.

    Raises:
        UsageError: it is not there, or not said which.
    """
    if log is None and (name is None or container is None):
        missing = [variable for variable, value in ((_NAME, name), (_CONTAINER, container)) if value is None]
        hint = "".join(f". {found}" for found in map(mistyped, missing) if found)
        raise UsageError(f"of what? Give --name and --container for a processor's output, or --log for a log{hint}")
    settings = load_settings(config, given)
    async with opened_kept(settings, container=container, name=name, log=log) as kept:
        yield kept, settings


def show(
    name: str | None,
    container: str | None,
    log: str | None,
    as_json: bool,
    config: Path | None,
    given: Sequence[str] | None,
) -> None:
    """Print the readers with their positions."""

    async def work() -> None:
        async with asked_for(name, container, log, config, given) as (kept, settings):
            registry = await read_registry(kept.store, kept.readers)
            partitions = sorted(await kept.partitions(), key=natural)
            ends, errors = await _ends(kept, partitions)
            found = await standings(kept, list(registry.readers.values()), partitions, settings)
        if as_json:
            readers = [_document(one, ends) for one in found]
            print_json({"of": str(kept), "lowest": registry.lowest, "errors": errors, "readers": readers})
            return
        for partition, error in errors.items():
            console.print(f"partition {partition}: {error}", markup=False, soft_wrap=True, style="red")
        if not found:
            console.print(f"{kept} has no readers: whatever is old enough may be trimmed", markup=False, soft_wrap=True)
        for standing in found:
            await _print(kept, standing, ends)
            asked = standing.error is None and not standing.next
            if asked and (unknown := await _never_ran(standing.reader, settings)) is not None:
                typer.echo(f"{standing.reader.name}: {unknown}. If it is gone: readers remove", err=True)

    run_async(work)


def add(
    reader: str,
    name: str | None,
    container: str | None,
    log: str | None,
    spark: str | None,
    processor: str | None,
    at: Sequence[str],
    config: Path | None,
    given: Sequence[str] | None,
) -> None:
    """Register a reader."""
    ways = {"--spark": spark is not None, "--processor": processor is not None, "--at": bool(at)}
    given_ways = [option for option, is_given in ways.items() if is_given]
    if not given_ways:
        raise UsageError("how far is it? Give one of --spark URL, --processor CONTAINER/NAME, --at NUMBER")
    if len(given_ways) > 1:
        raise UsageError(f"{' and '.join(given_ways)} each say how far {reader} is: give only one of them")

    async def work() -> None:
        async with asked_for(name, container, log, config, given) as (kept, settings):
            new = await _reader(reader, kept, spark, processor, at)
            positions = await add_to(kept, new, settings)
            if (unknown := await _never_ran(new, settings)) is not None:
                typer.echo(f"warning: {unknown}. It holds everything until it has begun", err=True)
            await _warn_beyond(kept, reader, positions)
        if positions:
            console.print(f"{kept} keeps what {reader} ({new}) has not read", markup=False, soft_wrap=True)
        else:
            console.print(f"{kept} keeps everything until {reader} ({new}) has begun", markup=False, soft_wrap=True)

    run_async(work)


def remove(
    reader: str,
    name: str | None,
    container: str | None,
    log: str | None,
    config: Path | None,
    given: Sequence[str] | None,
) -> None:
    """Forget a reader."""

    async def work() -> None:
        async with asked_for(name, container, log, config, given) as (kept, _):
            removed = await remove_from(kept.store, kept.readers, reader)
        console.print(f"{kept} keeps nothing for {reader} ({removed}) any more", markup=False, soft_wrap=True)

    run_async(work)


async def _reader(
    reader: str, kept: RetainedDataset, spark: str | None, processor: str | None, at: Sequence[str]
) -> Reader:
    if spark is not None:
        return Reader.spark(reader, spark)
    if processor is not None:
        place, slash, its_name = processor.rstrip("/").rpartition("/")
        if not slash or not its_name:
            raise UsageError(f"--processor {processor!r}: write CONTAINER/NAME, such as s3://bucket/state/Averages")
        return Reader.of_processor(place, its_name, name=reader)
    return Reader.at(reader, _positions(at, await kept.partitions()))


async def _warn_beyond(kept: RetainedDataset, reader: str, positions: Mapping[str, int]) -> None:
    """A number that is not there yet may be a typing error, or another dataset's, and holds nothing of what is there."""
    ends, _ = await _ends(kept, sorted(positions, key=natural))
    beyond = [f"{p} ends at {end:,}" for p, end in ends.items() if end is not None and positions[p] > end]
    if beyond:
        named = ", ".join(beyond[:_NAMED]) + (" ..." if len(beyond) > _NAMED else "")
        typer.echo(f"warning: partition {named}: {reader} holds nothing of what is there", err=True)


async def _never_ran(reader: Reader, settings: Settings) -> str | None:
    """Why a name, or a place, may be a typing error; None if there is something, or nobody but its owner can tell."""
    if reader.kind == "position":
        return None
    async with open_store(reader.url, settings) as store:
        if reader.kind == "processor":
            return await missing_processor(store, reader.processor)
        return None if (await store.list("", limit=1)).entries else f"nothing is at {reader.url}"


def _positions(at: Sequence[str], partitions: Sequence[str]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for text in at:
        partition, equals, digits = text.rpartition("=")
        number = whole_number(digits)
        if number is None:
            raise UsageError(f"--at {text!r:.100}: write a number, or PARTITION=NUMBER, such as 0=1200")
        found |= {partition: number} if equals else dict.fromkeys(partitions, number)
    return found


async def _ends(kept: RetainedDataset, partitions: Sequence[str]) -> tuple[Mapping[str, int | None], Mapping[str, str]]:
    """By partition: the end, and why there is none. One that is damaged does not hide the others."""
    errors: dict[str, str] = {}

    async def end(partition: str) -> int | None:
        try:
            return await kept.end(partition)
        except CorruptObject as damaged:
            locate(damaged, kept.store.url)
            errors[partition] = str(damaged)
            return None

    return await gather(partitions, end), errors


def _rows(standing: Standing, ends: Mapping[str, int | None]) -> list[dict[str, Any]]:
    rows = []
    for partition, end in ends.items():
        position = standing.next.get(partition)
        behind = None if position is None or end is None else max(0, end - position)
        rows.append({"partition": partition, "next": position, "end": end, "behind": behind})
    return rows


def _document(standing: Standing, ends: Mapping[str, int | None]) -> dict[str, Any]:
    reader = standing.reader
    place = {"url": reader.url or None, "processor": reader.processor or None, "query": reader.query or None}
    partitions = _rows(standing, ends) if standing.error is None else []
    return {"name": reader.name, "kind": reader.kind, **place, "error": standing.error, "partitions": partitions}


async def _print(kept: RetainedDataset, standing: Standing, ends: Mapping[str, int | None]) -> None:
    console.print(f"{standing.reader.name}: {standing.reader}", markup=False, soft_wrap=True)
    if standing.error is not None:
        console.print(f"  cannot be asked, so nothing is trimmed: {standing.error}\n", markup=False, soft_wrap=True)
        return
    rows = _rows(standing, ends)
    if any(row["next"] is None for row in rows):
        console.print("  it has not begun everywhere, and holds what is there", soft_wrap=True)

    async def cells() -> AsyncIterator[Sequence[object]]:
        for row in rows:
            yield list(row.values())

    await print_table(["partition", "reads next", "end", f"{kept.unit} behind"], cells())
    known = [row["behind"] for row in rows if row["behind"] is not None]
    if known or not rows:
        begun = all(row["behind"] is not None or row["next"] is None for row in rows)
        where = "in all" if len(known) == len(rows) else "where it has begun" if begun else "where that can be told"
        console.print(f"  {counted(sum(known), kept.unit[:-1])} behind {where}", soft_wrap=True)
    console.print()
