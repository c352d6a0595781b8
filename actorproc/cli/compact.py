"""`actorproc compact`: compacts with a progress bar and a summary, or shows the plan."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from actorproc.admin.compact import compact
from actorproc.cli.common import load_settings, run_async
from actorproc.cli.streams import warn
from actorproc.cli.terminal import SafeConsole, console, counted, print_json, print_table, sized
from actorproc.errors import ActorprocError
from actorproc.output.compact_output import Compaction
from actorproc.output.compaction import CompactionPlan, FileGroup
from actorproc.storage.names import natural

_STAYS = (
    "Left unchanged: files younger than --older-than, files beyond the checkpoint, and files that are large enough or "
    "single"
)


def run(
    name: str,
    container: str,
    target_size: str,
    older_than: str,
    keep: str,
    at_once: int,
    dry_run: bool,
    as_json: bool,
    config: Path | None,
    given: Sequence[str] | None,
) -> None:
    """Compact, or show the plan.

    Exits with code 1 if partitions were contested. If files are corrupt or missing, the others are compacted and the
    summary is printed before the error.
    """
    known: list[Compaction] = []
    problem: ActorprocError | None = None
    stderr = SafeConsole(stderr=True)
    columns = [BarColumn(), DownloadColumn(), TextColumn("rewritten"), TimeRemainingColumn()]
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as progress:
        task = progress.add_task("", total=None)

        def began(found: Compaction) -> None:
            known.append(found)
            progress.update(task, total=found.bytes_before)

        def done(group: FileGroup) -> None:
            progress.advance(task, group.size)

        async def work() -> Compaction:
            return await compact(
                container=container, name=name, target_size=target_size, older_than=older_than, keep=keep,
                at_once=at_once, dry_run=dry_run, settings=load_settings(config, given), began=began, done=done,
            )  # fmt: skip

        try:
            found = run_async(work)
        except ActorprocError as error:
            if not known or not (dry_run or known[0].changed):
                raise
            (found,), problem = known, error
    _show(found, name, dry_run=dry_run, as_json=as_json, problem=problem)


def _show(found: Compaction, name: str, *, dry_run: bool, as_json: bool, problem: ActorprocError | None) -> None:
    try:
        if as_json:
            print_json(_document(found, done=not dry_run and problem is None))
        else:
            run_async(lambda: _print(found, name, dry_run=dry_run, all_done=problem is None))
    finally:  # also if stdout is closed
        for partition in sorted(found.contested, key=natural):
            warn(f"partition {partition}: another job was rewriting its files; run it again")
        if problem is not None:
            raise problem
        if found.contested:
            raise typer.Exit(1)


async def _print(found: Compaction, name: str, *, dry_run: bool, all_done: bool) -> None:
    async def rows() -> AsyncIterator[Sequence[object]]:
        for planned in sorted(found.plans, key=lambda planned: natural(planned.partition)):
            partition = _partition(planned)
            yield [planned.partition, planned.files, sized(planned.size), partition["rewritten"], partition["into"],
                   sized(partition["bytes"])]  # fmt: skip

    if dry_run:
        await print_table(["partition", "files", "size", "to rewrite", "into", "size"], rows(), empty="no partitions")
        what = f"{counted(found.files_before, 'file')}, {sized(found.bytes_before)}"
        into = counted(len(found.groups), "file")
        console.print(f"{what} of {name} would become {into}; a dry run changes nothing", markup=False)
        console.print(_STAYS, markup=False)
        return
    before = f"{counted(found.files_before, 'file')}, {sized(found.bytes_before)}"
    after = f"{counted(found.files_after, 'file')}, {sized(found.bytes_after)}"
    swept = f"; {counted(found.swept, 'replaced file')} deleted" if found.swept else ""
    if found.files_before and not all_done:
        made = f"some of them became {after} with {counted(found.rows, 'row')}"
        console.print(f"{before} of {name} were to be rewritten; {made}, the others are unchanged{swept}", markup=False)
    elif found.files_before:
        console.print(f"{before} of {name} became {after}, with {counted(found.rows, 'row')}{swept}", markup=False)
        console.print(
            "`actorproc trim --yes` deletes the originals after an hour, and also rows that every reader has passed: "
            "see docs/retention.md",
            markup=False,
        )
    else:
        console.print(f"nothing to compact of {name}{swept}. {_STAYS}", markup=False)


def _partition(planned: CompactionPlan) -> dict[str, Any]:
    files = sum(group.files for group in planned.groups)
    size = sum(group.size for group in planned.groups)
    return {"partition": planned.partition, "rewritten": files, "into": len(planned.groups), "bytes": size}


def _document(found: Compaction, *, done: bool) -> dict[str, Any]:
    return {
        "done": done,
        "files_before": found.files_before,
        "files_after": found.files_after,
        "bytes_before": found.bytes_before,
        "bytes_after": found.bytes_after,
        "rows": found.rows,
        "swept": found.swept,
        "contested": sorted(found.contested, key=natural),
        "partitions": [_partition(planned) for planned in sorted(found.plans, key=lambda p: natural(p.partition))],
    }
