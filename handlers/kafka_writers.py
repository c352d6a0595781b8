"""Writes messages to Kafka topics: in transactions that store a position too, or with an idempotent producer alone.

The protocol of the transactions: docs/protocol.md. Model: tests/protocol/forward_model.py.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Protocol, TypeVar

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from actorproc.errors import HandlerError, UsageError
from actorproc.records import Record

T = TypeVar("T")

Properties = Mapping[str, str | int | float | bool]

METADATA_LIMIT = 4096
"""Bytes of text beside an offset that a broker takes (its `offset.metadata.max.bytes`)."""

_POLL = 0.1  # seconds to wait for room in the producer's queue
_TRIES = 50  # questions to a coordinator that has just started
_GONE = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}  # of messages that an abort dropped
_REFUSED = {
    KafkaError.MSG_SIZE_TOO_LARGE, KafkaError._INVALID_ARG, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION
}  # fmt: skip
_DOWN = {
    KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN,
    KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}  # fmt: skip


class KafkaMessage(NamedTuple):
    """A message to send. `topic` None: the handler's; `partition` None: by the key. `timestamp`: ms since 1970."""

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    topic: str | None = None
    partition: int | None = None
    timestamp: int | None = None


def copy_of(record: Record) -> KafkaMessage:
    """A message with key, value, headers and timestamp of the record."""
    time = record.timestamp
    milliseconds = None if time is None else round(time.timestamp() * 1000)
    return KafkaMessage(record.value, record.key, record.headers, timestamp=milliseconds)


Numbered = tuple[int, KafkaMessage]
"""A message and the sequence of its record."""


class KafkaUnavailable(HandlerError):
    """The brokers do not answer, or not in time. Nothing was sent; try again."""


class ProducerLost(HandlerError):
    """The producer cannot go on: another one has its transactional id, or it does not know how a transaction ended.

    A new one finds out.
    """


@dataclass(frozen=True, slots=True)
class TopicPosition:
    """Records up to sequence `upto` were sent, but for those `left_out`."""

    upto: int = -1
    left_out: frozenset[int] = frozenset()

    def __contains__(self, sequence: int) -> bool:
        return sequence <= self.upto and sequence not in self.left_out

    def committed(self, sequence: int) -> TopicPosition:
        """Without the left-out records up to `sequence`: they are committed, so they do not come again."""
        return replace(self, left_out=frozenset(s for s in self.left_out if s > sequence))

    def begun(self, sequences: Sequence[int]) -> TopicPosition:
        """These records are at work, and not sent yet."""
        new = [sequence for sequence in sequences if sequence not in self]
        return TopicPosition(max(self.upto, *sequences), self.left_out.union(new))

    def sent(self, sequences: Iterable[int]) -> TopicPosition:
        return replace(self, left_out=self.left_out.difference(sequences))

    def to_offset(self, topic: str) -> TopicPartition:
        """As an offset with text: the next sequence, and the gaps between the left-out ones, packed.

        Raises:
            KafkaUnavailable: too many are left out. A commit of the partition makes room.
        """
        gaps = [b - a for a, b in pairwise([-1, *sorted(self.left_out)])]
        packed = base64.b64encode(zlib.compress(",".join(map(str, gaps)).encode())).decode() if gaps else ""
        if len(packed) > METADATA_LIMIT:
            raise KafkaUnavailable(f"{len(gaps)} failed records wait for a commit, more than a position can name")
        return TopicPartition(topic, 0, self.upto + 1, packed)

    @classmethod
    def of_offset(cls, stored: TopicPartition) -> TopicPosition:
        """From `to_offset`. Where nothing is stored: of no records."""
        if stored.offset == OFFSET_INVALID:
            return cls()
        packed = stored.metadata
        gaps = zlib.decompress(base64.b64decode(packed)).split(b",") if packed else []
        return cls(stored.offset - 1, frozenset(accumulate(map(int, gaps), initial=-1)) - {-1})


