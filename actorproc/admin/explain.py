"""Explains one partition in a paragraph: where it is and why, its lag, the cause, and the remedy."""

from __future__ import annotations

from collections.abc import Sequence

from actorproc.admin.durations import duration
from actorproc.admin.explain_sinks import explain_sinks
from actorproc.admin.fleet import HostView, PartitionView
from actorproc.admin.fleet_sinks import TROUBLED
from actorproc.admin.verdict import CLOSED

_ADVICE = {
    "stuck": "The handler does not return: the log event partition.stuck of its host has its stack. Bound the calls "
    "that it waits for, or raise max_process_time if a batch may take that long. A plain def cannot be stopped.",
    "stuck infrastructure": "The source does not answer {owner}: look at it and at the network. The partition goes on "
    "by itself when it does.",
    "failing": "The actor is started again with back-off. Correct the cause that the error names; nothing is lost "
    "meanwhile, and the partition goes on at its last commit.",
    "starved": "All threads of the host are in use: raise handler_threads, or bound the calls that hold them.",
    "retrying": "Correct the cause that the error names. After max_attempts the records that fail alone become dead "
    "letters, unless on_error decides otherwise.",
    "slow": "Nothing needs to be done unless it lasts for max_process_time; then the partition is restarted.",
    "silent": "If {owner} is dead, another host takes over by itself. If no other host runs, start one. If its process "
    "runs, its /readyz and its log events say why it is silent: a handler that blocks its event loop, for example.",
    "paused": "`actorproc resume` lets it go on.",
    "unowned": "It goes on at a host that is alive and not drained; `actorproc serve` starts one.",
    "unreadable": "Run `actorproc doctor` on the container, and correct what the error names.",
    "opening": "Look at the log events of {owner}: opened() of the handler may wait for something.",
    "behind": "If the lag grows, start more hosts while there are fewer hosts than partitions, or make the handler "
    "faster.",
    "moving": "It moves by itself within max_handoff_time.",
    "ok": "Nothing needs to be done.",
    "ended": "It has ended: it was split or merged, and all of it is processed.",
    "vanished": "It has vanished: the source does not know it any more. Its checkpoint stays, and it goes on there if "
    "it comes back.",
}

_FAULTS = {
    "user": " The handler raised it: its code, options or schema are at fault, or a service that it calls.",
    "infrastructure": " The source, the store or the network is at fault.",
}


def explain(view: PartitionView, hosts: Sequence[HostView], now: float) -> str:
    """The paragraph. `now`: seconds since 1970."""
    sentences = [_place(view, now), _progress(view, now), _state(view, now), _attempt(view, now)]
    host = next((host for host in hosts if host.host == view.owner), None)
    if host is not None and host.error:
        since = f" for {_ago(now, host.error_since)}" if host.error_since else ""
        sentences.append(f"{host.host} has not been able to look at the group or the source{since}: {host.error}.")
    advice = _ADVICE.get(f"{view.verdict} {view.fault}") or _ADVICE.get(view.verdict, "")
    if view.verdict != "ok" or not any(sink.state in TROUBLED for sink in view.sinks):
        sentences.append(advice.format(owner=view.owner))
    sentences += explain_sinks(view.sinks, now)
    return " ".join(filter(None, sentences))


def _place(view: PartitionView, now: float) -> str:
    if view.owner is None:
        return f"Partition {view.partition} has no owner."
    since = f" for {_ago(now, view.owned_since)}" if view.owned_since else ""
    why = f": {view.origin}" if view.origin else ""
    moves = f" It is about to move to {view.next_owner}." if view.next_owner else ""
    return f"Partition {view.partition} has been on {view.owner}{since}, with epoch {view.epoch}{why}.{moves}"


def _progress(view: PartitionView, now: float) -> str:
    if view.sequence is None and view.owner is not None and view.state in (None, "opening", "waiting"):
        return "Its owner has not reported yet how far it is committed."
    if view.state == "unread":
        return "Its commits are not read yet; look again in some seconds."
    if view.sequence is None:
        done = "Nothing is committed yet"
    else:
        at = f", {_ago(now, view.last_commit)} ago" if view.last_commit else ""
        done = f"Everything up to record {view.sequence:,} is committed{at}"
    if view.lag is None:
        return f"{done}; {_unknown_lag(view)}."
    late = f", the oldest {duration(view.lag_seconds)} old" if view.lag_seconds else ""
    return f"{done}; {view.lag:,} records wait{late}." if view.lag else f"{done}; it has caught up."


def _unknown_lag(view: PartitionView) -> str:
    if view.owner is not None and view.state == "running":
        return "its owner has not reported its lag yet"
    return "its lag is not known, because no running host reports it (`actorproc explain --source` asks the source)"


def _state(view: PartitionView, now: float) -> str:
    if view.verdict in {"ok", *CLOSED}:
        return ""
    since = f" for {_ago(now, view.since)}" if view.since else ""
    why = f": {view.reason.rstrip('.')}" if view.reason else ""
    return f"It has been {view.verdict}{since}{why}.{_FAULTS.get(view.fault or '', '')}"


def _attempt(view: PartitionView, now: float) -> str:
    if (retry := view.retry) is None:
        return ""
    wait = (retry.next_at or now) - now
    then = f"the next one begins in {wait:.0f} s" if wait > 0 else "the next one runs now"
    return f"Attempt {retry.attempt} at {retry.records:,} records from {retry.first} on has failed; {then}."


def _ago(now: float, then: float | None) -> str:
    return duration(now - (then or now))
