"""Topics of Apache Kafka as a source: leases decide who reads which partition, never the broker's consumer groups."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from itertools import count

import anyio
from confluent_kafka import KafkaException

from actorproc.config.options import with_secrets
from actorproc.config.settings import Settings
from actorproc.connectors.kafka.brokers import Brokers, BrokersAway
from actorproc.connectors.kafka.columns import Key
from actorproc.connectors.kafka.consumer import Feed, SharedConsumer
from actorproc.connectors.kafka.position import Position
from actorproc.connectors.kafka.presets import parse_url
from actorproc.connectors.kafka.properties import Properties, client_properties
from actorproc.connectors.shared.azure_checkpoints import CHECKPOINTS, AzureCheckpoints
from actorproc.errors import PartitionGone, RecordsLost, SourceError, UsageError
from actorproc.records import Cursor
from actorproc.runtime.backoff import Backoff
from actorproc.runtime.clock import SYSTEM, Clock
from actorproc.runtime.logger import get_logger
from actorproc.sources.protocol import Chunk, End, Source, Start, first_time
from actorproc.sources.replay_target import Replayable, ReplayTarget

GROUP = "kafka-group:"
"""Begins the name of a consumer group whose offsets a processor starts from."""

_FIRST_TIMEOUT = 3.0  # seconds for the first question to the brokers; each later one has so many more

_ASKED_AGAIN, _ASKED_AFTER = 2, 1.0
"""So often, and after so many seconds, the brokers are asked again for a topic that they do not know: one that has just
started may not know all topics yet."""

logger = get_logger(__name__)


class KafkaSource(Source, Replayable):
    """Reads one or several topics. A partition is `TOPIC-NUMBER`; a sequence is an offset, a position a `Position`.

    Offsets have gaps where the topic is compacted or written in transactions.

    Args:
        url: `kafka://BROKER:PORT[,...]/TOPIC[,...]`, or `/^REGEX` for all topics that match;
            `eventhubs://NAMESPACE/HUB`; or `oci-streaming://REGION/STREAM?pool=OCID`.
        properties: librdkafka's, by name, such as `security.protocol`. The content of a file: `@PATH`.
        settings: `on_out_of_range` applies when the next offset is no longer at the broker, and
            `store_patience` for how long the first contact is tried.

    Raises:
        UsageError: the URL is not of its form, a login is missing, or a file cannot be read.
    """

    def __init__(
        self,
        url: str,
        properties: Mapping[str, str | int | float | bool] | None = None,
        *,
        settings: Settings | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self.url = url
        given = with_secrets("source option", properties or {})
        self._address = parse_url(url, given)
        self._properties = client_properties(self._address.brokers, given, self._address.properties)
        self.producer_properties: Properties = {
            "bootstrap.servers": self._address.brokers, **(self._address.properties or {}), **given
        }  # fmt: skip
        """For a producer that writes to these topics."""
        self._settings = settings or Settings.load()
        self._clock = clock
        self._shared: SharedConsumer | None = None
        self._opened: Brokers | None = None
        self._topic_ids: dict[str, str | None] = {}
        self._missing: set[str] = set()  # topics
        self._azure: AzureCheckpoints | None = None
        self.timeout = 10.0
        """Seconds for one question to the brokers."""

    @asynccontextmanager
    async def replay_target(self) -> AsyncIterator[ReplayTarget]:
        """See `Replayable`."""
        from actorproc.connectors.kafka.replay_target import KafkaTarget

        await self.open()
        try:
            yield KafkaTarget(self.url, self.identity or "", self.producer_properties, await self.partitions())
        finally:
            await self.close()

    async def open(self) -> None:
        """Connect to the brokers.

        Raises:
            UsageError: librdkafka refuses a property.
            SourceError: no broker answers within `store_patience`, they refuse the login, or there is no token to log
                in.
        """
        if (login := self._properties.get("oauth_cb")) is not None:
            await self._clock.run_in_thread(login, "")  # its error says more than librdkafka's
        try:
            self._connect()
            await self._first_contact()
            cluster = await self._brokers.cluster_id()
        except BaseException:
            await self.close()  # it may be opened again
            raise
        self.identity = f"kafka:{cluster}/{','.join(sorted(self._address.topics))}"

    def _connect(self) -> None:
        try:
            self._shared = SharedConsumer(self._properties, self._settings.read_ahead_bytes // 4)
            self._opened = Brokers(self.url, self._address, self._shared, self._properties, self._clock)
        except KafkaException as error:
            raise UsageError(f"source {self.url}: {error.args[0].str()}") from None

    async def _first_contact(self) -> None:
        """Wait for brokers that are away; the first failure is logged, since the address may be wrong.

        The client says only at the end of its time that a login was refused, so the first times are short.
        """
        backoff, end = Backoff(0.5, 5.0), self._clock.monotonic() + self._settings.store_patience
        for attempt in count(1):
            self._brokers.timeout = min(self.timeout, _FIRST_TIMEOUT * attempt)
            try:
                await self.partitions()
                self._brokers.timeout = self.timeout
                return
            except BrokersAway as error:
                if self._clock.monotonic() > end:
                    raise
                if attempt == 1:
                    logger.warning("source.unavailable", error=str(error), patience=self._settings.store_patience)
                await self._clock.sleep(backoff.delay(attempt, self._clock.random))

    async def close(self) -> None:
        brokers, self._opened = self._opened, None
        if brokers is not None:
            await brokers.close()
        shared, self._shared = self._shared, None
        if shared is not None:
            await self._clock.run_in_thread(shared.close)

    @property
    def _brokers(self) -> Brokers:
        if self._opened is None:
            raise SourceError(f"{self.url} is not open")
        return self._opened

    @property
    def _consumer(self) -> SharedConsumer:
        if self._shared is None:
            raise SourceError(f"{self.url} is not open")
        return self._shared

    async def partitions(self) -> Sequence[str]:
        """All partitions of the topics that exist, as the brokers name them now.

        Ends the readers of a topic that was deleted, or created again, since the last call.
        """
        topics = await self._existing_topics()
        found = await self._brokers.topic_ids(list(topics))
        for topic, before in self._topic_ids.items():
            if topic not in topics:
                self._consumer.fail(topic, PartitionGone(f"topic {topic} of {self.url} was deleted"))
            elif not Position(0, before).is_of(now := found.get(topic)):
                self._consumer.fail(topic, RecordsLost(f"{self._created_again(topic, before, now)}; it was read on"))
        self._topic_ids = found
        return [f"{topic}-{number}" for topic, numbers in topics.items() for number in numbers]

    async def _existing_topics(self) -> Mapping[str, Sequence[int]]:
        """Topics and their partition numbers. One is missing if the brokers say so several times."""
        found, missing = await self._brokers.topics(self._topic_ids)
        for _ in range(_ASKED_AGAIN):
            if missing <= self._missing:
                break
            await self._clock.sleep(_ASKED_AFTER)
            found, missing = await self._brokers.topics(self._topic_ids)
        for topic in sorted(missing - self._missing):
            logger.error("kafka.topic_missing", source=self.url, topic=topic)
        self._missing = missing
        return found

    async def check_exists(self) -> None:
        """Raises SourceError: a topic that the URL names does not exist."""
        if missing := (await self._brokers.topics()).missing:
            names = ", ".join(sorted(missing))
            raise SourceError(f"{self.url}: the brokers know no topic {names}: check the name, or create it")

    # Positions

    async def start(self, partition: str, at: Start) -> str:
        low, high = await self._brokers.watermarks(_key(partition))
        if at == "earliest":
            offset = low
        elif at == "latest":
            offset = high
        else:
            found = await self._brokers.offset_at(_key(partition), at)
            offset = high if found is None else found
        return self._position(partition, offset)

    async def position_of(self, consumer: str, partition: str) -> str | None:
        """Where a consumer group, as `kafka-group:NAME`, or Azure's processors, as `eventhubs-checkpoints:URL`, are."""
        if group := consumer.removeprefix(GROUP) if consumer.startswith(GROUP) else None:
            offset = await self._brokers.committed(group, _key(partition))
        elif consumer.startswith(CHECKPOINTS):
            offset = await self._azure_offset(consumer.removeprefix(CHECKPOINTS), _key(partition))
        else:
            raise UsageError(
                f"start_from = {consumer!r}: {self.url} knows the positions of {GROUP}NAME and {CHECKPOINTS}URL"
            )
        return None if offset is None else self._position(partition, offset)

    async def _azure_offset(self, url: str, key: Key) -> int | None:
        if self._azure is None:
            host = self._address.brokers.partition(":")[0]
            self._azure = AzureCheckpoints(url, host)
        topic, number = key
        checkpoints = await self._clock.run_in_thread(self._azure.read, topic)
        sequence = checkpoints.get(number)
        return None if sequence is None else sequence + 1

    async def end(self, partition: str) -> End:
        low, high = await self._brokers.watermarks(_key(partition))
        return End(self._position(partition, high), high - 1 if high > low else None)

    async def position_at(self, partition: str, sequence: int) -> str:
        return self._position(partition, sequence)

    def sequence_before(self, partition: str, position: str) -> int:
        return Position.parse(position).offset - 1

    def reached(self, cursor: Cursor, end: End) -> bool:
        at, last = Position.parse(cursor.position), Position.parse(end.position)
        return at.is_of(last.topic_id) and at.offset >= last.offset

    def _position(self, partition: str, offset: int) -> str:
        return str(Position(offset, self._topic_ids.get(_key(partition)[0])))

    # Reading

    async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        offset, topic_id = await self._readable(partition, Position.parse(position))
        feed: Feed = self._consumer.assign(_key(partition), partition, offset)
        try:
            at_end: Chunk | None = None
            while True:
                rounds = self._consumer.rounds
                with anyio.move_on_after(self._settings.max_read_time / 3) as silence:
                    taken = await feed.next()
                    chunk = Chunk(taken.batch, str(Position(int(taken.next), topic_id)))
                    at_end = None if len(chunk.batch) else chunk
                if not silence.cancelled_caught:
                    yield chunk
                elif at_end is not None and self._consumer.last_error is None and self._consumer.rounds != rounds:
                    yield at_end  # says that this goes on
        finally:
            self._consumer.unassign(feed)

    async def _readable(self, partition: str, position: Position) -> Position:
        """Where to read on.

        Raises:
            RecordsLost: the topic was created again, or has lost records; or records were removed at the broker before
                they were read, and `on_out_of_range` is "fail".
        """
        topic, _ = _key(partition)
        low, high = await self._brokers.watermarks(_key(partition))
        topic_id = (await self._brokers.topic_ids([topic]))[topic]
        if not position.is_of(topic_id):
            raise RecordsLost(self._created_again(topic, position.topic_id, topic_id))
        offset = position.offset
        if offset > high:
            raise RecordsLost(
                f"partition {partition} of {self.url}: offset {offset} lies beyond the end {high}: the topic has lost "
                "records, or was created again. Its next records would take offsets that are processed already"
            )
        if offset < low:
            offset = self._after_loss(partition, offset, low, high)
        return Position(offset, topic_id)

    def _after_loss(self, partition: str, offset: int, low: int, high: int) -> int:
        if (policy := self._settings.on_out_of_range) != "fail":
            at = low if policy == "earliest" else high
            logger.warning("source.records_lost", source=self.url, partition=partition, records=at - offset, at=at)
            return at
        raise RecordsLost(
            f"partition {partition} of {self.url}: {low - offset:,} records before offset {low} were removed at the "
            "broker before they were read (on_out_of_range = fail)"
        )

    def _created_again(self, topic: str, before: str | None, now: str | None) -> str:
        return (
            f"topic {topic} of {self.url} was deleted and created again (its id is {now}, not {before}): offsets of "
            "one mean nothing in the other. Give the processor another name, which then begins the new topic"
        )

    async def time_at(self, partition: str, position: str) -> datetime | None:
        """Timestamp of the first message from `position` on; None if there is none, or none comes in time."""
        return await first_time(self, partition, position, self.timeout)

    async def mirror(self, group: str, positions: Mapping[str, str]) -> None:
        """Commit the offsets of these positions to a consumer group that has no members."""
        offsets = {_key(partition): Position.parse(position).offset for partition, position in positions.items()}
        if offsets:
            await self._brokers.commit(group, offsets)


def _key(partition: str) -> Key:
    topic, _, number = partition.rpartition("-")
    return topic, int(number)
