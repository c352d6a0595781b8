"""`actorproc trim`: shows the files to delete, and the readers that hold other files; deletes with --yes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from actorproc.admin.retained import RetainedDataset
from actorproc.admin.trim import PartitionTrim, Trim, plan_trim
from actorproc.admin.trim import trim as trim_now
from actorproc.cli.common import run_async
from actorproc.cli.readers import ChosenDataset
from actorproc.cli.streams import warn
from actorproc.cli.terminal import (
    Cells,
    SafeConsole,
    counted,
    passed,
    print_json,
    print_line,
    print_table,
    rows_of,
    sized,
)
from actorproc.config.settings import Settings
from actorproc.config.units import duration
from actorproc.storage.backend import Entry
from actorproc.storage.names import natural

_COLUMNS = ["partition", "files", "numbers", "size", "age", "kept from", "because"]


def run(
    chosen: ChosenDataset,
    older_than: str,
    yes: bool,
    as_json: bool,
) -> None:
    """Show the files that a trim would delete, or trim and show the deleted ones."""
    age = duration("--older-than", older_than)

    async def work() -> None:
        gone = _Gone()
        async with chosen as (dataset, settings):
            if yes:
                found = await _trimmed(dataset, settings, age, gone)
            else:
                found = await plan_trim(dataset, settings, older_than=age)
        partitions = sorted(found.partitions, key=lambda partition: natural(partition.partition))
        if as_json:
            documents = [_document(partition) for partition in partitions]
            print_json({"of": str(dataset), "done": yes, "files_deleted": gone.files, "partitions": documents})
        else:
            await print_table(_COLUMNS, rows_of(map(_row, partitions)))
            print_line(_summary(dataset, found, gone if yes else None))
        _warn(found, done=yes)

    run_async(work)


@dataclass
class _Gone:
    """The files that were deleted, and their bytes."""

    files: int = 0
    size: int = 0

    def add(self, entry: Entry) -> None:
        self.files, self.size = self.files + 1, self.size + entry.size


async def _trimmed(dataset: RetainedDataset, settings: Settings, older_than: float, gone: _Gone) -> Trim:
    """Trim, with a progress bar on stderr if that is a terminal."""
    stderr = SafeConsole(stderr=True)
    columns = [BarColumn(), MofNCompleteColumn(), TextColumn("files deleted"), TimeRemainingColumn()]
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as progress:
        task = progress.add_task("", total=None)

        def deleted(entry: Entry) -> None:
            gone.add(entry)
            progress.advance(task)

        return await trim_now(
            dataset,
            settings,
            older_than=older_than,
            began=lambda planned: progress.update(task, total=planned.files),
            deleted=deleted,
        )


def _warn(found: Trim, *, done: bool) -> None:
    for position in found.readers:
        if position.expired_after is not None:
            act = "was removed" if done else "would be removed"
            silent = passed(position.expired_after)
            warn(f"reader {position.reader.name} {act}: it has written nothing for {silent}")
    if not found.readers and found.files:
        warn("no reader is registered, so only age counts (see `actorproc readers`)")
    for position in found.readers:
        if position.error is not None:
            warn(f"the position of reader {position.reader.name} cannot be read: {position.error}")


def _summary(dataset: RetainedDataset, found: Trim, gone: _Gone | None) -> str:
    """`gone`: None: nothing was to be deleted."""
    if gone is not None:
        text = f"{counted(gone.files, 'file')}, {sized(gone.size)} deleted from {dataset}"
        kept = found.files - gone.files
        return f"{text}; {kept:,} wait for a table, and a later trim deletes them" if kept else text
    files = f"{counted(found.files, 'file')}, {sized(found.size)}"
    if found.files:
        return f"{files} would be deleted from {dataset}. Nothing was deleted: run it again with --yes to delete them"
    return f"no file of {dataset} can be deleted: the column 'because' says why"


def _row(partition: PartitionTrim) -> Cells:
    row = _document(partition)
    numbers = f"{row['first']} - {row['last']}" if row["files"] else None
    ages = f"{passed(row['youngest'])} - {passed(row['oldest'])}" if row["files"] else None
    size = sized(row["bytes"])
    return [row["partition"], row["files"], numbers, size, ages, row["kept_from"], row["because"]]


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
