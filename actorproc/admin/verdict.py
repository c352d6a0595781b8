"""Verdicts: how one partition is doing, in one word with its reason. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from actorproc.group.reports import HostReport, PartitionReport

VerdictKind = Literal[
    "ok", "ended", "vanished", "moving", "paused", "opening", "behind", "slow", "retrying", "starved", "failing",
    "stuck", "unreadable", "silent", "unowned",
]  # fmt: skip
"""From good to bad. `ended`, `vanished`: see `group.assignment.Closed`. `silent`: its owner writes no heartbeats."""

BAD: frozenset[VerdictKind] = frozenset({"failing", "stuck", "unreadable", "silent", "unowned"})
"""The partition is not progressing."""

TROUBLED: frozenset[VerdictKind] = frozenset({"retrying", "starved", "failing", "stuck", "unreadable"})
"""Its owner reports a trouble, or it cannot be read."""

WELL: frozenset[VerdictKind] = frozenset({"ok", "ended"})
"""Nothing is to be done or waited for."""

CLOSED: frozenset[VerdictKind] = frozenset({"ended", "vanished"})
"""No host runs the partition."""

BEHIND = 60.0
"""Seconds: a partition is behind when its oldest record that waits for a commit is older. Twelve commit intervals."""

_OPENING = 60.0  # seconds that the claim of a partition and its handler's `opened` may take
_COMMITTING = 30.0  # seconds that a commit may take
_SLOW_SHARE = 0.25  # of `max_process_time`: batches are sized to take no longer


class Verdict(NamedTuple):
    """`since`: seconds since 1970; None: not known."""

    kind: VerdictKind
    reason: str = ""
    since: float | None = None
    fault: str | None = None
    """Of a trouble that its owner reports: "user" or "infrastructure"."""

    @property
    def is_bad(self) -> bool:
        return self.kind in BAD


def judge(report: PartitionReport, error: str | None, now: float, max_process_time: float | None) -> Verdict:
    """How a partition is doing by the report of its live owner.

    Args:
        error: the text of its trouble, if the report names one.
        now: seconds since 1970, as far as possible by the owner's clock.
        max_process_time: the owner's setting.
    """
    trouble = _trouble(report, error)
    return trouble or _slowness(report, now, max_process_time) or _backlog(report, now)


def judge_abandoned(partition: str, hosts: Mapping[str, HostReport], report: PartitionReport | None) -> Verdict | None:
    """The verdict about a partition that hosts abandoned, whose calls still last. None: it gets on, or nobody did.

    Args:
        hosts: the reports of live hosts.
        report: of its owner, if there is one.
    """
    found = {host: given[partition] for host, of in hosts.items() if partition in (given := of.abandoned)}
    if not found or (report is not None and report.sequence > max(given.reached for given in found.values())):
        return None
    first = min(found.values(), key=lambda given: given.since)
    reason = f"{first.error}, on {' and '.join(sorted(found))}; its next owner has not got further yet"
    return Verdict("stuck", reason, first.since, first.fault)


def judge_blocked(partition: str, host: str, report: HostReport) -> Verdict:
    """The verdict about a partition of a host whose event loop does not answer."""
    own = report.progress.get(partition)
    trouble = None if own is None else _trouble(own, report.failing.get(partition))
    fault = None if report.starved else "user"
    return trouble or Verdict("silent", f"{host} does not answer: {report.blocked}", report.blocked_since, fault)


def _trouble(report: PartitionReport, error: str | None) -> Verdict | None:
    if report.trouble not in ("stuck", "failing", "starved", "retrying"):
        return None
    retry, text = report.retry, error or "no error text was reported"
    if report.trouble == "retrying" and retry is not None and error is None:
        text = f"attempt {retry.attempt} at record {retry.first} failed"
    return Verdict(report.trouble, text, report.trouble_since, report.fault)  # type: ignore[arg-type]  # narrowed by the tuple


def _slowness(report: PartitionReport, now: float, max_process_time: float | None) -> Verdict | None:
    lasts = now - report.activity_since
    if report.state == "opening" and now - report.since > _OPENING:
        return Verdict("opening", "its checkpoint is not claimed, or opened() has not returned", report.since)
    if report.activity == "handle" and max_process_time and lasts > _SLOW_SHARE * max_process_time:
        return Verdict("slow", "the handler is still at the same batch", report.activity_since)
    if report.activity == "commit" and lasts > _COMMITTING:
        return Verdict("slow", "a commit has not been answered by the store", report.activity_since)
    return None


def _backlog(report: PartitionReport, now: float) -> Verdict:
    if report.lag_seconds is not None and report.lag_seconds > BEHIND:
        return Verdict("behind", f"its oldest record waits, mostly for {_bottleneck(report)}", now - report.lag_seconds)
    return Verdict("ok")


def _bottleneck(report: PartitionReport) -> str:
    """The activity that took most of the actor's time."""
    times = report.times
    names = {"the source": times.read, "the handler": times.handle, "commits": times.commit}
    return max(names, key=lambda name: names[name])
