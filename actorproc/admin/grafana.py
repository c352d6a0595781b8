"""A dashboard for Grafana over the metrics of all hosts."""

from __future__ import annotations

from typing import Any, NamedTuple

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_CHOSEN = '{processor=~"$processor"}'
_WIDTH, _HEIGHT, _COLUMNS = 8, 7, 3


class _Panel(NamedTuple):
    title: str
    unit: str
    queries: dict[str, str]
    """Legend -> expression, in which `CHOSEN` is the selector of the chosen processors."""
    description: str = ""


_PANELS = (
    _Panel("Hosts", "short", {"{{processor}}": "sum by (processor) (actorproc_host_runningCHOSEN)"}),
    _Panel(
        "Partitions by verdict", "short",
        {"{{verdict}}": "sum by (verdict) (actorproc_partitionsCHOSEN)"},
        "What is not ok or moving needs a look: docs/operations.md.",
    ),
    _Panel(
        "Hosts in trouble", "short",
        {
            "fenced": "sum(actorproc_host_fencedCHOSEN)",
            "store, group or source away": "sum(actorproc_host_failingCHOSEN)",
            "event loop blocked": "sum(actorproc_event_loop_blocked_secondsCHOSEN > bool 0)",
        },
    ),
    _Panel("Lag in seconds", "s", {"{{processor}}": "max by (processor) (actorproc_lag_secondsCHOSEN)"}),
    _Panel("Lag in records", "short", {"{{processor}}": "sum by (processor) (actorproc_lag_recordsCHOSEN)"}),
    _Panel(
        "Records per second", "short",
        {"{{host}}": "sum by (host) (rate(actorproc_records_processed_totalCHOSEN[$__rate_interval]))"},
    ),
    _Panel(
        "Rows and dead letters per second", "short",
        {
            "rows": "sum(rate(actorproc_rows_committed_totalCHOSEN[$__rate_interval]))",
            "dead letters": "sum(rate(actorproc_dead_letters_committed_totalCHOSEN[$__rate_interval]))",
            "skipped": "sum(rate(actorproc_records_skipped_totalCHOSEN[$__rate_interval]))",
        },
    ),
    _Panel(
        "Where time goes", "percentunit",
        {
            "{{activity}}": "sum by (activity) (rate(actorproc_activity_seconds_totalCHOSEN[$__rate_interval])) "
            "/ ignoring (activity) group_left sum(rate(actorproc_activity_seconds_totalCHOSEN[$__rate_interval]))"
        },
        "Share of the time of all partitions.",
    ),
    _Panel(
        "Commits, 95th percentile", "s",
        {
            "{{processor}}": "histogram_quantile(0.95, sum by (processor, le) "
            "(rate(actorproc_commit_duration_seconds_bucketCHOSEN[$__rate_interval])))"
        },
    ),
    _Panel(
        "Batches, 95th percentile", "s",
        {
            "{{messaging_consumer_group_name}}": "histogram_quantile(0.95, sum by (messaging_consumer_group_name, le) "
            "(rate(messaging_process_duration_seconds_bucket"
            '{messaging_consumer_group_name=~"$processor"}[$__rate_interval])))'
        },
    ),
    _Panel(
        "Requests to the store per second", "reqps",
        {"{{verb}}": "sum by (verb) (rate(actorproc_store_requests_totalCHOSEN[$__rate_interval]))"},
    ),
    _Panel(
        "Memory for records and rows", "bytes",
        {
            "read ahead": "sum(actorproc_read_ahead_bytesCHOSEN)",
            "uncommitted": "sum(actorproc_uncommitted_bytesCHOSEN)",
        },
    ),
)  # fmt: skip


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it. It asks for the data source, and offers the processors to choose from."""
    return {
        "title": "actorproc",
        "uid": "actorproc",
        "tags": ["actorproc"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_data_source(), _processors()]},
        "panels": [_panel(number, panel) for number, panel in enumerate(_PANELS)],
    }


def _data_source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _processors() -> dict[str, Any]:
    return {
        "name": "processor", "label": "Processor", "type": "query", "datasource": _SOURCE,
        "query": "label_values(actorproc_host_running, processor)",
        "refresh": 2, "multi": True, "includeAll": True, "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip


def _panel(number: int, panel: _Panel) -> dict[str, Any]:
    row, column = divmod(number, _COLUMNS)
    targets = [
        {
            "refId": chr(ord("A") + index), "datasource": _SOURCE, "legendFormat": legend,
            "expr": expression.replace("CHOSEN", _CHOSEN),
        }
        for index, (legend, expression) in enumerate(panel.queries.items())
    ]  # fmt: skip
    return {
        "id": number + 1, "type": "timeseries", "title": panel.title, "description": panel.description,
        "datasource": _SOURCE, "targets": targets,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"tooltip": {"mode": "multi", "sort": "desc"}, "legend": {"displayMode": "list"}},
    }  # fmt: skip
