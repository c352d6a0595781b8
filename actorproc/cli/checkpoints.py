"""`actorproc checkpoints`: shows committed cursors, and resets them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer
from msgspec import to_builtins
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from actorproc.admin.audit import operator
from actorproc.admin.own_source import own_source
from actorproc.admin.resets import PartitionReset, Resets, named_partitions, parse_reset_target, summary, was_done
from actorproc.cli.common import OpenedProcessor, run_async
from actorproc.cli.loading import load_source
from actorproc.cli.streams import warn
from actorproc.cli.terminal import SafeConsole, print_json, print_line, print_table, rows_of, utc
from actorproc.output.chain import ChainEnd, OutputChain
from actorproc.records import Cursor
from actorproc.runtime.tasks import gather
from actorproc.storage.names import natural


def show(opened: OpenedProcessor, partitions: Sequence[str], as_json: bool) -> None:
    """Print the committed cursor of each partition."""

    async def work() -> None:
        async with opened as (store, layout, _):
            names = await named_partitions(store, layout, partitions)
            tips = await gather(names, lambda name: OutputChain(store, layout, name).tip())
        found = {name: tip for name, tip in tips.items() if tip is not None}
        if as_json:
            for name, tip in found.items():
                print_json(_document(name, tip))
            return
        rows = [_row(name, tip) for name, tip in found.items()]
        columns = ("partition", "sequence", "position", "commits", "rows", "dead letters", "latest reset")
        await print_table(columns, rows_of(rows), empty="no partition was begun yet", cut=("position", "latest reset"))

    run_async(work)


def _document(partition: str, tip: ChainEnd) -> dict[str, Any]:
    """The JSON shape in docs/cli.md: a public contract."""
    return {
        "partition": partition,
        "sequence": tip.cursor.sequence if tip.cursor.sequence >= 0 else None,
        "position": tip.cursor.position,
        "commits": tip.number,
        **to_builtins(tip.totals),
        "ended": tip.ended,
        "has_state": tip.has_state,
        "checkpoint": {
            "number": tip.checkpoint.number, "epoch": tip.checkpoint.epoch, "host": tip.checkpoint.host,
            "time": utc(tip.checkpoint.time or None),
        },
        "latest_resets": [
            {
                "id": reset.id, "time": utc(reset.time), "who": reset.who, "reason": reset.reason,
                "from": reset.first.sequence, "to": reset.next.sequence, "clears_state": reset.clears_state,
            }
            for reset in tip.resets
        ],
    }  # fmt: skip


def _row(partition: str, tip: ChainEnd) -> list[object]:
    sequence = tip.cursor.sequence if tip.cursor.sequence >= 0 else None
    latest = None
    if tip.resets:
        reset = tip.resets[-1]
        latest = f"{utc(reset.time)} from {reset.first.sequence} to {reset.next.sequence} by {reset.who}"
    return [partition, sequence, tip.cursor.position, tip.number, tip.totals.rows, tip.totals.dead_letters, latest]


def reset(
    opened: OpenedProcessor,
    to: str | None,
    partitions: Sequence[str],
    source_url: str | None,
    yes: bool,
    reason: str,
    command: str,
    as_json: bool,
) -> None:
    """Print the effect of a reset. With `yes` do it before. `to` None: undo the latest reset."""
    goal = None if to is None else parse_reset_target(to)

    async def work() -> bool:
        async with opened as (store, layout, settings):
            given = None if source_url is None else load_source(source_url)
            async with own_source(store, layout, settings, given) as source:
                resets = Resets(store, layout, settings, source, operator(), reason, command=command)
                found = await (resets.plan_undo(partitions) if goal is None else resets.plan(goal, partitions))
                if yes:
                    refused = [one for one in found if one.refusal]
                    found = [*refused, *await _carried_out(resets, found, to)]
        found.sort(key=lambda one: natural(one.partition))
        if as_json:
            print_json({"done": yes and was_done(found), "partitions": [one.document() for one in found]})
        else:
            await _print(found, yes)
        return yes and any(one.refusal for one in found)

    if run_async(work):
        raise typer.Exit(1)


async def _carried_out(resets: Resets, planned: Sequence[PartitionReset], to: str | None) -> list[PartitionReset]:
    arguments = {"to": "undo" if to is None else to}
    console = SafeConsole(stderr=True)
    warn(f"if this is cut short, run it again with --id {resets.command}")
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("resetting", total=sum(not one.refusal for one in planned))
        return await resets.carry_out(planned, arguments, done=lambda _: progress.advance(task))


async def _print(found: Sequence[PartitionReset], done: bool) -> None:
    rows = [
        [
            one.partition, _place(one.first), None if one.refusal else _place(one.next),
            _count(one.repeats, one), _count(one.skips, one),
            f"refused: {one.refusal}" if one.refusal else "keyed state is cleared" if one.clears_state else "",
        ]
        for one in found
    ]  # fmt: skip
    await print_table(("partition", "processed up to", "will be", "repeats", "skips", ""), rows_of(rows))
    would = "" if done else ". Nothing was changed: run it again with --yes to do it"
    print_line(summary(found) + would)


def _place(cursor: Cursor) -> str:
    return str(cursor.sequence) if cursor.sequence >= 0 else f"position {cursor.position}"


def _count(count: int | None, found: PartitionReset) -> str | None:
    return None if found.refusal else "unknown" if count is None else f"{count:,}"
