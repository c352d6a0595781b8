"""`actorproc processors`, `logs` and `peek`: processors and logs as a whole, and records of a source."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from actorproc.admin.logs import Growth, delete_log, describe_log, list_logs, plan_growth
from actorproc.admin.logs import grow as grow_log_now
from actorproc.admin.objects import Amount, amount, entries_below
from actorproc.admin.peek import PeekStart
from actorproc.admin.peek import peek as peek_at
from actorproc.admin.processors import (
    ProcessorDescription,
    delete_processor,
    describe_processor,
    list_processors,
    rename_processor,
)
from actorproc.cli.common import OpenedProcessor, load_settings, run_async
from actorproc.cli.loading import load_source
from actorproc.cli.terminal import counted, print_json, print_line, print_table, rows_of
from actorproc.log.metadata import create_log, open_log
from actorproc.output.letter import record_fields
from actorproc.records import Record
from actorproc.sources import guard_source, open_source
from actorproc.storage.names import named_partitions
from actorproc.stores import open_store

_UNIT = 2**20
_SOURCE_HINT = "if its source is a log that keeps data for it: actorproc readers remove {processor} --log URL"

Settings = Sequence[str] | None


def show_processors(container: str, as_json: bool, config: Path | None, given: Settings) -> None:
    """Print the names, one a line."""

    async def work() -> list[str]:
        async with open_store(container, load_settings(config, given)) as store:
            return await list_processors(store)

    _print_names(run_async(work), as_json, f"no processor at {container}")


def show_processor(opened: OpenedProcessor, as_json: bool) -> None:
    """Print the description."""

    async def work() -> ProcessorDescription:
        async with opened as (store, layout, settings):
            return await describe_processor(store, layout, expiration=settings.lease_expiration_interval)

    found = run_async(work)
    if as_json:
        print_json(_document(found))
        return
    facts = {
        "source": found.source.name if found.source else "not known",
        "partitions": f"{len(found.fleet.partitions):,}",
        "hosts alive": ", ".join(found.alive) or "none",
        "readers of the output": ", ".join(found.readers) or "none",
        "stored": _size(found.total),
        **{f"  {folder or '(beside the folders)'}": _size(stored) for folder, stored in found.stored.items()},
    }
    for name, value in facts.items():
        print_line(f"{name:22} {value}")


def rename(opened: OpenedProcessor, new: str, yes: bool) -> None:
    """Rename, or list the objects that would be copied."""

    async def work() -> None:
        async with opened as (store, layout, settings):
            expiration = settings.lease_expiration_interval
            if not yes:
                total = (await describe_processor(store, layout, expiration=expiration)).total
                print_line(f"would rename {layout.processor} to {new}, by copying {_size(total)}; --yes does it")
                return
            done = await rename_processor(store, layout, new, expiration=expiration)
            print_line(f"renamed {layout.processor} to {new}: {_size(done)} copied")
            print_line(_SOURCE_HINT.format(processor=layout.processor))

    run_async(work)


def delete(opened: OpenedProcessor, yes: bool) -> None:
    """Delete, or list the objects that would be deleted."""

    async def work() -> None:
        async with opened as (store, layout, settings):
            expiration = settings.lease_expiration_interval
            if not yes:
                total = (await describe_processor(store, layout, expiration=expiration)).total
                print_line(f"would delete {layout.processor}: {_size(total)}; --yes does it")
                return
            done = await delete_processor(store, layout, expiration=expiration)
            print_line(f"deleted {layout.processor}: {_size(done)}")
            print_line(_SOURCE_HINT.format(processor=layout.processor))

    run_async(work)


def show_logs(folder: str, as_json: bool, config: Path | None, given: Settings) -> None:
    """Print the URLs, one a line."""

    async def work() -> list[str]:
        async with open_store(folder, load_settings(config, given)) as store:
            return [f"{store.url.rstrip('/')}/{name}".rstrip("/") for name in await list_logs(store)]

    _print_names(run_async(work), as_json, f"no log at {folder}")


def show_log(url: str, as_json: bool, config: Path | None, given: Settings) -> None:
    """Print the description."""

    async def work() -> None:
        async with open_store(url, load_settings(config, given)) as store:
            found = await describe_log(store)
        if as_json:
            partitions = [
                {
                    "partition": p.partition,
                    "end": p.end,
                    "objects": p.stored.objects,
                    "bytes": p.stored.bytes,
                    "followed_by": list(p.followed_by),
                }
                for p in found.partitions
            ]
            readers = list(found.readers)
            document = {"identity": found.identity, "partitions": partitions, "readers": readers}
            print_json({**document, "growing": found.growing})
            return
        columns = ["partition", "end", "objects", "bytes"]
        cells = [[p.partition, p.end, p.stored.objects, p.stored.bytes] for p in found.partitions]
        if any(p.followed_by for p in found.partitions):
            columns.append("followed by")
            cells = [[*row, " ".join(p.followed_by)] for row, p in zip(cells, found.partitions, strict=True)]
        await print_table(columns, rows_of(cells))
        if found.growing:
            print_line("a growth of this log was begun and is not complete: run actorproc logs grow again")
        print_line(f"readers: {', '.join(found.readers) or 'none'}")

    run_async(work)


def create(url: str, partitions: int, config: Path | None, given: Settings) -> None:
    """Create a log."""

    async def work() -> None:
        async with open_store(url, load_settings(config, given)) as store:
            found = await create_log(store, partitions)
            print_line(f"{store.url} is a log with {counted(found.partitions, 'partition')}")

    run_async(work)


def grow(url: str, partitions: int, own_partitioner: bool, yes: bool, config: Path | None, given: Settings) -> None:
    """Let a log grow, or say which partitions would end and begin."""

    async def work() -> None:
        async with open_store(url, load_settings(config, given)) as store:
            planned = await plan_growth(store, partitions)
            if not planned.ends:
                print_line(f"the log at {store.url} has {counted(partitions, 'partition')} already")
            elif yes:
                await grow_log_now(store, partitions, by_key=not own_partitioner)
                print_line(f"{_growth(planned)}; the log at {store.url} has {counted(partitions, 'partition')}")
            else:
                print_line(f"would let the log at {store.url} grow to {counted(partitions, 'partition')}:")
                print_line(f"{_growth(planned)}; --yes does it")

    run_async(work)


def _growth(planned: Growth) -> str:
    return f"{named_partitions(planned.ends)} end, {named_partitions(planned.begins)} follow"


def drop_log(url: str, yes: bool, config: Path | None, given: Settings) -> None:
    """Delete a log, or list the objects that would be deleted."""

    async def work() -> None:
        async with open_store(url, load_settings(config, given)) as store:
            if yes:
                print_line(f"deleted the log at {store.url}: {_size(await delete_log(store))}")
                return
            await open_log(store)
            size = _size(amount(await entries_below(store, "")))
            print_line(f"would delete the log at {store.url}: {size}; --yes does it")

    run_async(work)


def peek(
    url: str,
    source_options: Sequence[str],
    partitions: Sequence[str],
    start: str,
    limit: int,
    as_json: bool,
    config: Path | None,
    given: Sequence[str],
) -> None:
    """Print records as they are read."""
    begin = PeekStart.parse(start)
    settings = load_settings(config, given, source_options)

    async def work() -> None:
        source = guard_source(open_source(load_source(url), settings=settings))
        await source.open()
        try:
            await peek_at(source, begin, limit, _print_record if not as_json else _print_json, partitions)
        finally:
            await source.close()

    run_async(work)


def _print_json(record: Record) -> None:
    print_json({"partition": record.partition, **record_fields(record)})


def _print_record(record: Record) -> None:
    fields = record_fields(record)
    time = record.timestamp.isoformat() if record.timestamp else "-"
    headers = " ".join(f"{header['key']}={header['value']}" for header in fields["headers"])
    parts = [f"{record.partition}:{record.sequence}", time, f"key={fields['key']}", headers, str(fields["value"])]
    print_line("  ".join(part for part in parts if part))


def _print_names(names: Sequence[str], as_json: bool, empty: str) -> None:
    if as_json:
        print_json(list(names))
        return
    for name in names or [empty]:
        print_line(name)


def _size(stored: Amount) -> str:
    return f"{counted(stored.objects, 'object')}, {stored.bytes / _UNIT:,.1f} MiB"


def _document(found: ProcessorDescription) -> dict[str, object]:
    return {
        "processor": found.fleet.processor,
        "source": found.source and found.source.name,
        "partitions": len(found.fleet.partitions),
        "hosts_alive": found.alive,
        "readers": list(found.readers),
        "stored": {folder: stored._asdict() for folder, stored in found.stored.items()},
    }
