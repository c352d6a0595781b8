"""Queues as the stream of a simulated cluster: a broker that keeps the rules of docs/queues.md, over a slow network.

Messages and acknowledgements travel. A consumer is dropped without notice; acknowledgements under way are lost then.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from random import Random

import anyio

from actorproc.config.settings import Settings
from actorproc.errors import SourceError
from actorproc.records import Batch
from actorproc.runtime.clock import SYSTEM
from actorproc.simulation.faults import FaultyBackend
from actorproc.simulation.loop import Host, call_outside, current_host, current_loop, start_outside
from actorproc.simulation.process import Process
from actorproc.simulation.streams import KnownStream
from actorproc.sources.protocol import Source
from actorproc.sources.queue_protocol import Consumer, Deliveries, QueueSource

LATENCY = (0.005, 0.08)
"""Seconds that a message or an acknowledgement travels (least, most)."""

LEAST = 1e-6
"""Seconds between two arrivals, because callbacks of one instant run in any order."""

FORGOTTEN = 30
"""The latest acknowledgements that a broker forgets when it restarts, at most."""

QUIET = 2.0
"""Seconds without messages after which `receive` returns none."""

PATIENCE = (1.0, 10.0, 40.0)
"""Seconds of a paused or dead host's silence after which the broker drops its consumer: one of these."""

NOTICE = (0.0, 0.05, 5.0, 30.0)
"""Seconds after which a client notices that its consumer was dropped: one of these."""


