"""The protocol of sources: the methods through which a processor reads a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TypeVar

import anyio

from actorproc.errors import SourceError, UsageError
from actorproc.records import Batch, Cursor, ReadCost
from actorproc.runtime.budget import ReadBudget
from actorproc.storage.store import StoreLimits

T = TypeVar("T")

Start = Literal["earliest", "latest"] | datetime
"""Where reading begins without a checkpoint."""


def parse_start(start: object) -> Start:
    """The start that a user gave; text other than 'earliest' and 'latest' is an ISO time.

    Raises:
        UsageError: it is neither 'earliest', 'latest' nor a time with a zone.
    """
    if start == "earliest" or start == "latest":
        return start
    return parse_time("start", start, "'earliest', 'latest', or ")


def parse_time(name: str, time: object, alternatives: str = "") -> datetime:
    """A datetime, or ISO text, as a datetime with a zone.

    Args:
        name: of the argument, for the message.
        alternatives: other values that are allowed, for the message.

    Raises:
        UsageError: it is not a time, or has no zone.
    """
    try:
        parsed = datetime.fromisoformat(time) if isinstance(time, str) else time
    except ValueError:
        parsed = None
    if isinstance(parsed, datetime) and parsed.tzinfo is not None:
        with suppress(OverflowError):  # in UTC it is before the year 1, or after 9999
            parsed.astimezone(UTC)
            return parsed
    raise UsageError(f"{name} = {time!r:.100}: {alternatives}a time with its zone, such as 2013-01-01T00:00Z")


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of a stream whose partitions end: by a split or a merge, others follow it.

    Attributes:
        parents: the partitions that it follows. It is processed once all records of these are committed. A parent that
            is not listed and was not begun is ignored, and its records are not read. So list a partition until each of
            its records is in a child as well. If a parent is not listed any more, name its parents, too.
    """

    name: str
    parents: tuple[str, ...] = ()


Parents = Mapping[str, tuple[str, ...]]
"""The partitions of a source: name -> parents."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records of a partition, and the position at which reading goes on after them.

    An empty batch means that the reader has reached the current end of the partition. A record that has no place in
    the columns is given all the same, and refused with its reason: see `Batch.refusing`.

    Attributes:
        cost: as far as the source knows it. Handlers see it as `batch.read`. `seconds` are measured by the processor.
        ended: this is the last chunk: no more records can ever come.
        cuts: sequences of the records after which the chunk may be cut, if not after each: records of one transaction
            are committed together. The end of the chunk is always a cut.
        oldest: when the oldest of these records began its way through a chain of processors, in seconds since 1970.
            None: its timestamp says it.
    """

    batch: Batch
    next: str
    cost: ReadCost | None = None
    ended: bool = False
    cuts: Sequence[int] | None = None
    oldest: float | None = None


@dataclass(frozen=True, slots=True)
class End:
    """The current end of a partition.

    Attributes:
        position: of a reader that has read everything.
        sequence: of the newest record; None if there is no record, or if the source cannot tell.
    """

    position: str
    sequence: int | None


