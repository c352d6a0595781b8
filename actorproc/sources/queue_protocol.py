"""The protocol of queues: sources without positions, which deliver unacknowledged messages again."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from actorproc.errors import SourceError, UsageError
from actorproc.records import Batch, Cursor
from actorproc.sources.protocol import Chunk, End, Source, Start


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Messages of a queue, in the order of their delivery. None at all: the queue has nothing more for now.

    Attributes:
        batch: their records. Its sequences count for nothing: the processor numbers messages itself.
        identities: one for each message: text that names it whenever it is delivered. Two messages that are
            unacknowledged at the same time must not have the same. None: the message has nothing that names it, so it
            cannot be recognized, and its record must be refused (`Batch.refusing`). If it comes again after its commit,
            it has another dead letter.

    Raises:
        ValueError: a message without an identity is not refused.
    """

    batch: Batch
    identities: Sequence[str | None]

    def __post_init__(self) -> None:
        if None in self.identities:
            reasons = [None] * len(self.batch) if self.batch.refused is None else self.batch.refused.to_pylist()
            if any(name is None and why is None for name, why in zip(self.identities, reasons, strict=False)):
                raise ValueError("a message without an identity must be refused, since its handler could see it twice")


class Consumer:
    """The exclusive consumer of one queue. Subclass it together with `QueueSource`."""

    @abstractmethod
    async def receive(self) -> Deliveries:
        """The next messages; or none, after a few seconds without any.

        A run until the end takes none for the end of the queue. So ask the broker first, if it can say so.

        Raises:
            SourceError: the broker has dropped this consumer, or may have.
        """

    @abstractmethod
    async def acknowledge(self, count: int) -> None:
        """Acknowledge the oldest `count` messages that were received and not acknowledged.

        Only then may the broker deliver as many others.

        Raises:
            SourceError: the broker has dropped this consumer, or may have.
        """


class QueueSource(Source):
    """Queues as partitions. Subclass it to read queues of another kind.

    A message is acknowledged after its commit. Unacknowledged messages come again, and the processor recognizes
    committed ones by their identity. That takes a broker that keeps these rules (docs/queues.md):

    - One consumer at a time gets the messages of a queue.
    - All that a consumer has not acknowledged comes back when it is gone, and only then.
    - It comes back to its old place, before the next consumer gets anything.
    - Nothing that comes back is discarded, however often and long.
    """

    @abstractmethod
    def consume(self, partition: str, unacknowledged: int) -> AbstractAsyncContextManager[Consumer]:
        """The only consumer of this queue, until the block ends: then all that is not acknowledged goes back.

        Entering may wait until another consumer has gone. Or the broker parks this one, and delivers nothing before.

        Args:
            unacknowledged: messages that the broker may deliver beyond the acknowledged ones.

        Raises:
            SourceError: the queue cannot be read.
        """

    async def start(self, partition: str, at: Start) -> str:
        """Position of the oldest message.

        Raises:
            UsageError: another start. A queue has only messages that nobody has acknowledged.
        """
        if at != "earliest":
            raise UsageError(f"start = {str(at)!r}: {self} is a queue, which is always read from its oldest message on")
        return position_after(-1)

    async def end(self, partition: str) -> End:
        """Not known: a queue shows its end only to its consumer."""
        return End("", None)

    def reached(self, cursor: Cursor, end: End) -> bool:
        return False

    def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        """Raises SourceError: only a consumer gets messages."""
        raise SourceError(f"{self} is a queue, and has no positions to read from")


def position_after(sequence: int) -> str:
    """Position of a queue behind the message with this sequence: how many messages were committed."""
    return str(sequence + 1)
