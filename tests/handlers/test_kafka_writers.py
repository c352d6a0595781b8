"""The writer without transactions, shared by threads, with the real client and no broker."""

from __future__ import annotations

import ctypes
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from confluent_kafka import KafkaError, Producer, cimpl

from actorproc.handlers.kafka import ForwarderOptions, KafkaForwarder
from actorproc.handlers.kafka_errors import KafkaUnavailable, ProducerLost
from actorproc.handlers.kafka_messages import KafkaMessage
from actorproc.handlers.kafka_position import TopicPosition
from actorproc.handlers.kafka_writers import IdempotentWriter

NOWHERE = "127.0.0.1:1"


def write(writer: IdempotentWriter) -> dict[int, KafkaError]:
    return writer.write([(0, KafkaMessage(b"value"))], TopicPosition())


def plant_fatal_error(producer: Producer) -> None:
    """As librdkafka's own tests do; a producer of the Python client holds the pointer right after the object's head."""
    plant = ctypes.CDLL(cimpl.__file__).rd_kafka_test_fatal_error
    plant.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p]
    pointer = ctypes.c_void_p.from_address(id(producer) + object.__basicsize__).value
    assert plant(pointer, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, b"planted") == 0


def test_after_a_fatal_error_one_new_producer_sends_everything() -> None:
    writer = IdempotentWriter({"bootstrap.servers": NOWHERE}, "topic", 2)
    lost = writer._producer
    with ThreadPoolExecutor(3) as threads:
        writes = [threads.submit(write, writer) for _ in range(3)]
        until = time.monotonic() + 1.5
        while len(lost) < 3 and time.monotonic() < until:
            time.sleep(0.01)
        plant_fatal_error(lost)
        errors = [found.exception(10) for found in writes]
    assert [type(error) for error in errors] == [ProducerLost] * 3
    assert writer._producer is not lost
    with pytest.raises(KafkaUnavailable):  # a time-out, as there is no broker
        write(writer)


def test_a_fatal_error_between_two_writes_is_noticed_by_the_next_one() -> None:
    writer = IdempotentWriter({"bootstrap.servers": NOWHERE}, "topic", 1)
    plant_fatal_error(writer._producer)
    with pytest.raises(ProducerLost):
        write(writer)
    with pytest.raises(KafkaUnavailable):
        write(writer)


class Silent:
    """A producer that never reports."""

    def produce(self, *args: Any, **more: Any) -> None: ...

    def poll(self, seconds: float) -> int:
        return 0


def test_the_wait_for_a_report_that_never_comes_ends() -> None:
    writer = IdempotentWriter({"bootstrap.servers": NOWHERE}, "topic", 0.1)
    writer._producer = Silent()  # type: ignore[assignment]
    with pytest.raises(ProducerLost, match=r"no report of 1 messages in 0\.2 s"):
        write(writer)
    assert isinstance(writer._producer, Producer)


async def test_the_shared_writer_is_closed_when_the_host_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[IdempotentWriter] = []

    def close(writer: IdempotentWriter) -> None:
        closed.append(writer)

    monkeypatch.setattr(IdempotentWriter, "close", close)
    options = ForwarderOptions(brokers=NOWHERE, topic="topic", transactions=False)
    with pytest.raises(ZeroDivisionError):
        async with KafkaForwarder.shared(options) as writer:
            raise ZeroDivisionError
    assert closed == [writer]
