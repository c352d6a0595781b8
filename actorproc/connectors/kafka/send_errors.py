"""Classifies errors of Kafka's client for a writer."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import KafkaError

from actorproc.errors import Fault, HandlerError

GONE = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}
"""Of messages that an abort or a fatal error dropped."""

REFUSED = {
    KafkaError.MSG_SIZE_TOO_LARGE, KafkaError._INVALID_ARG, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION
}  # fmt: skip
"""Of messages that are refused for good."""

REFUSED_LOGIN = {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL}
"""Why a client gets no connection, though a broker answers."""

UNSUPPORTED = {KafkaError._UNSUPPORTED_FEATURE, KafkaError.UNSUPPORTED_VERSION}
"""The broker does not know such a request."""

_UNFIT = {
    KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_TIMESTAMP, KafkaError.INVALID_RECORD,
}  # fmt: skip
"""Answers of a broker to a request that has a message which the topic does not take."""

_DOWN = {
    KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN,
    KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}  # fmt: skip


class KafkaUnavailable(HandlerError):
    """The brokers do not answer, or not in time. Nothing was sent; try again."""

    fault: Fault = "infrastructure"


class MessagesRefused(HandlerError):
    """The topic does not take a message. The brokers do not say which."""


class ProducerLost(HandlerError):
    """The producer cannot go on: another one has its transactional id, or it does not know how a transaction ended.

    A new one finds out.

    Args:
        is_fenced: another one has its transactional id, so nothing of its transaction was committed.
    """

    fault: Fault = "infrastructure"

    def __init__(self, message: str, *, is_fenced: bool = False) -> None:
        super().__init__(message)
        self.is_fenced = is_fenced


def main_error(reports: Sequence[KafkaError | None]) -> KafkaError | None:
    """The failed delivery that says most: a lost producer, else one that trying again does not help, else the first."""
    failed = [error for error in reports if error is not None]
    return max(failed, key=lambda error: (is_lost(error), not is_passing(error)), default=None)


def is_passing(error: KafkaError) -> bool:
    return error.code() in _DOWN or error.retriable()


def is_lost(error: KafkaError) -> bool:
    """Whether the producer can send nothing more. Reports and `produce` show it in the code alone.

    librdkafka drops queued messages when a fatal error comes.
    """
    return error.fatal() or error.code() == KafkaError._FATAL or error.code() in GONE


def is_fenced(error: KafkaError) -> bool:
    """Whether another producer has taken the transactional id over."""
    return error.code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)


def handler_error(error: KafkaError) -> HandlerError:
    """The error to raise for one of the client's."""
    text = f"Kafka: {error.str()}"
    if is_lost(error) or is_fenced(error):
        return ProducerLost(text, is_fenced=is_fenced(error))
    if error.code() in _UNFIT:
        return MessagesRefused(text)
    return KafkaUnavailable(text) if is_passing(error) or error.txn_requires_abort() else HandlerError(text)
