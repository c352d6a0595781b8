"""`KafkaSink`: committed rows as messages of a topic, each in one transaction with the sink's row.

The row is the text beside a committed offset of a consumer group that nobody joins, since offsets are what a Kafka
transaction can hold beside messages. Group and transactional id have one name for each sink and partition: a producer
that begins fences the one before. Protocol: docs/sinks.md.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain, repeat
from typing import Any, ClassVar, TypeVar
from urllib.parse import quote

import anyio
import msgspec
import pyarrow as pa
from confluent_kafka import TopicPartition
from pydantic import ConfigDict, Field

from actorproc.config.options import parse_options
from actorproc.connectors.kafka.address import address_of
from actorproc.connectors.kafka.collector import collector_paused
from actorproc.connectors.kafka.messages import KafkaMessage, Numbered
from actorproc.connectors.kafka.send_errors import KafkaUnavailable, MessagesRefused, ProducerLost
from actorproc.connectors.kafka.writers import TransactionalWriter, check_topic, stored_offset
from actorproc.errors import HandlerError, UsageError
from actorproc.sinks.messages import MessageOptions, Messages, messages_of, prepare
from actorproc.sinks.protocol import Delivery, Guarantee, Sink, SinkError, SinkMoved, SinkPlace, SinkRefused, SinkRow
from actorproc.sinks.row_encoder import RowEncoder, open_encoder

METADATA_LIMIT = 4096
"""Bytes of text beside an offset that a broker takes (its `offset.metadata.max.bytes`)."""

T = TypeVar("T")

_THREADS = 16
"""Calls of a host at once: each holds a thread while brokers are away."""

_DEFAULTS = {
    "linger.ms": 5,
    "compression.type": "lz4",
    "partitioner": "murmur2_random",  # as Java's producers and the built-in log: a key has one place for all
}


class KafkaSinkOptions(MessageOptions):
    """Options of a sink in Kafka. Any other option is a property of librdkafka, such as `sasl.password`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    timeout: float = Field(60.0, ge=1, le=900, description="Seconds for one transaction.")
    producers: int = Field(100, gt=0, le=10_000, description="Producers of a host, one for each partition in use.")


class _Held:
    """A producer that has fenced all others of its partition, and the sink's row as it has left it."""

    def __init__(self, writer: TransactionalWriter, row: SinkRow | None) -> None:
        self.writer, self.row = writer, row


