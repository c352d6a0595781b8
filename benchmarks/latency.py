"""How old a record is, at 100 records a second: in the handler, in a second processor, and as a committed row.

With the built-in log in a folder and on SeaweedFS (S3), and with a topic of a real Kafka broker (needs Java and Maven).
Everything runs in one process: a producer, and one host for each processor. The servers have processes of their own.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import anyio
import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.table import Table

from actorproc import Batch, PartitionContext, PartitionHandler, Processor, Producer
from actorproc.config.settings import Settings
from tests.connectors.kafka.server import Broker, kafka
from tests.servers import S3Server, seaweedfs

PARTITIONS = 8
RATE = 100.0
"""Records a second."""

WARM_UP = 200
"""Records that are not counted: the reader learns where the producer is."""

_NUMBERS = count()


class Timed(PartitionHandler):
    """Notes how old each record is here and when its row is committed, and emits when it was sent."""

    output_schema = "sent double"
    ages: ClassVar[list[float]] = []
    committed_ages: ClassVar[list[float]] = []

    async def opened(self, ctx: Any) -> None:
        self.waiting: list[tuple[int, float]] = []

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        now = time.time()
        for record in batch:
            sent = self.sent(record.json())
            self.ages.append(now - sent)
            self.waiting.append((record.sequence, sent))
            ctx.emit(record, (sent,))

    async def committed(self, ctx: Any, upto: int, rows: int, error: Exception | None) -> None:
        if error is None:
            now = time.time()
            self.committed_ages.extend(now - sent for sequence, sent in self.waiting if sequence <= upto)
            self.waiting = [waiting for waiting in self.waiting if waiting[0] > upto]

    def sent(self, value: Any) -> float:
        return float(value)


class Second(Timed):
    """Follows the output of `Timed`."""

    ages: ClassVar[list[float]] = []
    committed_ages: ClassVar[list[float]] = []

    def sent(self, value: Any) -> float:
        return float(value["sent"])


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table: `p50` and `p99` are bars, in seconds."""

    way: str
    on: str
    linger: float = 0.2
    commit_interval: float = 5.0
    chain: bool = False
    p50: float | None = None
    p99: float | None = None


CASES = (
    Case("send to handler, defaults", "folder", p50=0.3, p99=0.6),
    Case("send to handler, linger = 0.02", "folder", linger=0.02, p50=0.06, p99=0.2),
    Case("send to the second handler, commit_interval = 0.25", "folder", commit_interval=0.25, chain=True, p99=1.0),
    Case("the same, linger = 0.02", "folder", linger=0.02, commit_interval=0.25, chain=True),
    Case("send to handler, defaults", "SeaweedFS", p50=0.3, p99=0.6),
    Case("send to handler, linger = 0.02", "SeaweedFS", linger=0.02),
    Case("send to the second handler, commit_interval = 0.25", "SeaweedFS", commit_interval=0.25, chain=True, p99=1.0),
    Case("the same, linger = 0.02", "SeaweedFS", linger=0.02, commit_interval=0.25, chain=True),
    Case("produce to committed row, commit_interval = 0.1", "Kafka", commit_interval=0.1, p99=0.3),
)


class _Places:
    """Empty places for each case. A server starts when a case needs it."""

    def __init__(self, folder: Path, servers: AsyncExitStack) -> None:
        self._folder, self._servers = folder, servers
        self._s3: S3Server | None = None
        self._broker: Broker | None = None

    async def container(self, on: str) -> tuple[str, dict[str, str]]:
        """URL, and the settings that it needs."""
        if on != "SeaweedFS":
            return str(self._folder / str(next(_NUMBERS))), {}
        if self._s3 is None:
            self._s3 = self._servers.enter_context(seaweedfs(self._new_folder()))
        return await self._s3.new_url(), self._s3.settings

    def broker(self) -> Broker:
        if self._broker is None:
            self._broker = self._servers.enter_context(kafka(self._new_folder()))
        return self._broker

    def _new_folder(self) -> Path:
        folder = self._folder / f"server-{next(_NUMBERS)}"
        folder.mkdir()
        return folder