class Writer(Protocol):
    """Sends the messages of a batch, and waits until the brokers have them."""

    atomic: bool
    """Whether nothing is sent if a message is refused."""

    def write(self, messages: Sequence[Numbered], position: TopicPosition) -> dict[int, KafkaError]:
        """Send them; `position` holds once they are sent.

        Returns:
            Errors of messages that the client refuses, for example of too large ones, by the sequence of the record.

        Raises:
            KafkaUnavailable: try again. If the writer is atomic, nothing was sent.
            HandlerError: the brokers refuse at least one of the messages. If the writer is atomic, nothing was sent.
            ProducerLost: it is not known what was sent; make another writer.
        """
        ...


class TransactionalWriter:
    """Sends each batch in a transaction that also stores the position. All calls block.

    The position is the offset of a consumer group of its own, which nobody joins: offsets are what a Kafka transaction
    can hold beside messages. The group has the name of the transactional id.

    Args:
        properties: librdkafka's.
        topic: of messages that name none.
        name: transactional id. A later writer of the same name refuses what this one sends after that.
        timeout: seconds for one transaction, and for one question to the brokers.

    Raises:
        UsageError: librdkafka refuses a property.
    """

    atomic = True

    def __init__(self, properties: Properties, topic: str, name: str, timeout: float) -> None:
        self._properties, self._topic, self._name, self._timeout = properties, topic, name, timeout
        ours = {"transactional.id": name, "transaction.timeout.ms": int(timeout * 1000)}
        self._producer = _made(Producer, {**properties, **ours, "delivery.report.only.error": True})

    def open(self) -> TopicPosition:
        """Refuse earlier writers of this name, end what they have begun, and read the position.

        Raises:
            KafkaUnavailable: the brokers do not answer.
            HandlerError: they refuse, for example because rights are missing.
        """
        try:
            topic = self._producer.list_topics(self._topic, self._timeout).topics[self._topic]
            if topic.error is not None:
                raise HandlerError(f"topic {self._topic}: {topic.error.str()}")
            self._patiently(lambda: self._producer.init_transactions(self._timeout))
            stored = self._patiently(self._stored_offset)
        except KafkaException as error:
            raise _failure(error.args[0]) from None
        return TopicPosition.of_offset(stored)

    def _patiently(self, question: Callable[[], T]) -> T:
        """Ask again for a while: a coordinator that has just started, or moved, answers later."""
        for _ in range(_TRIES):
            try:
                return question()
            except KafkaException as error:
                if not _is_passing(error.args[0]):
                    raise
            self._producer.poll(_POLL)
        return question()

    def _stored_offset(self) -> TopicPartition:
        """The committed offset of the group. One of a transaction that is not ended yet is waited for."""
        group = {**self._properties, "group.id": self._name, "isolation.level": "read_committed"}
        consumer = _made(Consumer, group)
        try:
            self._members = consumer.consumer_group_metadata()
            [stored] = consumer.committed([TopicPartition(self._topic, 0)], self._timeout)
        finally:
            consumer.close()
        if stored.error is not None:
            raise KafkaException(stored.error)
        return stored

    def write(self, messages: Sequence[Numbered], position: TopicPosition) -> dict[int, KafkaError]:
        """See `Writer.write`."""
        offset = position.to_offset(self._topic)
        reports: list[KafkaError | None] = []
        try:
            self._producer.begin_transaction()
            refused = _produce(self._producer, self._topic, messages, reports)
            if refused:
                self._producer.abort_transaction()
            else:
                self._producer.send_offsets_to_transaction([offset], self._members, self._timeout)
                self._commit()
        except KafkaException as error:
            self._abort(error.args[0])
            raise _failure(_main_error(reports) or error.args[0]) from None
        return refused

    def _commit(self) -> None:
        """Commit. After a time-out the client goes on committing, so it is asked once more.

        Raises:
            ProducerLost: the transaction may have been committed.
            KafkaException: it must be aborted, or the producer is lost.
        """
        for _ in range(2):
            try:
                return self._producer.commit_transaction()
            except KafkaException as error:
                cause = error.args[0]
                if not cause.retriable():
                    raise
        raise ProducerLost(f"Kafka does not say whether a transaction was committed: {cause.str()}")

    def _abort(self, cause: KafkaError) -> None:
        """End the transaction without effect.

        Raises:
            ProducerLost: that is not possible.
        """
        if cause.fatal():
            raise ProducerLost(f"the Kafka producer cannot go on: {cause.str()}")
        try:
            self._producer.abort_transaction()
        except KafkaException as error:
            raise ProducerLost(f"a Kafka transaction could not be aborted: {error.args[0].str()}") from None

    def close(self) -> None:
        """Drop what was not committed."""
        with suppress(KafkaException):
            self._producer.purge()
            self._producer.close()


