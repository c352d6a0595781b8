"""Writes messages to Kafka topics: in transactions that store a position too, or with an idempotent producer alone.

The protocol of the transactions: docs/protocol.md. Model: tests/protocol/forward_model.py.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient  # type: ignore[attr-defined]  # not in its __all__

from actorproc.connectors.kafka.messages import Numbered
from actorproc.connectors.kafka.send_errors import (
    GONE,
    REFUSED,
    REFUSED_LOGIN,
    UNSUPPORTED,
    ProducerLost,
    handler_error,
    is_fenced,
    is_lost,
    is_passing,
    main_error,
)
from actorproc.connectors.kafka.topic_position import TopicPosition
from actorproc.errors import HandlerError, UsageError
from actorproc.runtime.error_text import format_error

T = TypeVar("T")

Properties = Mapping[str, str | int | float | bool]

_SILENT = logging.getLogger("actorproc.librdkafka")
_SILENT.propagate = False
_SILENT.addHandler(logging.NullHandler())
_QUIET = {
    "logger": _SILENT,  # its errors are raised; it prints fatal ones at any `log_level`
    "log_level": 0,
    "reconnect.backoff.max.ms": 1_000,  # as in Kafka's Java client; by default a broker's outage lasts 10 s longer
}
_STUCK = 10.0  # seconds until a call that ignores its time-out is given up

_BY_KEY, _NOW = -1, 0  # for `produce`: the partition, the timestamp
_SOON = 2.0  # seconds until it is looked why the brokers do not answer
_FIRST = 1  # millisecond since 1970
_POLL = 0.1  # seconds to wait for room in the producer's queue
_STABLE = 1.0  # seconds to wait for the end of a transaction
_NO_GROUP = KafkaError.GROUP_AUTHORIZATION_FAILED
_TRIES = 50  # questions to a coordinator that has just started


class Writer(Protocol):
    """Sends the messages of a batch, and waits until the brokers have them."""

    atomic: bool
    """Whether nothing is sent if a message is refused."""

    def write(self, messages: Sequence[Numbered], position: TopicPosition) -> dict[int, str]:
        """Send them; `position` holds once they are sent.

        Returns:
            Why the client refuses messages, for example too large ones, by the sequence of the record.

        Raises:
            KafkaUnavailable: try again. If the writer is atomic, nothing was sent.
            HandlerError: the brokers refuse at least one of the messages. If the writer is atomic, nothing was sent.
            ProducerLost: it is not known which messages were sent; make another writer.
        """
        ...


class TransactionalWriter:
    """Sends each batch in a transaction that also stores the position. All calls block.

    The position is the offset of a consumer group of its own, which nobody joins: offsets are what a Kafka transaction
    can hold beside messages. The group has the name of the transactional id.

    Args:
        properties: librdkafka's.
        topic: of messages that name none.
        name: transactional id. A later writer of the same name has the broker refuse all later messages of this one.
        timeout: seconds for one transaction, and for one question to the brokers.
        patience: seconds for which a coordinator that is not there yet is asked again.

    Raises:
        UsageError: librdkafka refuses a property.
    """

    atomic = True

    def __init__(
        self, properties: Properties, topic: str, name: str, timeout: float, patience: float = math.inf
    ) -> None:
        self._patience = patience
        self._properties, self._topic, self._name, self._timeout = properties, topic, name, timeout
        ours = {"transactional.id": name, "transaction.timeout.ms": int(timeout * 1000)}
        self._producer = _made(Producer, {**properties, **ours, "delivery.report.only.error": True})
        self._is_stuck = False  # a call that was given up still uses the producer

    def open(self) -> TopicPosition:
        """See `open_at`."""
        return TopicPosition.of_offset(self.open_at())

    def open_at(self) -> TopicPartition:
        """Refuse earlier writers of this name, end their transactions, and read the offset that was stored last.

        Raises:
            KafkaUnavailable: the brokers do not answer.
            HandlerError: they refuse, for example because rights are missing.
        """
        try:
            _check_topic(self._producer, self._topic, self._timeout)
            init = partial(self._producer.init_transactions, self._timeout)
            _patiently(self._producer, init, self._patience)
            stored = _patiently(self._producer, self._stored_offset, self._patience)
        except KafkaException as error:
            raise handler_error(error.args[0]) from None
        return stored

    def _stored_offset(self) -> TopicPartition:
        """The committed offset of the group. One of a transaction that is not ended yet is waited for."""
        group = {**self._properties, "group.id": self._name, "isolation.level": "read_committed"}
        with _consumer(group) as consumer:
            self._members = consumer.consumer_group_metadata()
            return _committed(consumer, self._topic, self._timeout)

    def try_position(self) -> None:
        """Begin a transaction that stores a position, and abort it.

        Raises:
            KafkaUnavailable, ProducerLost: the brokers do not answer.
            HandlerError: they refuse, for example because rights are missing.
        """
        try:
            self._producer.begin_transaction()
            self._send_offset(TopicPartition(self._topic, 0, 0))
            self._producer.abort_transaction()
        except KafkaException as error:
            cause = error.args[0]
            raise HandlerError(f"Kafka: {cause.str()}") if cause.code() == _NO_GROUP else handler_error(cause) from None

    def write(self, messages: Sequence[Numbered], position: TopicPosition) -> dict[int, str]:
        """See `Writer.write`."""
        return self.write_at(messages, position.to_offset(self._topic))

    def write_at(self, messages: Iterable[Numbered], offset: TopicPartition) -> dict[int, str]:
        """See `Writer.write`: the offset is what is stored."""
        reports: list[KafkaError | None] = []
        try:
            self._producer.begin_transaction()
            refused, _ = _produce(self._producer, self._topic, messages, reports)
            if refused:
                self._producer.abort_transaction()
            else:
                self._send_offset(offset)
                self._commit()
        except KafkaException as error:
            self._abort(error.args[0])
            own = [report for report in reports if report is None or report.code() not in GONE]
            raise handler_error(main_error(own) or error.args[0]) from None
        return refused

    def _send_offset(self, offset: TopicPartition) -> None:
        """Add the position to the transaction.

        After an outage librdkafka may wait without end for a coordinator that it has forgotten, whatever the time-out:
        https://github.com/confluentinc/librdkafka/issues/5511 and 5456. So the call has a thread, and is given up.

        Raises:
            ProducerLost: there is no answer.
            KafkaException: the transaction must be aborted, or the producer is lost.
        """
        producer, sent = self._producer, Future[None]()

        def send() -> None:
            try:
                producer.send_offsets_to_transaction([offset], self._members, self._timeout)
            except KafkaException as error:
                sent.set_exception(error)
            else:
                sent.set_result(None)

        threading.Thread(target=send, name="actorproc-kafka-offset", daemon=True).start()
        try:
            sent.result(min(self._timeout, _STUCK))
        except TimeoutError:
            self._is_stuck = True
            sent.add_done_callback(lambda _: _drop(producer))
            raise ProducerLost("Kafka does not answer that it has the position of a transaction") from None

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
        if is_lost(cause):
            raise ProducerLost(f"the Kafka producer cannot go on: {cause.str()}", is_fenced=is_fenced(cause))
        try:
            self._producer.abort_transaction()
        except KafkaException as error:
            why = error.args[0]
            raise ProducerLost(
                f"a Kafka transaction could not be aborted: {why.str()}", is_fenced=is_fenced(why) or is_fenced(cause)
            ) from None

    def close(self) -> None:
        """Drop uncommitted messages. A producer in which a call is stuck is closed when that ends."""
        if not self._is_stuck:
            _drop(self._producer)


class IdempotentWriter:
    """Sends messages with one idempotent producer for all partitions of a host. All calls block.

    Threads of several partitions write at once. After a fatal error the next write has a new producer; threads that
    wait for reports of the old one keep it until these have come.

    Args:
        properties, topic, timeout: as for `TransactionalWriter`.

    Raises:
        UsageError: librdkafka refuses a property.
    """

    atomic = False

    def __init__(self, properties: Properties, topic: str, timeout: float) -> None:
        self._topic, self._timeout = topic, timeout
        ours = {"enable.idempotence": True, "message.timeout.ms": int(timeout * 1000)}
        self._properties = {**properties, **ours}
        self._producer = _made(Producer, self._properties)
        self._replacing = threading.Lock()

    def write(self, messages: Sequence[Numbered], position: TopicPosition) -> dict[int, str]:
        """See `Writer.write`. Of messages that are not refused, some may be sent when it raises."""
        producer, reports = self._producer, list[KafkaError | None]()
        try:
            refused, queued = _produce(producer, self._topic, messages, reports)
            self._await(producer, reports, queued)
        except KafkaException as error:
            raise self._failure(producer, error.args[0]) from None
        if (failed := main_error(reports)) is not None:
            raise self._failure(producer, failed)
        return refused

    def _await(self, producer: Producer, reports: Sequence[object], count: int) -> None:
        """Wait for this many reports. librdkafka gives each within the time-out of its message.

        Raises:
            ProducerLost: one did not come in twice that time.
            KafkaException: the producer has had a fatal error, which one of the threads that poll it gets.
        """
        until = time.monotonic() + 2 * self._timeout  # noqa: TID251  # in a thread without an event loop
        while len(reports) < count:
            if time.monotonic() > until:  # noqa: TID251
                self._replace(producer)
                raise ProducerLost(f"Kafka: no report of {count - len(reports)} messages in {2 * self._timeout:g} s")
            producer.poll(_POLL)

    def _failure(self, producer: Producer, error: KafkaError) -> HandlerError:
        if is_lost(error):
            self._replace(producer)
        return handler_error(error)

    def _replace(self, lost: Producer) -> None:
        """Make a new producer, unless another thread has replaced this one already."""
        with self._replacing:
            if self._producer is lost:
                self._producer = _made(Producer, self._properties)

    def close(self) -> None:
        """Drop undelivered messages."""
        self._producer.purge()
        self._producer.close()


def stored_offset(properties: Properties, topic: str, name: str, timeout: float) -> TopicPartition:
    """The offset that the writer of this name has stored last. Fences nobody.

    A transaction that is about to end is waited for, and one that is left open by a dead writer is not.

    Raises:
        KafkaUnavailable: the brokers do not answer.
        HandlerError: they refuse, for example because rights are missing.
    """
    group = {**properties, "group.id": name}
    with suppress(KafkaException), _consumer({**group, "isolation.level": "read_committed"}) as consumer:
        return _committed(consumer, topic, min(_STABLE, timeout))
    try:
        with _consumer({**group, "isolation.level": "read_uncommitted"}) as consumer:
            return _patiently(consumer, lambda: _committed(consumer, topic, timeout), timeout)
    except KafkaException as error:
        raise handler_error(error.args[0]) from None


@contextmanager
def _consumer(properties: Properties) -> Iterator[Consumer]:
    consumer = _made(Consumer, properties)
    try:
        yield consumer
    finally:
        consumer.close()


def _patiently(client: Producer | Consumer, question: Callable[[], T], patience: float = math.inf) -> T:
    """Ask again for a while: a coordinator that has just started, or moved, answers later.

    Args:
        patience: seconds after which it is asked only once more.
    """
    until = time.monotonic() + patience  # noqa: TID251  # in a thread without an event loop
    for _ in range(_TRIES):
        if time.monotonic() > until:  # noqa: TID251
            break
        try:
            return question()
        except KafkaException as error:
            if not is_passing(error.args[0]):
                raise
        client.poll(_POLL)
    return question()


def _committed(consumer: Consumer, topic: str, timeout: float) -> TopicPartition:
    try:
        [stored] = consumer.committed([TopicPartition(topic, 0)], timeout)
    except KafkaException:
        told = consumer.poll(0)  # a group that may not be read is told there, and the question has waited in vain
        if told is not None and (why := told.error()) is not None and why.code() == _NO_GROUP:
            raise KafkaException(why) from None
        raise
    if stored.error is not None:
        raise KafkaException(stored.error)
    return stored


def _produce(
    producer: Producer, topic: str, messages: Iterable[Numbered], reports: list[KafkaError | None]
) -> tuple[dict[int, str], int]:
    """Queue the messages. Each report of a delivery is added to `reports`.

    Returns:
        Why the client refuses messages, by the sequence of the record; and the number of messages that it has queued.
    """
    refused: dict[int, str] = {}
    queued = 0

    def note(error: KafkaError | None, _: object) -> None:
        reports.append(error)

    produce: Callable[..., None] = producer.produce
    for sequence, (value, key, headers, other_topic, partition, timestamp) in messages:
        number = _BY_KEY if partition is None else partition
        when = _NOW if timestamp is None else timestamp or _FIRST  # the client takes 0 for now
        while True:
            try:  # by position: names would double the cost of a message
                more = (_checked(headers),) if headers else ()
                produce(other_topic or topic, value, key, number, note, None, when, *more)
                queued += 1
            except BufferError:
                producer.poll(_POLL)
                continue
            except KafkaException as error:
                if error.args[0].code() not in REFUSED:
                    raise
                refused[sequence] = str(error.args[0].str())
            except (TypeError, ValueError, OverflowError) as error:  # a value, key, header or time of another kind
                refused[sequence] = format_error(error)
            break
    producer.poll(0)
    return refused, queued


def _checked(headers: Sequence[tuple[str, bytes | None]]) -> list[tuple[str, bytes | None]]:
    """The headers, for the client. It ends the process at a name with half a surrogate, and cuts a name at a NUL.

    Raises:
        ValueError, TypeError: a name cannot be sent.
    """
    for name, _ in headers:
        if "\0" in name:
            raise ValueError(f"header name {name!r} has a NUL character")
        name.encode()
    return list(headers)


def _drop(producer: Producer) -> None:
    with suppress(KafkaException):
        producer.purge()
        producer.close()


def check_properties(properties: Properties) -> None:
    """Make a producer that does nothing.

    Raises:
        UsageError: librdkafka refuses a property.
    """
    _made(Producer, properties).close()


def check_topic(properties: Properties, topic: str, timeout: float) -> None:
    """Ask the brokers for a topic.

    Raises:
        UsageError: librdkafka refuses a property.
        KafkaUnavailable: the brokers do not answer.
        HandlerError: there is no such topic, the login is refused, or the right to write is missing.
    """
    told: list[KafkaError] = []
    producer = _made(Producer, {**properties, "error_cb": told.append})
    until = time.monotonic() + timeout  # noqa: TID251  # in a thread without an event loop
    try:
        while True:
            try:
                _check_topic(producer, topic, min(timeout, _SOON))
                break
            except KafkaException as error:
                producer.poll(0)  # the client tells there why it has no connection
                if refused := [why for why in told if why.code() in REFUSED_LOGIN]:
                    raise HandlerError(f"Kafka: {refused[0].str()}") from None
                if not is_passing(error.args[0]) or time.monotonic() > until:  # noqa: TID251
                    raise handler_error(error.args[0]) from None
    finally:
        producer.close()
    _check_right_to_write(properties, topic, timeout)


def _check_right_to_write(properties: Properties, topic: str, timeout: float) -> None:
    admin = _made(AdminClient, properties)
    found = admin.describe_topics(
        TopicCollection([topic]), include_authorized_operations=True, request_timeout=timeout
    )  # fmt: skip
    try:
        allowed = found[topic].result(2 * timeout).authorized_operations
    except KafkaException as error:
        if error.args[0].code() in UNSUPPORTED:
            return  # the first transaction tells
        raise handler_error(error.args[0]) from None
    if allowed is not None and AclOperation.WRITE not in allowed:
        raise HandlerError(f"topic {topic}: the user may not write to it")


def _check_topic(producer: Producer, topic: str, timeout: float) -> None:
    found = producer.list_topics(topic, timeout).topics[topic]
    if found.error is not None:
        raise HandlerError(f"topic {topic}: {found.error.str()}")


def _made(kind: Callable[[dict[str, Any]], T], properties: Mapping[str, Any]) -> T:
    try:
        return kind({**_QUIET, **properties})
    except KafkaException as error:
        raise UsageError(f"Kafka properties: {error.args[0].str()}") from None
