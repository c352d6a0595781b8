"""The writer without transactions, shared by threads, with the real client and no broker."""

from __future__ import annotations

import ctypes
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from confluent_kafka import KafkaError, Producer, cimpl

from actorproc.connectors.kafka.forwarder import ForwarderOptions, KafkaForwarder
from actorproc.connectors.kafka.messages import KafkaMessage, copies_of, copy_of
from actorproc.connectors.kafka.send_errors import KafkaUnavailable, ProducerLost
from actorproc.connectors.kafka.topic_position import TopicPosition
from actorproc.connectors.kafka.writers import IdempotentWriter, _produce
from actorproc.records import Batch

NOWHERE = "127.0.0.1:1"


def write(writer: IdempotentWriter) -> dict[int, str]:
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
    with pytest.raises(KafkaUnavailable):  # a time-out, because there is no broker
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


def test_messages_that_the_client_cannot_take_are_refused_alone() -> None:
    odd: list[KafkaMessage] = [
        KafkaMessage(b"", headers=[("\ud800", b"")]),  # would end the process
        KafkaMessage(b"", headers=[("a\0b", b"")]),  # would be cut
        KafkaMessage(b"", headers=[("a", "\ud800")]),  # type: ignore[list-item]
        KafkaMessage(b"", headers=[(7, b"")]),  # type: ignore[list-item]
        KafkaMessage(b"", headers=[("a", b"", b"")]),  # type: ignore[list-item]
        KafkaMessage(b"", headers=7),  # type: ignore[arg-type]
        KafkaMessage(b"", timestamp=2**70),
        KafkaMessage(b"", timestamp=1.5),  # type: ignore[arg-type]
        KafkaMessage(7),  # type: ignore[arg-type]
        KafkaMessage(b"", key="\ud800"),  # type: ignore[arg-type]
        KafkaMessage(b"", partition=2**40),
        KafkaMessage(b"", topic="\ud800"),
    ]
    reports: list[KafkaError | None] = []
    numbered = [(n, message) for n, one in enumerate(odd) for message in (one, one, KafkaMessage(b"fine"))]
    refused, queued = _produce(Producer({"bootstrap.servers": NOWHERE, "log_level": 0}), "topic", numbered, reports)
    assert refused.keys() == {*range(len(odd))}
    assert queued == len(odd)
    assert "NUL" in refused[1]


@pytest.mark.parametrize("micros", [0, -5_000, -1_600, 1_499, 1_600, None, 253_402_300_799_999_000])
def test_copies_of_a_batch_have_the_time_of_each_record(micros: int | None) -> None:
    time = None if micros is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    batch = Batch.of("0", [b""], [1], timestamps=[time])
    [(_, copy)] = copies_of(batch)
    assert copy.timestamp == (None if micros is None else (micros + 500) // 1000)
    assert copy == copy_of(batch[0])