class Source(ABC):
    """A stream with partitions. Subclass it to read a stream of your own.

    One instance serves all partitions of a host, on one event loop. Positions are strings that only the source
    understands. Sequences are integers that grow within a partition, with or without gaps, and name a record for good.
    """

    def __str__(self) -> str:
        """Name in logs and messages: `url` if the source has one, else the name of its class."""
        return str(getattr(self, "url", type(self).__name__))

    identity: str | None = None
    """Tells this stream from any other, even from one that was recreated under the same name. Known once the source is
    open.
    A processor refuses to continue with a stream of another identity. None: the source cannot tell."""

    throttled: int = 0
    """Requests that the service refused because there were too many, since the source was made; for metrics. A source
    that waits and asks again counts them here."""

    async def open(self) -> None:
        """Connect. Called before any other method, and again after a pause if it has failed.

        Raises:
            UsageError: trying again cannot help.
        """

    async def close(self) -> None:
        """Release connections."""

    async def check_exists(self) -> None:
        """Check that there is everything that the source's address names. Called before a processor's first start.

        Override it if a part of the stream can be missing, such as a topic. A later start goes on without that part.

        Raises:
            SourceError: a part is missing. The call is repeated.
        """

    async def register(self, processor: str, container: str) -> None:
        """Register the processor as a reader, so that no retention deletes records that it has not committed.

        Called at each start before anything is read. Override it if the stream is trimmed behind its readers.

        Args:
            container: URL under which the processor keeps its checkpoints.
        """

    @abstractmethod
    async def partitions(self) -> Sequence[str | Partition]:
        """The partitions: names, or a `Partition` for one that follows others. Called again from time to time.

        Partitions may be added. One that is not listed any more is read on until `read` ends it or raises
        PartitionGone.
        """

    @abstractmethod
    async def start(self, partition: str, at: Start) -> str:
        """Position of the first record ('earliest'), after the last one ('latest'), or of the first at or after a time.

        Raises:
            UsageError: the source does not support this start.
        """

    async def start_after(self, partition: str, parents: Mapping[str, Cursor]) -> str | None:
        """Position at which a partition begins that was never read before, and whose parents were.

        Override it if a partition has the records of its parents, too: then it must begin where they have ended. None,
        the default: it begins with its first record.

        Args:
            parents: the last cursor of each parent that was read, in the order of `Partition.parents`. Records from its
                position on may be done, too, up to its sequence: a parent can end within a page.
        """
        return None

    knows_keys: bool = False
    """Whether `keys_of` tells which keys are in which partition. Then keyed state and timers go with their keys."""

    async def keys_of(self, partition: str) -> Callable[[bytes], bool]:
        """A function that says whether records of a key are in this partition, which is listed and follows others.

        Override it, and set `knows_keys`, if partitions are split by the key of their records. The function is called
        for each key of the keyed state, in a thread.
        """
        raise NotImplementedError

    async def position_of(self, consumer: str, partition: str) -> str | None:
        """Position that another consumer of this stream has committed; None if it has none in this partition.

        Override it if processors can take over from consumers of another kind (`start_from`).

        Args:
            consumer: names it, such as `kafka-group:billing`.

        Raises:
            UsageError: the source does not know such consumers.
        """
        raise UsageError(f"start_from = {consumer!r}: {self} does not know the positions of other consumers")

    @abstractmethod
    async def end(self, partition: str) -> End:
        """The current end of the partition."""

    @abstractmethod
    def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        """Yield records from `position` on, forever or until the partition ends: an async generator.

        It yields an empty chunk whenever it reaches the end, and then waits for new records by itself. If it yields
        nothing for `max_read_time`, it is taken to hang; so while it waits, it yields an empty chunk now and then.
        Chunks may have any size. Sequences grow from record to record and from chunk to chunk; otherwise the partition
        stops with a SourceError.

        `position` is one that `start`, `end` or an earlier chunk returned. It may be coarse: records up to the
        committed sequence may come again, and the processor drops them.

        If no more records can ever come, because the partition was split or merged, the last chunk has `ended`. Then
        the generator returns.

        Raises:
            PartitionGone: the stream has no such partition any more, so the rest of it cannot be read.
        """

    def read_within(self, partition: str, position: str, budget: ReadBudget) -> AsyncGenerator[Chunk, None]:
        """Like `read`; this is the method that the processor calls.

        Override it if a chunk takes a large fetch: `await budget.reserve(size)` before the fetch. By default the bytes
        of a chunk count once it is yielded. `budget.epoch` is the epoch of the lease, for services that know epochs.
        """
        return self.read(partition, position)

    async def time_at(self, partition: str, position: str) -> datetime | None:
        """Timestamp of the first record from `position` on; None if there is none, or if the source cannot tell.

        Override it if it is cheap. Then `status` shows the lag in seconds.
        """
        return None

    async def bytes_between(self, partition: str, position: str, end: End) -> int | None:
        """Stored size in bytes of the records from `position` up to `end`; None if the source cannot tell.

        Override it if it is cheap. Then `status` shows the lag in bytes.
        """
        return None

    async def mirror(self, group: str, positions: Mapping[str, str]) -> None:
        """Show committed positions, by partition, as those of a consumer group of the stream (`mirror_offsets`).

        Called once with no positions before anything is read.

        Raises:
            UsageError: the source has no consumer groups.
            SourceError: the positions could not be written. They are given again a few seconds later.
        """
        raise UsageError(f"mirror_offsets = {group!r}: {self} has no consumer groups")

    async def position_at(self, partition: str, sequence: int) -> str:
        """Position from which the record with this sequence is read, for a reset. It may be an earlier one.

        Override it if a position can be made from a sequence. The default reads from the first record on.
        """
        return await self.start(partition, "earliest")

    async def hold(self, name: str, positions: Mapping[str, str]) -> None:
        """Keep the records from these positions on, by partition, until `let_go`. Repeating it does nothing.

        Called before a reset. Override it if the stream is trimmed behind its readers.

        Raises:
            UsageError: records from there on were trimmed.
        """

    async def let_go(self, name: str) -> None:
        """End a `hold`: the processor retains the records again by what it has committed."""

    def sequence_before(self, partition: str, position: str) -> int | None:
        """Sequence of the last record before `position`: -1 if there is none, None if the source cannot tell.

        Override it if positions contain sequences. Then the lag is known before the first record is processed.
        """
        return None

    def records_between(self, after: int, upto: int) -> int | None:
        """Records after one sequence up to another one, for the lag; None: not known, only that there are some.

        Override it if sequences have gaps.
        """
        return max(0, upto - after)

    def reached(self, cursor: Cursor, end: End) -> bool:
        """Whether a reader at `cursor` has read up to `end`. Override it if equal positions are not the only proof."""
        return cursor.position == end.position or (end.sequence is not None and cursor.sequence >= end.sequence)


