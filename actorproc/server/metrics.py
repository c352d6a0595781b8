"""Metrics of one host for Prometheus, made from its statistics at each scrape.

Names follow https://prometheus.io/docs/practices/naming/. Two series bear the names that OpenTelemetry gives to every
consumer of messages: https://opentelemetry.io/docs/specs/semconv/messaging/messaging-metrics/
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from actorproc.host.statistics import Statistics
from actorproc.partition.statistics import PartitionStatistics
from actorproc.partition.time_spent import BUCKETS, Durations
from actorproc.server.health import judge_own
from actorproc.sinks.delivery import SinkStatistics
from actorproc.sinks.tables.committer import TableStatistics
from actorproc.stores import OUTPUT_SCHEME

_Labels = dict[str, str]

_SYSTEMS = {"kafka": "kafka", "eventhubs": "eventhubs", "eventhubs+amqp": "eventhubs"}
"""OpenTelemetry's names of messaging systems, by the scheme of the source's URL."""


_Delivered = Sequence[SinkStatistics | TableStatistics]

_SINK_GAUGES: tuple[tuple[str, str, Callable[[_Delivered], float]], ...] = (
    ("actorproc_sink_lag_commits", "Commits that the sink lacks.", lambda sinks: sum(s.lag or 0 for s in sinks)),
    ("actorproc_sink_lag_rows", "Output rows that the sink lacks.", lambda sinks: sum(s.lag_rows or 0 for s in sinks)),
    (
        "actorproc_sink_lag_seconds", "Age of the oldest commit that the sink lacks.",
        lambda sinks: max(s.lag_seconds or 0.0 for s in sinks),
    ),
    (
        "actorproc_sink_failing_partitions", "It takes no rows of them.",
        lambda sinks: sum(s.state in ("failing", "refusing") for s in sinks),
    ),
    (
        "actorproc_sink_refusing_partitions", "It refuses their rows.",
        lambda sinks: sum(s.state == "refusing" for s in sinks),
    ),
    ("actorproc_sink_paused_partitions", "By operators.", lambda sinks: sum(s.state == "paused" for s in sinks)),
)  # fmt: skip


class HostCollector(Collector):
    """Collects one host.

    Args:
        look: the statistics, and the seconds for which the event loop has not answered.
        wall: seconds since 1970.
        per_partition: adds series for each partition.
    """

    def __init__(
        self,
        look: Callable[[], tuple[Statistics, float]],
        *,
        source: str,
        wall: Callable[[], float],
        max_process_time: float,
        per_partition: bool,
    ) -> None:
        self._look = look
        self._source = source
        self._wall = wall
        self._max_process_time = max_process_time
        self._per_partition = per_partition

    def describe(self) -> list[Metric]:
        """Nothing is collected when the collector is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        host, blocked = self._look()
        labels = {"processor": host.processor, "host": host.host}
        yield InfoMetricFamily("actorproc_host", "The host.", value=labels | {"incarnation": host.incarnation or ""})
        yield from self._of_host(host, blocked, labels)
        yield from self._of_partitions(host, labels)
        yield from self._of_sinks(host, labels)
        yield from self._of_messaging(host)
        if self._per_partition:
            yield from self._each(host.partitions, labels)

    def _of_host(self, host: Statistics, blocked: float, labels: _Labels) -> Iterator[Metric]:
        yield _gauge("actorproc_host_running", "1: it has joined the group.", labels, host.running)
        yield _gauge("actorproc_host_fenced", "1: no heartbeat in time, nothing runs.", labels, host.fenced)
        yield _gauge("actorproc_host_failing", "1: store, group or source are away.", labels, host.error is not None)
        yield _gauge("actorproc_event_loop_blocked_seconds", "How long the loop is silent.", labels, blocked)
        yield _gauge("actorproc_group_members", "Hosts of the group.", labels, len(host.members))
        counts = host.counts
        yield _counter("actorproc_records_processed", "Records, those processed again too.", labels, counts.records)
        yield _counter("actorproc_rows_committed", "Output rows.", labels, counts.rows)
        yield _counter("actorproc_dead_letters_committed", "Dead letters.", labels, counts.dead_letters)
        yield _counter("actorproc_records_skipped", "Records that on_error skipped.", labels, counts.skipped)
        yield _gauge("actorproc_read_ahead_bytes", "Read and not processed.", labels, host.read_ahead_bytes)
        yield _gauge("actorproc_uncommitted_bytes", "Waiting for a commit.", labels, host.uncommitted_bytes)
        yield _by("actorproc_store_requests", "Requests to the store.", labels, "verb", host.store_requests)
        yield _by("actorproc_store_failures", "Requests without an answer.", labels, "cause", host.store_failures)
        yield _counter("actorproc_source_requests", "As far as the source tells.", labels, host.source_requests)
        yield _counter("actorproc_source_bytes", "Fetched from the source.", labels, host.source_bytes)
        yield _by("actorproc_source_charges", "By the source's own unit.", labels, "charge", host.source_charges)
        yield _counter("actorproc_source_throttled", "Refused: too many requests.", labels, host.source_throttled)
        yield _by("actorproc_activity_seconds", "Time of partitions.", labels, "activity", host.seconds)
        if "commit" in host.durations:
            yield _histogram("actorproc_commit_duration_seconds", "Commits.", labels, host.durations["commit"])

    def _of_partitions(self, host: Statistics, labels: _Labels) -> Iterator[Metric]:
        verdicts = Counter(judge_own(p, self._wall(), self._max_process_time).kind for p in host.partitions)
        verdicts["stuck"] += len(host.abandoned)
        family = GaugeMetricFamily("actorproc_partitions", "By verdict.", labels=[*labels, "verdict"])
        for kind, count in verdicts.items():
            family.add_metric([*labels.values(), kind], count)
        yield family
        faults = Counter(p.trouble.fault for p in host.partitions if p.trouble is not None)
        faults.update(trouble.fault for trouble in host.abandoned.values())
        family = GaugeMetricFamily("actorproc_troubled_partitions", "By fault.", labels=[*labels, "fault"])
        for fault in ("user", "infrastructure"):
            family.add_metric([*labels.values(), fault], faults[fault])
        yield family
        lags = [p.lag for p in host.partitions if p.lag is not None]
        sizes = [p.lag_bytes for p in host.partitions if p.lag_bytes is not None]
        seconds = [p.lag_seconds for p in host.partitions if p.lag_seconds is not None]
        unknown = len(host.partitions) - len(lags)
        yield _gauge("actorproc_lag_records", "Sum over the partitions whose lag is known.", labels, sum(lags))
        yield _gauge("actorproc_lag_bytes", "By the mean size of the records read.", labels, sum(sizes))
        yield _gauge("actorproc_lag_seconds", "Of the partition furthest behind.", labels, max(seconds, default=0.0))
        if self._source.startswith(OUTPUT_SCHEME):
            late = [p.lag_seconds_end_to_end for p in host.partitions if p.lag_seconds_end_to_end is not None]
            text = "From the first source on: of the partition furthest behind."
            yield _gauge("actorproc_lag_end_to_end_seconds", text, labels, max(late, default=0.0))
        yield _gauge("actorproc_lag_unknown_partitions", "Partitions whose lag is not known.", labels, unknown)

    def _of_sinks(self, host: Statistics, labels: _Labels) -> Iterator[Metric]:
        found: dict[str, list[SinkStatistics]] = {}
        for partition in host.partitions:
            for sink in partition.sinks:
                found.setdefault(sink.name, []).append(sink)
        for name, text, of in _SINK_GAUGES:
            values = {sink: of(each) for sink, each in found.items()}
            values |= {table.name: of([table]) for table in host.tables if table.state != "waiting"}
            if values:
                yield _by(name, text, labels, "sink", values, GaugeMetricFamily)
        delivered = {**host.sink_rows, **{table.name: table.rows for table in host.tables}}
        if delivered:
            yield _by("actorproc_sink_rows_delivered", "Rows that the sink has taken.", labels, "sink", delivered)

    def _of_messaging(self, host: Statistics) -> Iterator[Metric]:
        labels = {
            "messaging_system": _SYSTEMS.get(self._source.partition("://")[0], "actorproc"),
            "messaging_destination_name": self._source.rpartition("/")[2],
            "messaging_consumer_group_name": host.processor,
            "messaging_client_id": host.host,
        }
        yield _counter("messaging_client_consumed_messages", "Records processed.", labels, host.counts.records)
        if "handle" in host.durations:
            yield _histogram("messaging_process_duration_seconds", "Of batches.", labels, host.durations["handle"])

    def _each(self, partitions: tuple[PartitionStatistics, ...], labels: _Labels) -> Iterator[Metric]:
        gauges: dict[str, tuple[str, Callable[[PartitionStatistics], float | None]]] = {
            "actorproc_partition_lag_records": ("Records behind.", lambda p: p.lag),
            "actorproc_partition_lag_seconds": ("Age of the oldest record in hand.", lambda p: p.lag_seconds),
            "actorproc_partition_committed_sequence": ("Committed up to.", lambda p: p.committed.sequence),
            "actorproc_partition_epoch": ("Grows with each owner.", lambda p: p.epoch),
            "actorproc_partition_troubled": ("1: it is not progressing.", lambda p: p.trouble is not None),
            "actorproc_partition_last_commit_timestamp_seconds": (
                "When it was committed last.",
                lambda p: None if p.last_commit is None else p.last_commit.timestamp(),
            ),
        }
        for name, (text, of) in gauges.items():
            family = GaugeMetricFamily(name, text, labels=[*labels, "partition"])
            for partition in partitions:
                if (value := of(partition)) is not None:
                    family.add_metric([*labels.values(), partition.partition], value)
            yield family


def _gauge(name: str, text: str, labels: _Labels, value: float) -> Metric:
    family = GaugeMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def _counter(name: str, text: str, labels: _Labels, value: float) -> Metric:
    family = CounterMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def _by(
    name: str, text: str, labels: _Labels, label: str, values: Mapping[Any, float], kind: Any = CounterMetricFamily
) -> Metric:
    family = kind(name, text, labels=[*labels, label])
    for key, value in values.items():
        family.add_metric([*labels.values(), key], value)
    return family  # type: ignore[no-any-return]


def _histogram(name: str, text: str, labels: _Labels, durations: Durations) -> Metric:
    family, count, buckets = HistogramMetricFamily(name, text, labels=list(labels)), 0, []
    for bound, more in zip([*map(str, BUCKETS), "+Inf"], durations.counts, strict=True):
        count += more
        buckets.append((bound, count))
    family.add_metric(list(labels.values()), buckets, durations.sum)
    return family
