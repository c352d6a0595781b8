"""The sinks of a fleet, as the owners of the partitions report their deliveries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from actorproc.group.reports import SinkReport


class SinkView(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The delivery of one partition to one sink. None: not known. Times: seconds since 1970, by the owner's clock."""

    name: str
    state: str
    commits: int | None = None
    """That the sink does not have."""
    rows: int | None = None
    """Output rows of these commits."""
    seconds: float | None = None
    """Age of the oldest of them."""
    rate: float = 0.0
    """Rows a second in the last half minute."""
    error: str | None = None
    error_since: float | None = None

    @classmethod
    def of(cls, report: SinkReport, error: str | None) -> SinkView:
        """`error`: what the owner says about the sink."""
        return cls(
            name=report.name, state=report.state, commits=report.commits, rows=report.rows, seconds=report.seconds,
            rate=report.rate, error=error if report.state in TROUBLED else None, error_since=report.error_since,
        )  # fmt: skip


TROUBLED = frozenset({"failing", "refusing"})
"""States in which a sink does not take rows that it should have."""


class FleetSink(msgspec.Struct, frozen=True, kw_only=True):
    """One sink, over all partitions whose owners report it. None: no owner knows."""

    name: str
    states: dict[str, int]
    """Partitions by state, the most frequent first."""
    commits: int | None
    rows: int | None
    seconds: float | None
    """Of the partition that is furthest behind."""
    rate: float
    error: str | None
    """Of one of the partitions."""
    error_since: float | None
    """Of the partition that fails for longest."""

    @property
    def is_troubled(self) -> bool:
        return bool(TROUBLED & self.states.keys())


def fleet_sinks(views: Iterable[SinkView]) -> list[FleetSink]:
    """The sinks by name."""
    by_name: dict[str, list[SinkView]] = {}
    for view in views:
        by_name.setdefault(view.name, []).append(view)
    return [_sink(name, found) for name, found in sorted(by_name.items())]


def _sink(name: str, views: list[SinkView]) -> FleetSink:
    return FleetSink(
        name=name, states=dict(Counter(view.state for view in views).most_common()),
        commits=_sum(view.commits for view in views), rows=_sum(view.rows for view in views),
        seconds=max((view.seconds for view in views if view.seconds is not None), default=None),
        rate=round(sum(view.rate for view in views), 1),
        error=next((view.error for view in views if view.error is not None), None),
        error_since=min((view.error_since for view in views if view.error_since is not None), default=None),
    )  # fmt: skip


def _sum(numbers: Iterable[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None