async def list_partitions(source: Source) -> Parents:
    """The partitions of the source: name -> parents."""
    listed = [one if isinstance(one, Partition) else Partition(one) for one in await source.partitions()]
    return {partition.name: partition.parents for partition in listed}


async def with_deadline(answer: Awaitable[T], method: str, limits: StoreLimits, *, retries: bool = True) -> T:
    """Await a source's method, within the time that a request to the store may take.

    Args:
        retries: whether this time includes all retries.

    Raises:
        SourceError: the method has not answered in time.
    """
    most, setting = limits.timeout, "store_timeout"
    if retries:
        most, setting = most + limits.patience, "store_patience + store_timeout"
    with anyio.move_on_after(most):
        return await answer
    raise SourceError(f"{method}() of the source has not answered within {most:g} s ({setting})")


async def first_position(
    source: Source, partition: str, start: Start, start_from: str | None, *, came_later: bool = False
) -> str:
    """Where a partition without a checkpoint begins: where another consumer is, or else at `start`.

    Args:
        came_later: than the processor's first start. Then 'latest' means its first record: since the partition exists,
            nobody has looked at it.

    Raises:
        UsageError: the source does not support this start, or does not know such consumers.
    """
    position = None if start_from is None else await source.position_of(start_from, partition)
    if position is None and came_later and start == "latest":
        position = await earliest_position(source, partition)
    return await source.start(partition, start) if position is None else position


async def earliest_position(source: Source, partition: str) -> str | None:
    """Position of the first record; None if the source does not support 'earliest'."""
    try:
        return await source.start(partition, "earliest")
    except UsageError:
        return None


async def first_time(source: Source, partition: str, position: str, timeout: float) -> datetime | None:
    """Timestamp of the first record from `position` on, read from the source: for `Source.time_at`.

    Args:
        timeout: in seconds. None is returned after it.
    """
    with anyio.move_on_after(timeout):
        async with aclosing(source.read(partition, position)) as chunks:
            chunk = await anext(chunks, None)
            return chunk.batch[0].timestamp if chunk is not None and len(chunk.batch) else None
    return None


def is_certainly_at_end(source: Source, partition: str, cursor: Cursor, end: End) -> bool:
    """Whether sequences prove that a cursor is at `end`. Equal positions do not: a position may stand for a page."""
    if end.sequence is None or cursor.sequence >= end.sequence:
        return True
    before = source.sequence_before(partition, cursor.position)
    return before is not None and before >= end.sequence
