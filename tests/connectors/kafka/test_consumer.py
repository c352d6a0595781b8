"""The shared consumer of a Kafka source, without brokers."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import anyio.lowlevel
import pytest
import structlog

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from confluent_kafka import KafkaError, KafkaException, Message

from actorproc.connectors.kafka import KafkaSource
from actorproc.connectors.kafka import source as kafka_source
from actorproc.connectors.kafka.consumer import Feed, SharedConsumer
from actorproc.connectors.kafka.properties import client_properties
from actorproc.errors import UsageError
from actorproc.records import Batch
from actorproc.sources.protocol import Chunk

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


class Client:
    """Gives one error, and notes for how long it is asked to wait."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.news = [[Message(error=KafkaError(KafkaError._TRANSPORT))]]

    def consume(self, count: int, timeout: float) -> list[Message]:
        if timeout:
            self.waits.append(timeout)
        return self.news.pop() if self.news else []


@pytest.fixture
def client(consumer: SharedConsumer, monkeypatch: pytest.MonkeyPatch) -> Client:
    """Of a consumer whose thread has ended."""
    consumer.close()
    client = Client()
    monkeypatch.setattr(consumer, "_consumer", client)
    return client


async def test_nothing_is_read_while_readers_have_enough_and_take_it(consumer: SharedConsumer, client: Client) -> None:
    feed = consumer._feeds["topic", 0] = Feed(("topic", 0), "topic-0", consumer._news)
    feed.put(Chunk(Batch.of("topic-0", [b"value"] * 10, range(10)), "10"))
    consumer._share = 16
    await anyio.lowlevel.checkpoint()
    await feed.next()
    consumer._read_round()
    assert client.waits, "nothing waits"
    client.waits.clear()
    feed.put(Chunk(Batch.of("topic-0", [b"value"] * 10, range(10, 20)), "20"))
    feed.put(Chunk(Batch.of("topic-0", [b"value"] * 10, range(20, 30)), "30"))
    await anyio.lowlevel.checkpoint()
    await feed.next()
    consumer._read_round()
    assert not client.waits
    consumer._news.clear()
    consumer._read_round()
    assert client.waits, "nobody takes a chunk, and the client has to be served"


async def test_waits_are_short_only_after_a_message(consumer: SharedConsumer, client: Client) -> None:
    """An idle host must not wake a hundred times a second, and a busy one must not keep an assignment waiting."""
    consumer._feeds[("topic", 0)] = Feed(("topic", 0), "topic-0", threading.Event())
    consumer._silent_polls = 1_000
    for _ in range(200):
        consumer._read_round()
    assert client.waits == [0.1] + [0.01] * 100 + [0.1] * 99
