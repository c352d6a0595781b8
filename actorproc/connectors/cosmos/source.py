"""The change feed of a Cosmos DB container as a source: a partition is a physical range of the container."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from datetime import datetime
from typing import Literal, TypeVar

import anyio
from azure.cosmos.aio import CosmosClient

from actorproc.config.settings import Settings
from actorproc.connectors.cosmos.address import KEY, ContainerAddress, CosmosOptions
from actorproc.connectors.cosmos.columns import lsn_of_document, to_batch
from actorproc.connectors.cosmos.errors import CLIENT_ERRORS, created_again, final_error, first_line, retry_after
from actorproc.connectors.cosmos.feed import ChangeFeed, Page, PhysicalRange
from actorproc.connectors.cosmos.leases import LEASES, read_leases
from actorproc.connectors.cosmos.merge import Merge
from actorproc.connectors.cosmos.position import (
    NO_KEYS,
    SEQUENCE_BITS,
    Position,
    Span,
    clipped,
    joined,
    last_sequence,
    processed,
    sequences,
)
from actorproc.connectors.shared.entra_login import EntraLogin
from actorproc.errors import PartitionGone, SourceError, UsageError
from actorproc.records import NO_COST, Batch, Cursor, ReadCost
from actorproc.runtime.clock import SYSTEM, Clock
from actorproc.runtime.logger import get_logger
from actorproc.sources.patience import Patience
from actorproc.sources.protocol import Chunk, End, Partition, Source, Start, first_time

T = TypeVar("T")

logger = get_logger(__name__)


class CosmosSource(Source):
    """Reads the change feed of a container. Its partitions split and merge with the container's physical ranges.

    A record is a version of a document. Records of one transaction share its number (LSN), and are committed together.

    Args:
        url: `cosmos://ACCOUNT/DATABASE/CONTAINER`; an account with a dot is taken as the whole host name.
        options: see `CosmosOptions`. The content of a file: `@PATH`.
        settings: `poll_interval` says how often a range without news is asked, `store_patience` for how long a service
            that is away is waited for before the partition counts as failed.

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
        self._address = ContainerAddress.of(url, options or {})
        self._settings = settings or Settings.load()
        self._clock = clock
        self._entra = EntraLogin(url, KEY, "cosmos")
        self._client: CosmosClient | None = None
        self._key: str | None = None
        self._opened: ChangeFeed | None = None
        self._paths: Sequence[str] = ()
        self._connecting = anyio.Lock()
        self._leases: Sequence[Span] | None = None
        self._seen: dict[str, PhysicalRange] = {}  # by id: also ranges that were split or merged since

    async def open(self) -> None:
        """Connect.

        Raises:
            UsageError: the login is missing.
            SourceError: the service cannot be reached, refuses the login, or has no such container.
        """
        options, client = self._address.options(), self._address.client(self._entra)
        try:
            await _answer(f"source {self.url}", self._connect(client, options))
        except BaseException:
            await client.close()
            raise
        before, self._client = self._client, client
        if before is not None:
            await before.close()

    async def _connect(self, client: CosmosClient, options: CosmosOptions) -> None:
        await client.__aenter__()
        database = client.get_database_client(self._address.database)
        proxy = database.get_container_client(self._address.container)
        about = await proxy.read()
        self._key = options.key
        self._paths = about["partitionKey"]["paths"]
        self._opened = ChangeFeed(proxy, about["_rid"], options.mode, options.max_items)
        identity = f"cosmos:{self._address.account}/{about['_rid']}/{options.mode}"
        if self.identity not in (None, identity):
            raise created_again(f"source {self.url}")
        self.identity = identity

    async def close(self) -> None:
        client, self._client, self._opened, self.identity = self._client, None, None, None
        if client is not None:
            await client.close()
        await self._entra.close()

    @property
    def _feed(self) -> ChangeFeed:
        if self._opened is None:
            raise SourceError(f"{self.url} is not open")
        return self._opened

    def _name(self, partition: str) -> str:
        return f"partition {partition} of {self.url}"

    # Questions

    async def partitions(self) -> Sequence[str | Partition]:
        """The physical ranges of now, by their ids."""
        return [Partition(one.id, one.parents) for one in await self._ranges()]

    async def _ranges(self) -> list[PhysicalRange]:
        ranges = await _answer(f"source {self.url}", self._feed.ranges())
        self._seen |= {one.id: one for one in ranges}
        return ranges

    async def _holders(self, partition: str) -> list[PhysicalRange]:
        """The range of a partition; after a split or merge those that have its documents now.

        Raises:
            PartitionGone: there is no such range, and there are none that came from it.
        """
        ranges = await self._ranges()
        own = [one for one in ranges if one.id == partition]
        if not (found := own or [one for one in ranges if partition in one.parents]):
            raise PartitionGone(f"{self._name(partition)} is no range of the container")
        return found

    async def _spans(self, partition: str) -> list[Span]:
        """The spans of `_holders`, unread. Raises the same."""
        return [Span(one.low, one.high, 0) for one in await self._holders(partition)]

    async def start(self, partition: str, at: Start) -> str:
        """See `Source.start`. For a range that was split or merged before it was opened, see `start_after`."""
        if at == "earliest" and self._address.options().mode == "all":
            raise UsageError(
                f"start = 'earliest': {self.url} in mode `all` has no beginning, because the account keeps deletes "
                "for a while only; start at `latest` or at a time (`--start latest`)"
            )
        holders, own = await self._holders(partition), self._seen.get(partition)
        if holders[0].id != partition and self._leaves_gaps and (own is None or own.parents):
            return str(NO_KEYS)
        low, high = (own.low, own.high) if own else ("", holders[-1].high)
        cut = [Span(max(one.low, low), min(one.high, high), 0) for one in holders]
        spans = [span for span in cut if span.low < span.high]
        if at == "earliest":
            return str(joined(spans))
        return str(joined([await self._span_from(partition, span, "Now" if at == "latest" else at) for span in spans]))

    @property
    def _leaves_gaps(self) -> bool:
        """Whether keys may be left to those that follow a range, since these can begin at the first document."""
        return self._address.options().mode == "latest"

    async def _span_from(self, partition: str, span: Span, time: datetime | Literal["Now"]) -> Span:
        page = await _answer(self._name(partition), self._feed.page_from(span, time))
        return span._replace(lsn=lsn_of_document(page.documents[0]) - 1 if page.documents else page.lsn)

    async def start_after(self, partition: str, parents: Mapping[str, Cursor]) -> str | None:
        """Where the parents' cursors leave off, cut to the keys of this partition.

        The service does not say any more which keys a range had that was split or merged. A host that has never seen
        it leaves it to those that follow it, which know its parents, too. Keys that nobody has read begin at 0.
        """
        await self._holders(partition)
        if (place := self._seen.get(partition)) is None:
            return str(NO_KEYS)
        read = [span for cursor in parents.values() for span in processed(cursor)]
        if self._leaves_gaps and any(span.low < place.high and place.low < span.high for span in read):
            read.insert(0, Span(place.low, place.high, 0))
        return _clipped(read, place)

    async def position_of(self, consumer: str, partition: str) -> str | None:
        """Where a change feed processor of .NET or Java is, as `cosmos-leases:URL`."""
        if not consumer.startswith(LEASES):
            raise UsageError(f"start_from = {consumer!r}: {self.url} knows the positions of {LEASES}URL")
        if self._leases is None:
            ranges = {one.id: one for one in await self._ranges()}
            self._leases = await _answer(
                f"start_from {consumer}",
                read_leases(consumer, self._address.given, self._entra, self._feed.container, ranges),
            )
        [place, *_] = await self._holders(partition)
        return _clipped(self._leases, place)

    async def end(self, partition: str) -> End:
        spans = [await self._span_from(partition, span, "Now") for span in await self._spans(partition)]
        position = joined(spans)
        return End(str(position), last_sequence(position.lsn) if position.lsn else None)

    async def time_at(self, partition: str, position: str) -> datetime | None:
        """Time of the first change from `position` on. Reads one page of the feed."""
        return await first_time(self, partition, position, self._settings.store_timeout)

    def sequence_before(self, partition: str, position: str) -> int:
        return last_sequence(Position.parse(position).lsn)

    def records_between(self, after: int, upto: int) -> int:
        """Transactions between two sequences. Those that only deleted, or were overwritten since, count too."""
        return max(0, (upto >> SEQUENCE_BITS) - max(0, after >> SEQUENCE_BITS))

    def reached(self, cursor: Cursor, end: End) -> bool:
        return Position.parse(cursor.position).lsn >= Position.parse(end.position).lsn or super().reached(cursor, end)

    # Reading

    async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        """Read page by page, and end where the range was split or merged.

        The service answers for a child then, whose page is dropped: the child reads on from the same cursor. But the
        client may also have asked a parent, since it remembers ranges. So only a new list of the ranges tells.
        """
        if position == str(NO_KEYS):
            yield Chunk(Batch.empty(partition), position, ended=True)
            return
        await self._renew_login()
        merge, cost = Merge(Position.parse(position)), NO_COST
        while True:
            page = await self._page(partition, merge.next_span)
            cost += page.cost
            if page.is_split or page.range != partition:
                if all(one.id != partition for one in await self._ranges()):
                    yield Chunk(Batch.empty(partition), str(merge.position), cost, ended=True)
                    return
                await self._clock.sleep(self._settings.poll_interval)  # the client knew the ranges of earlier only
                continue
            documents = merge.add(page.documents, page.lsn)
            if documents or merge.at_end:
                yield self._chunk(partition, documents, str(merge.position), cost)
                cost = NO_COST
            if not page.documents:
                await self._clock.sleep(self._settings.poll_interval)

    def _chunk(
        self, partition: str, documents: Sequence[Mapping[str, object]], following: str, cost: ReadCost
    ) -> Chunk:
        if not documents:
            return Chunk(Batch.empty(partition), following, cost)
        given, cuts = sequences([lsn_of_document(document) for document in documents])
        return Chunk(to_batch(partition, documents, given, self._paths), following, cost, cuts=cuts)

    async def _page(self, partition: str, span: Span) -> Page:
        """The next page. A service that throttles or is away is waited for.

        Raises:
            SourceError: the service is away for longer than `store_patience`, or waiting cannot help.
            RecordsLost: the container is another one of the same name.
        """
        patience, what = Patience(self._clock, self._settings.store_patience), self._name(partition)
        while True:
            try:
                page = await self._feed.page(span)
            except CLIENT_ERRORS as error:
                if (final := final_error(what, error)) is not None:
                    raise final from error
                logger.info("cosmos.waiting", source=self.url, partition=partition, error=first_line(error))
                if (wait := retry_after(error)) is not None:
                    self.throttled += 1
                    await self._clock.sleep(wait)
                else:
                    await patience.pause(SourceError(f"{what} cannot be read: {first_line(error)}"), error)
                continue
            if page.container != self._feed.container:
                raise created_again(what)
            return page

    async def _renew_login(self) -> None:
        """Connect anew if the key is another one by now."""
        async with self._connecting:
            if self._address.options().key != self._key:
                await self.open()


def _clipped(read: Sequence[Span], place: PhysicalRange) -> str | None:
    """The position in a range, by how far its parts were read; None if a part was not."""
    position = clipped(read, place.low, place.high)
    return None if position is None else str(position)


async def _answer(what: str, answer: Awaitable[T]) -> T:
    """Raises SourceError: `what` cannot be reached, or the login is refused."""
    try:
        return await answer
    except CLIENT_ERRORS as error:
        unreachable = SourceError(f"{what} cannot be reached: {first_line(error)}")
        raise final_error(what, error) or unreachable from error