class KafkaSink(Sink):
    """`kafka://BROKER[,BROKER]/TOPIC`. The topic must exist."""

    guarantee = Guarantee.EXACTLY_ONCE
    ordered: ClassVar[bool] = True
    forgets: ClassVar[bool] = True  # brokers delete offsets after a week without a commit
    options: KafkaSinkOptions

    def __init__(self, url: str, given: Mapping[str, Any], place: SinkPlace) -> None:
        self.options = parse_options(url, KafkaSinkOptions, given, of="sink")
        self.url, self.place = url, place
        address = address_of(url, "kafka://BROKER[,BROKER]/TOPIC", of="sink")
        if len(address.topics) != 1 or address.pattern is not None:
            raise UsageError(f"sink {place.name}: name one topic")
        self.topic = address.topics[0]
        own = {"bootstrap.servers": address.brokers}
        self._properties: dict[str, Any] = {**_DEFAULTS, **(self.options.model_extra or {}), **own}
        self._encoder = open_encoder(self.options, self.topic, place.clock)
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self._locks: dict[str, anyio.Lock] = {}
        self._threads = anyio.CapacityLimiter(_THREADS)

    # The contract

    async def open(self, schema: pa.Schema) -> None:
        """See `Sink.open`."""
        await prepare(self.options, schema, self._encoder)
        await self._in_thread(self._open)

    def _open(self) -> None:
        """Try the topic, and what a delivery needs beside it, under the names of a partition that does not exist."""
        timeout = self.options.timeout
        try:
            check_topic(self._properties, self.topic, timeout)
            writer = TransactionalWriter(self._properties, self.topic, self._name(""), timeout, patience=timeout)
            try:
                writer.open_at()
                writer.try_position()
            finally:
                writer.close()
        except KafkaUnavailable as error:
            raise SinkError(str(error)) from None
        except ProducerLost as error:  # another host tries the same, or the right to the name is missing
            raise (SinkError if error.is_fenced else SinkRefused)(str(error)) from None
        except HandlerError as error:
            raise SinkRefused(str(error)) from None

    async def read(self, partition: str) -> SinkRow | None:
        """See `Sink.read`. Fences nobody: `write` reads the row again when it has."""
        return await self._in_thread(self._read, partition)

    def _read(self, partition: str) -> SinkRow | None:
        try:
            name = self._name(partition)
            return _row_of(stored_offset(self._properties, self.topic, name, self.options.timeout))
        except HandlerError as error:
            raise SinkError(str(error)) from None

    async def write(self, delivery: Delivery) -> None:
        """See `Sink.write`."""
        async with self._locks.setdefault(delivery.partition, anyio.Lock()):
            await self._in_thread(self._write, delivery)

    def _write(self, delivery: Delivery) -> None:
        partition = delivery.partition
        held = self._held.get(partition)
        if held is not None and held.row == delivery.was:
            with _as_sink_errors(delivery), suppress(ProducerLost):  # somebody may have fenced it, and sent nothing
                self._send(held, delivery)
                return
        self._drop(partition)
        with _as_sink_errors(delivery):
            self._check(delivery, self._read(partition))  # before anybody is fenced
            self._send(self._claim(delivery), delivery)

    def _send(self, held: _Held, delivery: Delivery) -> None:
        """One transaction. After a failure the producer is not used again: what state it is in depends on the error."""
        partition, now = delivery.partition, delivery.now
        offset = TopicPartition(self.topic, 0, now.position, _text_of(now))
        self._held.pop(partition, None)
        try:
            with collector_paused():
                refused = held.writer.write_at(_messages(delivery, self.options, self._encoder), offset)
        except BaseException:
            held.writer.close()
            raise
        self._keep(partition, held)
        if refused:
            number, why = next(iter(refused.items()))
            sequence = delivery.rows["_sequence"][number].as_py()
            raise SinkRefused(f"the row of record {sequence} of partition {partition}: {why}")
        held.row = now

    def _claim(self, delivery: Delivery) -> _Held:
        """A new producer of the partition, which fences all others; the row is the expected one.

        Raises:
            SinkMoved: the row is another one.
        """
        name = self._name(delivery.partition)
        timeout = self.options.timeout
        writer = TransactionalWriter(self._properties, self.topic, name, timeout, patience=timeout)
        try:
            held = _Held(writer, _row_of(writer.open_at()))
            self._check(delivery, held.row)
        except BaseException:
            writer.close()
            raise
        return held

    def _check(self, delivery: Delivery, found: SinkRow | None) -> None:
        if found != delivery.was:
            raise SinkMoved(f"partition {delivery.partition}: the row of {self.topic} is {found}, not {delivery.was}")

    def _keep(self, partition: str, held: _Held) -> None:
        self._held[partition] = held
        while len(self._held) > self.options.producers:
            self._drop(next(iter(self._held)))

    def _drop(self, partition: str) -> None:
        if (held := self._held.pop(partition, None)) is not None:
            held.writer.close()

    def _name(self, partition: str) -> str:
        """Group and transactional id of a partition. No name may have a colon."""
        parts = (self.place.processor, self.place.name, self.topic, quote(partition, safe=""))
        return f"actorproc-sink:{':'.join(parts)}"

    async def close(self) -> None:
        """See `Sink.close`."""
        await self._in_thread(self._close)
        await self._encoder.close()

    async def _in_thread(self, work: Callable[..., T], *args: object) -> T:
        """Run `work` in a thread of this sink: brokers that do not answer take none from others.

        A caller that is cancelled does not wait. A later producer of the partition fences one that is still at work.
        """
        return await self.place.clock.run_in_thread(work, *args, limiter=self._threads, abandon=True)

    def _close(self) -> None:
        for partition in list(self._held):
            self._drop(partition)


@contextmanager
def _as_sink_errors(delivery: Delivery) -> Iterator[None]:
    try:
        yield
    except ProducerLost as error:
        raise (SinkMoved if error.is_fenced else SinkError)(str(error)) from None
    except KafkaUnavailable as error:
        raise SinkError(str(error)) from None
    except MessagesRefused as error:
        raise SinkRefused(f"{error} (a row of the commits from {delivery.since} on)") from None
    except HandlerError as error:
        raise SinkRefused(str(error)) from None


def _messages(delivery: Delivery, options: MessageOptions, encoder: RowEncoder) -> Iterator[Numbered]:
    """The rows, numbered. The client sends the first while the next are made."""
    return enumerate(chain.from_iterable(map(_kafka_messages, messages_of(delivery, options, encoder))))


def _kafka_messages(some: Messages) -> Iterable[KafkaMessage]:
    none = repeat(None)
    times: Iterable[int | None] = none
    if some.times is not None:
        times = [None if time is None else time // 1000 for time in some.times.cast(pa.int64()).to_pylist()]
    headers = some.headers or repeat(())
    fields = zip(some.values.to_pylist(), some.keys.to_pylist(), headers, none, none, times, strict=False)
    return map(tuple.__new__, repeat(KafkaMessage), fields)  # without Python's call for each


def _text_of(row: SinkRow) -> str:
    text = msgspec.json.encode(row).decode()
    if len(text.encode()) > METADATA_LIMIT:
        raise SinkRefused(f"the URL of the container is too long for the text beside an offset: {row.home}")
    return text


def _row_of(found: TopicPartition) -> SinkRow | None:
    if found.offset < 0:
        return None
    try:
        return msgspec.json.decode(found.metadata or "", type=SinkRow)
    except msgspec.DecodeError as error:
        raise SinkRefused(f"the offset of topic {found.topic} is not one of actorproc: {error}") from None
