"""`LogSource`: reads the built-in log."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

import anyio

from actorproc.config.settings import Settings
from actorproc.errors import CorruptObject, RecordsLost, SourceError, UsageError, locate, located
from actorproc.log.hints import HintWatch
from actorproc.log.metadata import LogMetadata, open_log
from actorproc.log.positions import (
    base_of,
    end_base,
    first_base,
    newest_segment,
    position_of_time,
    stored_bytes,
)
from actorproc.log.segment import ROW_GROUP_BYTES, Segment
from actorproc.records import NO_COST, Batch, ReadCost
from actorproc.retention.boundary import read_boundary
from actorproc.runtime.budget import ReadBudget
from actorproc.runtime.clock import SYSTEM, Clock
from actorproc.runtime.logger import get_logger
from actorproc.runtime.nudge import Nudges, OnNews, nudges_of
from actorproc.runtime.tasks import gather
from actorproc.sources.prefetch import FilePrefetcher, Prefetching
from actorproc.sources.protocol import Chunk, End, Partition, Start
from actorproc.sources.stored import StoredSource
from actorproc.storage.document import SharedDocument
from actorproc.storage.names import LOG_META, READERS, log_boundary, log_file
from actorproc.storage.parquet import read_footer
from actorproc.storage.store import Store
from actorproc.stores import OUTPUT_SCHEME

logger = get_logger(__name__)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class LogSource(StoredSource):
    """Reads a log. One instance serves all partitions of a host; one reader polls for all of them.

    A position is the base of the file to read next, or `<base>+<records of the file to skip>`.

    Args:
        log: URL or folder of the log, or an opened store that contains it.

    Raises:
        UsageError: `log` is not a URL, a folder or a store.
    """

    def __init__(
        self,
        log: str | os.PathLike[str] | Store,
        *,
        settings: Settings | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        super().__init__("log", log, "the URL or folder of a log", readers=READERS, settings=settings, clock=clock)
        self._hints = HintWatch(self._store, clock, self._settings.poll_interval, self._nudges)
        self._metadata = LogMetadata(partitions=0)
        self._document = SharedDocument(self._store, LOG_META, LogMetadata)
        self._prefetching = Prefetching(self._store, clock, self._settings.read_ahead_bytes // 4)
        self._file_bytes = ROW_GROUP_BYTES  # recent bytes of a file with its decoded rows

    def _nudges(self, on_news: OnNews) -> Nudges:
        return nudges_of(
            self._store.backend.route, self._settings.nudge_host, self._metadata.identity, self._clock, on_news
        )

    async def close(self) -> None:
        await self._hints.close()
        await super().close()

    async def _found(self) -> str | None:
        self._metadata = await open_log(
            self._store, instead=f"a processor's output as {OUTPUT_SCHEME}{{container}}/{{processor}}"
        )
        return self._metadata.identity

    async def _renew(self) -> None:
        """Read `log.json` anew: the log may have grown."""
        with located(self._store.url):
            self._metadata = await self._document.read() or self._metadata

    async def partitions(self) -> Sequence[str | Partition]:
        """See `Source.partitions`. Also those that have ended; without those that follow one that has not."""
        await self._renew()
        generations = self._metadata.generations
        unsure = [str(number) for number in generations.before] if self._metadata.growing else []
        with located(self._store.url):
            ended = await gather(unsure, self._has_ended)
        follows = {name: generations.parent(int(name)) for name in self._metadata.names}
        return [
            name if before is None else Partition(name, (str(before),))
            for name, before in follows.items()
            if ended.get(str(before), True)
        ]

    async def _has_ended(self, partition: str) -> bool:
        found = await newest_segment(self._store, partition, self._hints.newest.get(partition, 0))
        return found is not None and found[0] == found[1]

    @property
    def knows_keys(self) -> bool:  # type: ignore[override]  # as the log says
        """See `Source.knows_keys`."""
        return self._metadata.by_key

    async def keys_of(self, partition: str) -> Callable[[bytes], bool]:
        """See `Source.keys_of`."""
        return partial(self._metadata.generations.has_key, int(partition))

    async def start(self, partition: str, at: Start) -> str:
        """See `Source.start`. For a time, reading begins at the first record whose timestamp is at or after it."""
        with located(self._store.url):
            lowest = await self._lowest_of(partition)
            if at == "earliest":
                return _position(await first_base(self._store, partition, lowest) or lowest)
            await self._hints.refresh()
            hint = self._hints.newest.get(partition, 0)
            if at == "latest":
                return _position(await end_base(self._store, partition, hint))
            if not isinstance(at, datetime) or at.tzinfo is None:
                raise UsageError(f"start = {at!r}: 'earliest', 'latest' or a datetime with a time zone")
            time = (at - _EPOCH) // timedelta(microseconds=1)
            return _position(*await position_of_time(self._store, partition, time, hint, lowest))

    async def end(self, partition: str) -> End:
        with located(self._store.url):
            await self._hints.refresh()
            end = await end_base(self._store, partition, self._hints.newest.get(partition, 0))
            return End(_position(end), end - 1 if end else None)

    async def time_at(self, partition: str, position: str) -> datetime | None:
        """See `Source.time_at`. Reads one file of the log."""
        base, skip = _parse_position(partition, position)
        with located(self._store.url):
            stored = await self._store.get(log_file(partition, base))
            if stored is None:
                return None
            return await self._clock.run_cpu_work(stored.size, _time_in, partition, base, stored.body, skip)

    async def bytes_between(self, partition: str, position: str, end: End) -> int:
        """See `Source.bytes_between`. Lists the files of the log: one request, an estimate beyond 1,000 files."""
        base, skip = _parse_position(partition, position)
        with located(self._store.url):
            return await stored_bytes(self._store, partition, base, skip, self._number_at(partition, end.position))

    async def position_at(self, partition: str, sequence: int) -> str:
        """See `Source.position_at`."""
        with located(self._store.url):
            base = await base_of(self._store, partition, sequence, await self._lowest_of(partition))
        return _position(base, max(0, sequence - base))

    def _number_at(self, partition: str, position: str) -> int:
        return sum(_parse_position(partition, position))

    def sequence_before(self, partition: str, position: str) -> int:
        """See `Source.sequence_before`. Raises SourceError if `position` is not a position of a log."""
        return sum(_parse_position(partition, position)) - 1

    async def read_within(self, partition: str, position: str, budget: ReadBudget) -> AsyncGenerator[Chunk, None]:
        """See `Source.read_within`. A chunk is a row group of a file at most.

        Before a file is fetched, its bytes and those of its decoded rows are reserved.

        Raises:
            CorruptObject: a file is not one that a producer wrote.
            SourceError: files at `position` were deleted, and `on_out_of_range` is "fail" or nothing is left.
        """
        base, skip = _parse_position(partition, position)
        verified = not base and not skip  # the partition is known to have this position
        files = FilePrefetcher(self._prefetching, partition, partial(self._has_after, partition))
        try:
            if base < (lowest := await self._lowest_of(partition)):
                found = await first_base(self._store, partition, lowest)
                base, skip = await self._after_loss(partition, base + skip, lowest if found is None else found), 0
            while True:
                await budget.reserve(self._file_bytes)
                body = await files.take(base)
                if body is None:
                    budget.resize(0)
                    next_base = base if verified else await self._check_is_end(partition, base, skip)
                    verified = True
                    if next_base == base:
                        next_base = await self._check_not_deleted(partition, base, skip)
                    if next_base != base:
                        base, skip = next_base, 0
                        continue
                    waiting = True
                    while waiting:  # an empty chunk now and then says that this goes on
                        yield Chunk(Batch.empty(partition), _position(base, skip))
                        with anyio.move_on_after(self._settings.max_read_time / 3) as silence:
                            await self._hints.wait(partition, base)
                        waiting = silence.cancelled_caught
                    continue
                size = len(body)
                cost = ReadCost(bytes=size, requests=1)
                file = await self._clock.run_cpu_work(size, Segment, partition, base, body, background=True)
                end = file.next_base
                if base + skip > end:
                    raise self._beyond_end(partition, base + skip, end)
                verified = True
                if file.footer.ended:
                    await self._renew()  # which keys are in the partitions that follow
                    yield Chunk(Batch.empty(partition), _position(base), cost, ended=True)
                    return
                batches, held = file.batches(skip), size + file.group_bytes
                del body, file
                self._file_bytes = max(held, self._file_bytes * 7 // 8)
                budget.resize(held)
                while (batch := await self._clock.run_cpu_work(size, next, batches, None, background=True)) is not None:
                    read = batch.last + 1
                    if read == end:  # the consumer may be slow, and must not hold the whole file meanwhile
                        batches.close()
                        budget.resize(batch.nbytes)
                        yield Chunk(batch, _position(end), cost)
                        break
                    budget.resize(size + batch.nbytes)
                    yield Chunk(batch, _position(base, read - base), cost)
                    cost = NO_COST
                    budget.resize(held)
                base, skip = end, 0
                del batch
        except CorruptObject as error:
            locate(error, self._store.url)
            raise
        finally:
            files.clear()

    async def _has_after(self, partition: str, base: int) -> bool:
        """Whether there may be files after the one at `base`. Reads the hints if those that were read name none."""
        if self._hints.newest.get(partition, -1) <= base:
            await self._hints.refresh()
        return self._hints.newest.get(partition, base + 1) > base

    async def _lowest_of(self, partition: str) -> int:
        """First offset of the partition. A trim that was decided before the processor registered counts as done."""
        boundary = (await read_boundary(self._store, log_boundary(partition))).lowest
        return max(boundary, self._lowest.get(partition, 0))

    async def _check_not_deleted(self, partition: str, base: int, skip: int) -> int:
        """A position without a file is the end of the partition, unless files beyond it exist.

        Returns the base to read on at.
        """
        if self._hints.newest.get(partition, -1) < base:
            return base
        first = await first_base(self._store, partition, base)
        return base if first == base else await self._after_loss(partition, base + skip, first)

    async def _check_is_end(self, partition: str, base: int, skip: int) -> int:
        """A stored position without a file must be the end. Takes one request if the hints are current.

        Returns the base to read on at.
        """
        await self._hints.refresh()
        hint = self._hints.newest.get(partition, 0)
        footer = await read_footer(self._store, log_file(partition, hint))
        end = hint + footer.rows if footer is not None else -1
        if end != base:
            end = await end_base(self._store, partition, hint)
        if end < base + skip:
            raise self._beyond_end(partition, base + skip, end)
        if end > base and (first := await first_base(self._store, partition, base)) != base:
            return await self._after_loss(partition, base + skip, first)
        return base

    def _beyond_end(self, partition: str, position: int, end: int) -> SourceError:
        return SourceError(
            f"partition {partition} of the log {self._store.url} ends at {end}, and this processor has read up to "
            f"{position}: its newest files were deleted, or an older copy of the log was restored. Restore the files, "
            "or start anew under another processor name"
        )

    async def _after_loss(self, partition: str, position: int, found: int | None) -> int:
        """The base to read on at after records from `position` on were deleted before they were read.

        Args:
            found: base of the next file; None if there is none.

        Raises:
            RecordsLost: `on_out_of_range` is "fail".
            SourceError: no file is left. An empty store may be away, and come back.
        """
        lost = f"partition {partition} of the log {self._store.url} has lost its records from position {position} on"
        help_ = "Restore the files, or start anew under another processor name"
        if found is None:
            raise SourceError(f"{lost} (no file begins there or later). {help_}")
        policy = self._settings.on_out_of_range
        if policy == "fail":
            raise RecordsLost(
                f"{lost} (the next begin at {found}): {found - position:,} records were deleted before this processor "
                f"read them (on_out_of_range = fail). {help_}"
            )
        base = found if policy == "earliest" else await end_base(self._store, partition, found)
        logger.warning("source.records_lost", source=self.url, partition=partition, records=base - position, at=base)
        return base


def _time_in(partition: str, base: int, body: bytes, skip: int) -> datetime | None:
    """Timestamp of record number `skip` of a segment; None if it has no more."""
    first = next(Segment(partition, base, body).batches(skip), None)
    return None if first is None else first[:1].timestamps[0]


def _position(base: int, skip: int = 0) -> str:
    return f"{base}+{skip}" if skip else str(base)


def _parse_position(partition: str, position: str) -> tuple[int, int]:
    base, _, skip = position.partition("+")
    try:
        return int(base), int(skip or 0)
    except ValueError:
        raise SourceError(
            f"{position!r} is not a position in partition {partition} of a log: was the checkpoint made with another "
            "source?"
        ) from None
