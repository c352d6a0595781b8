"""`actorproc status`: members, leases, progress and lag of a processor."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from functools import partial
from typing import Any

from msgspec import structs
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from actorproc.admin.chain_lag import ChainLag
from actorproc.admin.durations import duration
from actorproc.admin.fleet import Fleet, HostView, PartitionView, grouped
from actorproc.admin.fleet_watch import FleetWatch
from actorproc.admin.next_plan import next_plan
from actorproc.admin.placement import describe
from actorproc.admin.sinks import SinkStatus, read_sinks
from actorproc.admin.verdict import CLOSED
from actorproc.cli.common import OpenedProcessor, run_async
from actorproc.cli.loading import load_source
from actorproc.cli.sink_tables import sink_document, stored_sinks
from actorproc.cli.terminal import console, counted, print_json, text, utc
from actorproc.counts import Counts
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

            fleet_watch = FleetWatch(store, layout, expiration)
            chain = await stack.enter_async_context(ChainLag(store, layout, settings))

            async def look() -> tuple[Fleet, list[SinkStatus], Plan | None]:
                fleet = await chain.add(await fleet_watch.read_all(source, begin))
                sinks = await read_sinks(store, layout)
                plan = await next_plan(store, layout, expiration=expiration, source=source) if with_plan else None
                return fleet, sinks, plan

            if not watch:
                found = await look()
                print_json(_document(*found)) if as_json else console.print(_tables(*found))
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


def _document(fleet: Fleet, sinks: Sequence[SinkStatus], plan: Plan | None) -> dict[str, Any]:
    """The JSON shape in docs/cli.md: a public contract."""
    document: dict[str, Any] = {
        "processor": fleet.processor,
        "lag": fleet.lag,
        "lag_exact": fleet.lag_exact,
        "lag_bytes": fleet.lag_bytes,
        "lag_seconds": _rounded(fleet.lag_seconds),
        "lag_seconds_end_to_end": _rounded(fleet.lag_seconds_end_to_end),
        "members": [_member(host) for host in fleet.hosts],
        "partitions": [_partition(view, fleet.is_chained) for view in fleet.partitions.values()],
        "sinks": [sink_document(sink, _rates(fleet).get(sink.name)) for sink in sinks],
        "asked": None if fleet.wishes == NO_WISHES else describe(fleet.wishes),
    }
    if plan is not None:
        document["plan"] = [move._asdict() for move in plan.moves]
    return document


def _member(host: HostView) -> dict[str, Any]:
    facts = structs.asdict(host)
    del facts["tables"]  # among the sinks
    return facts | {"heartbeat_age": _rounded(facts.pop("age")), "started": utc(host.started)}


def _partition(view: PartitionView, is_chained: bool) -> dict[str, Any]:
    return {
        "partition": view.partition,
        "owner": view.owner,
        "epoch": view.epoch,
        "next_owner": view.next_owner,
        "closed": view.verdict if view.verdict in CLOSED else None,
        "position": view.position,
        "sequence": view.sequence,
        "end": view.end.position if view.end else None,
        "end_sequence": view.end.sequence if view.end else None,
        "lag": view.lag,
        "lag_bytes": view.lag_bytes,
        "lag_seconds": _rounded(view.lag_seconds),
        "lag_seconds_end_to_end": _rounded(view.lag_seconds_end_to_end) if is_chained else None,
        "begins_at": view.begins_at,
        "last_commit": utc(view.last_commit),
        **asdict(view.counts or Counts()),
        "output_files": view.output_files,
        "error": view.error,
        "fault": view.fault if view.error else None,
        "failing_since": utc(view.since) if view.error else None,
    }


def _rates(fleet: Fleet) -> dict[str, float]:
    return {sink.name: sink.rate for sink in fleet.sinks}


def _tables(fleet: Fleet, sinks: Sequence[SinkStatus], plan: Plan | None, most: int | None = None) -> RenderableType:
    views = list(fleet.partitions.values())
    parts: list[RenderableType] = [_headline(fleet), _hosts(fleet)]
    if fleet.wishes != NO_WISHES:
        parts.append(text(describe(fleet.wishes), style="yellow"))
    if views:
        parts.append(_partitions(views[:most], fleet.is_chained))
    if most is not None and len(views) > most:
        parts.append(Text(f"  ... and {counted(len(views) - most, 'partition')} more", style="dim"))
    if sinks:
        parts += [Text(), stored_sinks(sinks, _rates(fleet))]
    parts += [
        text(
            f"{host.host} cannot look at the group or the source{_for(host.error_since)}: {_one_line(host.error)}",
            style="red",
        )
        for host in fleet.hosts
        if host.error
    ]
    parts += [
        text(f"{named_partitions(group.partitions)}{_for(group.since)}: {_one_line(group.reason)}", style="red")
        for group in grouped(view for view in views if view.error)
    ]
    if plan is not None:
        parts.append(_moves(plan))
    return Group(*parts)


def _headline(fleet: Fleet) -> Text:
    owned = sum(view.owner is not None for view in fleet.partitions.values())
    facts = [
        f"{sum(host.alive for host in fleet.hosts)} of {counted(len(fleet.hosts), 'member')} alive",
        f"{owned} of {counted(len(fleet.partitions), 'partition')} owned",
        counted(fleet.counts.records, "record"),
        counted(fleet.counts.dead_letters, "dead letter"),
        *([f"lag {'' if fleet.lag_exact else '>= '}{fleet.lag:,}"] if fleet.lag is not None else []),
        *([f"{decimal(fleet.lag_bytes)} unread"] if fleet.lag_bytes else []),
        *([f"{duration(fleet.lag_seconds)} behind"] if fleet.lag_seconds else []),
        *([f"{duration(fleet.lag_seconds_end_to_end)} end to end"] if fleet.lag_seconds_end_to_end else []),
    ]
    return Text.assemble((fleet.processor, "bold"), "  ", ", ".join(facts))


def _hosts(fleet: Fleet) -> RenderableType:
    if not fleet.hosts:
        return Text("no members: no host is running", style="yellow")
    table = Table("host", _right("pid"), _right("leases"), "state", "heartbeat", "started", "release", box=SIMPLE_HEAD)
    for host in fleet.hosts:
        pid = "-" if host.pid is None else str(host.pid)
        heartbeat, started = _ago(host.age), _since(host.started)
        release = text(host.release or "-")
        table.add_row(text(host.host), pid, str(host.leases), _state(host), heartbeat, started, release)
    return table


def _state(host: HostView) -> Text:
    if not host.alive:
        return Text("silent", style="red")
    if not host.in_group:
        return Text("joining", style="yellow")
    return Text("leaving", style="yellow") if host.leaving else Text("alive", style="green")


def _partitions(views: Sequence[PartitionView], is_chained: bool) -> Table:
    skipped = any(view.counts and view.counts.skipped for view in views)
    timed = any(view.lag_seconds is not None for view in views)
    begins = any(view.begins_at is not None for view in views)
    table = Table(
        "partition", "owner", _right("epoch"), _right("sequence"), *([_right("begins at")] if begins else []),
        _right("lag"), *([_right("behind")] if timed else []),
        *([_right("end to end")] if is_chained else []), _right("rows"), _right("dead"),
        *([_right("skipped")] if skipped else []), "last commit", box=SIMPLE_HEAD, show_edge=False, pad_edge=False,
    )  # fmt: skip
    for view in views:
        counts = view.counts or Counts()
        owner = text(view.owner) if view.owner else Text("nobody", style="red")
        if view.verdict in CLOSED:
            owner = Text(view.verdict, style="dim")
        table.add_row(
            text(view.partition),
            owner.append(text(f" -> {view.next_owner}", style="yellow")) if view.next_owner else owner,
            str(view.epoch),
            "-" if view.sequence is None else f"{view.sequence:,}",
            *([text(view.begins_at or "-")] if begins else []),
            "-" if view.lag is None else f"{view.lag:,}",
            *([_duration(view.lag_seconds)] if timed else []),
            *([_duration(view.lag_seconds_end_to_end)] if is_chained else []),
            f"{counts.rows:,}",
            Text(f"{counts.dead_letters:,}", style="yellow" if counts.dead_letters else ""),
            *([f"{counts.skipped:,}"] if skipped else []),
            _since(view.last_commit),
        )
    return table


def _one_line(error: str) -> str:
    return " ".join(error.split())


def _for(since: float | None) -> str:
    return "" if since is None else f", for {duration(SYSTEM.wall() - since)}"


def _since(time: float | None) -> str:
    """How long ago a time of another host's clock was, by this host's clock."""
    return _ago(None if time is None else SYSTEM.wall() - time)


def _ago(seconds: float | None) -> str:
    return "-" if seconds is None else f"{duration(seconds)} ago"


def _duration(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)


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
