"""Texts of a run until the end: which partitions it waits for, and why it has failed."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from actorproc.host.ends import Ends
from actorproc.storage.names import named_partitions, natural

_NAMED = 5  # reasons that a message lists


def named(partitions: Collection[str]) -> str | None:
    """`partitions 0-7, 9`."""
    return named_partitions(sorted(partitions, key=natural)) if partitions else None


def rows_lost(lost: Mapping[str, str]) -> str:
    """`lost`: partition -> how its handler has lost rows."""
    lines = [f"partition {partition}: {lost[partition]}" for partition in sorted(lost, key=natural)[:_NAMED]]
    return "\n".join(["rows were lost, because the handler emitted them too late", *lines])


def end_not_reached(ends: Ends, failed: Mapping[str, str], stopped_by: str | None) -> str:
    """Names the partitions that have not reached their end, by reason.

    Args:
        failed: partition -> why it will not reach it.
        stopped_by: a signal, or `stop()`; None: the run has ended by itself.
    """
    left = sorted(ends.waiting | ends.unknown.keys(), key=natural)
    count = len(ends.found.keys() | ends.unknown.keys())
    have = "has not reached the end it" if len(left) == 1 else "have not reached the end they"
    lines = [f"{len(left)} of {count} partition{'' if count == 1 else 's'} {have} had at the start"]
    could_not = "it could do nothing more: all partitions that it had left failed"
    why_ended = f"{stopped_by} stopped it" if stopped_by else could_not
    why_not, reasons = {**failed, **ends.unknown}, dict[str, list[str]]()
    for partition in left:
        why = why_not.get(partition, f"not there yet when this host ended ({why_ended})")
        reasons.setdefault(why, []).append(partition)
    lines += [f"{named_partitions(names)}: {why}" for why, names in list(reasons.items())[:_NAMED]]
    if len(reasons) > _NAMED:
        lines.append(f"and {sum(map(len, list(reasons.values())[_NAMED:]))} more")
    lines.append("What is committed stays; the next run goes on from there")
    return "\n".join(lines)
