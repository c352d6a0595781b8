"""Topics of Apache Kafka as a source: leases decide who reads which partition, never the broker's consumer groups."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import anyio
from confluent_kafka import KafkaException, TopicPartition

from actorproc.config.settings import Settings
from actorproc.errors import RecordsLost, SourceError, UsageError
from actorproc.records import Cursor
from actorproc.runtime.backoff import Backoff
from actorproc.runtime.clock import SYSTEM, Clock
from actorproc.sources.kafka.columns import Key
from actorproc.sources.kafka.consumer import Feed, SharedConsumer
from actorproc.sources.kafka.presets import parse_url
from actorproc.sources.kafka.properties import client_properties, with_secrets
from actorproc.sources.protocol import Chunk, End, Source, Start

T = TypeVar("T")


class KafkaSource(Source):
    """Reads one or several topics. A partition is `TOPIC-NUMBER`; positions and sequences are offsets.

    Offsets have gaps where the topic is compacted or written in transactions.

    Args:
        url: `kafka://BROKER:PORT[,...]/TOPIC[,...]`, or `/^REGEX` for all topics that match;
            `eventhubs://NAMESPACE/HUB`; or `oci-streaming://REGION/STREAM?pool=OCID`.
        properties: librdkafka's, by name, such as `security.protocol`. The content of a file: `@PATH`.
        settings: `on_out_of_range` says what happens when the next offset is no longer at the broker, and
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
        given = with_secrets(properties or {})
        self._address = parse_url(url, given)
        self._properties = client_properties(self._address.brokers, given, self._address.properties)
        self._settings = settings or Settings.load()
        self._clock = clock
        self._shared: SharedConsumer | None = None
        self.timeout = 10.0
        """Seconds for one question to the brokers."""

    async def open(self) -> None:
        """Connect to the brokers.

        Raises:
            UsageError: librdkafka refuses a property.
            SourceError: no broker answers within `store_patience`, or a topic is missing.
        """
        try:
            self._shared = SharedConsumer(self._properties, self._settings.read_ahead_bytes // 4)
        except KafkaException as error:
            raise UsageError(f"source {self.url}: {error.args[0].str()}") from None
        backoff, end = Backoff(0.5, 5.0), self._clock.monotonic() + self._settings.store_patience
        attempt = 0
        while True:
            attempt += 1
            try:
                names = await self.partitions()
                break
            except SourceError:
                if self._clock.monotonic() > end:
                    raise
                await self._clock.sleep(backoff.delay(attempt, self._clock.random))
        cluster = await self._ask(lambda: self._consumer.client.cluster_id(timeout=self.timeout), "for its cluster id")
        topics = sorted({_key(name)[0] for name in names}) if self._address.pattern is None else self._address.topics
        self.identity = f"kafka:{cluster}/{','.join(topics)}"

    async def close(self) -> None:
        if self._shared is not None:
            await self._clock.run_in_thread(self._shared.close)

    @property
    def _consumer(self) -> SharedConsumer:
        if self._shared is None:
            raise SourceError(f"{self.url} is not open")
        return self._shared

    async def partitions(self) -> Sequence[str]:
        """All partitions of the topics, as the brokers name them now."""
        topics = await self._ask(self._list_topics, "for its topics")
        for name, topic in topics.items():
            if topic.error is not None:
                raise SourceError(f"topic {name} of {self.url} cannot be read: {topic.error.str()}")
        return [f"{name}-{number}" for name in sorted(topics) for number in sorted(topics[name].partitions)]

    def _list_topics(self) -> dict[str, Any]:
        client = self._consumer.client
        if self._address.pattern is not None:
            found = client.list_topics(timeout=self.timeout).topics
            return {name: topic for name, topic in found.items() if self._address.includes(name)}
        return {name: client.list_topics(name, timeout=self.timeout).topics[name] for name in self._address.topics}

    async def start(self, partition: str, at: Start) -> str:
        low, high = await self._watermarks(partition)
        if at == "earliest":
            return str(low)
        if at == "latest":
            return str(high)
        return str(await self._offset_at(partition, at, high))

    async def end(self, partition: str) -> End:
        low, high = await self._watermarks(partition)
        return End(str(high), high - 1 if high > low else None)

    def sequence_before(self, partition: str, position: str) -> int:
        return _offset(position) - 1

    def reached(self, cursor: Cursor, end: End) -> bool:
        return _offset(cursor.position) >= _offset(end.position)

    async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        offset = await self._in_range(partition, _offset(position))
        feed: Feed = self._consumer.assign(_key(partition), partition, offset)
        try:
            at_end: Chunk | None = None
            while True:
                rounds = self._consumer.rounds
                with anyio.move_on_after(self._settings.max_read_time / 3) as silence:
                    chunk = await feed.next()
                    at_end = None if len(chunk.batch) else chunk
                if not silence.cancelled_caught:
                    self._consumer.resume_if_drained(feed)
                    yield chunk
                elif at_end is not None and self._consumer.last_error is None and self._consumer.rounds != rounds:
                    yield at_end  # says that this goes on
        finally:
            self._consumer.unassign(feed)

    async def _in_range(self, partition: str, offset: int) -> int:
        """The offset from which to read.

        Raises:
            RecordsLost: records were removed at the broker before they were read, and `on_out_of_range` is "fail".
        """
        low, high = await self._watermarks(partition)
        if low <= offset <= high:
            return offset
        if self._settings.on_out_of_range != "fail":
            return low if self._settings.on_out_of_range == "earliest" else high
        if offset < low:
            why = f"{low - offset:,} records before offset {low} were removed at the broker before they were read"
        else:
            why = f"offset {offset} lies beyond the end {high}: the topic was made anew or has lost records"
        raise RecordsLost(f"partition {partition} of {self.url}: {why} (on_out_of_range = fail)")

    async def _watermarks(self, partition: str) -> tuple[int, int]:
        where = TopicPartition(*_key(partition))
        client = self._consumer.client
        low, high = await self._ask(
            lambda: client.get_watermark_offsets(where, timeout=self.timeout, cached=False), f"where {partition} ends"
        )
        return low, high

    async def _offset_at(self, partition: str, time: datetime, high: int) -> int:
        where = TopicPartition(*_key(partition), int(time.timestamp() * 1000))
        client = self._consumer.client
        [found] = await self._ask(
            lambda: client.offsets_for_times([where], timeout=self.timeout), f"where {partition} has {time}"
        )
        return found.offset if found.offset >= 0 else high

    async def _ask(self, question: Callable[[], T], what: str) -> T:
        try:
            return await self._clock.run_in_thread(question)
        except KafkaException as error:
            await self._clock.run_in_thread(
                lambda: self._consumer.client.poll(0)
            )  # brings what the client has to report
            cause = self._consumer.last_error or error.args[0]
            raise SourceError(f"{self.url}: the brokers were asked {what}: {cause.str()}") from None


def _key(partition: str) -> Key:
    topic, _, number = partition.rpartition("-")
    return topic, int(number)


def _offset(position: str) -> int:
    try:
        return int(position)
    except ValueError:
        raise SourceError(f"position {position!r} is no offset of a topic") from None
