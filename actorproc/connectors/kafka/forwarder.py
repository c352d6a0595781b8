"""`KafkaForwarder`: sends the records of a partition to a topic of Kafka. Needs the extra `kafka`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from actorproc.config.options import with_secrets
from actorproc.errors import HandlerError
from actorproc.handler.base import CloseReason, Decision, PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.handler.info import PartitionInfo
from actorproc.records import Batch, Record
from actorproc.runtime.clock import SYSTEM
from actorproc.runtime.requirements import how_to_install
from actorproc.runtime.user_code import failure_of

try:
    from actorproc.connectors.kafka.messages import KafkaMessage, Numbered, copies_of, copy_of
    from actorproc.connectors.kafka.send_errors import KafkaUnavailable, ProducerLost
    from actorproc.connectors.kafka.topic_position import TopicPosition
    from actorproc.connectors.kafka.writers import IdempotentWriter, TransactionalWriter, Writer, check_properties
except ImportError:
    raise ImportError(f"KafkaForwarder needs confluent-kafka: {how_to_install('kafka')}") from None

__all__ = ["ForwarderOptions", "KafkaForwarder", "KafkaMessage"]

PARTITION, SEQUENCE = "actorproc.partition", "actorproc.sequence"
"""Headers of a message that was sent without a transaction: where its record comes from."""

Messages: TypeAlias = KafkaMessage | Iterable[KafkaMessage] | None


class ForwarderOptions(BaseModel):
    """Options of KafkaForwarder."""

    model_config = ConfigDict(extra="forbid")

    brokers: str = Field(min_length=1, description="HOST:PORT[,HOST:PORT...] of the brokers.")
    topic: str = Field(min_length=1, description="The topic to write; it must exist.")
    transactions: bool = Field(True, description="Each message once, by a transaction for each batch.")
    timeout: float = Field(60.0, ge=1, le=900, description="Seconds for one batch to be delivered.")
    properties: dict[str, str | int | float | bool] = Field(
        default_factory=dict,
        description="librdkafka's, for example for security; as JSON. The content of a file: @PATH.",
    )


class KafkaForwarder(PartitionHandler):
    """Sends a message for each record: same key, value, headers and timestamp.

    Override `messages` to send other ones. It emits no rows; records that fail become dead letters.

    With transactions each record is forwarded once, whatever crashes. Without them a message may come twice. It then
    carries the headers `actorproc.partition` and `actorproc.sequence`, which its copies share.
    """

    Options = ForwarderOptions

    exclusive = True

    def messages(self, record: Record) -> Messages:
        """Return a message, several, or None. An exception is this record's failure."""
        return copy_of(record)

    @classmethod
    @asynccontextmanager
    async def shared(cls, options: Any) -> AsyncIterator[Any]:
        """Yields the writer for all partitions of a host, if there are no transactions.

        Raises:
            UsageError: librdkafka refuses a property.
        """
        properties = _properties(options)
        if options.transactions:
            await SYSTEM.run_in_thread(check_properties, properties)
            yield None
            return
        writer = IdempotentWriter(properties, options.topic, options.timeout)
        try:
            yield writer
        finally:
            await SYSTEM.run_in_thread(writer.close)

    async def opened(self, ctx: PartitionInfo) -> None:
        """Fence earlier owners at the brokers, and read how far the topic is."""
        self._position = TopicPosition()
        self._own: TransactionalWriter | None = None
        options = ctx.options
        self.exclusive = options.transactions
        if options.transactions:
            name = f"actorproc-{ctx.processor_id}-{ctx.partition}"  # without the name, which may change
            self._own = TransactionalWriter(_properties(options), options.topic, name, options.timeout)
            self._position = (await SYSTEM.run_in_thread(self._own.open)).followed_by(ctx.resets)
            ctx.log.info("kafka.position", topic=options.topic, upto=self._position.upto)
        self._writer: Writer = self._own or ctx.shared

    async def closing(self, ctx: PartitionInfo, reason: CloseReason) -> None:
        """Close the partition's producer."""
        if self._own is not None:
            await SYSTEM.run_in_thread(self._own.close)

    def process(self, batch: Batch, ctx: PartitionContext) -> None:
        """Send the messages of the records that the topic does not have, and wait until they are delivered."""
        known = self._position.committed(ctx.committed)
        new = batch if batch.first > known.end else _without(batch, known)
        self._position = known.begun(batch.sequences)  # also if this attempt fails
        messages, done = self._messages(new, ctx)
        while messages:
            refused = self._writer.write(messages, self._position.sent(done))
            for sequence, why in refused.items():
                failure = HandlerError(f"Kafka refuses the message: {why}")
                ctx.fail(batch[bisect_left(batch.sequences, sequence)], failure, again=False)
            done -= refused.keys()
            if not refused or not self._writer.atomic:
                break
            messages = [numbered for numbered in messages if numbered[0] not in refused]
        self._position = self._position.sent(done)

    def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision | None:
        """Wait for brokers that are away. Start the partition again if only a new producer can go on."""
        if isinstance(error, KafkaUnavailable):
            return Decision.RETRY
        return Decision.STOP if isinstance(error, ProducerLost) else None

    def _messages(self, batch: Batch, ctx: PartitionContext) -> tuple[list[Numbered], set[int]]:
        """The messages to send, and the sequences of their records. Records that fail are not among them."""
        if type(self).messages is KafkaForwarder.messages:
            found, done = copies_of(batch), set(batch.sequences)
        else:
            found, done = self._made(batch, ctx)
        return (found if self._writer.atomic else _tagged(found, batch.partition)), done

    def _made(self, batch: Batch, ctx: PartitionContext) -> tuple[list[Numbered], set[int]]:
        """Those that the user's `messages` returns."""
        found: list[Numbered] = []
        done: set[int] = set()
        for record in batch:
            try:
                made = self.messages(record)
                several = [made] if isinstance(made, KafkaMessage) else list(made or ())
            except Exception as error:  # noqa: BLE001  # the user's code
                ctx.fail(record, failure_of(error))
                continue
            done.add(record.sequence)
            found += [(record.sequence, message) for message in several]
        return found, done


def _without(batch: Batch, known: TopicPosition) -> Batch:
    return batch.take([index for index, sequence in enumerate(batch.sequences) if sequence not in known])


def _tagged(messages: list[Numbered], partition: str) -> list[Numbered]:
    """With headers that two copies of a message share, and no other message has."""
    tagged: list[Numbered] = []
    source, before, index = (PARTITION, partition.encode()), -1, 0
    for sequence, message in messages:
        index = index + 1 if sequence == before else 0
        number = f"{sequence}.{index}" if index else str(sequence)
        headers = [*message.headers, source, (SEQUENCE, number.encode())]
        tagged.append((sequence, message._replace(headers=headers)))
        before = sequence
    return tagged


def _properties(options: ForwarderOptions) -> dict[str, str | int | float | bool]:
    given = with_secrets("property", options.properties)
    return {"linger.ms": 5, **given, "bootstrap.servers": options.brokers}
