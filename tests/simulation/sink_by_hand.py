"""Deliveries that a story runs by hand: each on a host of its own, which sleeps exactly when the story says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from actorproc.rows.output_schema import output_schema
from actorproc.runtime.logger import get_logger
from actorproc.simulation import Cluster, FaultyBackend, Host, VirtualClock, current_loop
from actorproc.simulation.database import NAME, SimulatedSink
from actorproc.simulation.sink_checks import SinkChecks
from actorproc.sinks.delivery import SinkDelivery
from actorproc.sinks.host_registry import HostRegistry
from actorproc.sinks.memory import SinkMemory
from actorproc.sinks.protocol import Sink
from actorproc.sinks.row_shape import RowShape
from actorproc.storage.store import Store
from tests.simulation.numbers import Numbers, judge_number, numbers

PARTITION = "0"
FOREVER = 1e9


@dataclass
class HandHost:
    """One delivery."""

    host: Host
    view: FaultyBackend
    sink: SimulatedSink
    delivery: SinkDelivery

    def sleep_before(self, is_there: Callable[[str, str], bool]) -> None:
        """Pause the host as it sends the first request that `is_there` picks: it gets the answer when it wakes up."""

        def interfere(verb: str, key: str) -> None:
            if self.host.running and is_there(verb, key):
                self.view.interfere = None
                self.host.pause()

        self.view.interfere = interfere


class ByHand:
    """A partition with some commits, of which the sink has none, and no host but those of the story."""

    def __init__(self) -> None:
        self.source = numbers(1, each=3)
        self.cluster = Cluster(Numbers, self.source, check=judge_number, sink={}, settings={"commit_interval": 1})
        assert self.cluster.sinks is not None
        self.checks: SinkChecks = self.cluster.sinks
        self.database = self.checks.database
        self.layout = self.cluster.layout
        self.tip = 0

    async def begin(self, commits: int = 4) -> None:
        """Commit as much, while the sink is away."""
        self.database.away(FOREVER)
        process = self.cluster.start("first")
        while (tip := self.checks.tip(PARTITION)) < commits:
            await self.cluster.run_for(5)
            if self.checks.tip(PARTITION) == tip:
                self.source.append(PARTITION, [b"%d" % n for n in range(10 * tip, 10 * tip + 3)])
        await self.cluster.stop(process)
        self.database.heal()
        self.tip = self.checks.tip(PARTITION)

    def store(self, name: str) -> Store:
        return Store(self.cluster.store.view(name), clock=VirtualClock(name))

    def run(self, name: str, tip: int | None = None) -> HandHost:
        """Start a delivery of the commits below `tip`; default: of all."""
        loop, view, sink = current_loop(), self.cluster.store.view(name), self.database.connect()
        schema = output_schema(pa.schema([("n", pa.int64())]))

        async def opened() -> Sink:
            return sink

        store = Store(view, clock=VirtualClock(name))
        delivery = SinkDelivery(
            NAME, opened, lambda: None, sink.options, RowShape(sink.options, schema, sink.can), PARTITION,
            store=store, layout=self.layout, registry=HostRegistry(store, self.layout), memory=SinkMemory(2**24),
            schema=schema, log=get_logger(__name__),
        )  # fmt: skip
        delivery.begin(self.tip if tip is None else tip, depth=0, rows=0)
        found = HandHost(loop.host(name), view, sink, delivery)
        found.host.start(delivery.run(), name=name)
        return found

    async def until(self, holds: Callable[[], object], limit: int = 300) -> None:
        """Run the cluster until it holds."""
        for _ in range(limit):
            if holds():
                return
            await self.cluster.run_for(1)
        raise AssertionError("it never holds")

    @property
    def position(self) -> int:
        """Of the sink."""
        row = self.database.read(PARTITION)
        return 0 if row is None else row.position
