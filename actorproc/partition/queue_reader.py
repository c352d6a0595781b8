"""Reads a queue: numbers its messages, recognizes those that were committed, and acknowledges after the commit.

The protocol: docs/protocol.md. Model: tests/protocol/queue_model.py.
"""

from __future__ import annotations

import hashlib
import math
from base64 import b64encode
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pyarrow as pa

from actorproc.errors import SourceError
from actorproc.partition.host_context import HostContext
from actorproc.records import Batch
from actorproc.runtime.budget import ReadBudget
from actorproc.runtime.clock import Clock
from actorproc.sources.protocol import Chunk
from actorproc.sources.queue_protocol import Consumer, Deliveries, QueueSource, position_after

Look = Callable[[], Awaitable[None]]

UNSTORED = 1000
"""Acknowledgements that a broker may forget when it is killed, because it gives out the next messages before it has
stored them. Artemis forgot up to 225."""

_RECOGNIZED = -1  # in place of a sequence: the message was committed before


class Acknowledgements:
    """Tells a source what is committed. Only a queue wants to know: a stream keeps its records."""

    wanted = False
    """Whether the source keeps records until they are acknowledged."""

    def begin(self, sequence: int, identities: tuple[str, ...], look: Look) -> None:
        """Go on behind the committed messages. See `QueueReader.begin`."""

    def identities(self, upto: int) -> tuple[str, ...]:
        """Identities that a commit up to sequence `upto` carries."""
        return ()

    async def committed(self, upto: int) -> None:
        """Everything up to sequence `upto` is committed."""

    def is_full(self, processed: int, share: float = 1.0) -> bool:
        """Whether messages that are processed up to this sequence, and not committed, fill a share of the window."""
        return False


class QueueReader(Acknowledgements):
    """The messages of one queue under one epoch, from delivery to acknowledgement.

    Args:
        unacknowledged: messages that the broker may deliver beyond the acknowledged ones. A commit carries so many
            identities, and `UNSTORED` more.
        log: a structlog logger that names the partition.
        end_wait: seconds without a first message after which the queue counts as empty, although another consumer may
            have it. None: never.
    """

    wanted = True

    def __init__(
        self,
        source: QueueSource,
        partition: str,
        unacknowledged: int,
        clock: Clock,
        log: Any,
        end_wait: float | None = None,
    ) -> None:
        self._source = source
        self._partition = partition
        self._most = unacknowledged
        self._clock, self._logger = clock, log
        self._end_wait = math.inf if end_wait is None else end_wait
        self._consumer: Consumer | None = None
        self._began = False
        self._look: Look | None = None
        self._committed = self._numbered = -1  # sequences of the latest messages
        self._known: tuple[str, ...] = ()  # identities of the latest committed messages
        self._in_hand: deque[tuple[int, str | None]] = deque()  # numbered and not committed
        self._identities: set[str] = set()  # in `_known` or in hand
        self._delivered: deque[int] = deque()  # not acknowledged, by sequence

    def begin(self, sequence: int, identities: tuple[str, ...], look: Look) -> None:
        """Go on behind the committed messages.

        Args:
            sequence: of the latest one.
            identities: of the latest ones, in order.
            look: called at the first delivery, which proves that no other consumer gets messages any more. It raises
                if another owner has claimed the partition or committed since it was opened here.
        """
        self._committed = self._numbered = sequence
        self._known, self._identities, self._look = identities, set(identities), look

    # Reading

    @property
    def is_window_full(self) -> bool:
        """Whether the broker delivers no other message before some are acknowledged."""
        return len(self._delivered) >= self._most

    async def read_within(self, partition: str, position: str, budget: ReadBudget) -> AsyncGenerator[Chunk, None]:
        """Attach the consumer and yield new messages, as `Source.read` does."""
        if self._began:  # what is in hand would come again
            raise SourceError(f"the consumer of queue {partition} was closed, and only a new start can attach another")
        self._began = True
        async with self._source.consume(partition, self._most) as consumer:
            self._consumer, attached = consumer, self._clock.monotonic()
            try:
                while True:
                    deliveries = await consumer.receive()
                    if self._look is not None and deliveries.identities:
                        await self._look()
                        self._look = None
                    batch = self._take(deliveries)
                    await self._acknowledge()
                    # Without room, or as long as another consumer may be there, silence is neither trouble nor the end.
                    budget.is_waiting = self._look is not None or self.is_window_full
                    is_quiet = self._look is not None and self._clock.monotonic() >= attached + self._end_wait
                    if len(batch) or not (deliveries.identities or (budget.is_waiting and not is_quiet)):
                        yield Chunk(batch, position_after(self._numbered))
                    del deliveries, batch  # frees their memory before the wait for the next ones
            finally:
                self._consumer = None

    def _take(self, deliveries: Deliveries) -> Batch:
        """The messages that are new, numbered."""
        new = list[int]()
        for index, named in enumerate(deliveries.identities):
            identity = None if named is None else fingerprint(named)
            if identity in self._identities:
                self._delivered.append(_RECOGNIZED)
                continue
            self._numbered += 1
            self._delivered.append(self._numbered)
            self._in_hand.append((self._numbered, identity))
            if identity is not None:
                self._identities.add(identity)
            new.append(index)
        if repeats := len(deliveries.identities) - len(new):
            self._logger.info("queue.recognized", messages=repeats)
        batch = deliveries.batch if not repeats else deliveries.batch.take(new)
        sequences = pa.array(range(self._numbered + 1 - len(new), self._numbered + 1), pa.int64())
        return batch.numbered(sequences)

    # Committing

    def identities(self, upto: int) -> tuple[str, ...]:
        """Identities that a commit up to sequence `upto` carries: of its own messages, and of those before."""
        own = [identity for sequence, identity in self._in_hand if sequence <= upto and identity is not None]
        return (*self._known, *own)[-self._most - UNSTORED :] if own else self._known

    async def committed(self, upto: int) -> None:
        """Everything up to sequence `upto` is committed: acknowledge it.

        Raises:
            SourceError: the broker has dropped the consumer, or may have.
        """
        forgotten, self._known = self._known, self.identities(upto)
        while self._in_hand and self._in_hand[0][0] <= upto:
            self._in_hand.popleft()
        self._identities.difference_update(forgotten)
        self._identities.update(self._known)
        self._committed = max(self._committed, upto)
        await self._acknowledge()

    async def _acknowledge(self) -> None:
        """Acknowledge the committed messages, in the order of delivery."""
        count = 0
        while self._delivered and self._delivered[0] <= self._committed:
            self._delivered.popleft()
            count += 1
        if count and self._consumer is not None:
            await self._consumer.acknowledge(count)

    def is_full(self, processed: int, share: float = 1.0) -> bool:
        """Whether messages that are processed up to this sequence, and not committed, fill a share of the window."""
        return processed - self._committed >= max(1.0, self._most * share)


def fingerprint(identity: str) -> str:
    """A short name of an identity: 96 bits in 16 characters, since commits carry many."""
    return b64encode(hashlib.blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=12).digest()).decode()


def queue_reader(context: HostContext, partition: str, log: Any) -> QueueReader | None:
    """The reader of the partition, if the source is a queue."""
    source, settings = context.source, context.settings
    if not isinstance(source, QueueSource):
        return None
    end_wait = settings.queue_end_wait if context.until_end else None
    return QueueReader(source, partition, settings.max_unacknowledged, context.clock, log, end_wait)
