"""`actorproc top` and `actorproc explain`: the fleet as its heartbeats report it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec.structs import replace
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from actorproc.admin.chain_lag import ChainLag
from actorproc.admin.durations import duration
from actorproc.admin.explain import explain
from actorproc.admin.explain_sinks import with_stored
from actorproc.admin.fleet import Fleet, HostView, PartitionView
from actorproc.admin.fleet_watch import FleetWatch
from actorproc.admin.own_source import own_source
from actorproc.admin.partition_reader import PartitionReader
from actorproc.admin.placement import describe
from actorproc.admin.sinks import read_sinks
from actorproc.admin.verdict import BAD, WELL
from actorproc.cli.common import OpenedProcessor, run_async
from actorproc.cli.loading import load_source
from actorproc.cli.sink_tables import reported_sinks
from actorproc.cli.terminal import console, counted, print_line, text
from actorproc.errors import UsageError
from actorproc.group.wishes import NO_WISHES
from actorproc.runtime.clock import SYSTEM

_BARS = " ▁▂▃▄▅▆▇█"
_SHOWN = 30  # partitions: as many as fit a screen
_SAMPLES = 40  # of lag


def explain_one(opened: OpenedProcessor, partition: str, source_url: str | None) -> None:
    """Print the explanation of one partition.

    Args:
        source_url: of the source, which is asked for the lag; None: only the hosts' reports tell it.

    Raises:
        UsageError: there is no such partition.
    """

    async def work() -> str:
        async with opened as (store, layout, settings):
            fleet = await FleetWatch(store, layout, settings.lease_expiration_interval).look(partition)
            view = fleet.partitions.get(partition)
            if view is None:
                known = ", ".join(list(fleet.partitions)[:20]) or "none yet"
                raise UsageError(f"no partition {partition!r}; there are: {known}")
            if source_url is not None:
                async with own_source(store, layout, settings, load_source(source_url)) as source:
                    found = await PartitionReader(store, layout, source).read(partition)
                seconds = None if found.lag is None else found.lag_seconds
                view = replace(view, lag=found.lag, lag_seconds=seconds)
            stored = await read_sinks(store, layout, [partition])
            view = replace(view, sinks=tuple(with_stored(view.sinks, stored)))
        return explain(view, fleet.hosts, fleet.time)

    print_line(run_async(work))


def _known(lags: Iterable[int | None]) -> list[int]:
    return [lag for lag in lags if lag is not None]


def run(opened: OpenedProcessor, every: float, once: bool) -> None:
    """Show the fleet again and again."""

    async def work() -> None:
        async with opened as (store, layout, settings), ChainLag(store, layout, settings) as chain:
            watch = FleetWatch(store, layout, settings.lease_expiration_interval)
            if once or not console.is_terminal:
                console.print(_screen(await chain.add(await watch.look()), _known(watch.lags)))
                return
            with Live(console=console, auto_refresh=False, screen=True) as live:
                while True:
                    live.update(_screen(await chain.add(await watch.look()), _known(watch.lags)), refresh=True)
                    await SYSTEM.sleep(every)

    try:
        run_async(work)
    except KeyboardInterrupt:
        if once:
            raise


def _screen(fleet: Fleet, lags: Sequence[int]) -> RenderableType:
    worst = sorted(fleet.partitions.values(), key=_badness)
    asked = [] if fleet.wishes == NO_WISHES else [text(describe(fleet.wishes), style="yellow")]
    sinks = [reported_sinks(fleet.sinks)] if fleet.sinks else []
    return Group(_headline(fleet, lags), _hosts(fleet), *sinks, *asked, _partitions(worst[:_SHOWN], fleet))


def _badness(view: PartitionView) -> tuple[bool, bool, int]:
    return view.verdict not in BAD, view.verdict in WELL, -(view.lag or 0)


def _headline(fleet: Fleet, lags: Sequence[int]) -> Text:
    kinds = Counter(view.verdict for view in fleet.partitions.values())
    verdicts = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())
    alive = sum(host.alive for host in fleet.hosts)
    least = "" if fleet.lag_exact else ">= "
    lag = f"lag {least}{fleet.lag or 0:,} {_spark(lags)}"
    facts = f"  {alive} of {counted(len(fleet.hosts), 'host')} alive, {lag}  {verdicts}"
    return Text.assemble((fleet.processor, "bold"), facts)


def _spark(lags: Sequence[int]) -> str:
    shown = lags[-_SAMPLES:]
    most = max(shown, default=0) or 1
    return "".join(_BARS[round(lag / most * (len(_BARS) - 1))] for lag in shown)


def _hosts(fleet: Fleet) -> RenderableType:
    if not fleet.hosts:
        return Text("no host is running", style="yellow")
    table = Table("host", _right("partitions"), _right("bad"), _right("lag"), "heartbeat", "", box=SIMPLE_HEAD)
    for host in fleet.hosts:
        own = [view for view in fleet.partitions.values() if view.owner == host.host]
        bad = sum(view.verdict in BAD for view in own)
        table.add_row(
            text(host.host), str(len(own)), Text(str(bad), "red" if bad else ""),
            f"{sum(view.lag or 0 for view in own):,}", f"{duration(host.age)} ago", _note(host),
        )  # fmt: skip
    return table


def _note(host: HostView) -> Text:
    if not host.alive:
        return Text("silent", style="red")
    if host.error:
        return text(host.error, style="red")
    return Text("leaving" if host.leaving else "" if host.in_group else "joining", style="yellow")


def _partitions(views: Sequence[PartitionView], fleet: Fleet) -> Table:
    chained = [_right("end to end")] if fleet.is_chained else []
    table = Table(
        "partition", "host", _right("epoch"), _right("lag"), _right("behind"), *chained, "now", "verdict",
        box=SIMPLE_HEAD,
    )  # fmt: skip
    for view in views:
        since = f" for {duration(fleet.time - view.since)}" if view.since else ""
        style = "red" if view.verdict in BAD else "" if view.verdict in WELL else "yellow"
        reason = f": {' '.join(view.reason.split())}" if view.reason else ""
        table.add_row(
            text(view.partition), text(view.owner or "nobody"), str(view.epoch),
            "-" if view.lag is None else f"{view.lag:,}",
            _duration(view.lag_seconds), *([_duration(view.lag_seconds_end_to_end)] if chained else []),
            view.activity or "-", text(f"{view.verdict}{since}{reason}", style=style),
        )  # fmt: skip
    return table


def _duration(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)


def _right(header: str) -> Column:
    return Column(header, justify="right")
