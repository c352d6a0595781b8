"""`actorproc readers`: lists, adds and removes readers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import typer

from actorproc.admin.readers import (
    ReaderLag,
    ReaderList,
    ends_before,
    list_readers,
    missing_reader,
    open_dataset,
    register_reader,
)
from actorproc.admin.retained import RetainedDataset
from actorproc.cli.common import load_settings, run_async
from actorproc.cli.terminal import counted, print_json, print_line, print_table, rows_of
from actorproc.config.settings import Settings
from actorproc.errors import UsageError
from actorproc.retention.readers import Reader
from actorproc.retention.readers import remove as unregister
from actorproc.storage.document import whole_number
from actorproc.storage.names import natural

_LISTED = 5  # partitions in a warning


@asynccontextmanager
async def chosen_dataset(
    name: str | None, container: str | None, log: str | None, config: Path | None, given: Sequence[str] | None
) -> AsyncIterator[tuple[RetainedDataset, Settings]]:
    """The log, or else the output of the processor.

    Raises:
        UsageError: it does not exist, or neither was given.
    """
    if log is None and (name is None or container is None):
        raise UsageError("give --name and --container for a processor's output, or --log for a log")
    settings = load_settings(config, given)
    async with open_dataset(settings, container=container, name=name, log=log) as dataset:
        yield dataset, settings


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
        async with chosen_dataset(name, container, log, config, given) as (dataset, settings):
            found = await list_readers(dataset, settings)
        if as_json:
            print_json(_document(dataset, found))
        else:
            await _print(dataset, found)

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
    positions = {"--spark": spark is not None, "--processor": processor is not None, "--at": bool(at)}
    if sum(positions.values()) != 1:
        raise UsageError("the reader's position: give one of --spark URL, --processor CONTAINER/NAME, --at NUMBER")

    async def work() -> None:
        async with chosen_dataset(name, container, log, config, given) as (dataset, settings):
            new = await _reader(reader, dataset, spark, processor, at)
            next_numbers = await register_reader(dataset, new, settings)
            if (missing := await missing_reader(new, settings)) is not None:
                typer.echo(f"warning: {missing}. It holds everything until it has begun", err=True)
            _warn_beyond(reader, await ends_before(dataset, next_numbers))
        if next_numbers:
            print_line(f"{dataset} keeps the data that {reader} ({new}) has not read")
        else:
            print_line(f"{dataset} keeps all data until {reader} ({new}) has begun")

    run_async(work)


def remove(
    reader: str,
    name: str | None,
    container: str | None,
    log: str | None,
    config: Path | None,
    given: Sequence[str] | None,
) -> None:
    """Remove a reader."""

    async def work() -> None:
        async with chosen_dataset(name, container, log, config, given) as (dataset, _):
            removed = await unregister(dataset.store, dataset.readers, reader)
        print_line(f"{dataset} keeps no data for {reader} ({removed}) any more")

    run_async(work)


async def _reader(
    name: str, dataset: RetainedDataset, spark: str | None, processor: str | None, at: Sequence[str]
) -> Reader:
    if spark is not None:
        return Reader.spark(name, spark)
    if processor is not None:
        container, slash, its_name = processor.rstrip("/").rpartition("/")
        if not slash or not its_name:
            raise UsageError(f"--processor {processor!r}: write CONTAINER/NAME, such as s3://bucket/state/Averages")
        return Reader.of_processor(container, its_name, name=name)
    return Reader.at(name, _numbers(at, await dataset.partitions()))


def _numbers(at: Sequence[str], partitions: Sequence[str]) -> Mapping[str, int]:
    numbers: dict[str, int] = {}
    for text in at:
        partition, equals, digits = text.rpartition("=")
        number = whole_number(digits)
        if number is None:
            raise UsageError(f"--at {text!r:.100}: write a number, or PARTITION=NUMBER, such as 0=1200")
        numbers |= {partition: number} if equals else dict.fromkeys(partitions, number)
    return numbers


def _warn_beyond(reader: str, ends: Mapping[str, int]) -> None:
    if ends:
        listed = ", ".join(f"{p} ends at {ends[p]:,}" for p in sorted(ends, key=natural)[:_LISTED])
        more = " ..." if len(ends) > _LISTED else ""
        typer.echo(f"warning: partition {listed}{more}: {reader} is beyond the end, and holds no data", err=True)


def _document(dataset: RetainedDataset, found: ReaderList) -> dict[str, Any]:
    readers = [
        {
            "name": lag.reader.name,
            "kind": lag.reader.kind,
            "url": lag.reader.url or None,
            "processor": lag.reader.processor or None,
            "query": lag.reader.query or None,
            "error": lag.error,
            "partitions": [
                {"partition": p.partition, "next": p.next, "end": p.end, "behind": p.behind} for p in lag.partitions
            ],
        }
        for lag in found.readers
    ]
    return {"of": str(dataset), "lowest": found.lowest, "errors": found.errors, "readers": readers}


async def _print(dataset: RetainedDataset, found: ReaderList) -> None:
    for partition, error in found.errors.items():
        print_line(f"partition {partition}: {error}", style="red")
    if not found.readers:
        print_line(f"{dataset} has no readers: a trim deletes all data that is old enough")
    for lag in found.readers:
        await _print_reader(lag, dataset.unit)
        if lag.missing is not None:
            typer.echo(f"{lag.reader.name}: {lag.missing}. If it is gone: readers remove", err=True)


async def _print_reader(lag: ReaderLag, unit: str) -> None:
    print_line(f"{lag.reader.name}: {lag.reader}")
    if lag.error is not None:
        print_line(f"  its position cannot be read, so nothing is trimmed: {lag.error}\n")
        return
    if any(partition.next is None for partition in lag.partitions):
        print_line("  it has not begun every partition; it holds all data of the others")
    cells = [[p.partition, p.next, p.end, p.behind] for p in lag.partitions]
    await print_table(["partition", "reads next", "end", f"{unit} behind"], rows_of(cells))
    known = [p.behind for p in lag.partitions if p.behind is not None]
    if known or not lag.partitions:
        where = "" if len(known) == len(lag.partitions) else f", in {len(known)} of {len(lag.partitions)} partitions"
        print_line(f"  {counted(sum(known), unit[:-1])} behind{where}")
    print_line("")
