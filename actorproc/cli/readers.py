"""`actorproc readers`: lists, adds and removes readers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from actorproc.admin.readers import (
    PartitionLag,
    ReaderList,
    ReaderPosition,
    ends_before,
    list_readers,
    missing_reader,
    open_dataset,
    register_reader,
    unregister_reader,
)
from actorproc.admin.retained import RetainedDataset
from actorproc.cli.common import load_settings, run_async, settings_of_log
from actorproc.cli.streams import warn
from actorproc.cli.terminal import counted, passed, print_json, print_line, print_table, rows_of
from actorproc.config.settings import Settings
from actorproc.errors import UsageError
from actorproc.retention.readers import Reader
from actorproc.storage.document import whole_number
from actorproc.storage.names import natural

ChosenDataset = AbstractAsyncContextManager[tuple[RetainedDataset, Settings]]

_LISTED = 5  # partitions in a warning


@asynccontextmanager
async def chosen_dataset(
    name: str | None,
    container: str | None,
    log: str | None,
    config: Path | None,
    given: Sequence[str] | None,
    options: Sequence[str] | None,
) -> AsyncIterator[tuple[RetainedDataset, Settings]]:
    """The log, or else the output of the processor, as `open_dataset`. Readers have the settings that are yielded."""
    settings = load_settings(config, given)
    async with open_dataset(
        settings_of_log(log, settings, options), container=container, name=name, log=log
    ) as dataset:
        yield dataset, settings


def show(
    chosen: ChosenDataset,
    as_json: bool,
) -> None:
    """Print the readers with their positions."""

    async def work() -> None:
        async with chosen as (dataset, settings):
            found = await list_readers(dataset, settings)
        if as_json:
            print_json(_document(dataset, found))
        else:
            await _print(dataset, found, settings)

    run_async(work)


def add(
    reader: str,
    chosen: ChosenDataset,
    spark: str | None,
    processor: str | None,
    at: Sequence[str],
) -> None:
    """Register a reader."""
    positions = {"--spark": spark is not None, "--processor": processor is not None, "--at": bool(at)}
    if sum(positions.values()) != 1:
        raise UsageError("the reader's position: give one of --spark URL, --processor CONTAINER/NAME, --at NUMBER")

    async def work() -> None:
        async with chosen as (dataset, settings):
            new = await _reader(reader, dataset, spark, processor, at)
            next_numbers = await register_reader(dataset, new, settings)
            if (missing := await missing_reader(new, settings)) is not None:
                warn(f"warning: {missing}. It holds everything until it has begun")
            _warn_beyond(reader, await ends_before(dataset, next_numbers))
        if next_numbers:
            print_line(f"{dataset} keeps the data that {reader} ({new}) has not read")
        else:
            print_line(f"{dataset} keeps all data until {reader} ({new}) has begun")

    run_async(work)


def remove(
    reader: str,
    chosen: ChosenDataset,
) -> None:
    """Remove a reader."""

    async def work() -> None:
        async with chosen as (dataset, _):
            removed = await unregister_reader(dataset, reader)
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
        warn(f"warning: partition {listed}{more}: {reader} is beyond the end, and holds no data")


def _document(dataset: RetainedDataset, found: ReaderList) -> dict[str, Any]:
    readers = [
        {
            "name": position.reader.name,
            "kind": position.reader.kind,
            "url": position.reader.url or None,
            "processor": position.reader.processor or None,
            "query": position.reader.query or None,
            "error": position.error,
            "expired": position.expired_after is not None,
            "partitions": [lag._asdict() for lag in found.lags(position)],
        }
        for position in found.readers
    ]
    return {"of": str(dataset), "lowest": found.lowest, "errors": found.errors, "readers": readers}


async def _print(dataset: RetainedDataset, found: ReaderList, settings: Settings) -> None:
    for partition, error in found.errors.items():
        print_line(f"partition {partition}: {error}", style="red")
    if not found.readers:
        print_line(f"{dataset} has no readers: a trim deletes all data that is old enough")
    for position in found.readers:
        await _print_reader(position, found.lags(position), dataset.unit)
        has_begun = position.error is not None or position.next
        if not has_begun and (missing := await missing_reader(position.reader, settings)) is not None:
            warn(f"{position.reader.name}: {missing}. If it is gone: readers remove")


async def _print_reader(position: ReaderPosition, lags: Sequence[PartitionLag], unit: str) -> None:
    print_line(f"{position.reader.name}: {position.reader}")
    if position.error is not None:
        print_line(f"  its position cannot be read, so nothing is trimmed: {position.error}")
        print_line("")
        return
    if position.expired_after is not None:
        print_line(f"  expired: it has written nothing for {passed(position.expired_after)}; a trim will remove it")
    if any(lag.next is None for lag in lags):
        print_line("  it has not begun every partition; it holds all data of the others")
    await print_table(["partition", "reads next", "end", f"{unit} behind"], rows_of(lags))
    known = [lag.behind for lag in lags if lag.behind is not None]
    if known or not lags:
        where = "" if len(known) == len(lags) else f", in {len(known)} of {len(lags)} partitions"
        print_line(f"  {counted(sum(known), unit[:-1])} behind{where}")
    print_line("")