class Link(Consumer):
    """A consumer with both of its ends: the broker's and the client's.

    Args:
        most: messages that may be delivered and not acknowledged.
        host: of the client.
    """

    def __init__(self, queue: SimulatedQueue, most: int, host: Host | None) -> None:
        self.held: list[int] = []
        """Delivered and not acknowledged, as the broker sees it."""
        self.dropped = False
        """Whether the broker has dropped it. The client may not know yet."""
        self.silent = 0.0
        """Seconds for which the host has been paused or dead."""
        self.host = host
        self.most = most
        self.changed = anyio.Event()
        self._queue = queue
        self._random = queue.random
        self._lost = False
        self._arrived: deque[int] = deque()
        self._taken: deque[int] = deque()
        self._last_arrival = 0.0
        self.patience = self._random.choice(PATIENCE)

    @property
    def is_served(self) -> bool:
        """Whether it is the consumer that gets messages."""
        return self in self._queue.served

    @property
    def room(self) -> int:
        """Messages that the broker may deliver now."""
        return self.most - len(self.held)

    # The client's end

    async def receive(self) -> Deliveries:
        with anyio.move_on_after(QUIET):
            while not self._arrived and not self._lost:
                await self.changed.wait()
        self._check()
        taken = [self._arrived.popleft() for _ in range(self._random.randint(0, len(self._arrived)))]
        self._taken += taken
        batch = Batch.of(self._queue.name, [self._queue.values[number] for number in taken], range(len(taken)))
        return Deliveries(batch, [self._queue.identity(number) for number in taken])

    async def acknowledge(self, count: int) -> None:
        self._check()
        done = [self._taken.popleft() for _ in range(count)]
        self.travel(self._queue.acknowledged, self, done)

    def travel(self, arrive: Callable[..., object], *args: object) -> None:
        """Let something arrive at the other end, after all that was sent before it."""
        loop = current_loop()
        self._last_arrival = max(self._last_arrival + LEAST, loop.now + self._random.uniform(*LATENCY))
        call_outside(self._last_arrival - loop.now, arrive, *args)

    def arrive(self, messages: Sequence[int]) -> None:
        """Messages have come over the network."""
        self._arrived += messages
        self.notify()

    def lose(self) -> None:
        """The client notices that its consumer is gone."""
        self._lost = True
        self.notify()

    def notify(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    def _check(self) -> None:
        if self._lost:
            raise SourceError(f"the broker has dropped the consumer of queue {self._queue.name}")


class SimulatedQueue:
    """One queue of the broker. The number of a message is its place, and its sequence."""

    exclusive = True

    def __init__(self, name: str, broker: QueueStream) -> None:
        self.name = name
        self.values: list[bytes] = []
        """All messages that were ever sent."""
        self.ready: list[int] = []
        """Messages that no consumer has, in order."""
        self.removed: set[int] = set()
        self.stored = 0
        """So many of the removed messages do not come back when the broker restarts."""
        self.links: list[Link] = []
        """Consumers, in the order in which they came. The first one is served."""
        self.random = broker.random
        self._broker = broker

    @property
    def served(self) -> list[Link]:
        return self.links[:1] if self.exclusive else self.links

    def identity(self, number: int) -> str:
        return f"{self.name}/{number}"

    def send(self, values: Sequence[bytes]) -> None:
        """Add messages to the end."""
        self.ready += range(len(self.values), len(self.values) + len(values))
        self.values += values
        self.deliver()

    def deliver(self) -> None:
        """Give ready messages to the consumer, as far as it has room."""
        for link in self.served:
            if messages := self.ready[: max(0, link.room)]:
                self.ready = self.ready[len(messages) :]
                link.held += messages
                link.travel(link.arrive, messages)

    def attach(self, link: Link) -> None:
        self.links.append(link)
        self.deliver()

    def drop(self, link: Link) -> None:
        """Drop a consumer: all that it has not acknowledged comes back. Its client may not notice for some time."""
        if link.dropped:
            return
        link.dropped = True
        self.links.remove(link)
        self.take_back(link.held)
        call_outside(self.random.choice(NOTICE), link.lose)
        for other in self.links:
            other.notify()  # it may be its turn
        self.deliver()

    def take_back(self, messages: Sequence[int]) -> None:
        self._broker.injected["redelivered"] += len(messages)
        self.ready = sorted([*messages, *self.ready])

    def acknowledged(self, link: Link, messages: Sequence[int]) -> None:
        """Acknowledgements have come over the network."""
        if link.dropped:
            self._broker.injected["lost_acknowledgement"] += len(messages)
            return
        self._broker.check_committed(self.name, messages)
        link.held = [number for number in link.held if number not in messages]
        self.removed.update(messages)
        self.deliver()

    def forget(self, most: int) -> None:
        """Take back the latest acknowledged messages, at most so many: the broker had not stored that."""
        back = sorted(self.removed)[max(self.stored, len(self.removed) - most) :]
        self._broker.injected["lost_acknowledgement"] += len(back)
        self.removed.difference_update(back)
        self.stored = len(self.removed)
        self.take_back(back)

    def watch(self, seconds: float) -> None:
        """Drop consumers whose hosts have been silent for long. `seconds`: since the last call."""
        for link in list(self.links):
            silent = link.host is not None and not link.host.running
            link.silent = link.silent + seconds if silent else 0.0
            if link.silent >= link.patience:
                self.drop(link)


class QueueStream(KnownStream, QueueSource):
    """A broker with queues, as partitions of one source.

    By its seed, a second consumer waits until it may attach, or the broker parks it.

    Args:
        failing: share of attempts to attach a consumer that fail, 0 to 1. May be set.
    """

    def __init__(self, partitions: int, *, seed: object = 0, failing: float = 0.0) -> None:
        self.random = Random(f"{seed}/broker")
        self.injected: Counter[str] = Counter()
        self.failing = failing
        self.waits = self.random.random() < 0.5
        self.queues: dict[str, SimulatedQueue] = {}
        self._down_until = 0.0
        for partition in range(partitions):
            self.add_partition(str(partition))

    # As a stream

    def join(self, store: FaultyBackend, broken: Callable[[str], None], committed_to: Callable[[str], int]) -> None:
        self._broken, self._committed_to = broken, committed_to
        start_outside(self._watch())

    def names(self) -> Sequence[str]:
        return list(self.queues)

    open_names = names

    def records(self, after: int, upto: int, partition: str) -> Iterable[tuple[int, bytes]]:
        return enumerate(self.queues[partition].values[after + 1 : upto + 1], after + 1)

    def last(self, partition: str) -> int:
        return len(self.queues[partition].values) - 1

    def read_by(self, process: Process, settings: Settings) -> Source:
        return self

    def add_partition(self, name: str) -> None:
        self.queues[name] = SimulatedQueue(name, self)

    def append(self, partition: str, values: Sequence[bytes]) -> None:
        self.queues[partition].send(values)

    def unsettled(self, ends: Mapping[str, int]) -> str | None:
        for name, end in ends.items():
            if left := set(range(end + 1)) - self.queues[name].removed:
                return f"queue {name} has {len(left)} messages that are not acknowledged"
        return None

    def check_committed(self, partition: str, messages: Sequence[int]) -> None:
        """Only committed messages may be acknowledged."""
        committed = self._committed_to(partition)
        if early := [number for number in messages if number > committed]:
            self._broken(f"queue {partition}: messages {early} were acknowledged, and {committed} is committed")

    # As a source

    async def partitions(self) -> Sequence[str]:
        return list(self.queues)

    @asynccontextmanager
    async def consume(self, partition: str, unacknowledged: int) -> AsyncIterator[Consumer]:
        await SYSTEM.sleep(self.random.uniform(*LATENCY))
        if current_loop().now < self._down_until or self.random.random() < self.failing:
            self.injected["source_error"] += 1
            raise SourceError(f"queue {partition} cannot be consumed: the broker does not answer")
        queue = self.queues[partition]
        link = Link(queue, unacknowledged, current_host())
        queue.attach(link)
        try:
            while self.waits and not link.is_served and not link.dropped:
                await link.changed.wait()
            yield link
        finally:
            link.travel(queue.drop, link)

    # Faults

    def drop_consumer(self, partition: str) -> None:
        """The connection of the queue's consumer is lost."""
        for link in self.queues[partition].served:
            self.injected["dropped_consumer"] += 1
            self.queues[partition].drop(link)

    def drop_consumers_of(self, host: Host) -> None:
        """The connections of this host are lost."""
        for queue in self.queues.values():
            for link in [link for link in queue.links if link.host is host]:
                self.injected["dropped_consumer"] += 1
                queue.drop(link)

    def restart(self, seconds: float) -> None:
        """All consumers are dropped, the latest acknowledgements forgotten; for so many seconds none can attach."""
        self.injected["broker_restart"] += 1
        self._down_until = current_loop().now + seconds
        for queue in self.queues.values():
            for link in reversed(queue.links.copy()):  # those that wait first: none is served meanwhile
                queue.drop(link)
            queue.forget(self.random.randint(0, FORGOTTEN))

    async def _watch(self) -> None:
        while True:
            await SYSTEM.sleep(1)
            for queue in self.queues.values():
                queue.watch(1)
