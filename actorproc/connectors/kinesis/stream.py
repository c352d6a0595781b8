"""A stream of Kinesis through AWS's client: its shards, and the pages of a shard."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, NamedTuple, TypeVar

import anyio

from actorproc.connectors.kinesis.address import StreamAddress
from actorproc.connectors.kinesis.aggregation import HashRange
from actorproc.connectors.kinesis.columns import decode
from actorproc.connectors.kinesis.errors import (
    CLIENT_ERRORS,
    EXPIRED_ITERATOR,
    INVALID,
    NOT_FOUND,
    code_of,
    final_error,
    first_line,
    is_throttled,
)
from actorproc.connectors.kinesis.pace import Pace
from actorproc.connectors.kinesis.position import Position
from actorproc.connectors.kinesis.requests import Put
from actorproc.errors import PartitionGone, RecordsLost, SourceError
from actorproc.records import Batch, ReadCost
from actorproc.runtime.backoff import Backoff
from actorproc.runtime.clock import Clock
from actorproc.runtime.logger import get_logger
from actorproc.sources.patience import Patience

T = TypeVar("T")

_THROTTLED = Backoff(0.4, 10.0)
_SMALL = 32 * 2**10  # bytes of an answer that are parsed faster than a thread is reached
_BASE64 = 3 / 4  # bytes of a record per byte of an answer
_HOUR = 3_600_000  # milliseconds
_ALL = HashRange(0, 2**128)

logger = get_logger(__name__)


class Shard(NamedTuple):
    """A shard, open or closed, that still has records or may get some."""

    name: str
    parents: tuple[str, ...]
    hashes: HashRange


class Page(NamedTuple):
    """An answer to GetRecords.

    Attributes:
        place: after it.
        is_at_end: there are no more records just now.
        has_ended: there will never be more.
        size: of the records in bytes.
    """

    batch: Batch
    place: Position
    is_at_end: bool
    has_ended: bool
    size: int

    @property
    def cost(self) -> ReadCost:
        return ReadCost(bytes=self.size, requests=1)


class Stream:
    """One stream. A request that is throttled is repeated until it is answered, one that fails for `patience` seconds.

    Args:
        timeout: of a request, in seconds.
    """

    def __init__(self, address: StreamAddress, clock: Clock, timeout: float) -> None:
        self._address, self._clock, self._timeout = address, clock, timeout
        self._name = {"StreamName": address.stream}
        self._options = address.options()
        self._connecting, self._stack = anyio.Lock(), AsyncExitStack()
        self._client: Any = None
        self._paces = defaultdict[str, Pace](lambda: Pace(clock, 1 / self._options.reads_per_second))
        self._shards: Mapping[str, Shard] = {}
        self._identity: str | None = None
        self._retention, self._skew = 0, 0.0
        self.throttled = 0
        """Requests that were refused because there were too many."""

    @property
    def now(self) -> int:
        """Time of the service, in milliseconds."""
        return int((self._clock.wall() + self._skew) * 1_000)

    @property
    def oldest(self) -> int:
        """Time since which records are kept, in milliseconds."""
        return self.now - self._retention

    async def connect(self) -> None:
        """Log in, or log in anew if the options are others by now.

        Raises:
            UsageError: the profile or the endpoint is wrong.
        """
        async with self._connecting:
            options = self._address.options()
            if self._client is not None and options == self._options:
                return
            stack = AsyncExitStack()
            client = await stack.enter_async_context(self._address.client(options, self._timeout))
            client.meta.events.register("before-parse.kinesis.GetRecords", _keep_body)
            before, self._stack, self._client, self._options = self._stack, stack, client, options
            await before.aclose()

    async def close(self) -> None:
        self._client = None
        await self._stack.aclose()

    # Questions

    async def check(self) -> str:
        """Check that the stream is there. Returns its identity.

        Raises:
            SourceError: it cannot be reached, refuses the login, or is not there.
            RecordsLost: it was deleted and created again.
        """
        what = f"source {self._address.url}"
        reply = await self._asked(what, lambda: self._client.describe_stream_summary(**self._name))
        summary = reply["StreamDescriptionSummary"]
        created = summary["StreamCreationTimestamp"].astimezone(UTC).isoformat()
        identity = f"kinesis:{summary['StreamARN']}@{created}"
        if self._identity not in (None, identity):
            raise RecordsLost(
                f"{what}: the stream was deleted and created again at {created}; positions of one mean nothing in the "
                "other. Give the processor another name, which then begins the new stream"
            )
        self._identity, self._retention = identity, summary["RetentionPeriodHours"] * _HOUR
        if (date := reply["ResponseMetadata"]["HTTPHeaders"].get("date")) is not None:
            self._skew = parsedate_to_datetime(date).timestamp() - self._clock.wall()
        return identity

    async def shards(self) -> Mapping[str, Shard]:
        """All shards whose records are kept, by name: those of now, and those from which they came."""
        found, ask = dict[str, Shard](), self._name
        while ask:
            reply = await self._asked(f"source {self._address.url}", partial(self._client.list_shards, **ask))
            found |= {shard.name: shard for shard in map(_shard, reply["Shards"])}
            ask = {"NextToken": reply["NextToken"]} if reply.get("NextToken") else {}
        self._shards = found
        return found

    async def pages(
        self, shard: str, place: Position, most: int | None = None, patience: float = 0.0
    ) -> AsyncGenerator[Page, None]:
        """Pages from `place` on, until the shard has ended.

        Args:
            most: records of a page; None: as the options say.
            patience: seconds for which requests may fail.

        Raises:
            PartitionGone: there is no such shard any more.
            SourceError, RecordsLost: as `check`.
        """
        hashes = (self._shards.get(shard) or (await self.shards()).get(shard) or _shard_without_range(shard)).hashes
        most = most or self._options.max_records
        iterator: str | None = None
        while True:
            try:
                reply = await self._asked_of(shard, partial(self._records, shard, place, iterator, most), patience)
            except _IteratorExpired:
                iterator = None
                continue
            body: bytes = reply["Page"]
            parse = partial(decode, body, shard, place, hashes)
            found = parse() if len(body) <= _SMALL else await self._clock.run_in_thread(parse)
            place, iterator, size = found.place, found.next, int(len(body) * _BASE64)
            self._paces[shard].spent(size)
            is_at_end = found.behind == 0 and found.records < most
            yield Page(found.batch, place, is_at_end, iterator is None, size)
            if iterator is None:
                return

    async def first_page(self, shard: str, place: Position, most: int) -> Page:
        """The first page from `place` on that has records, or the one at the end. Raises as `pages`."""
        async for page in self.pages(shard, place, most):
            if len(page.batch) or page.is_at_end or page.has_ended:
                return page
        raise AssertionError("pages() ends with a page that has ended")

    async def at(self, shard: str, number: str) -> Batch:
        """The record with this sequence number, taken apart; none if it is not there. Raises as `pages`."""

        async def ask() -> Any:
            asked = {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "StartingSequenceNumber": number}
            reply = await self._client.get_shard_iterator(**self._name, ShardId=shard, **asked)
            await self._paces[shard].turn()
            return await self._client.get_records(ShardIterator=reply["ShardIterator"], Limit=1)

        found = decode((await self._asked_of(shard, ask, 0.0))["Page"], shard, Position(), _ALL)
        return found.batch if found.place.number == number else Batch.empty(shard)

    async def put(self, records: Sequence[Put], patience: float) -> None:
        """Append records. Those that are refused for the moment are sent again.

        Args:
            records: at most as many as one request may have.
            patience: seconds for which requests may fail.

        Raises:
            SourceError: as `check`; some may be appended. None is if it `is_unfit`.
        """
        what, refusals = f"source {self._address.url}", 0
        left = [{"PartitionKey": key, "Data": value} for _, key, value in records]
        while True:
            reply = await self._asked(what, partial(self._client.put_records, **self._name, Records=left), patience)
            left = [entry for entry, answer in zip(left, reply["Records"], strict=True) if "ErrorCode" in answer]
            if not left:
                return
            refusals += 1
            await self._clock.sleep(_THROTTLED.delay(refusals, self._clock.random))

    # Requests

    async def _records(self, shard: str, place: Position, iterator: str | None, most: int) -> Any:
        if iterator is None:
            reply = await self._client.get_shard_iterator(**self._name, ShardId=shard, **place.iterator(self.now))
            iterator = reply["ShardIterator"]
        await self._paces[shard].turn()
        return await self._client.get_records(ShardIterator=iterator, Limit=most)

    async def _asked(self, what: str, ask: Callable[[], Awaitable[T]], patience: float = 0.0) -> T:
        """The answer. A service that throttles is waited for; one that is away, for `patience` seconds."""
        waiting, throttled = Patience(self._clock, patience), 0
        while True:
            try:
                return await ask()
            except CLIENT_ERRORS as error:
                if code_of(error) == EXPIRED_ITERATOR:
                    raise _IteratorExpired from None
                if (final := final_error(what, error)) is not None:
                    raise final from error
                logger.info("kinesis.waiting", source=self._address.url, what=what, error=first_line(error))
                if is_throttled(error):
                    throttled, self.throttled = throttled + 1, self.throttled + 1
                    await self._clock.sleep(_THROTTLED.delay(throttled, self._clock.random))
                else:
                    await waiting.pause(SourceError(f"{what} cannot be read: {first_line(error)}"), error)

    async def _asked_of(self, shard: str, ask: Callable[[], Awaitable[T]], patience: float) -> T:
        """As `_asked`. Where the shard or the position is unknown, it may be because the stream is another one."""
        what = f"partition {shard} of {self._address.url}"
        try:
            return await self._asked(what, ask, patience)
        except SourceError as error:
            code = code_of(error.__cause__)
            if code in (NOT_FOUND, INVALID):
                await self.check()
            if code == NOT_FOUND:
                raise PartitionGone(f"{what} is no shard of the stream any more") from error
            raise


class _IteratorExpired(Exception):
    """The records after it must be asked for by their position."""


def _shard(described: Mapping[str, Any]) -> Shard:
    parents = (described.get("ParentShardId"), described.get("AdjacentParentShardId"))
    hashes = described["HashKeyRange"]
    return Shard(
        described["ShardId"],
        tuple(name for name in parents if name),
        HashRange(int(hashes["StartingHashKey"]), int(hashes["EndingHashKey"])),
    )


def _shard_without_range(name: str) -> Shard:
    """A shard that is not listed any more, whose records may just be kept still."""
    return Shard(name, (), _ALL)


def _keep_body(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object) -> None:
    """Put the records aside before botocore parses them. (An event of botocore's, as its own handlers use it.)"""
    if response_dict["status_code"] == 200:
        customized_response_dict["Page"] = response_dict["body"]
        response_dict["body"] = b"{}"
