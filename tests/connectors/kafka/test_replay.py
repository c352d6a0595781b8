"""Dead letters of a Kafka source are replayed into the topic from which they came, each once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from actorproc import Batch, PartitionContext, PartitionHandler, Processor, Settings
from actorproc.admin.dead_letters import DeadLetters, LetterId, Replayed, Selection
from actorproc.errors import StoreUnavailable, UsageError
from actorproc.output.letter import HISTORY
from actorproc.sources.replay_target import Outcome
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store, StoreLimits
from actorproc.stores.memory import MemoryStore
from tests.connectors.kafka.server import Broker

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from confluent_kafka import Producer

from actorproc.connectors.kafka import KafkaSource
from actorproc.connectors.kafka.replay_target import KafkaTarget
from actorproc.connectors.kafka.topic_position import TopicPosition
from actorproc.connectors.kafka.writers import TransactionalWriter
from tests.connectors.kafka.topics import Topic

pytestmark = pytest.mark.servers
LAYOUT = ProcessorLayout("Refuses")


class Refuses(PartitionHandler):
    """Gives up every record that was not replayed."""

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            if not any(name.startswith(HISTORY) for name, _ in record.headers):
                ctx.dead_letter(record, "refused")


@asynccontextmanager
async def refused(topic: Topic) -> AsyncIterator[Store]:
    """A container with dead letters of all messages of the topic."""
    async with Store(MemoryStore()) as store:
        await process(topic, store)
        yield store


async def process(topic: Topic, store: Store) -> None:
    processor = Processor(Refuses, source=KafkaSource(topic.url), container=store, settings=Settings())
    await processor.run(until_end=True)


async def replay(store: Store, source: str | None = None) -> Replayed:
    letters = await DeadLetters.opened(store, LAYOUT)
    return await letters.replay(Selection(), Settings(), source)


async def test_letters_return_to_their_partition_with_key_headers_and_history(broker: Broker) -> None:
    topic = Topic(broker)
    topic.producer.produce(topic.name, b"\xffvalue", key=b"key", partition=1, headers=[("a", b"1")])
    topic.producer.flush(30)
    async with refused(topic) as store:
        assert (await replay(store))[:3] == (topic.url, 1, 0)
        original, copy = topic.messages()
        assert (copy.partition(), copy.key(), copy.value()) == (1, b"key", b"\xffvalue")
        assert copy.timestamp() == original.timestamp()
        headers = dict(copy.headers() or [])
        assert (headers["a"], headers[f"{HISTORY}partition"]) == (b"1", f"{topic.name}-1".encode())
        await process(topic, store)
        assert (await replay(store))[:3] == (topic.url, 0, 1), "a second replay finds them in the topic"
        assert len(topic.messages()) == 2


class Forgetful(MemoryStore):
    """Once, the mark that a replay is done cannot be written."""

    forgets = True

    async def put_if_match(self, key: str, body: bytes, tag: str) -> str:
        if "/replays/" in key and self.forgets:
            raise StoreUnavailable("down")
        return await super().put_if_match(key, body, tag)


async def test_a_replay_that_died_after_its_transaction_repeats_nothing(broker: Broker) -> None:
    topic = Topic(broker)
    topic.send(range(10))
    backend = Forgetful()
    async with Store(backend, limits=StoreLimits(patience=0)) as store:
        await process(topic, store)
        with pytest.raises(StoreUnavailable):
            await replay(store)
        backend.forgets = False
        await replay(store)
    assert len(topic.messages()) == 20


async def test_another_topic_is_refused(broker: Broker) -> None:
    topic, other = Topic(broker), Topic(broker)
    topic.send(range(2))
    async with refused(topic) as store:
        with pytest.raises(UsageError, match="belongs to another stream"):
            await replay(store, other.url)
    assert other.messages() == []


async def test_a_letter_beyond_the_clients_limit_is_left_to_the_broker(broker: Broker) -> None:
    """librdkafka's own is 1,000,000 bytes, and that of the broker 48,588 more."""
    topic = Topic(broker)
    send(topic, 1_020_000)
    async with refused(topic) as store:
        assert (await replay(store))[1:3] == (1, 0)
    assert len(topic.messages()[-1].value() or b"") == 1_020_000


def send(topic: Topic, *sizes: int) -> None:
    producer = Producer({"bootstrap.servers": topic.broker.address, "message.max.bytes": 2_000_000})
    for size in sizes:
        producer.produce(topic.name, b"x" * size, key=b"k", partition=1)
    assert producer.flush(30) == 0


async def test_letters_that_a_topic_does_not_take_fail_alone(broker: Broker) -> None:
    """One letter is too large with the headers of a replay, the other because the topic has a lower limit."""
    topic = Topic(broker)
    send(topic, 100, 1_048_500, 200, 300_000, 300)
    async with refused(topic) as store:
        topic.alter({"max.message.bytes": "200000"})
        done = await replay(store)
        assert (done[1:3], sorted(done.refused)) == ((3, 0), [f"{topic.name}-1:1", f"{topic.name}-1:3"])
        assert all("Message size too large" in reason for reason in done.refused.values())
        again = await replay(store)
        assert (again[1:3], again.refused.keys()) == ((0, 3), done.refused.keys())
        selection = Selection(ids=frozenset([LetterId(f"{topic.name}-1", 3)]))
        corrected = await (await DeadLetters.opened(store, LAYOUT)).replay(selection, Settings(), value=b"short")
        assert (corrected[1:3], corrected.refused) == ((1, 0), {})
    sizes = [len(message.value() or b"") for message in topic.messages()]
    assert sizes == [100, 1_048_500, 200, 300_000, 300, 100, 200, 300, 5]


async def test_a_header_that_kafka_cannot_take_refuses_its_letter(broker: Broker) -> None:
    """The client would cut its name."""
    topic = Topic(broker)
    topic.producer.produce(topic.name, b"good", partition=1)
    topic.producer.flush(30)
    source = KafkaSource(topic.url)
    target = KafkaTarget(source.url, "", source.producer_properties, [f"{topic.name}-1"])
    headers: list[list[tuple[str, bytes | None]]] = [[("a\0b", b"1")], [], [("c", None)]]
    records = Batch.of("", [b"x", b"y", b"z"], range(3), headers=headers).data
    outcome = await target.append("replay-1", 0, f"{topic.name}-1", records)
    assert (list(outcome.refused), outcome.is_void) == ([0], True)
    assert await target.append("replay-1", 0, f"{topic.name}-1", records) == Outcome(is_void=True)
    assert await target.append("replay-1", 1, f"{topic.name}-1", records[1:]) == Outcome()
    assert await target.append("replay-1", 1, f"{topic.name}-1", records[1:]) == Outcome()
    assert [message.value() for message in topic.messages()] == [b"good", b"y", b"z"]


async def test_a_producer_that_is_fenced_in_between_is_replaced(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, fenced = Topic(broker), list[str]()
    send(topic, 100, 200)

    def write(writer: TransactionalWriter, messages: Any, position: TopicPosition) -> Mapping[int, str]:
        if not fenced:
            fenced.append(writer._name)
            Producer({"bootstrap.servers": broker.address, "transactional.id": writer._name}).init_transactions(30)
        return real(writer, messages, position)

    real = TransactionalWriter.write
    monkeypatch.setattr(TransactionalWriter, "write", write)
    async with refused(topic) as store:
        assert (await replay(store))[1:3] == (2, 0)
    assert len(fenced) == 1
    assert [len(message.value() or b"") for message in topic.messages()] == [100, 200, 100, 200]
