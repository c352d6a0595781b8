"""`GET /metrics` of a dashboard: metrics of whole processors, also of those that no host runs.

They have names of their own, `actorproc_processor_...`, so that a sum over hosts does not count them as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import anyio
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from actorproc.admin.fleet import PartitionView
from actorproc.admin.fleet_sinks import TROUBLED
from actorproc.admin.own_source import own_source
from actorproc.admin.partition_reader import PartitionReader
from actorproc.admin.processors import list_processors
from actorproc.counts import Counts
from actorproc.errors import ActorprocError
from actorproc.runtime.clock import SYSTEM
from actorproc.runtime.logger import LogThrottle, get_logger
from actorproc.runtime.tasks import gather
from actorproc.server.answers import with_json_errors
from actorproc.server.feeds import Feeds, View
from actorproc.storage.names import ProcessorLayout
from actorproc.stores import open_store

logger = get_logger(__name__)

ASKING = 8.0
"""Seconds for which a scrape waits for a source. Prometheus gives up after ten."""

Lags = Mapping[str, PartitionView]


class ProcessorMetrics:
    """Metrics of all processors of a container, at each scrape as their hosts have reported them.

    The lag of a partition that no host reports is asked of its source, at most each `lag_interval`.
    """

    def __init__(self, feeds: Feeds) -> None:
        self._feeds = feeds
        self._asked: dict[str, tuple[float, Lags]] = {}  # by processor: the time, and the answer of its source
        self._repeats = LogThrottle()

    def routes(self) -> list[Route]:
        return [Route("/metrics", with_json_errors(self.metrics))]

    async def metrics(self, request: Request) -> Response:
        """Prometheus' text format, or OpenMetrics for those that accept it."""
        async with open_store(self._feeds.container, self._feeds.settings) as store:
            names = await list_processors(store)
        found = _Collected()
        for name in names:
            try:
                view = await self._feeds.of(name).view()
            except ActorprocError:
                found.add_unreadable(name)
                continue
            found.add(view, await self._lags(view))
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(found), headers={"Content-Type": content_type})

    async def _lags(self, view: View) -> Lags:
        """The lag by the source of partitions whose lag no host reports."""
        wanted = [one.partition for one in view.partitions if one.is_open and one.lag is None]
        if not wanted:
            return {}
        if (before := self._asked.get(view.processor)) is not None:
            asked_at, known = before
            if SYSTEM.monotonic() < asked_at + self._feeds.settings.lag_interval:
                return known
        known = {}
        with anyio.move_on_after(ASKING) as waiting:
            try:
                known = await self._ask(view.processor, wanted)
            except ActorprocError as error:
                self._log_unknown(view.processor, str(error))
        if waiting.cancelled_caught:
            self._log_unknown(view.processor, f"the source has not answered within {ASKING:g} s")
        self._asked[view.processor] = SYSTEM.monotonic(), known
        return known

    async def _ask(self, processor: str, partitions: Sequence[str]) -> Lags:
        layout, settings = ProcessorLayout(processor), self._feeds.settings
        async with (
            open_store(self._feeds.container, settings) as store,
            own_source(store, layout, settings) as source,
        ):
            return await gather(partitions, PartitionReader(store, layout, source).read)

    def _log_unknown(self, processor: str, why: str) -> None:
        if times := self._repeats.due(f"{processor}: {why}", SYSTEM.monotonic()):
            logger.warning("dashboard.lag_unknown", processor=processor, error=why, times=times)


class _Collected:
    """The metrics of one scrape."""

    def __init__(self) -> None:
        self._families: dict[str, GaugeMetricFamily] = {}

    def collect(self) -> Iterator[Metric]:
        """The families, for the encoder."""
        yield from self._families.values()

    def add_unreadable(self, processor: str) -> None:
        self._gauge("readable", "0: it cannot be read from its container.", processor, 0)

    def add(self, view: View, lags: Lags) -> None:
        name, partitions = view.processor, view.partitions
        self._gauge("readable", "0: it cannot be read from its container.", name, view.problem is None)
        alive = sum(host.alive and host.in_group for host in view.hosts)
        self._gauge("hosts", "Hosts that are alive.", name, alive)
        kinds = Counter(one.verdict for one in partitions)
        for kind, count in kinds.items():
            self._add("partitions", "By verdict.", {"processor": name, "verdict": kind}, count)
        found = [_lag(one, lags) for one in partitions if one.is_open]
        known = [lag for lag, _ in found if lag is not None]
        seconds = [late for _, late in found if late is not None]
        self._gauge("lag_records", "Sum over the partitions whose lag is known.", name, sum(known))
        self._gauge("lag_unknown_partitions", "Partitions whose lag is not known.", name, len(found) - len(known))
        if seconds or not found:
            self._gauge("lag_seconds", "Of the partition furthest behind.", name, max(seconds, default=0.0))
        chained = [one.lag_seconds_end_to_end for one in partitions if one.is_open] if view.is_chained else []
        if late := [one for one in chained if one is not None]:
            text = "From the first source on: of the partition furthest behind."
            self._gauge("lag_end_to_end_seconds", text, name, max(late))
        for sink in view.sinks:
            labels = {"processor": name, "sink": sink.name}
            self._add("sink_lag_commits", "Commits that the sink lacks.", labels, sink.commits or 0)
            self._add("sink_lag_rows", "Output rows that the sink lacks.", labels, sink.rows or 0)
            self._add("sink_lag_seconds", "Age of the oldest commit that the sink lacks.", labels, sink.seconds or 0.0)
            failing = sum(count for state, count in sink.states.items() if state in TROUBLED)
            self._add("sink_failing_partitions", "It takes no rows of them.", labels, failing)
        counts = sum((one.counts for one in partitions if one.counts), Counts())
        for key in ("records", "rows", "dead_letters", "skipped"):
            self._gauge(key, "Committed in all, since the first record.", name, getattr(counts, key))

    def _gauge(self, name: str, text: str, processor: str, value: float) -> None:
        self._add(name, text, {"processor": processor}, value)

    def _add(self, name: str, text: str, labels: Mapping[str, str], value: float) -> None:
        if name not in self._families:
            self._families[name] = GaugeMetricFamily(f"actorproc_processor_{name}", text, labels=list(labels))
        self._families[name].add_metric(list(labels.values()), value)


def _lag(view: PartitionView, lags: Lags) -> tuple[int | None, float | None]:
    """Records and seconds."""
    if view.lag is not None or view.partition not in lags:
        return view.lag, view.lag_seconds
    found = lags[view.partition]
    return found.lag, found.lag_seconds
