"""A topic of a Kafka broker as the log of a run: a producer that notes acknowledgements, and the topic's messages."""

from __future__ import annotations

import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import FrameType

import orjson
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.chaos import workload
from tests.chaos.truth import Sent

BURST = 16  # records at once
PATIENCE = 60.0  # seconds for an answer of the broker


def create(brokers: str, topic: str, partitions: int) -> None:
    """Create a topic."""
    client = AdminClient({"bootstrap.servers": brokers})
    client.create_topics([NewTopic(topic, partitions, 1)])[topic].result(PATIENCE)


def produce(brokers: str, topic: str, name: str, acks: Path, rate: float) -> None:
    """Send records until SIGTERM, `rate` a second, and append each acknowledged one to the file `acks`.

    Its lines are those of `programs.producer`.
    """
    stopping = False

    def stop(_: int, __: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    target = Producer({"bootstrap.servers": brokers, "enable.idempotence": True, "linger.ms": 50, "log_level": 0})
    sent = 0
    with acks.open("ab", buffering=0) as file:

        def acknowledge(number: int, error: KafkaError | None, message: Message) -> None:
            if error is None:
                file.write(f"{number} {topic}-{message.partition()} {message.offset()}\n".encode())

        while not stopping:
            for number in range(sent, sent + BURST):
                key, value = workload.key_of(name, number), workload.value_of(name, number)
                target.produce(topic, value, key, on_delivery=partial(acknowledge, number))
            sent += BURST
            target.poll(BURST / rate)
            time.sleep(BURST / rate)
        target.flush()
        file.write(b"done %d\n" % sent)


def read_records(brokers: str, topic: str, faults: list[str]) -> dict[str, list[Sent]]:
    """The records by partition; the place in the list is the offset. Adds each broken expectation to `faults`."""
    records: defaultdict[str, list[Sent]] = defaultdict(list)
    for message in committed_messages(brokers, topic):
        there = records[f"{topic}-{message.partition()}"]
        if message.offset() != len(there):
            faults.append(f"{topic}-{message.partition()} has offset {message.offset()} after {len(there)} records")
        event = orjson.loads(message.value() or b"")
        sent = Sent(event["producer"], event["number"], message.timestamp()[1] / 1000)
        if (message.key(), message.value()) != (workload.key_of(*sent[:2]), workload.value_of(*sent[:2])):
            faults.append(f"{topic} holds a record that nobody sent: {message.key()!r}, {message.value()!r}")
        there.append(sent)
    return dict(records)


def committed_messages(brokers: str, topic: str) -> Iterator[Message]:
    """All messages of committed transactions, or of none, in the order of each partition."""
    how = {"group.id": "chaos", "enable.partition.eof": True, "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": brokers, "log_level": 0, **how})
    left = set(consumer.list_topics(topic, PATIENCE).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, number, 0) for number in left])
    while left:
        message = consumer.poll(PATIENCE)
        assert message is not None, f"{topic} is not read to its end within {PATIENCE:g} s"
        if message.error() is None:
            yield message
        else:
            left.discard(message.partition())
    consumer.close()
