"""How many hosts are useful: a pure function of two looks at a fleet."""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

import msgspec

from actorproc.admin.fleet import Fleet

BETWEEN = 30.0
"""Least seconds between two looks that are compared: heartbeats are 13 s apart, and batches take some seconds."""

CATCH_UP = 300.0
"""Seconds within which a lag should be gone."""

_ON_TIME = 30.0  # seconds of lag that need no more hosts: some batches and commits are always under way
_BUSY = 0.7  # share of the time that partitions may be busy before more hosts are useful


class Progress(NamedTuple):
    """Counts of a look at the fleet about its work. `time`: seconds since 1970, by the store's clock."""

    time: float
    hosts: int
    partitions: int
    """That a host may run."""
    lag: int
    sequences: dict[str, int]
    """Of the last committed record, by partition."""
    busy: dict[str, float]
    """Seconds that its owner has spent on handling and committing, by partition."""

    @classmethod
    def of(cls, fleet: Fleet) -> Progress:
        views = fleet.partitions.values()
        return cls(
            fleet.time, sum(host.alive and host.in_group and not host.leaving for host in fleet.hosts), len(fleet.open),
            fleet.lag or 0, {view.partition: view.sequence for view in views if view.sequence is not None},
            {view.partition: view.times.handle + view.times.commit for view in views if view.times is not None},
        )  # fmt: skip


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. `per_second`, `arriving`: records that were processed, and that arrived in the source."""

    hosts: int
    reason: str
    running: int
    lag: int
    per_second: float | None = None
    arriving: float | None = None


def useful_hosts(before: Progress | None, now: Progress, catch_up: float = CATCH_UP) -> Scale:
    """How many hosts are useful.

    Args:
        before: an earlier look; None: there is none yet.
        catch_up: seconds within which a lag should be gone.
    """
    running = now.hosts
    if running == 0:
        return Scale(hosts=1, reason="no host is running", running=0, lag=now.lag)
    if before is None or now.time <= before.time:
        why = f"it takes two looks, {BETWEEN:g} s apart, to see how fast records arrive and are processed"
        return Scale(hosts=running, reason=why, running=running, lag=now.lag)
    seconds = now.time - before.time
    rate = _processed(before, now) / seconds
    arriving = max(0.0, rate + (now.lag - before.lag) / seconds)
    hosts, why = _decide(now, rate, arriving, _busy(before, now, seconds), catch_up)
    return Scale(
        hosts=hosts, reason=why, running=running, lag=now.lag, per_second=round(rate, 1), arriving=round(arriving, 1)
    )


def _decide(now: Progress, rate: float, arriving: float, busy: float, catch_up: float) -> tuple[int, str]:
    running = now.hosts
    if now.lag > max(rate, arriving) * _ON_TIME:
        behind = f"{now.lag:,} records behind, and {arriving:,.0f} arrive per second"
        if rate == 0:
            return running, f"{behind}. Nothing is processed, so more hosts do not help: see `actorproc explain`"
        wanted = max(running, ceil(running * (arriving + now.lag / catch_up) / rate))
        hosts = max(1, min(wanted, now.partitions))
        why = f"{behind}. {running} hosts process {rate:,.0f} per second; {wanted} catch up in {catch_up:g} s"
        return hosts, why if hosts == wanted else f"{why}, but there are only {now.partitions} partitions"
    hosts = min(running, max(1, ceil(running * busy / _BUSY)))
    return hosts, f"it keeps up, and its partitions are busy for {busy:.0%} of the time"


def _processed(before: Progress, now: Progress) -> int:
    """Records that were committed between the looks. After a reset a partition counts as 0."""
    common = before.sequences.keys() & now.sequences.keys()
    return sum(max(0, now.sequences[name] - before.sequences[name]) for name in common)


def _busy(before: Progress, now: Progress, seconds: float) -> float:
    """Share of the time for which partitions were busy. One that changed its owner counts as busy."""
    found = [now.busy[name] - before.busy[name] for name in before.busy.keys() & now.busy.keys()]
    return sum(min(seconds, s) if s >= 0 else seconds for s in found) / seconds / len(found) if found else 1.0