class IdempotentWriter:
    """Sends messages with one idempotent producer for all partitions of a host. All calls block.

    Args:
        properties, topic, timeout: as for `TransactionalWriter`.

    Raises:
        UsageError: librdkafka refuses a property.
    """

    atomic = False

    def __init__(self, properties: Properties, topic: str, timeout: float) -> None:
        self._topic = topic
        ours = {"enable.idempotence": True, "message.timeout.ms": int(timeout * 1000)}
        self._properties = {**properties, **ours}
        self._producer = _made(Producer, self._properties)

    def write(self, messages: Sequence[Numbered], position: TopicPosition) -> dict[int, KafkaError]:
        """See `Writer.write`. Of messages that are not refused, some may be sent when it raises."""
        reports: list[KafkaError | None] = []
        try:
            refused = _produce(self._producer, self._topic, messages, reports)
        except KafkaException as error:
            raise _failure(error.args[0]) from None
        while len(reports) < len(messages) - len(refused):
            self._producer.poll(_POLL)
        if (failed := _main_error(reports)) is not None:
            if failed.fatal():  # for example the topic was made anew
                self._producer = _made(Producer, self._properties)
            raise _failure(failed)
        return refused

    def close(self) -> None:
        """Drop what is not delivered."""
        self._producer.purge()
        self._producer.close()


def _produce(
    producer: Producer, topic: str, messages: Sequence[Numbered], reports: list[KafkaError | None]
) -> dict[int, KafkaError]:
    """Queue the messages. Each report of a delivery is added to `reports`.

    Returns:
        Errors of messages that the client refuses, by the sequence of the record.
    """
    refused: dict[int, KafkaError] = {}

    def note(error: KafkaError | None, _: object) -> None:
        reports.append(error)

    for sequence, (value, key, headers, other_topic, partition, timestamp) in messages:
        more: dict[str, Any] = {}
        if partition is not None:
            more["partition"] = partition
        if timestamp is not None:
            more["timestamp"] = timestamp
        if headers:
            more["headers"] = list(headers)
        while True:
            try:
                producer.produce(other_topic or topic, value, key, on_delivery=note, **more)
            except BufferError:
                producer.poll(_POLL)
                continue
            except KafkaException as error:
                if error.args[0].code() not in _REFUSED:
                    raise
                refused[sequence] = error.args[0]
            break
    producer.poll(0)
    return refused


def _main_error(reports: Sequence[KafkaError | None]) -> KafkaError | None:
    """The failed delivery that says most: one that trying again does not help, or the first."""
    failed = [error for error in reports if error is not None and error.code() not in _GONE]
    return next((error for error in failed if not _is_passing(error)), failed[0] if failed else None)


def _is_passing(error: KafkaError) -> bool:
    return error.code() in _DOWN or error.retriable()


def _made(kind: Callable[[dict[str, Any]], T], properties: Mapping[str, Any]) -> T:
    try:
        return kind({"log_level": 0, **properties})
    except KafkaException as error:
        raise UsageError(f"Kafka properties: {error.args[0].str()}") from None


def _failure(error: KafkaError) -> HandlerError:
    """The error to raise for one of the client's."""
    text = f"Kafka: {error.str()}"
    if error.fatal() or error.code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH):
        return ProducerLost(text)
    return KafkaUnavailable(text) if _is_passing(error) or error.txn_requires_abort() else HandlerError(text)
