"""The built-in log as a source."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from itertools import islice

import anyio

from actorproc.config.settings import Settings
from actorproc.errors import CorruptObject, SourceError, StoreRefused, UsageError, locate, located
from actorproc.log.hint_watch import HintWatch
from actorproc.log.metadata import HOW_TO_CREATE, open_log
from actorproc.log.offsets import end_offset, first_base, offset_of_time
from actorproc.log.segment import ROW_GROUP_BYTES, Segment
from actorproc.records import Batch
from actorproc.retention.boundary import read_boundary
from actorproc.retention.readers import Reader, register
from actorproc.runtime.budget import ByteBudget, ReadBudget
from actorproc.runtime.clock import SYSTEM, Clock
from actorproc.runtime.logger import get_logger
from actorproc.runtime.tasks import first_cause
from actorproc.sources.protocol import Chunk, End, Source, Start
from actorproc.storage.listing import numbered_files
from actorproc.storage.names import READERS, log_boundary, log_dir, log_file
from actorproc.storage.parquet import read_footer
from actorproc.storage.store import Store
from actorproc.stores import OUTPUT_SCHEME, given_store

log = get_logger(__name__)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SLOW_GET = 0.004  # seconds
_AHEAD_FILES = 8  # files fetched at once from a slow store
_LISTED = 200  # files looked for at once


class LogSource(Source):
    """Reads a log. One instance serves all partitions of a host: one of their readers polls for all.

    A position is the base of the file to read next, or `<base>+<records of it to pass over>`.

    Args:
        log: URL or folder of the log, or an opened store in which it is.
        create: told where there is none, as of `open_log`.

    Raises:
        UsageError: it is nothing of that kind.
    """

    def __init__(
        self,
        log: str | os.PathLike[str] | Store,
        *,
        settings: Settings | None = None,
        clock: Clock = SYSTEM,
        create: str = HOW_TO_CREATE,
    ) -> None:
        self._settings = settings or Settings.load()
        self._clock = clock
        self._create = create
        self._owns_store = not isinstance(log, Store)
        self._opened = AsyncExitStack()
        self._store = given_store("log", log, "the URL or folder of a log", self._settings, clock)
        self.url = self._store.url
        self._heads = HintWatch(self._store, clock, self._settings.poll_interval)
        self._partitions: list[str] = []
        self._lowest: Mapping[str, int] = {}  # where partitions begin, as of when we registered
        self._get_seconds = 0.0  # what a GET takes, smoothed
        self._ahead_bytes = 0  # fetched ahead, or about to be, over all partitions
        self._file_bytes = ROW_GROUP_BYTES  # what a file in hand takes, decoded rows and all; of late

    async def open(self) -> None:
        """Connect.

        Raises:
            UsageError: there is no log.
        """
        with located(self._store.url):
            async with AsyncExitStack() as opened:
                if self._owns_store:
                    await opened.enter_async_context(self._store)
                meta = await open_log(
                    self._store,
                    instead=f"a processor's output as {OUTPUT_SCHEME}{{container}}/{{processor}}",
                    create=self._create,
                )
                self._opened = opened.pop_all()
        self._partitions = [str(index) for index in range(meta.partitions)]
        self.identity = meta.identity

    async def register(self, processor: str, container: str) -> None:
        """See `Source.register`. On a log that may only be read nothing is registered, with a warning."""
        reader = Reader.of_processor(container, processor, self.identity or "")
        try:
            with located(self._store.url):
                self._lowest = (await register(self._store, READERS, reader, rename=True)).lowest
        except StoreRefused as error:
            log.warning("log.reader_not_registered", log=self.url, processor=processor, why=str(error))

    async def close(self) -> None:
        await self._opened.aclose()

    async def partitions(self) -> Sequence[str]:
        return self._partitions

    async def start(self, partition: str, at: Start) -> str:
        """See `Source.start`. A time is found by the records' timestamps, which need not be in order: reading begins at
        the first record that is as late as `at`."""
        with located(self._store.url):
            lowest = await self._lowest_of(partition)
            if at == "earliest":
                return _position(await first_base(self._store, partition, lowest) or lowest)
            await self._heads.refresh()
            hint = self._heads.newest.get(partition, 0)
            if at == "latest":
                return _position(await end_offset(self._store, partition, hint))
            if not isinstance(at, datetime) or at.tzinfo is None:
                raise UsageError(f"start = {at!r}: 'earliest', 'latest' or a datetime with a time zone")
            time = (at - _EPOCH) // timedelta(microseconds=1)
            return _position(*await offset_of_time(self._store, partition, time, hint, lowest))

    async def end(self, partition: str) -> End:
        with located(self._store.url):
            await self._heads.refresh()
            end = await end_offset(self._store, partition, self._heads.newest.get(partition, 0))
            return End(_position(end), end - 1 if end else None)

    def sequence_before(self, partition: str, position: str) -> int:
        """See `Source.sequence_before`. Raises SourceError if `position` is none of a log."""
        return sum(_parsed(partition, position)) - 1

    def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        """See `Source.read`. A chunk is a row group of a file at most."""
        return self.read_within(partition, position, ReadBudget(ByteBudget(sys.maxsize)))

    async def read_within(self, partition: str, position: str, budget: ReadBudget) -> AsyncGenerator[Chunk, None]:
        """See `Source.read_within`. A file is fetched when there is room for it and what is decoded of it.

        Raises:
            CorruptObject: a file is not what a producer wrote.
            SourceError: files at `position` were deleted.
        """
        base, skip = _parsed(partition, position)
        known = not base and not skip  # that there is such a place in the partition
        ahead = _Ahead(self, partition)
        try:
            if base < (lowest := await self._lowest_of(partition)):
                raise self._lost(partition, base, lowest)
            while True:
                await budget.reserve(self._file_bytes)
                body = await ahead.take(base)
                if body is None:
                    budget.resize(0)
                    if not known:
                        await self._check_is_end(partition, base, skip)
                        known = True
                    await self._check_not_deleted(partition, base)
                    yield Chunk(Batch.empty(partition), _position(base, skip))
                    await self._heads.wait(partition, base)
                    continue
                size = len(body)
                file = await self._clock.run_cpu_work(size, Segment, partition, base, body, background=True)
                batches, end, in_hand = file.batches(skip), file.next_base, size + file.group_bytes
                if base + skip > end:
                    raise self._beyond(partition, base + skip, end)
                known = True
                del body, file
                self._file_bytes = max(in_hand, self._file_bytes * 7 // 8)
                budget.resize(in_hand)
                while (batch := await self._clock.run_cpu_work(size, next, batches, None, background=True)) is not None:
                    done = batch.last + 1
                    if done == end:  # the consumer may take its time, and need not hold the whole file meanwhile
                        batches.close()
                        budget.resize(batch.nbytes)
                        yield Chunk(batch, _position(end))
                        break
                    budget.resize(size + batch.nbytes)
                    yield Chunk(batch, _position(base, done - base))
                    budget.resize(in_hand)
                base, skip = end, 0
                del batch
        except CorruptObject as damaged:
            locate(damaged, self._store.url)
            raise
        finally:
            ahead.clear()

    async def _lowest_of(self, partition: str) -> int:
        """Where the partition begins. What a trim has decided by the time we registered counts, done or not: who comes late
        must not begin in what is about to go."""
        boundary = (await read_boundary(self._store, log_boundary(partition))).lowest
        return max(boundary, self._lowest.get(partition, 0))

    async def _get(self, partition: str, base: int, size: int = 0) -> bytes | None:
        began = self._clock.monotonic()
        stored = await self._store.get(log_file(partition, base), size=size)
        self._get_seconds += (self._clock.monotonic() - began - self._get_seconds) / 8
        return stored.body if stored else None

    async def _check_not_deleted(self, partition: str, base: int) -> None:
        """A position at which there is no file is the end of the partition, unless there are files beyond it."""
        if self._heads.newest.get(partition, -1) < base:
            return
        first = await first_base(self._store, partition, base)
        if first != base:
            raise self._lost(partition, base, first)

    async def _check_is_end(self, partition: str, base: int, skip: int) -> None:
        """A position from before, at which there is no file, must be the end. One request, if the heads are right."""
        await self._heads.refresh()
        hint = self._heads.newest.get(partition, 0)
        footer = await read_footer(self._store, log_file(partition, hint))
        end = hint + footer.rows if footer is not None else -1
        if end != base:
            end = await end_offset(self._store, partition, hint)
        if end < base + skip:
            raise self._beyond(partition, base + skip, end)
        if end > base and (first := await first_base(self._store, partition, base)) != base:
            raise self._lost(partition, base, first)

    def _beyond(self, partition: str, position: int, end: int) -> SourceError:
        return SourceError(
            f"partition {partition} of the log {self._store.url} ends at {end}, and this processor has read up to {position}: "
            "its newest files were deleted, or an older copy of the log was restored. Restore the files, or start anew under "
            "another processor name"
        )

    def _lost(self, partition: str, base: int, first: int | None) -> SourceError:
        return SourceError(
            f"partition {partition} of the log {self._store.url} has lost its records from position {base} on "
            f"({'no file begins there or later' if first is None else f'the next begin at {first}'}): they were deleted before this "
            "processor read them. Restore the files, or start anew under another processor name"
        )


class _Ahead:
    """The next files of a partition: one by one; or several at once, where the store is slow and there is much to read."""

    def __init__(self, source: LogSource, partition: str) -> None:
        self._source = source
        self._partition = partition
        self._listed: deque[tuple[int, int]] = deque()  # base and size
        self._bodies: dict[int, bytes] = {}
        self._sizes: dict[int, int] = {}  # of those that are counted: all but the one that is taken at once
        self._in_a_row = 0  # files since we stood at the end

    async def take(self, base: int) -> bytes | None:
        """The file at `base`, or None if there is none."""
        source = self._source
        if base not in self._bodies and self._in_a_row >= 2 and source._get_seconds >= _SLOW_GET:
            await self._fetch(base)
        body = self._bodies.pop(base, None)
        source._ahead_bytes -= self._sizes.pop(base, 0)
        if body is None:
            body = await source._get(self._partition, base)
        self._in_a_row = self._in_a_row + 1 if body is not None else 0
        return body

    async def _fetch(self, base: int) -> None:
        """Get the file at `base` and some after it."""
        source = self._source
        self.clear()
        while self._listed and self._listed[0][0] < base:
            self._listed.popleft()
        if len(self._listed) < 2:
            files = await numbered_files(source._store, log_dir(self._partition), base, _LISTED)
            self._listed = deque((number, entry.size) for number, entry in files)
        try:
            async with anyio.create_task_group() as tasks:
                for file, size in islice(self._listed, _AHEAD_FILES):
                    if file != base:
                        if source._ahead_bytes + size > source._settings.read_ahead_bytes // 4:
                            break
                        self._sizes[file] = size  # from now on: others must not count on the room
                        source._ahead_bytes += size
                    tasks.start_soon(self._get, file, size)
        except ExceptionGroup as group:
            raise first_cause(group) from None

    async def _get(self, base: int, size: int) -> None:
        body = await self._source._get(self._partition, base, size)
        if body is not None:
            self._bodies[base] = body

    def clear(self) -> None:
        """Let go of what was fetched and not taken."""
        self._source._ahead_bytes -= sum(self._sizes.values())
        self._sizes.clear()
        self._bodies.clear()


def _position(base: int, skip: int = 0) -> str:
    return f"{base}+{skip}" if skip else str(base)


def _parsed(partition: str, position: str) -> tuple[int, int]:
    base, _, skip = position.partition("+")
    try:
        return int(base), int(skip or 0)
    except ValueError:
        raise SourceError(
            f"{position!r} is no position in partition {partition} of a log: was the checkpoint made with another source?"
        ) from None
