"""Loads of partitions, from the times in heartbeats, and weights for the plan: pure functions.

With `balance = "load"` hosts share the time that partitions take, not their number. The weights are stored in the group
document, so that every host makes the same plan. They change only where that evens the hosts out noticeably.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from actorproc.group.assignment import Lease, Member, plan
from actorproc.group.heartbeat import Heartbeat
from actorproc.group.wishes import HEAVIEST, Wishes

AVERAGE = 8
"""Weight of a partition with the mean load. Idle ones weigh 1, so that they are spread, too."""

LEAST = 2
"""Looks before which a load is not known: a sample counts whole batches, so that a short time says little."""

_BUSY = 0.05
"""Seconds of work in a second below which the busiest host is not worth a move."""

_UNEVEN = 1.25  # load of the busiest host, in means, below which nothing changes
_BETTER = 0.9  # load that the busiest host must have afterwards, in that of now


class Sample(NamedTuple):
    """Work of one partition so far: seconds, since its host has opened it."""

    epoch: int
    time: float
    busy: float


def samples(heartbeats: Iterable[Heartbeat]) -> dict[str, Sample]:
    """The latest sample of each partition that a host runs."""
    found: dict[str, Sample] = {}
    for beat in heartbeats:
        for partition, report in beat.report.progress.items():
            if partition not in found or report.epoch > found[partition].epoch:
                times = report.times
                found[partition] = Sample(report.epoch, beat.time, times.read + times.handle + times.commit)
    return found


def loads(looks: Sequence[Mapping[str, Sample]], now: Mapping[str, Sample]) -> dict[str, float]:
    """Seconds of work in a second, of the partitions that one host has run since `LEAST` looks or more.

    Args:
        looks: earlier samples, oldest first. Each partition is measured from the oldest one on that counts.
    """
    found = {}
    for partition, latest in now.items():
        first, count = latest, 0
        for look in reversed(looks):
            old = look.get(partition)
            if old is None or old.epoch != first.epoch or old.busy > first.busy or old.time >= first.time:
                break
            first, count = old, count + 1
        if count >= LEAST:
            found[partition] = min(1.0, (latest.busy - first.busy) / (latest.time - first.time))
    return found


def weights_of(measured: Mapping[str, float]) -> dict[str, int]:
    """A weight for each load."""
    mean = sum(measured.values()) / len(measured) if measured else 0.0
    if not mean:
        return {}
    return {name: max(1, min(HEAVIEST, round(AVERAGE * load / mean))) for name, load in measured.items()}


def worthwhile(
    members: Mapping[str, Member], leases: Mapping[str, Lease], wishes: Wishes, measured: Mapping[str, float]
) -> dict[str, int] | None:
    """New weights; None: hosts are even enough, or would not be more even with these.

    Args:
        measured: load of each partition that is owned. If one is missing, nothing is known.
    """
    owned = {name: lease.owner for name, lease in leases.items() if lease.owner is not None}
    if len(members) < 2 or not owned or not owned.keys() <= measured.keys():
        return None
    measured = {name: measured[name] for name in owned}
    now = _busiest(members, owned, measured)
    if now < max(_BUSY, _UNEVEN * sum(measured.values()) / len(members)):
        return None
    weights = weights_of(measured)
    planned = plan(members, leases, replace(wishes, weights=weights)).leases
    after = _busiest(members, {name: planned[name].next or owner for name, owner in owned.items()}, measured)
    return weights if after <= _BETTER * now else None


def _busiest(hosts: Iterable[str], owners: Mapping[str, str], measured: Mapping[str, float]) -> float:
    total = dict.fromkeys(hosts, 0.0)
    for name, owner in owners.items():
        total[owner] = total.get(owner, 0.0) + measured[name]
    return max(total.values())
