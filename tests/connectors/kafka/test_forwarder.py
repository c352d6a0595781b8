"""Forwarding records to a topic of a real Kafka broker."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from actorproc import Processor, Record, Settings
from actorproc.admin.resets import Resets
from actorproc.errors import UsageError
from actorproc.output.letter import dead_letters
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing import MemorySource
from tests.connectors.kafka.server import PASSWORD, Broker

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from confluent_kafka import TopicPartition

from actorproc.connectors.kafka.forwarder import PARTITION, SEQUENCE, KafkaForwarder, KafkaMessage
from actorproc.connectors.kafka.presets import parse_url
from actorproc.connectors.kafka.send_errors import KafkaUnavailable, ProducerLost
from actorproc.connectors.kafka.topic_position import TopicPosition
from actorproc.connectors.kafka.writers import TransactionalWriter
from tests.connectors.kafka.topics import Topic

pytestmark = pytest.mark.servers

QUICK: dict[str, Any] = {
    "retry_backoff": 0.01, "retry_backoff_max": 0.05, "restart_backoff": 0.05, "commit_interval": 0.2, "max_attempts": 2
}  # fmt: skip


class Stage:
    """A source in memory, a container in memory, and a topic to forward to."""

    def __init__(self, broker: Broker, **options: Any) -> None:
        self.topic = Topic(broker, partitions=1)
        self.options = {"brokers": broker.address, "topic": self.topic.name, "timeout": 5, **options}
        self.source = MemorySource()
        self.store = Store(MemoryStore())

    def feed(self, values: Sequence[bytes], **more: Any) -> None:
        self.source.append("0", values, **more)

    def processor(self, handler: type[KafkaForwarder] = KafkaForwarder, host: str = "a", **settings: Any) -> Processor:
        return Processor(
            handler, source=self.source, container=self.store, name="forward", host=host, options=self.options,
            settings=Settings(**(QUICK | settings)),
        )  # fmt: skip

    async def run(self, handler: type[KafkaForwarder] = KafkaForwarder, **settings: Any) -> None:
        """Until all records are processed."""
        await self.processor(handler, **settings).run(until_end=True)

    @property
    def values(self) -> list[bytes | None]:
        return [message.value() for message in self.topic.messages()]

    async def until(self, values: list[bytes]) -> None:
        """Wait until the topic has these messages."""
        with anyio.fail_after(60):
            while await anyio.to_thread.run_sync(lambda: self.values) != values:
                await anyio.sleep(0.05)

    async def letters(self, processor: Processor) -> list[int]:
        return [letter["sequence"] async for letter in dead_letters(self.store, processor.layout)]


@asynccontextmanager
async def staged(broker: Broker, **options: Any) -> AsyncIterator[Stage]:
    stage = Stage(broker, **options)
    async with stage.store:
        yield stage


def numbered(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


async def test_records_are_forwarded_with_key_headers_and_timestamp(broker: Broker) -> None:
    async with staged(broker) as stage:
        stage.feed([b"value"], key=b"key", headers=[("a", b"1")])
        await stage.run()
        [message] = stage.topic.messages()
        assert (message.value(), message.key(), message.headers()) == (b"value", b"key", [("a", b"1")])


@pytest.mark.parametrize("transactions", [True, False])
async def test_the_settings_of_event_hubs_log_the_forwarder_in_over_tls(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transactions: bool
) -> None:
    (tmp_path / "secret").write_text(PASSWORD)
    monkeypatch.setenv("EVENTHUBS_CONNECTION_STRING", "not used: the password is given")
    preset = parse_url("eventhubs://ns/hub").properties or {}
    login = {**preset, "sasl.password": f"@{tmp_path / 'secret'}", "ssl.ca.location": str(broker.certificate)}
    async with staged(broker, brokers=broker.tls_address, properties=login, transactions=transactions) as stage:
        stage.feed([b"value"])
        await stage.run()
        assert stage.values == [b"value"]


async def test_a_second_run_forwards_only_new_records(broker: Broker) -> None:
    async with staged(broker) as stage:
        stage.feed(numbered(100))
        await stage.run()
        stage.feed([b"new"])
        await stage.run()
        assert await stage.letters(stage.processor()) == []
        assert stage.values == [*numbered(100), b"new"]


async def test_a_crash_between_transaction_and_commit_repeats_nothing(broker: Broker) -> None:
    async with staged(broker) as stage:
        stage.feed(numbered(50))
        async with anyio.create_task_group() as tasks:
            processor = stage.processor(commit_interval=1000, idle_commit_interval=1000)
            tasks.start_soon(processor.run)
            await stage.until(numbered(50))
            tasks.cancel_scope.cancel()  # nothing is committed in the container
        stage.feed([b"new"])
        await stage.run()
        assert stage.values == [*numbered(50), b"new"]


async def test_a_reset_sends_only_committed_records_again(broker: Broker) -> None:
    async with staged(broker) as stage:
        stage.feed(numbered(20))
        await stage.run()
        stage.feed(numbered(30)[20:])
        async with anyio.create_task_group() as tasks:
            processor = stage.processor(commit_interval=1000, idle_commit_interval=1000)
            tasks.start_soon(processor.run)
            with anyio.fail_after(30):
                while len(stage.values) < 30:
                    await anyio.sleep(0.05)
            tasks.cancel_scope.cancel()  # ten records are in the topic, and not committed
        resets = Resets(stage.store, processor.layout, Settings(), stage.source, "ann")
        [done] = await resets.carry_out(await resets.plan(5), {})
        assert done.repeats == 15
        await stage.run()
        assert stage.values == numbered(30) + numbered(20)[5:]
        stage.feed([b"new"])
        await stage.run()
        assert stage.values[45:] == [b"new"]


class Picky(KafkaForwarder):
    def messages(self, record: Record) -> list[KafkaMessage]:
        value = record.value or b""
        if value.startswith(b"bad"):
            raise ValueError("bad")
        return [] if value.startswith(b"none") else [KafkaMessage(value), KafkaMessage(value + b"!")]


async def test_messages_of_the_handler_are_sent_and_failures_are_dead_letters(broker: Broker) -> None:
    async with staged(broker) as stage:
        stage.feed([b"a", b"bad", b"none", b"b"])
        processor = stage.processor(Picky)
        await processor.run(until_end=True)
        assert stage.values == [b"a", b"a!", b"b", b"b!"]
        assert await stage.letters(processor) == [1]


async def test_a_message_that_the_client_refuses_is_a_dead_letter(broker: Broker) -> None:
    async with staged(broker, properties={"message.max.bytes": 2000}) as stage:
        stage.feed([b"a", b"x" * 5000, b"b"])
        processor = stage.processor()
        await processor.run(until_end=True)
        assert stage.values == [b"a", b"b"]
        assert await stage.letters(processor) == [1]


class OddHeaders(KafkaForwarder):
    def messages(self, record: Record) -> KafkaMessage:
        return KafkaMessage(record.value, headers=[("\ud800" if record.value == b"odd" else "fine", b"1")])


@pytest.mark.parametrize("transactions", [True, False])
async def test_a_header_name_that_is_no_text_is_a_dead_letter(broker: Broker, transactions: bool) -> None:
    async with staged(broker, transactions=transactions) as stage:
        stage.feed([b"a", b"odd", b"b"])
        processor = stage.processor(OddHeaders)
        await processor.run(until_end=True)
        assert stage.values == [b"a", b"b"]
        assert await stage.letters(processor) == [1]


async def test_a_message_that_the_broker_refuses_is_a_dead_letter(broker: Broker) -> None:
    async with staged(broker) as stage:
        stage.options["topic"] = (topic := Topic(broker, 1, **{"max.message.bytes": "2000"})).name
        stage.feed([b"a", random.Random(1).randbytes(5000), b"b"])
        processor = stage.processor()
        await processor.run(until_end=True)
        assert sorted(message.value() or b"" for message in topic.messages()) == [b"a", b"b"]
        assert await stage.letters(processor) == [1]


async def test_without_transactions_messages_name_partition_and_sequence(broker: Broker) -> None:
    async with staged(broker, transactions=False) as stage:
        stage.feed([b"a", b"b"])
        await stage.run(Picky)
        tags = [[(PARTITION, b"0"), (SEQUENCE, number)] for number in (b"0", b"0.1", b"1", b"1.1")]
        assert [message.headers() for message in stage.topic.messages()] == tags


@pytest.mark.slow
async def test_brokers_that_are_away_are_waited_for_and_forwarding_goes_on(broker: Broker) -> None:
    """librdkafka forgets the coordinator of the position's group, and would wait for it without end."""
    async with (
        staged(broker, timeout=3) as running,
        staged(broker) as starting,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(running.processor().run)
        running.feed([b"before"])
        await running.until([b"before"])
        broker.stop()
        running.feed([b"after"])
        starting.feed(numbered(10))
        tasks.start_soon(starting.processor().run)
        await anyio.to_thread.run_sync(broker.start)
        await running.until([b"before", b"after"])
        await starting.until(numbered(10))
        for stage in (running, starting):
            assert await stage.letters(stage.processor()) == []
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("transactions", [True, False])
async def test_a_wrong_property_is_refused_at_the_start(broker: Broker, transactions: bool) -> None:
    async with staged(broker, properties={"no.such.property": 1}, transactions=transactions) as stage:
        with pytest.raises(UsageError, match=r"no\.such\.property"):
            await stage.run()


async def test_a_missing_topic_is_named(broker: Broker, tmp_path: Path) -> None:
    writer = TransactionalWriter({"bootstrap.servers": broker.address}, "no-such-topic", "missing", 5)
    with pytest.raises(Exception, match="no-such-topic"):
        writer.open()
    writer.close()


def writer_for(broker: Broker, topic: Topic) -> TransactionalWriter:
    return TransactionalWriter({"bootstrap.servers": broker.address}, topic.name, topic.name, 5)


def test_a_newer_writer_refuses_the_older_one(broker: Broker) -> None:
    topic = Topic(broker, 1)
    old, new = writer_for(broker, topic), writer_for(broker, topic)
    old.open()
    old.write([(0, KafkaMessage(b"old"))], TopicPosition(0))
    assert new.open() == TopicPosition(0)
    with pytest.raises(ProducerLost):
        old.write([(1, KafkaMessage(b"zombie"))], TopicPosition(1))
    new.write([(1, KafkaMessage(b"new"))], TopicPosition(1, frozenset({0})))
    assert [message.value() for message in topic.messages()] == [b"old", b"new"]
    assert writer_for(broker, topic).open() == TopicPosition(1, frozenset({0}))


def test_a_position_after_resets_covers_sent_uncommitted_records() -> None:
    position = TopicPosition(110, frozenset({90, 105})).followed_by({"a": 100, "b": 30})
    assert position == TopicPosition(-1, frozenset({105}), "b", ((100, 110),))
    assert position.followed_by({"a": 100, "b": 30}) == position
    assert [sequence in position for sequence in (50, 100, 101, 105, 110, 111)] == [
        False,
        False,
        True,
        False,
        True,
        False,
    ]
    assert TopicPosition.of_offset(position.to_offset("t")) == position
    on = position.begun(range(6)).sent(range(6))
    assert on.followed_by({"b": 30, "c": 2}) == TopicPosition(-1, frozenset({105}), "c", ((2, 5), (100, 110)))


def test_a_position_names_thousands_of_failures_and_not_more() -> None:
    half = frozenset(random.Random(2).sample(range(10_000), 5_000))
    position = TopicPosition(10_000, half)
    assert TopicPosition.of_offset(position.to_offset("t")) == position
    with pytest.raises(KafkaUnavailable, match="wait for a commit"):
        TopicPosition(10**6, frozenset(random.Random(2).sample(range(10**6), 50_000))).to_offset("t")
    assert TopicPosition.of_offset(TopicPartition("t", 0)) == TopicPosition()
