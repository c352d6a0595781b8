"""`actorproc status`: members, leases, progress and lag of a processor."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from functools import partial
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from actorproc.admin.placement import describe
from actorproc.admin.status import MemberStatus, PartitionStatus, ProcessorStatus, next_plan, read_status
from actorproc.cli.common import OpenedProcessor, run_async
from actorproc.cli.loading import load_source
from actorproc.cli.terminal import console, counted, print_json, text, utc
from actorproc.errors import UsageError
from actorproc.group.assignment import Plan
from actorproc.group.wishes import NO_WISHES
from actorproc.host.startup import check_consumers
from actorproc.output.source_identity import check_source
from actorproc.runtime.clock import SYSTEM
from actorproc.sources import Source, guard_source, open_source, source_kind
from actorproc.sources.protocol import first_position
from actorproc.storage.names import named_partitions, natural

WATCH_EVERY = 2.0
"""Seconds between two looks of `--watch`."""

_LISTED = 40  # partitions shown while watching: as many as fit a screen


def run(
    opened: OpenedProcessor,
    source_url: str | None,
    start_from: str | None,
    as_json: bool,
    watch: bool,
    with_plan: bool,
) -> None:
    """Print the state of a processor, once or again and again."""
    if as_json and watch:
        raise UsageError("--json and --watch: choose one")
    if start_from is not None and source_url is None:
        raise UsageError("--start-from needs --source")

    async def work() -> None:
        async with AsyncExitStack() as stack:
            store, layout, settings = await stack.enter_async_context(opened)
            source = None
            if source_url is not None:
                source = guard_source(open_source(load_source(source_url), settings=settings))
                await source.open()
                stack.push_async_callback(source.close)
                await check_source(store, layout, source.identity, str(source), source_kind(source))
                await check_consumers(store, layout, source, start_from, None)
            expiration = settings.lease_expiration_interval
            begin = None if source is None or start_from is None else partial(_begin, source, start_from)

            async def look() -> tuple[ProcessorStatus, Plan | None]:
                status = await read_status(
                    store, layout, layout.processor, expiration=expiration, source=source, begin=begin
                )
                plan = await next_plan(store, layout, expiration=expiration, source=source) if with_plan else None
                return status, plan

            if not watch:
                status, plan = await look()
                print_json(_document(status, plan)) if as_json else console.print(_tables(status, plan))
                return
            while not console.is_terminal:  # a file, a pipe: one below the other
                console.print(_tables(*await look(), most=_LISTED))
                await SYSTEM.sleep(WATCH_EVERY)
            with Live(console=console, auto_refresh=False) as live:
                while True:
                    live.update(_tables(*await look(), most=_LISTED), refresh=True)
                    await SYSTEM.sleep(WATCH_EVERY)

    try:
        run_async(work)
    except KeyboardInterrupt:
        if not watch:
            raise


async def _begin(source: Source, start_from: str, partition: str) -> str:
    return await first_position(source, partition, "earliest", start_from)


def _document(status: ProcessorStatus, plan: Plan | None) -> dict[str, Any]:
    """The JSON shape in docs/cli.md: a public contract."""
    document: dict[str, Any] = {
        "processor": status.processor,
        "lag": status.lag,
        "lag_exact": status.lag_exact,
        "lag_bytes": status.lag_bytes,
        "lag_seconds": _rounded(status.lag_seconds),
        "members": [_member(member) for member in status.members],
        "partitions": [_partition(partition) for partition in status.partitions],
        "asked": None if status.wishes == NO_WISHES else describe(status.wishes),
    }
    if plan is not None:
        document["plan"] = [move._asdict() for move in plan.moves]
    return document


def _member(member: MemberStatus) -> dict[str, Any]:
    return asdict(member) | {"heartbeat_age": _rounded(member.heartbeat_age), "started": utc(member.started)}


def _partition(partition: PartitionStatus) -> dict[str, Any]:
    cursor, end, totals = partition.cursor, partition.end, partition.totals
    return {
        "partition": partition.partition,
        "owner": partition.owner,
        "epoch": partition.epoch,
        "next_owner": partition.next_owner,
        "closed": partition.closed,
        "position": cursor.position if cursor else None,
        "sequence": cursor.sequence if cursor and cursor.sequence >= 0 else None,
        "end": end.position if end else None,
        "end_sequence": end.sequence if end else None,
        "lag": partition.lag,
        "lag_bytes": partition.lag_bytes,
        "lag_seconds": _rounded(partition.lag_seconds),
        "begins_at": partition.begins_at,
        "last_commit": utc(partition.last_commit),
        "records": totals.records,
        "rows": totals.rows,
        "dead_letters": totals.dead_letters,
        "skipped": totals.skipped,
        "output_files": partition.output_files,
        "error": partition.error,
        "fault": partition.fault,
        "failing_since": utc(partition.failing_since),
    }


def _tables(status: ProcessorStatus, plan: Plan | None, most: int | None = None) -> RenderableType:
    parts: list[RenderableType] = [_headline(status), _members(status)]
    if status.wishes != NO_WISHES:
        parts.append(text(describe(status.wishes), style="yellow"))
    if status.partitions:
        parts.append(_partitions(status.partitions[:most]))
    if most is not None and len(status.partitions) > most:
        parts.append(Text(f"  ... and {counted(len(status.partitions) - most, 'partition')} more", style="dim"))
    parts += [
        text(
            f"{member.host} cannot look at the group or the source{_for(member.error_since)}: "
            f"{_one_line(member.error)}",
            style="red",
        )
        for member in status.members
        if member.error
    ]
    parts += [
        text(f"{named_partitions(names)}{_for(since)}: {_one_line(error)}", style="red")
        for error, (names, since) in _failing(status.partitions).items()
    ]
    if plan is not None:
        parts.append(_moves(plan))
    return Group(*parts)


def _headline(status: ProcessorStatus) -> Text:
    owned = sum(partition.owner is not None for partition in status.partitions)
    facts = [
        f"{sum(member.alive for member in status.members)} of {counted(len(status.members), 'member')} alive",
        f"{owned} of {counted(len(status.partitions), 'partition')} owned",
        counted(sum(partition.totals.records for partition in status.partitions), "record"),
        counted(sum(partition.totals.dead_letters for partition in status.partitions), "dead letter"),
        *([f"lag {'' if status.lag_exact else '>= '}{status.lag:,}"] if status.lag is not None else []),
        *([f"{decimal(status.lag_bytes)} unread"] if status.lag_bytes else []),
        *([f"{_duration(status.lag_seconds)} behind"] if status.lag_seconds else []),
    ]
    return Text.assemble((status.processor, "bold"), "  ", ", ".join(facts))


def _members(status: ProcessorStatus) -> RenderableType:
    if not status.members:
        return Text("no members: no host is running", style="yellow")
    table = Table("host", _right("pid"), _right("leases"), "state", "heartbeat", "started", "release", box=SIMPLE_HEAD)
    for member in status.members:
        pid = "-" if member.pid is None else str(member.pid)
        heartbeat, started = _ago(member.heartbeat_age), _since(member.started)
        release = text(member.release or "-")
        table.add_row(text(member.host), pid, str(member.leases), _state(member), heartbeat, started, release)
    return table


def _state(member: MemberStatus) -> Text:
    if not member.alive:
        return Text("silent", style="red")
    if not member.in_group:
        return Text("joining", style="yellow")
    return Text("leaving", style="yellow") if member.leaving else Text("alive", style="green")


def _partitions(partitions: Sequence[PartitionStatus]) -> Table:
    skipped = any(partition.totals.skipped for partition in partitions)
    timed = any(partition.lag_seconds is not None for partition in partitions)
    begins = any(partition.begins_at is not None for partition in partitions)
    table = Table(
        "partition", "owner", _right("epoch"), _right("sequence"), *([_right("begins at")] if begins else []),
        _right("lag"), *([_right("behind")] if timed else []), _right("rows"), _right("dead"),
        *([_right("skipped")] if skipped else []), "last commit", box=SIMPLE_HEAD, show_edge=False, pad_edge=False,
    )  # fmt: skip
    for partition in partitions:
        cursor, totals = partition.cursor, partition.totals
        owner = text(partition.owner) if partition.owner else Text("nobody", style="red")
        if partition.closed:
            owner = Text(partition.closed, style="dim")
        table.add_row(
            text(partition.partition),
            owner.append(text(f" -> {partition.next_owner}", style="yellow")) if partition.next_owner else owner,
            str(partition.epoch),
            f"{cursor.sequence:,}" if cursor and cursor.sequence >= 0 else "-",
            *([text(partition.begins_at or "-")] if begins else []),
            "-" if partition.lag is None else f"{partition.lag:,}",
            *([_duration(partition.lag_seconds)] if timed else []),
            f"{totals.rows:,}",
            Text(f"{totals.dead_letters:,}", style="yellow" if totals.dead_letters else ""),
            *([f"{totals.skipped:,}"] if skipped else []),
            _since(partition.last_commit),
        )
    return table


def _one_line(error: str) -> str:
    return " ".join(error.split())


def _failing(partitions: Sequence[PartitionStatus]) -> dict[str, tuple[list[str], float | None]]:
    """Error -> the partitions that have it, and since when the first of them has it."""
    found: dict[str, list[PartitionStatus]] = {}
    for partition in partitions:
        if partition.error:
            found.setdefault(partition.error, []).append(partition)
    return {
        error: (
            [p.partition for p in failing],
            min((p.failing_since for p in failing if p.failing_since), default=None),
        )
        for error, failing in found.items()
    }


def _for(since: float | None) -> str:
    return "" if since is None else f", for {_duration(max(0.0, SYSTEM.wall() - since))}"


def _since(time: float | None) -> str:
    """How long ago a time of another host's clock was, by this host's clock."""
    return _ago(None if time is None else max(0.0, SYSTEM.wall() - time))


def _ago(seconds: float | None) -> str:
    return "-" if seconds is None else f"{_duration(seconds)} ago"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _moves(plan: Plan) -> RenderableType:
    if not plan.changed:
        return Text("the next look at the group would change nothing", style="green")
    table = Table("partition", "from", "to", "why", box=SIMPLE_HEAD, title="the next look at the group would")
    for move in sorted(plan.moves, key=lambda move: natural(move.partition)):
        table.add_row(*(text(cell or "nobody") for cell in (move.partition, move.source, move.target, move.reason)))
    return table


def _right(header: str) -> Column:
    return Column(header, justify="right")
