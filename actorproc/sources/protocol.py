"""The source protocol: what a stream must offer so that a processor can read it. Write your own in thirty lines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeVar

import anyio

from actorproc.errors import SourceError, UsageError
from actorproc.records import Batch, Cursor
from actorproc.runtime.budget import ReadBudget
from actorproc.storage.store import StoreLimits

T = TypeVar("T")

Start = Literal["earliest", "latest"] | datetime
"""Where to begin when there is no checkpoint."""


def parse_start(start: object) -> Start:
    """`start`, if it can be one; an ISO time as text is parsed.

    Raises:
        UsageError: it is neither 'earliest', 'latest' nor a time with its zone.
    """
    if start == "earliest" or start == "latest":
        return start
    return parse_time("start", start, "'earliest', 'latest', or ")


def parse_time(what: str, time: object, other: str = "") -> datetime:
    """`time`, if it is one with its zone; an ISO time as text is parsed. `what` it is, and what `other` values may be given.

    Raises:
        UsageError: it is none.
    """
    try:
        parsed = datetime.fromisoformat(time) if isinstance(time, str) else time
    except ValueError:
        parsed = None
    if isinstance(parsed, datetime) and parsed.tzinfo is not None:
        return parsed
    raise UsageError(f"{what} = {time!r}: {other}a time with its zone, such as 2013-01-01T00:00Z")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a partition. `next`: position from which reading goes on after it, opaque to everybody but the source.

    An empty batch says "nothing more for now": the reader is at the end.
    """

    batch: Batch
    next: str


@dataclass(frozen=True, slots=True)
class End:
    """The end of a partition as it is now: the position at which a reader who has read everything stands, and the
    sequence of the newest record (None: there is none, or the source cannot tell)."""

    position: str
    sequence: int | None


class Source(ABC):
    """A stream with partitions.

    One instance serves all partitions of a host. Positions are opaque strings; sequences are integers that grow within
    a partition (gaps are fine). After a restart `read` gets a position that it handed out before, and may yield records
    that were seen: the processor drops those up to the committed sequence. So a position per page is enough.
    """

    def __str__(self) -> str:
        """What it reads, for logs: a URL where there is one."""
        return str(getattr(self, "url", type(self).__name__))

    identity: str | None = None
    """What tells this stream from another, even one made anew at the same place; known once it is open. A processor
    refuses to go on with a stream of another identity than it began with. None: it cannot be told."""

    async def open(self) -> None:
        """Connect. Called once, before anything else."""

    async def close(self) -> None:
        """Let go of connections."""

    async def register(self, processor: str, container: str) -> None:
        """Called once at each start, before anything is read: what this processor has not committed yet is still needed.

        Override it where the stream is trimmed behind its readers. `container`: URL under which the processor keeps its
        checkpoints.
        """

    @abstractmethod
    async def partitions(self) -> Sequence[str]:
        """Names of the partitions, no two alike, which UTF-8 must be able to hold. Asked again now and then; partitions may appear, none may vanish."""

    @abstractmethod
    async def start(self, partition: str, at: Start) -> str:
        """The position of the first record ('earliest'), after the last ('latest'), or of the first at or after a time."""

    @abstractmethod
    async def end(self, partition: str) -> End:
        """Where the partition ends now."""

    @abstractmethod
    def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        """Records from `position` on, for ever; waits for news by itself. An async generator.

        Yields an empty chunk whenever it has reached the end and is about to wait.
        Chunks may be of any size: the processor cuts them into batches. Sequences grow from record to record and from
        chunk to chunk, or the partition stops with a SourceError.
        """

    def read_within(self, partition: str, position: str, room: ReadBudget) -> AsyncGenerator[Chunk, None]:
        """As `read`; what the processor calls. Override it where much must be fetched to yield little: without, bytes are
        counted only when they are yielded."""
        return self.read(partition, position)

    def sequence_before(self, partition: str, position: str) -> int | None:
        """The sequence after which reading from `position` begins, -1 before all of them; None: it cannot be told.

        Override it where positions tell: by it the lag of a partition is known before its first record is processed.
        """
        return None

    def reached(self, cursor: Cursor, end: End) -> bool:
        """Whether a reader at `cursor` has read up to `end`. Override it if positions compare otherwise than by equality."""
        return cursor.position == end.position or (end.sequence is not None and cursor.sequence >= end.sequence)


async def with_deadline(answer: Awaitable[T], method: str, limits: StoreLimits) -> T:
    """What a source says that may be asked over a store, with all its tries.

    Raises:
        SourceError: it has said nothing for longer than these take.
    """
    most = limits.patience + limits.timeout
    with anyio.move_on_after(most):
        return await answer
    raise SourceError(f"{method}() of the source has not answered within {most:g} s (store_patience + store_timeout)")


async def earliest_position(source: Source, partition: str) -> str | None:
    """Position of its first record; None where the source does not tell, such as a stream that keeps nothing."""
    try:
        return await source.start(partition, "earliest")
    except UsageError:
        return None


def is_certainly_at_end(source: Source, partition: str, cursor: Cursor, end: End) -> bool:
    """Whether a cursor that has reached `end` is there by more than a position that may be coarse: in the midst of a page it
    can be the same as at its end."""
    if end.sequence is None or cursor.sequence >= end.sequence:
        return True
    before = source.sequence_before(partition, cursor.position)
    return before is not None and before >= end.sequence
