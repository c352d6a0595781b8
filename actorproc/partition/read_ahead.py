"""Reads a partition ahead of its handler: cuts the chunks of the source into batches, which wait in a bounded queue."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field

import anyio
import anyio.lowlevel
import msgspec
import pyarrow as pa

from actorproc.config.settings import Settings
from actorproc.errors import SourceError
from actorproc.partition.batch_size import Pace
from actorproc.partition.queue_reader import QueueReader
from actorproc.partition.time_spent import ReadCosts
from actorproc.records import NO_COST, RECORD_SCHEMA, Batch, Cursor, ReadCost
from actorproc.runtime.budget import ByteBudget, ReadBudget
from actorproc.runtime.clock import SHORTEST_WAIT, Clock
from actorproc.runtime.user_code import user_code
from actorproc.sources.protocol import Chunk, Source

MOST_PIECES = 64
"""Maximum number of pieces in one batch: each takes kilobytes more than its `nbytes`."""


@dataclass(slots=True)
class Read:
    """Pieces that the handler gets as one batch. Without pieces: the source is at its end, or has moved its position.

    Attributes:
        start: position from which all pieces can be read again.
        cursor: how far the partition is processed once the handler is done with these pieces.
        at_end: the source has nothing more for now.
        ended: the source has nothing more for good.
        cuts: sequences of the records after which the pieces may be cut; None: after each. See `Chunk.cuts`.
        since: when the first of the pieces was read.
        cost: of reading the pieces.
        oldest: see `Chunk.oldest`.
    """

    pieces: list[Batch]
    start: str
    cursor: Cursor
    at_end: bool = False
    since: float = 0.0
    cost: ReadCost = NO_COST
    ended: bool = False
    cuts: tuple[int, ...] | None = None
    oldest: float | None = None
    records: int = field(init=False)
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.records, self.nbytes = sum(map(len, self.pieces)), sum(piece.nbytes for piece in self.pieces)

    def fits(self, more: Read, limits: Settings) -> bool:
        """Whether both together are one batch within its limits."""
        if not self.pieces or not more.pieces:
            return True
        records, nbytes = self.records + more.records, self.nbytes + more.nbytes
        within = records <= limits.max_batch_records and nbytes <= limits.max_batch_bytes
        alike = (self.cuts is None) == (more.cuts is None)
        return within and alike and _is_usual(self.pieces[-1]) and _is_usual(more.pieces[0])

    def join(self, more: Read) -> None:
        """Add `more`, which was read next."""
        if more.cuts is not None:
            self.cuts = (*(self.cuts or ()), *more.cuts)
        if more.oldest is not None:
            self.oldest = more.oldest if self.oldest is None else min(self.oldest, more.oldest)
        self.pieces += more.pieces
        if len(self.pieces) > MOST_PIECES:
            self.pieces = [Batch.joined(self.pieces)]
        self.cursor = more.cursor
        self.at_end, self.ended = self.at_end or more.at_end, more.ended
        self.records += more.records
        self.nbytes += more.nbytes
        self.cost += more.cost

    def records_within(self, records: int) -> int:
        """How many of the first records can be split off: at most `records`, or else the fewest that the cuts allow."""
        if self.cuts is None:
            return records
        places, done = list[int](), 0
        for piece in self.pieces:
            places += (done + place for place in cut_places(piece, self.cuts))
            done += len(piece)
        return nearest_cut(places, records)

    def split(self, records: int) -> tuple[Read, Read]:
        """The first so many records, which must be fewer than all, and the rest."""
        head, tail = list[Batch](), deque(self.pieces)
        while records:
            piece = tail.popleft()
            head.append(piece[:records])
            if len(piece) > records:
                tail.appendleft(piece[records:])
            records -= len(head[-1])
        last, cuts, later = head[-1].last, None, None
        if self.cuts is not None:
            upto = bisect_right(self.cuts, last)
            cuts, later = self.cuts[:upto], self.cuts[upto:]
        first = Read(
            head, self.start, Cursor(self.start, last), since=self.since, cost=self.cost, cuts=cuts, oldest=self.oldest
        )
        rest = Read(
            list(tail), self.start, self.cursor, self.at_end, self.since, self.cost.paid, ended=self.ended, cuts=later,
            oldest=self.oldest,
        )  # fmt: skip
        first.nbytes, rest.nbytes = 0, self.nbytes  # both share the memory, which is free once the rest is done
        return first, rest

    async def take(self, clock: Clock) -> Batch:
        """The pieces as one batch. Call it once: the pieces are not kept."""
        pieces, self.pieces = self.pieces, []
        batch = pieces[0] if len(pieces) == 1 else await clock.run_cpu_work(self.nbytes, Batch.joined, pieces)
        batch.read = self.cost
        return batch


class ReadAhead:
    """The reader of one partition and its queue of at most `read_ahead_batches`. One task reads, one takes.

    Args:
        budget: bytes that all partitions of the host may have read and not handled.
        pace: how large a batch the handler gets.
        prepare: fetches what decoding needs, before the handler gets the records; a SourceError ends the reading.
        epoch: of the lease, for sources whose services know epochs.
        costs: of the host, to which each read is added.
    """

    def __init__(
        self,
        source: Source | QueueReader,
        partition: str,
        settings: Settings,
        budget: ByteBudget,
        pace: Pace,
        prepare: Callable[[Batch], Awaitable[None]] | None = None,
        epoch: int | None = None,
        costs: ReadCosts | None = None,
    ) -> None:
        self._source = source
        self._partition = partition
        self._settings = settings
        self._room = ReadBudget(budget, epoch)
        self._pace = pace
        self._prepare = prepare
        self._costs = costs or ReadCosts()
        self._queue: deque[Read] = deque()
        self._failure: Exception | None = None  # raised once the queue is empty
        self._joining = False
        self._interrupted = False
        self._reading: anyio.CancelScope | None = None  # around the present read()
        self._cursor = Cursor("")  # behind the latest chunk
        self._cost = NO_COST  # of what was read since the latest piece
        self._chunks = 0
        self._awaiting = False  # the source has to yield now
        self._at_end = False  # its latest chunk said so
        self._ended = False  # its latest chunk was the last one
        self.newest: int | None = None
        """Sequence of the newest record of the source; None while there is more to read."""
        self.bytes_read, self.records_read = 0, 0
        self._changed = anyio.Event()

    # Reading

    @property
    def progress(self) -> int | None:
        """Changes whenever the source yields; None while it does not have to."""
        return self._chunks if self._awaiting and not self._room.is_waiting else None

    def begin_anew(self) -> bool:
        """End this `read` and begin another one where it is. False: it has not said that it is at the end."""
        was_at_end, self._at_end = self._at_end, False
        if was_at_end and self._reading is not None:
            self._reading.cancel()
        return was_at_end

    async def run(self, cursor: Cursor) -> None:
        """Read from `cursor` on until the partition ends, or reading fails."""
        what = f"the source's read() of partition {self._partition}"
        self._cursor = cursor
        try:
            with user_code(what, SourceError):
                if (wrong := await self._read_on()) is not None:
                    self._failure = SourceError(f"{what} {wrong}")
        except Exception as error:  # noqa: BLE001  # raised by `next`
            self._failure = error
        self._awaiting = False
        self.wake()

    async def _read_on(self) -> str | None:
        """Read, and begin again whenever `begin_anew` has ended the `read`. Returns what is wrong, if anything."""
        while True:
            with anyio.CancelScope() as self._reading:
                await self._read()
                return None if self._ended else "has ended; it must go on for ever, or yield a chunk with `ended`"
            if not self._awaiting:  # only a restart of the partition can tell what is queued
                return "yielded while it was ended"

    async def _read(self) -> None:
        read = -1  # last sequence of this read(); only a new read() may go back below it
        self._awaiting = True
        position, asked = self._cursor.position, anyio.current_time()
        async with aclosing(self._source.read_within(self._partition, position, self._room)) as chunks:
            async for chunk in chunks:
                self._awaiting = False
                cost = _cost_of(chunk, anyio.current_time() - asked)
                self._cost += cost
                self._costs.add(cost)
                self.bytes_read, self.records_read = self.bytes_read + cost.bytes, self.records_read + len(chunk.batch)
                if (pair := chunk.batch.disorder(read)) is not None:  # such records would be skipped, or repeated
                    raise SourceError(
                        f"the source's read() of partition {self._partition} gave sequence {pair[1]} after {pair[0]}: "
                        "within one read() sequences must grow from record to record, from 0"
                    )
                read = chunk.batch.last if len(chunk.batch) else read
                if self._prepare is not None and len(chunk.batch):
                    await self._prepare(chunk.batch)
                self._cursor = await self._put_chunk(chunk, self._cursor)
                self._chunks += 1
                self._at_end, self._ended = not len(chunk.batch), chunk.ended
                if self._ended:
                    return
                self._awaiting = True
                asked = anyio.current_time()
                del chunk  # frees its memory as soon as it is handled, before the wait for the next one

    async def _put_chunk(self, chunk: Chunk, cursor: Cursor) -> Cursor:
        """Queue the records of `chunk` beyond `cursor`. Returns the cursor behind the chunk."""
        settings = self._settings
        start, done = cursor
        batch = chunk.batch.after(done)
        if len(batch):
            self.newest = None
        reserved = self._room.has_reservation
        if not reserved and len(batch):  # the whole chunk is in memory until its last piece is handled
            await self._room.reserve(batch.nbytes)
        while len(batch):
            count = fitting(batch, settings.max_batch_records, settings.max_batch_bytes)
            cuts = None
            if chunk.cuts is not None:
                count = nearest_cut(cut_places(batch, chunk.cuts), count)
                cuts = tuple(cut for cut in chunk.cuts if done < cut < batch[:count].last)
            piece = _head(batch, count)
            batch = batch[len(piece) :]
            done = piece.last
            if cuts is not None:
                cuts = (*cuts, done)
            await self._room.take(piece.nbytes)
            # Reading can only resume at the start of the chunk; it then skips the records that are done.
            cost, self._cost = self._cost, self._cost.paid
            cursor = Cursor(start if len(batch) else chunk.next, done)
            await self._put(Read([piece], start, cursor, cost=cost, cuts=cuts, oldest=chunk.oldest))
        if not reserved:
            self._room.resize(0)
        at_end = chunk.ended or not len(chunk.batch)
        self.newest = done if at_end else None
        if at_end:
            await self._put(Read([], start, Cursor(chunk.next, done), at_end=True, ended=chunk.ended))
        return Cursor(chunk.next, done)

    async def _put(self, read: Read) -> None:
        read.since = anyio.current_time()
        while not self._join(read):
            if len(self._queue) < self._settings.read_ahead_batches:
                self._queue.append(read)
                break
            await self._changed.wait()
        self.wake()

    # Handling

    async def next(self, within: float | None = None) -> Read | None:
        """The next read, cut to the pace; None if none is ready `within` seconds, or after `interrupt`.

        A read with fewer than `min_batch_records` records is ready after `max_batch_wait`.

        Raises the error of the source after everything that was read before it.
        """
        changed = self._changed  # taken first, so that no `wake` is missed
        await anyio.lowlevel.checkpoint()  # a partition with a backlog must let the others run
        if not self._interrupted and (wait := self._seconds_until_ready()) > 0:
            with anyio.move_on_after(wait if within is None else max(0.0, min(wait, within))):
                await changed.wait()
        if self._interrupted or self._seconds_until_ready() > 0:
            return None
        if not self._queue:
            if self._failure is not None:
                raise self._failure
            return None
        read = self._queue.popleft()
        least = self._settings.min_batch_records
        most = max(self._pace.records, least)
        if read.records > most and (len(read.pieces) == 1 or least > 1):  # what `aside` has joined is within the pace
            most = read.records_within(most)
            if most < read.records:
                read, rest = read.split(most)
                self._queue.appendleft(rest)
                self._join_queued()
        self.wake()
        return read

    def _seconds_until_ready(self) -> float:
        """How long the first read waits for more records; infinity if there is none."""
        if self._failure is not None:
            return 0.0
        if not self._queue:
            return math.inf
        first = self._queue[0]
        if len(self._queue) > 1 or first.ended or not 0 < first.records < self._settings.min_batch_records:
            return 0.0  # a read behind it could not be joined
        if isinstance(self._source, QueueReader) and self._source.is_window_full:
            return 0.0  # no other message comes before these are acknowledged
        left = first.since + self._settings.max_batch_wait - anyio.current_time()
        return left if left > SHORTEST_WAIT else 0.0

    def interrupt(self) -> None:
        """Let `next` return None from now on."""
        self._interrupted = True
        self.wake()

    def wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """While a batch waits for its next attempt, join small reads, and lend this partition's memory to the others.

        A batch with a bad record costs its pauses, however small it is. Without joining, a stream of small pieces with
        a bad record each would arrive faster than they are handled.
        """
        self._joining = True
        self._join_queued()
        self.wake()
        try:
            with self._room.lent_out():
                yield
        finally:
            self._joining = False

    def _join_queued(self) -> None:
        queued, self._queue = self._queue, deque()
        for read in queued:
            if not self._join(read):
                self._queue.append(read)

    def _join(self, read: Read) -> bool:
        """Join `read` to the last one in the queue. False if it does not fit, or if nothing is joined now."""
        if not self._queue:
            return False
        last = self._queue[-1]
        too_few = 0 < last.records < self._settings.min_batch_records
        if not too_few and not (self._joining and self._within_pace(last, read)):
            return False
        if not last.fits(read, self._settings):
            return False
        last.join(read)
        return True

    def _within_pace(self, last: Read, read: Read) -> bool:
        return not last.records or not read.records or self._pace.allows(last.records + read.records)

    def give_back(self, read: Read) -> None:
        """Free the memory of a read that the handler is done with."""
        self._room.give_back(read.nbytes)

    def close(self) -> None:
        self._queue.clear()
        self._room.close()


def fitting(batch: Batch, records: int, size: int) -> int:
    """How many of the first records go into one batch: within both limits, and at least one."""
    count = min(len(batch), records)
    if _head(batch, count).nbytes <= size:
        return count
    return max(1, bisect_right(range(1, count + 1), size, key=lambda first: batch[:first].nbytes))


def _head(batch: Batch, count: int) -> Batch:
    """The first records. If these are all, the batch itself, which knows its size."""
    return batch if count >= len(batch) else batch[:count]


def _cost_of(chunk: Chunk, seconds: float) -> ReadCost:
    given = chunk.cost or ReadCost(bytes=chunk.batch.nbytes if len(chunk.batch) else 0)
    return msgspec.structs.replace(given, seconds=seconds)


def cut_places(batch: Batch, cuts: Sequence[int]) -> list[int]:
    """The numbers of its first records that may stand alone, all of them included."""
    counts = batch.sequence_array.to_numpy().searchsorted(cuts, side="right")
    return sorted({int(count) for count in counts if count} | {len(batch)})


def nearest_cut(places: Sequence[int], count: int) -> int:
    """The last place up to `count`, or else the first one."""
    return places[max(0, bisect_right(places, count) - 1)]


def _is_usual(batch: Batch) -> bool:
    """A source may make batches of other types, which are not joined."""
    return (
        isinstance(batch.data, pa.RecordBatch)
        and batch.data.schema.equals(RECORD_SCHEMA)
        and batch.sequence_array.type == pa.int64()
    )
