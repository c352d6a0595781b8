"""`actorproc trim`: shows what may go and what holds the rest; deletes it."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from actorproc.admin.retained import RetainedDataset
from actorproc.admin.trim import PartitionTrim, Trim, plan_trim
from actorproc.admin.trim import trim as trim_now
from actorproc.cli.common import console, counted, print_json, print_table, run_async
from actorproc.cli.readers import asked_for
from actorproc.config.settings import Settings, duration
from actorproc.storage.names import natural

_UNITS = ["B", "kB", "MB", "GB", "TB"]


def run(
    name: str | None,
    container: str | None,
    log: str | None,
    older_than: str,
    yes: bool,
    as_json: bool,
    config: Path | None,
    given: Sequence[str] | None,
) -> None:
    """Show what would go, or trim and show what went."""
    age = duration("--older-than", older_than)

    async def work() -> None:
        async with asked_for(name, container, log, config, given) as (kept, settings):
            if yes:
                found = await _trimmed(kept, settings, age)
            else:
                found = await plan_trim(kept, settings, older_than=age)
        partitions = sorted(found.partitions, key=lambda partition: natural(partition.partition))
        if as_json:
            print_json({"of": str(kept), "done": yes, "partitions": [_document(partition) for partition in partitions]})
        else:
            await _print(kept, found, partitions, done=yes)
        if not found.readers and found.files:
            typer.echo("no reader is registered, so only age counts (see `actorproc readers`)", err=True)
        for standing in found.readers:
            if standing.error is not None:
                typer.echo(f"reader {standing.reader.name} cannot be asked: {standing.error}", err=True)

    run_async(work)


async def _trimmed(kept: RetainedDataset, settings: Settings, older_than: float) -> Trim:
    """Trim, with a bar on stderr if that is a terminal."""
    stderr = Console(stderr=True)
    columns = [BarColumn(), MofNCompleteColumn(), TextColumn("files deleted"), TimeRemainingColumn()]
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as progress:
        task = progress.add_task("", total=None)
        return await trim_now(
            kept,
            settings,
            older_than=older_than,
            began=lambda planned: progress.update(task, total=planned.files),
            deleted=lambda _: progress.advance(task),
        )


async def _print(kept: RetainedDataset, found: Trim, partitions: Sequence[PartitionTrim], *, done: bool) -> None:
    async def rows() -> AsyncIterator[Sequence[object]]:
        for partition in partitions:
            row = _document(partition)
            numbers = f"{row['first']} - {row['last']}" if row["files"] else None
            ages = f"{_age(row['youngest'])} - {_age(row['oldest'])}" if row["files"] else None
            yield [partition.partition, row["files"], numbers, sized(row["bytes"]), ages, partition.hold.number,
                   partition.hold.why]  # fmt: skip

    await print_table(["partition", "files", "numbers", "size", "age", "kept from", "because"], rows())
    went = f"{counted(found.files, 'file')}, {sized(found.size)}"
    if done:
        console.print(f"{went} trimmed of {kept}", markup=False, soft_wrap=True)
    elif found.files:
        console.print(f"{went} would go of {kept}; nothing is changed without --yes", markup=False, soft_wrap=True)
    else:
        console.print(f"nothing would go of {kept}", markup=False, soft_wrap=True)


def _document(partition: PartitionTrim) -> dict[str, Any]:
    going = partition.going
    return {
        "partition": partition.partition,
        "files": going.files,
        "bytes": going.size,
        "first": going.first if going.files else None,
        "last": going.last if going.files else None,
        "youngest": round(going.youngest, 3) if going.files else None,
        "oldest": round(going.oldest, 3) if going.files else None,
        "lowest": partition.upto,
        "kept_from": partition.hold.number,
        "because": partition.hold.why,
    }


def sized(count: float) -> str:
    """Bytes as people read them."""
    if count < 1000:
        return f"{count:.0f} B"
    power = min(int(math.log10(count)) // 3, len(_UNITS) - 1)
    return f"{count / 1000**power:.1f} {_UNITS[power]}"


def _age(age: float) -> str:
    days, rest = divmod(max(0, int(age)), 86400)
    hours, rest = divmod(rest, 3600)
    return f"{days}d {hours}h" if days else f"{hours}h {rest // 60}m" if hours else f"{rest // 60}m {rest % 60}s"
