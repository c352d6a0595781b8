"""Alert rules for Prometheus. docs/operations.md has a section for each: its meaning, and the remedy."""

from __future__ import annotations

import json
from typing import NamedTuple


class Alert(NamedTuple):
    """One rule. `lasts`: how long the expression must hold."""

    name: str
    expression: str
    lasts: str
    severity: str
    """`page`: somebody has to act now. `ticket`: within days."""
    summary: str


_WHERE = "{{ $labels.processor }} on {{ $labels.host }}"

ALERTS = (
    Alert(
        "ActorprocPartitionStuck",
        'sum by (processor, host, verdict) (actorproc_partitions{verdict=~"failing|stuck|unreadable"}) > 0',
        "2m", "page", _WHERE + ": {{ $value }} partitions are {{ $labels.verdict }}",
    ),
    Alert(
        "ActorprocHostFenced", "actorproc_host_fenced == 1",
        "1m", "page", _WHERE + ": no heartbeat is written, so nothing runs",
    ),
    Alert(
        "ActorprocHostFailing", "actorproc_host_failing == 1",
        "2m", "page", _WHERE + ": the store, the group or the source cannot be reached",
    ),
    Alert(
        "ActorprocNoHosts", "absent(actorproc_host_running == 1)",
        "5m", "page", "no host is running",
    ),
    Alert(
        "ActorprocProcessorWithoutHosts", "actorproc_processor_hosts == 0 and actorproc_processor_lag_records > 0",
        "5m", "page", "{{ $labels.processor }}: no host is running, and records wait",
    ),
    Alert(
        "ActorprocEventLoopBlocked", "actorproc_event_loop_blocked_seconds > 10",
        "1m", "page", _WHERE + ": the event loop does not answer: a handler blocks it, or there is no CPU",
    ),
    Alert(
        "ActorprocLagGrows",
        "max by (processor) (actorproc_lag_seconds) > 300 "
        "and sum by (processor) (deriv(actorproc_lag_records[10m])) > 0",
        "10m", "ticket", "{{ $labels.processor }}: {{ $value }} s behind, and the lag grows",
    ),
    Alert(
        "ActorprocRetrying",
        'sum by (processor, host) (actorproc_partitions{verdict="retrying"}) > 0',
        "10m", "ticket", _WHERE + ": {{ $value }} partitions try the same batch again and again",
    ),
    Alert(
        "ActorprocStarved",
        'sum by (processor, host) (actorproc_partitions{verdict="starved"}) > 0',
        "5m", "ticket", _WHERE + ": {{ $value }} partitions wait for a thread",
    ),
    Alert(
        "ActorprocDeadLetters",
        "sum by (processor) (increase(actorproc_dead_letters_committed_total[10m])) > 0",
        "0m", "ticket", "{{ $labels.processor }}: {{ $value }} new dead letters",
    ),
    Alert(
        "ActorprocSlowCommits",
        "histogram_quantile(0.95, sum by (processor, le) (rate(actorproc_commit_duration_seconds_bucket[10m]))) > 5",
        "10m", "ticket", "{{ $labels.processor }}: one commit in twenty takes {{ $value }} s",
    ),
    Alert(
        "ActorprocMembershipDiffers",
        "max by (processor) (actorproc_group_members) != count by (processor) (actorproc_host_running == 1)",
        "5m", "ticket", "{{ $labels.processor }}: {{ $value }} members, but another number of hosts is scraped",
    ),
)  # fmt: skip


def rules() -> str:
    """A file of rules as YAML. Texts are quoted as in JSON, which YAML includes."""
    lines = ["# Printed by `actorproc monitoring alerts`.", "groups:", "  - name: actorproc", "    rules:"]
    for alert in ALERTS:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(alert.expression)}",
            f"        for: {alert.lasts}",
            "        labels:",
            f"          severity: {alert.severity}",
            "        annotations:",
            f"          summary: {json.dumps(alert.summary)}",
        ]
    return "\n".join(lines) + "\n"