async def _at_the_rate(seconds: float) -> AsyncIterator[int]:
    start, sent = time.monotonic(), 0
    while (due := start + sent / RATE) < start + seconds:
        await anyio.sleep(max(0.0, due - time.monotonic()))
        yield sent
        sent += 1


async def _send(log: str, settings: Settings, seconds: float, linger: float) -> None:
    async with Producer(log, partitions=PARTITIONS, linger=linger, settings=settings) as producer:
        async for number in _at_the_rate(seconds):
            await producer.send(repr(time.time()), key=b"%d" % number)
        await producer.flush()
        await anyio.sleep(2)  # a producer that has gone tells nobody


async def _produce(address: str, topic: str, seconds: float) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "linger.ms": 0})
    async for number in _at_the_rate(seconds):
        producer.produce(topic, repr(time.time()), key=b"%d" % number)
        producer.poll(0)
    producer.flush(30)
    await anyio.sleep(2)


async def _from_kafka(case: Case, places: _Places, seconds: float) -> list[float]:
    broker, topic = places.broker(), f"latency-{next(_NUMBERS)}"
    client = AdminClient({"bootstrap.servers": broker.address})
    client.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(60)
    container, given = await places.container(case.on)
    settings = Settings.load(**given, commit_interval=case.commit_interval)
    async with Processor(Timed, source=f"kafka://{broker.address}/{topic}", container=container, settings=settings):
        await _produce(broker.address, topic, seconds)
    return Timed.committed_ages


async def _from_log(case: Case, places: _Places, seconds: float) -> list[float]:
    container, given = await places.container(case.on)
    settings = Settings.load(**given, commit_interval=case.commit_interval)
    log = f"{container}/log"
    async with Producer(log, partitions=PARTITIONS, settings=settings):
        pass
    async with Processor(Timed, source=log, container=f"{container}/state", settings=settings):
        if not case.chain:
            await _send(log, settings, seconds, case.linger)
            return Timed.ages
        scheme = "" if "://" in container else "file://"
        source = f"actorproc+{scheme}{container}/state/Timed"
        async with Processor(Second, source=source, container=f"{container}/state", settings=settings):
            await _send(log, settings, seconds, case.linger)
            return Second.ages


async def _measure(case: Case, places: _Places, seconds: float) -> list[float]:
    for ages in (Timed.ages, Timed.committed_ages, Second.ages, Second.committed_ages):
        ages.clear()
    way = _from_kafka if case.on == "Kafka" else _from_log
    return list(await way(case, places, seconds))[WARM_UP:]


@asynccontextmanager
async def _places() -> AsyncIterator[_Places]:
    with tempfile.TemporaryDirectory(prefix="actorproc-bench-") as name:
        async with AsyncExitStack() as servers:
            yield _Places(Path(name), servers)


def run(seconds: float = 30.0, only: str = "") -> None:
    """Print the table.

    Args:
        only: a part of the names of cases, with the place, such as "Kafka".
    """
    table = Table(title=f"{RATE:g} records/s, {PARTITIONS} partitions, {seconds:g} s each")
    for heading in ("way", "on", "records", "p50, s", "p99, s", "bars", "load", ""):
        table.add_column(heading, justify="left" if heading in ("way", "on") else "right")

    async def measure() -> None:
        async with _places() as places:
            for case in CASES:
                if only not in f"{case.way} {case.on}":
                    continue
                ages = await _measure(case, places, seconds)
                cuts = statistics.quantiles(ages, n=100)
                bars = [("p50", case.p50, cuts[49]), ("p99", case.p99, cuts[98])]
                said = ", ".join(f"{name} <= {bar:g}" for name, bar, _ in bars if bar is not None)
                is_met = all(found <= bar for _, bar, found in bars if bar is not None)
                table.add_row(
                    case.way, case.on, f"{len(ages):,}", f"{cuts[49]:.3f}", f"{cuts[98]:.3f}", said,
                    f"{os.getloadavg()[0]:.1f}", ("met" if is_met else "[red]missed[/]") if said else "",
                )  # fmt: skip

    anyio.run(measure)
    Console().print(table)
