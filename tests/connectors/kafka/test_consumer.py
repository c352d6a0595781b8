"""The shared consumer of a Kafka source, without brokers."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import structlog

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from confluent_kafka import KafkaError, KafkaException, Message

from actorproc.connectors.kafka import KafkaSource
from actorproc.connectors.kafka import source as kafka_source
from actorproc.connectors.kafka.consumer import Feed, SharedConsumer
from actorproc.connectors.kafka.properties import client_properties
from actorproc.errors import UsageError

NOWHERE = "127.0.0.1:9"


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "actorproc-kafka"}


@pytest.fixture
def consumer() -> Iterator[SharedConsumer]:
    made = SharedConsumer(client_properties(NOWHERE, {}, None), 1_000_000)
    yield made
    made.close()


@pytest.mark.parametrize("error", [KafkaException(KafkaError(KafkaError._INVALID_ARG)), RuntimeError("broken")])
async def test_a_source_that_fails_to_open_leaves_no_consumer(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> None:
        raise error

    monkeypatch.setattr(kafka_source, "Brokers", broken)
    before = threads()
    with pytest.raises(UsageError if isinstance(error, KafkaException) else RuntimeError):
        await KafkaSource(f"kafka://{NOWHERE}/topic").open()
    assert threads() <= before


async def test_errors_of_no_partition_end_no_reader(consumer: SharedConsumer) -> None:
    errors = [Message(error=KafkaError(code)) for code in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)]
    assert [message.partition() for message in errors] == [None, None]
    with structlog.testing.capture_logs() as logs:
        consumer._hand_over(errors)
    assert not logs
    assert consumer.last_error is not None
    assert consumer.last_error.code() == KafkaError._TRANSPORT


async def test_waits_are_short_only_after_a_message(consumer: SharedConsumer, monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle host must not wake a hundred times a second, and a busy one must not keep an assignment waiting."""
    consumer.close()
    waits: list[float] = []
    news = [[Message(error=KafkaError(KafkaError._TRANSPORT))]]

    class Client:
        def consume(self, count: int, timeout: float) -> list[Message]:
            if timeout:
                waits.append(timeout)
            return news.pop() if news else []

    monkeypatch.setattr(consumer, "_consumer", Client())
    consumer._feeds[("topic", 0)] = Feed(("topic", 0), "topic-0")
    consumer._silent_polls = 1_000
    for _ in range(200):
        consumer._read_round()
    assert waits == [0.1] + [0.01] * 100 + [0.1] * 99
