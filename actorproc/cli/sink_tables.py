"""Tables of sinks, for `status`, `top` and `sinks list`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from actorproc.admin.durations import duration
from actorproc.admin.fleet_sinks import TROUBLED, FleetSink
from actorproc.admin.sinks import SinkPartitionStatus, SinkStatus
from actorproc.cli.terminal import text
from actorproc.runtime.clock import SYSTEM
from actorproc.storage.names import named_partitions


def reported_sinks(sinks: Sequence[FleetSink]) -> RenderableType:
    """The sinks as owners report them, with their errors below."""
    rows = [
        (sink.name, _states(sink), sink.commits, sink.rows, sink.seconds, sink.rate, sink.error, sink.error_since)
        for sink in sinks
    ]
    return _table(rows)


def stored_sinks(sinks: Sequence[SinkStatus], rates: Mapping[str, float], *, targets: bool = False) -> RenderableType:
    """The sinks as the container knows them, with their errors below.

    Args:
        rates: rows a second, of the sinks whose owners report them.
        targets: whether to show where the rows go.
    """
    rows = [
        (sink.name, sink.state, sink.behind, sink.rows, sink.seconds, rates.get(sink.name), sink.error,
         sink.error_since)
        for sink in sinks
    ]  # fmt: skip
    urls = [text(f"{sink.name}: {sink.url}", style="dim") for sink in sinks] if targets else []
    return Group(_table(rows), *urls)


def one_sink(sink: SinkStatus) -> RenderableType:
    """A sink by partition."""
    table = Table(
        "partition", _right("gets next"), _right("end"), _right("commits"), _right("rows behind"), _right("oldest"),
        _right("kept from"), box=SIMPLE_HEAD, show_edge=False, pad_edge=False,
    )  # fmt: skip
    for found in sink.partitions:
        table.add_row(
            text(found.partition), _count(found.next), _count(found.end), _count(found.behind), _count(found.rows),
            duration(found.seconds) if found.seconds else "-", _count(found.held),
        )  # fmt: skip
    by_error: dict[str, list[SinkPartitionStatus]] = {}
    for found in sink.partitions:
        if found.error is not None:
            by_error.setdefault(found.error, []).append(found)
    errors = [
        _error(named_partitions([found.partition for found in failing]), _longest(failing), error)
        for error, failing in by_error.items()
    ]
    return Group(text(f"{sink.name}: {sink.url}, {sink.state}", style="bold"), table, *errors)


def partition_document(found: SinkPartitionStatus) -> dict[str, Any]:
    """A partition in `sinks show --json`: a public contract."""
    return {
        "partition": found.partition, "next": found.next, "end": found.end, "behind": found.behind,
        "rows_behind": found.rows, "seconds_behind": None if found.seconds is None else round(found.seconds, 3),
        "kept_from": found.held, "fenced": found.fenced, "error": found.error, "error_since": found.error_since,
    }  # fmt: skip


def _longest(failing: Sequence[SinkPartitionStatus]) -> float | None:
    return min((found.error_since for found in failing if found.error_since is not None), default=None)


def sink_document(sink: SinkStatus, rate: float | None) -> dict[str, Any]:
    """A sink in `status --json` and `sinks list --json`: a public contract."""
    return {
        "name": sink.name, "url": sink.url, "state": sink.state, "behind": sink.behind, "rows_behind": sink.rows,
        "seconds_behind": None if sink.seconds is None else round(sink.seconds, 3), "rows_per_second": rate,
        "error": sink.error, "error_since": sink.error_since,
    }  # fmt: skip


def _states(sink: FleetSink) -> str:
    if len(sink.states) == 1:
        return next(iter(sink.states))
    return ", ".join(f"{count} {state}" for state, count in sink.states.items())


def _table(rows: Sequence[tuple[Any, ...]]) -> RenderableType:
    table = Table(
        "sink", "state", _right("commits"), _right("rows behind"), _right("oldest"), _right("rows/s"), box=SIMPLE_HEAD,
        show_edge=False, pad_edge=False,
    )  # fmt: skip
    errors = []
    for name, state, commits, behind, seconds, rate, error, since in rows:
        style = "red" if any(word in state for word in TROUBLED) else "yellow" if state != "up to date" else "green"
        table.add_row(
            text(name), text(state, style="" if state == "running" else style), _count(commits), _count(behind),
            duration(seconds) if seconds else "-", "-" if rate is None else f"{rate:,.0f}",
        )  # fmt: skip
        if error is not None:
            errors.append(_error(f"sink {name}", since, error))
    return Group(table, *errors)


def _error(of: str, since: float | None, error: str) -> Text:
    lasts = f", for {duration(SYSTEM.wall() - since)}" if since else ""
    return text(f"{of}{lasts}: {' '.join(error.split())}", style="red")


def _count(number: int | None) -> Text:
    return Text("-" if number is None else f"{number:,}")


def _right(header: str) -> Column:
    return Column(header, justify="right")
