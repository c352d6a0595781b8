"""A stream of Amazon Kinesis as a source: shards split and merge while they are read."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime

import anyio

from actorproc.config.settings import Settings
from actorproc.connectors.kinesis.address import StreamAddress
from actorproc.connectors.kinesis.errors import is_unfit
from actorproc.connectors.kinesis.kcl import KCL, Lease, place_in, read_leases
from actorproc.connectors.kinesis.newest import place_after_newest
from actorproc.connectors.kinesis.position import Position, milliseconds
from actorproc.connectors.kinesis.requests import Put, put_requests
from actorproc.connectors.kinesis.stream import Stream
from actorproc.errors import PartitionGone, RecordsLost, SourceError, UsageError
from actorproc.records import NO_COST, Batch, Cursor
from actorproc.runtime.budget import ReadBudget
from actorproc.runtime.clock import SYSTEM, Clock
from actorproc.runtime.logger import get_logger
from actorproc.sources.protocol import Chunk, End, Partition, Source, Start
from actorproc.sources.replay_target import Appendable

_PAGE_BYTES = 10 * 2**20  # of a read, at most
_LEAST_BYTES = 64 * 2**10  # that a read may take after one that found less

logger = get_logger(__name__)


class KinesisSource(Source, Appendable):
    """Reads a stream. A partition is a shard, which ends when it is split or merged.

    Args:
        url: `kinesis://REGION/STREAM`.
        options: see `KinesisOptions`. The content of a file: `@PATH`.
        settings: `poll_interval` says how often a shard without news is read. `on_out_of_range` applies when the next
            records are no longer kept. `store_patience` limits the wait for a service that is away.

    Raises:
        UsageError: the URL is not of its form, or an option is wrong.
    """

    def __init__(
        self,
        url: str,
        options: Mapping[str, str | int | float | bool] | None = None,
        *,
        settings: Settings | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self.url = url
        self._settings = settings or Settings.load()
        self._clock = clock
        self._address = StreamAddress.of(url, options or {})
        self._stream = Stream(self._address, clock, self._settings.store_timeout)
        self._reading_leases = anyio.Lock()
        self._leases: Mapping[str, Lease] | None = None  # read once, for all shards of a start
        self.knows_keys = not self._address.options().explicit_hash_keys

    @property
    def throttled(self) -> int:  # type: ignore[override]  # as its stream counts
        return self._stream.throttled

    async def open(self) -> None:
        """Connect.

        Raises:
            UsageError: the profile or the endpoint is wrong.
            SourceError: the service cannot be reached, refuses the login, or has no such stream.
        """
        try:
            await self._stream.connect()
            self.identity = await self._stream.check()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await self._stream.close()

    # Questions

    async def partitions(self) -> Sequence[Partition]:
        """The shards whose records are kept, with their parents."""
        await self._stream.check()
        return [Partition(shard.name, shard.parents) for shard in (await self._stream.shards()).values()]

    async def start(self, partition: str, at: Start) -> str:
        if at == "earliest":
            return str(Position())
        if at == "latest":
            return str(await place_after_newest(self._stream, partition))
        return str(Position.at_time(milliseconds(at)))

    async def position_of(self, consumer: str, partition: str) -> str | None:
        """Where an application of the Kinesis Client Library is, as `kcl:APPLICATION`."""
        if not consumer.startswith(KCL):
            raise UsageError(f"start_from = {consumer!r}: {self.url} knows the positions of {KCL}APPLICATION")
        async with self._reading_leases:
            if self._leases is None:
                self._leases = await self._read_leases(consumer.removeprefix(KCL))
        place = await place_in(self._stream, partition, self._leases)
        return None if place is None else str(place)

    async def _read_leases(self, application: str) -> Mapping[str, Lease]:
        address = self._address
        async with address.client(address.options(), self._settings.store_timeout, "dynamodb") as client:
            return await read_leases(client, application, address.stream)

    async def keys_of(self, partition: str) -> Callable[[bytes], bool]:
        """By the MD5 of a key, as Kinesis chooses the shard."""
        shards = await self._stream.shards()
        if partition not in shards:
            raise PartitionGone(f"partition {partition} of {self.url}: the stream has no such shard any more")
        return shards[partition].hashes.has

    async def end(self, partition: str) -> End:
        place = await place_after_newest(self._stream, partition)
        return End(str(place), place.sequence if place.is_after_record else None)

    async def time_at(self, partition: str, position: str) -> datetime | None:
        page = await self._stream.first_page(partition, Position.parse(position), 1)
        return page.batch.timestamps[0] if len(page.batch) else None

    def sequence_before(self, partition: str, position: str) -> int:
        return Position.parse(position).sequence

    def records_between(self, after: int, upto: int) -> int | None:
        """0 at the end, else None: Kinesis does not count the records of a shard."""
        return 0 if after >= upto else None

    def reached(self, cursor: Cursor, end: End) -> bool:
        return Position.parse(cursor.position).has_passed(Position.parse(end.position)) or super().reached(cursor, end)

    # Reading

    def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        return self.read_within(partition, position, ReadBudget.unlimited())

    async def read_within(self, partition: str, position: str, budget: ReadBudget) -> AsyncGenerator[Chunk, None]:
        await self._stream.connect()
        place = Position.parse(position)
        while True:
            place = await self._kept(partition, place)
            async with aclosing(self._chunks(partition, place, budget)) as chunks:
                async for chunk in chunks:
                    yield chunk
                    if chunk.ended:
                        return
                    place = Position.parse(chunk.next)

    async def _chunks(self, partition: str, place: Position, budget: ReadBudget) -> AsyncGenerator[Chunk, None]:
        """Read on until the shard ends, or until the next records may have been removed."""
        cost, size = NO_COST, _PAGE_BYTES
        async with aclosing(self._stream.pages(partition, place, patience=self._settings.store_patience)) as pages:
            while not place.may_miss(self._stream.oldest):
                await budget.reserve(size)
                page = await anext(pages)
                place = page.place.at_end(self._stream.now) if page.is_at_end else page.place
                cost, size = cost + page.cost, min(_PAGE_BYTES, max(_LEAST_BYTES, 2 * page.size))
                budget.resize(page.batch.data.nbytes)
                if len(page.batch) or page.has_ended:
                    yield Chunk(page.batch, str(place), cost, ended=page.has_ended)
                    cost = NO_COST
                if page.is_at_end:
                    budget.resize(0)
                    yield Chunk(Batch.empty(partition), str(place), cost)
                    cost = NO_COST
                    await self._clock.sleep(self._settings.poll_interval)

    async def _kept(self, partition: str, place: Position) -> Position:
        """The place to read from: this one, unless records after it may have been removed.

        Raises:
            RecordsLost: they may have been, and `on_out_of_range` is "fail".
        """
        if not place.may_miss(self._stream.oldest):
            return place
        await self._stream.check()  # the retention may be another one by now
        if not place.may_miss(oldest := self._stream.oldest):
            return place
        policy = self._settings.on_out_of_range
        if policy == "fail":
            raise RecordsLost(
                f"partition {partition} of {self.url} was read up to {_text(place.seen)}, and the stream keeps records "
                f"since {_text(oldest)}: those between may have been removed before they were read (on_out_of_range = "
                "fail). Make the stream's retention longer than any pause of its processor"
            )
        logger.warning("source.records_lost", source=self.url, partition=partition, since=_text(place.seen))
        return place.at_first() if policy == "earliest" else await place_after_newest(self._stream, partition)

    # Writing

    async def append(self, partition: str, records: Batch, transaction: str) -> Mapping[int, str]:
        """Append records to the shards of their keys. Kinesis keeps neither headers nor timestamps of its writers."""
        refused = dict[int, str]()
        for request in put_requests(records):
            await self._put(request, refused)
        return refused

    async def _put(self, request: Sequence[Put], refused: dict[int, str]) -> None:
        """The service refuses a request for one record that does not fit, and does not say which: then by halves."""
        try:
            await self._stream.put(request, self._settings.store_patience)
        except SourceError as error:
            if not is_unfit(error):
                raise
            if len(request) == 1:
                refused[request[0].number] = str(error)
                return
            half = len(request) // 2
            await self._put(request[:half], refused)
            await self._put(request[half:], refused)


def _text(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1_000, UTC).isoformat(timespec="seconds")
