"""Is this host alive, and is it ready: with reasons. A pure function of its statistics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from actorproc.admin.verdict import Verdict, judge
from actorproc.host.reporting import report_of
from actorproc.host.statistics import Statistics
from actorproc.partition.statistics import PartitionStatistics
from actorproc.sinks.delivery import SinkStatistics


class SinkProblem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sink that does not take rows of this host. `since`: seconds since 1970."""

    problem: str
    """`failing`: it is tried again. `refusing`: somebody must mend the target."""
    sink: str
    reason: str
    partitions: list[str]
    """Whose rows wait; none of a table, which takes those of all partitions."""
    since: float | None = None


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One reason why a host is not ready. `since`: seconds since 1970."""

    problem: str
    reason: str
    partition: str | None = None
    since: float | None = None


def problems(host: Statistics, *, now: float, max_process_time: float, blocked: float = 0.0) -> list[Problem]:
    """Why the host is not ready; empty if it is.

    Args:
        now: seconds since 1970.
        blocked: seconds for which its event loop has not answered.
    """
    return [
        *_of_host(host, now, blocked), *_of_partitions(host.partitions, now, max_process_time), *_of_abandoned(host)
    ]  # fmt: skip


def _of_host(host: Statistics, now: float, blocked: float) -> Iterator[Problem]:
    if blocked:
        handled = ", ".join(p.partition for p in host.partitions if p.activity == "handle") or "none"
        why = f"its event loop does not answer: a handler blocks it (in the handler: partition {handled}), or the "
        why += (
            "process gets no CPU; see its log event loop.blocked or loop.starved. Await, or write a plain `def process`"
        )
        yield Problem(problem="blocked", reason=why, since=now - blocked)
    if not host.running:
        yield Problem(problem="stopped", reason="it has not joined the group yet, or has left it")
    elif host.fenced:
        yield Problem(problem="fenced", reason="no heartbeat was written in time, so nothing runs until one is")
    elif not host.members:
        yield Problem(problem="joining", reason="it has not seen the group yet")
    if host.error is not None:
        yield Problem(problem="away", reason=host.error, since=host.error_since)


def _of_partitions(partitions: Iterable[PartitionStatistics], now: float, max_process_time: float) -> Iterator[Problem]:
    for found in partitions:
        verdict = judge_own(found, now, max_process_time)
        if verdict.is_bad:
            yield Problem(
                problem=verdict.kind, reason=verdict.reason, partition=found.partition, since=verdict.since
            )  # fmt: skip


def _of_abandoned(host: Statistics) -> Iterator[Problem]:
    for partition, trouble in host.abandoned.items():
        why = f"{trouble.error}. The call lasts, and its thread is not free; other hosts may run the partition"
        yield Problem(problem="stuck", reason=why, partition=partition, since=trouble.since)


def sink_problems(host: Statistics) -> list[SinkProblem]:
    """The sinks that do not take rows. The host is ready all the same: a sink that is away holds up no handler."""
    found: dict[tuple[str, str], list[tuple[str, SinkStatistics]]] = {}
    for partition in host.partitions:
        for sink in partition.sinks:
            if sink.state in ("failing", "refusing"):
                found.setdefault((sink.name, sink.state), []).append((partition.partition, sink))
    rows = [
        SinkProblem(
            problem=state, sink=name, reason=sinks[0][1].error or "", partitions=[partition for partition, _ in sinks],
            since=min((sink.error_since for _, sink in sinks if sink.error_since is not None), default=None),
        )
        for (name, state), sinks in sorted(found.items())
    ]  # fmt: skip
    tables = [
        SinkProblem(problem=table.state, sink=table.name, reason=table.error, partitions=[], since=table.error_since)
        for table in host.tables
        if table.error is not None
    ]
    return [*rows, *tables]


def judge_own(found: PartitionStatistics, now: float, max_process_time: float) -> Verdict:
    """The verdict about a partition of this host."""
    return judge(report_of(found), found.error, now, max_process_time)
