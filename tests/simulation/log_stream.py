"""The built-in log as the stream of a simulated cluster, with producers that crash and pause.

The records that were sent, the acknowledgements and the content of the log must agree.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from random import Random

import anyio
import pyarrow.parquet as pq
import structlog
from anyio.abc import TaskGroup

from actorproc.config.settings import Settings
from actorproc.errors import StoreError, StoreUnavailable
from actorproc.log.metadata import LogMetadata, create_log
from actorproc.produce.batches import Deliveries, Delivery
from actorproc.produce.growth import grow_log
from actorproc.produce.producer import Producer
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.faults import FaultyBackend
from actorproc.simulation.loop import current_loop
from actorproc.simulation.process import Process
from actorproc.simulation.streams import KnownStream
from actorproc.sources.log import LogSource
from actorproc.sources.protocol import Source
from actorproc.storage.names import LOG_META, log_dir, number_of, partition_of
from actorproc.storage.store import Store

log = structlog.get_logger(__name__)

SESSION = (5, 200)
"""Bursts that a producer sends before it closes and a new one opens."""

LOG_FILES = log_dir("").removesuffix("/")
"""Prefix of the keys of the log's files."""


class LogStream(KnownStream):
    """A log with producers. `create` it before hosts start.

    Args:
        make: makes the value of a record; no two may be equal.
    """

    def __init__(self, partitions: int, make: Callable[[Random], bytes], *, seed: object = 0) -> None:
        self.injected: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()
        self._ended = anyio.Event()
        self._make = make
        self._seed = seed
        self._births = 0
        self._metadata = LogMetadata(partitions=partitions)
        self._values: dict[str, list[bytes]] = {name: [] for name in self._metadata.names}
        self._sealed: set[str] = set()  # partitions that have ended, as the log has grown
        self._sent: dict[bytes, tuple[Producer, int]] = {}  # value -> its producer, and its number there
        self._there: set[bytes] = set()
        self._newest: dict[tuple[Producer, str], int] = {}  # number of the producer's newest record in the partition
        self._processes: list[Process] = []

    def join(self, store: FaultyBackend, broken: Callable[[str], None], committed_to: Callable[[str], int]) -> None:
        self._store, self._broken = store, broken

    async def create(self) -> None:
        """Create the log, without faults."""
        await create_log(self._store_without_faults("log"), len(self._values))

    async def append(self, partition: str, values: Sequence[bytes]) -> None:
        """Append records, without faults."""
        store = self._store_without_faults(f"log/{current_loop().now}/{partition}")
        index = int(partition) - self._metadata.generations.first
        async with Producer(store, partitioner=lambda key, value, count: index, clock=store.clock) as producer:
            self._sent |= {value: (producer, number) for number, value in enumerate(values, len(self._sent))}
            self.seen["sent"] += len(values)
            await self._confirm(values, await producer.send_many(values))

    async def grow(self) -> None:
        """An operator lets the log grow to twice its partitions. The command is killed where the store fails."""
        with suppress(StoreError):
            store = Store(self._store.view("operator"), clock=VirtualClock(f"{self._seed}/grow/{current_loop().now}"))
            await grow_log(store, 2 * self._metadata.partitions, by_key=False)

    async def finish_growth(self) -> None:
        """The operator runs a growth again that was begun, without faults."""
        if self._metadata.growing:
            store = self._store_without_faults(f"grow/{current_loop().now}")
            await grow_log(store, self._metadata.generations.count, by_key=False)

    def _store_without_faults(self, clock: str) -> Store:
        return Store(self._store.truth, clock=VirtualClock(f"{self._seed}/{clock}"))

    def open_names(self) -> Sequence[str]:
        """Partitions that take records, unless the log is growing."""
        return self._metadata.names[self._metadata.generations.first :]

    # As a stream

    def names(self) -> Sequence[str]:
        return list(self._values)

    def records(self, after: int, upto: int, partition: str) -> Iterable[tuple[int, bytes]]:
        return enumerate(self._values[partition][after + 1 : upto + 1], after + 1)

    def last(self, partition: str) -> int:
        return len(self._values[partition]) - 1

    def parents(self, partition: str) -> Sequence[str]:
        before = self._metadata.generations.parent(int(partition))
        return () if before is None else (str(before),)

    def is_listed(self, partition: str) -> bool:
        return self._sealed.issuperset(self.parents(partition))

    def read_by(self, process: Process, settings: Settings) -> Source:
        return LogSource(process.connect(settings), settings=settings, clock=process.clock)

    # Checks

    def written(self, key: str, body: bytes, existed: bool) -> None:
        """Check that a segment is new, follows the last one, and holds sent records in order and only once."""
        if key == LOG_META:
            self._grown(LogMetadata.from_json(key, body))
        if not key.startswith(LOG_FILES):
            return
        there = self._values[partition := partition_of(key)]
        if existed or number_of(key) != len(there):
            self._broken(f"log: {key} was {'overwritten' if existed else f'written after {len(there)} records'}")
            return
        if partition in self._sealed:
            self._broken(f"log: {key} was written after the end of the partition")
        if not self.is_listed(partition):
            self._broken(f"log: {key} was written before the end of {self.parents(partition)}")
        values = pq.read_table(io.BytesIO(body), columns=["value"], use_threads=False)["value"].to_pylist()
        if not values:
            self._sealed.add(partition)
        for value in values:
            if value in self._there:
                self._broken(f"log: {key} holds {value!r}, which is in the log already")
            producer, number = self._sent[value]
            before = self._newest.get((producer, partition), -1)
            if number <= before:
                self._broken(f"log: {key} holds a producer's record {number} after its {before}")
            self._newest[producer, partition] = number
            self._there.add(value)
            there.append(value)
        self.seen["log_files"] += 1

    def _grown(self, metadata: LogMetadata) -> None:
        if metadata.growing and not self._metadata.growing:
            self.injected["growth"] += 1
        self._metadata = metadata
        for name in metadata.names:
            self._values.setdefault(name, [])

    def _acknowledged(self, value: bytes, partition: str, sequence: int) -> None:
        self.seen["acknowledged"] += 1
        there = self._values[partition]
        if sequence >= len(there) or there[sequence] != value:
            self._broken(f"log: {value!r} was acknowledged as {partition}:{sequence} and is not there")

    # Producers

    @property
    def processes(self) -> list[Process]:
        """Processes that have not ended."""
        self._processes = [process for process in self._processes if not process.done.is_set()]
        return list(self._processes)

    def start(self, name: str) -> Process | None:
        """Start a producer process, unless one of this name runs or the stream has ended."""
        if self._ended.is_set() or any(process.host.name == name for process in self.processes):
            return None
        self._births += 1
        seed = f"{self._seed}/{name}/{self._births}"
        random = Random(seed)
        host = current_loop().host(name, rate=random.uniform(0.98, 1.02), offset=random.uniform(0, 3000))
        process = Process(host, self._store.view(name), VirtualClock(seed, delay=0.02))
        self._processes.append(process)
        self.injected["producer"] += 1
        host.start(self._run(process, random), name=f"{name} (process {self._births})")
        return process

    def end(self) -> None:
        """End the stream: each producer flushes and closes."""
        self._ended.set()

    async def _run(self, process: Process, random: Random) -> None:
        while not self._ended.is_set():
            settings = Settings(store_patience=random.choice([5, 60]))
            producer = Producer(
                process.connect(settings),
                linger=random.choice([0, 0.2, 5]),
                batch_bytes=random.choice([500, 4 * 2**20]),
                delivery_timeout=random.choice([5, 40, 120]),
                partitioner=random.choice(["sticky", "round-robin"]),
                clock=process.clock,
            )
            try:
                async with producer, anyio.create_task_group() as tasks:
                    for _ in range(random.randint(*SESSION)):
                        quiet = random.random() < 0.02
                        await process.clock.sleep(random.uniform(20, 150) if quiet else random.uniform(0, 16))
                        if self._ended.is_set():
                            break
                        await self._burst(producer, random, tasks)
            except StoreUnavailable as error:  # records without acknowledgement may be in the log or not
                log.info("log_stream.producer_ended", host=process.host.name, error=str(error))
                await process.clock.sleep(1)
        process.done.set()

    async def _burst(self, producer: Producer, random: Random, tasks: TaskGroup) -> None:
        values = [self._make(random) for _ in range(random.randint(1, 20))]
        self._sent |= {value: (producer, number) for number, value in enumerate(values, len(self._sent))}
        self.seen["sent"] += len(values)
        key = None if random.random() < 0.3 else b"%d" % random.randrange(50)
        if random.random() < 0.5:
            tasks.start_soon(self._confirm, values, await producer.send_many(values, keys=[key] * len(values)))
            return
        for value in values:
            tasks.start_soon(self._confirm_one, value, await producer.send(value, key=key))

    async def _confirm(self, values: Sequence[bytes], deliveries: Deliveries) -> None:
        with suppress(StoreUnavailable):
            for value, sent in zip(values, await deliveries, strict=True):
                self._acknowledged(value, *sent)

    async def _confirm_one(self, value: bytes, delivery: Delivery) -> None:
        with suppress(StoreUnavailable):
            self._acknowledged(value, *await delivery)
