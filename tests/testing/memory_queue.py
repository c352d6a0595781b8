"""In-memory queues for tests: a broker that keeps the rules of `QueueSource`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio

from actorproc.errors import SourceError
from actorproc.records import Batch
from actorproc.sources.queue_protocol import Consumer, Deliveries, QueueSource

QUIET = 2.0
"""Seconds without messages after which `receive` returns none."""


class MemoryQueue:
    """One queue. The index of a message is its place, and its identity."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        """All messages that were ever sent."""
        self.ready: list[int] = []
        """Messages that no consumer has, in order."""
        self.removed: list[int] = []
        """Acknowledged messages, in the order of their acknowledgements."""
        self.consumer: MemoryConsumer | None = None
        """The one that gets messages; others wait until it has gone."""
        self.changed = anyio.Event()

    def send(self, values: Sequence[bytes]) -> None:
        """Add messages to the end."""
        self.ready += range(len(self.values), len(self.values) + len(values))
        self.values += values
        self.notify()

    def drop_consumer(self) -> None:
        """Take the queue from its consumer, as a broker does after an idle time-out. It notices at its next call."""
        if self.consumer is not None:
            self.ready = sorted([*self.consumer.held, *self.ready])
            self.consumer.dropped, self.consumer = True, None
            self.notify()

    def notify(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()


class MemoryConsumer(Consumer):
    """Gets messages of one queue while it is the consumer there."""

    def __init__(self, queue: MemoryQueue, partition: str, unacknowledged: int) -> None:
        self.held: list[int] = []
        """Delivered, and not acknowledged."""
        self.dropped = False
        self._queue, self._partition = queue, partition
        self._most = unacknowledged

    async def receive(self) -> Deliveries:
        queue = self._queue
        with anyio.move_on_after(QUIET):
            while not self.dropped and (queue.consumer is not self or not queue.ready or len(self.held) >= self._most):
                if queue.consumer is None:
                    queue.consumer = self
                    continue
                await queue.changed.wait()
        self._check()
        room = self._most - len(self.held) if queue.consumer is self else 0
        taken, queue.ready = queue.ready[:room], queue.ready[room:]
        self.held += taken
        batch = Batch.of(self._partition, [queue.values[index] for index in taken], range(len(taken)))
        return Deliveries(batch, [str(index) for index in taken])

    async def acknowledge(self, count: int) -> None:
        self._check()
        done, self.held = self.held[:count], self.held[count:]
        self._queue.removed += done
        self._queue.notify()

    def _check(self) -> None:
        if self.dropped:
            raise SourceError(f"the broker has dropped the consumer of queue {self._partition}")


class MemoryQueues(QueueSource):
    """Queues in memory, as partitions of one source.

    Args:
        partitions: their number; they are named "0", "1", ...
    """

    def __init__(self, partitions: int = 1) -> None:
        self.queues = {str(partition): MemoryQueue() for partition in range(partitions)}

    async def partitions(self) -> Sequence[str]:
        return list(self.queues)

    @asynccontextmanager
    async def consume(self, partition: str, unacknowledged: int) -> AsyncIterator[Consumer]:
        queue = self.queues[partition]
        consumer = MemoryConsumer(queue, partition, unacknowledged)
        try:
            yield consumer
        finally:
            if queue.consumer is consumer:
                queue.drop_consumer()
