"""Two clusters in virtual time: the second one reads the output of the first one, exactly once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random

import orjson
import pytest

from actorproc.config.settings import Settings
from actorproc.handler.base import PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.records import Batch
from actorproc.simulation import Cluster, Faults, KnownStream, Process, RecordResult, UnsteadySource, run
from actorproc.sources import OutputSource
from actorproc.sources.protocol import Source
from actorproc.storage.store import Store

ROUGH = Faults(
    slow=0.02, lost_request=0.02, lost_reply=0.03, late_write=0.02, lateness=(1.0, 90.0), busy=0.001, busy_time=(1, 5)
)


class First(PartitionHandler):
    """A row or two for each number; none for some, and some are poison."""

    output_schema = "n long, copy int"

    def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            n = record.json()
            if n % 11 == 5:
                raise ValueError("poison")
            ctx.emit_many(record, [{"n": n, "copy": copy} for copy in range(n % 3)])


class Second(PartitionHandler):
    """The rows as they are."""

    output_schema = "n long, copy int"

    def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.emit(record, record.json())


def check(ended: RecordResult) -> str | None:
    rows = [{"n": row["n"], "copy": row["copy"]} for row in ended.rows]
    return None if rows == [orjson.loads(ended.value)] else f"became {rows}"


class OutputStream(KnownStream):
    """The commits of a cluster over `source`."""

    def __init__(self, source: KnownStream) -> None:
        self.injected: Counter[str] = Counter()
        self.first: Cluster
        self._rows: dict[str, list[bytes]] = {partition: [] for partition in source.names()}

    def take(self, ended: RecordResult) -> None:
        """The judge of the first cluster: called with each record as it is committed, in order."""
        self._rows[ended.partition] += [orjson.dumps({"n": row["n"], "copy": row["copy"]}) for row in ended.rows]

    def names(self) -> Sequence[str]:
        return list(self._rows)

    def records(self, after: int, upto: int, partition: str) -> Iterable[tuple[int, bytes]]:
        return enumerate(self._rows[partition][after + 1 : upto + 1], after + 1)

    def last(self, partition: str) -> int:
        return len(self._rows[partition]) - 1

    def read_by(self, process: Process, settings: Settings) -> Source:
        store = Store(self.first.store.view(process.host.name), clock=process.clock)
        source = OutputSource(store, "simulated", settings=settings, clock=process.clock)
        source.url = "the first's output"  # the second's container is another memory, with the same URL
        return source


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 6))])
def test_a_chain_of_two_processors_is_exactly_once_despite_faults(seed: int) -> None:
    async def story() -> None:
        random = Random(seed)
        source = UnsteadySource(4, seed=seed)
        settings = {"retry_backoff": 0.1, "dead_letter_limit": 1.0}
        stream = OutputStream(source)
        first = stream.first = Cluster(
            First, source, check=stream.take, faults=ROUGH, settings=settings, seed=f"{seed}/1"
        )
        for name in ("a", "b"):
            first.start(name)
        await first.converged(within=300)
        second = Cluster(Second, stream, check=check, faults=ROUGH, settings=settings, seed=f"{seed}/2")
        for name in ("c", "d"):
            second.start(name)
        counts = dict.fromkeys(source.names(), 0)
        for _ in range(40):
            for partition in source.names():
                more = random.randint(0, 12)
                source.append(partition, [b"%d" % n for n in range(counts[partition], counts[partition] + more)])
                counts[partition] += more
            cluster = random.choice([first, second])
            if random.random() < 0.25 and len(cluster.running) > 1:
                process = random.choice(cluster.processes)
                cluster.crash(process)
                cluster.start(process.host.name)
            for cluster in (first, second):
                await cluster.run_for(random.uniform(1, 10))
        await first.converged(within=600)
        await second.converged(within=600)
        await first.finished()
        await second.finished()
        assert second.seen()["rows"] == first.seen()["rows"] > 500
        assert first.seen()["dead_letters"] > 30
        assert second.injected()["crash"] + first.injected()["crash"] > 3

    run(story(), seed=seed)
