"""Topics of a test's own on a real Kafka broker, and a processor that reads them."""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path
from typing import Any

import orjson
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewPartitions, NewTopic
from pyarrow.dataset import dataset

from actorproc import JsonRows, Processor, Source
from tests.connectors.kafka.server import Broker

_NUMBERS = count()


class Topic:
    """A new topic, and a producer for it."""

    def __init__(self, broker: Broker, partitions: int = 2, **config: str) -> None:
        self.name = f"topic-{next(_NUMBERS)}"
        self.url = f"kafka://{broker.address}/{self.name}"
        self.broker = broker
        self.admin = AdminClient({"bootstrap.servers": broker.address})
        # Forwarded messages keep their old timestamps, by which the broker would delete them within the test.
        kept = {"retention.ms": "-1"} | config
        self.create(NewTopic(self.name, partitions, 1, config=kept))
        self.producer = Producer({"bootstrap.servers": broker.address})

    def create(self, topic: NewTopic) -> None:
        self.admin.create_topics([topic])[topic.topic].result(30)
        self._wait_until(topic.topic, listed=True)  # the broker answers before it lists it

    def send(self, numbers: range, partition: int | None = None, **more: Any) -> None:
        for n in numbers:
            self.producer.produce(
                self.name,
                orjson.dumps({"n": n}),
                key=b"%d" % n,
                partition=n % 2 if partition is None else partition,
                **more,
            )
        assert self.producer.flush(30) == 0

    def transaction(self, numbers: range, *, commit: bool) -> None:
        producer = Producer({**self._properties(), "transactional.id": f"{self.name}-{next(_NUMBERS)}"})
        producer.init_transactions(30)
        producer.begin_transaction()
        for n in numbers:
            producer.produce(self.name, orjson.dumps({"n": n}), partition=0)
        producer.flush(30)
        producer.commit_transaction(30) if commit else producer.abort_transaction(30)

    def alter(self, config: dict[str, str]) -> None:
        changes = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in config.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, self.name, incremental_configs=changes)
        self.admin.incremental_alter_configs([resource])[resource].result(30)

    def delete_before(self, offset: int) -> None:
        [deleted] = self.admin.delete_records([TopicPartition(self.name, 0, offset)]).values()
        deleted.result(30)

    def grow(self, partitions: int) -> None:
        self.admin.create_partitions([NewPartitions(self.name, partitions)])[self.name].result(30)

    def _wait_until(self, name: str, *, listed: bool) -> None:
        while (name in self.admin.list_topics(timeout=30).topics) is not listed:
            time.sleep(0.05)

    def messages(self) -> list[Message]:
        """All committed messages, by partition and offset."""
        how = {"group.id": "tests", "enable.partition.eof": True, "auto.offset.reset": "earliest"}
        consumer = Consumer(self._properties() | how)
        partitions = consumer.list_topics(self.name).topics[self.name].partitions
        consumer.assign([TopicPartition(self.name, number, 0) for number in partitions])
        found: list[Message] = []
        ended = 0
        while ended < len(partitions):
            message = consumer.poll(10)
            assert message is not None
            ended += message.error() is not None
            found += [message] if message.error() is None else []
        consumer.close()
        return sorted(found, key=lambda message: (message.partition(), message.offset()))

    def _properties(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.url.removeprefix("kafka://").partition("/")[0]}

    def committed(self, group: str) -> list[int]:
        """Offsets that the group has committed in two partitions."""
        consumer = Consumer({**self._properties(), "group.id": group})
        found = consumer.committed([TopicPartition(self.name, number) for number in range(2)], timeout=30)
        consumer.close()
        return [place.offset for place in found]

    def delete(self) -> None:
        self.admin.delete_topics([self.name])[self.name].result(30)
        self._wait_until(self.name, listed=False)

    def create_again(self) -> None:
        """Delete it, and create a topic of the same name."""
        self.delete()
        self.create(NewTopic(self.name, 1, 1))
        self.producer = Producer(self._properties())


class Rows(JsonRows):
    output_schema = "n bigint"


async def process(source: Source, container: Path, **more: Any) -> list[int]:
    """Run until the end, and return all numbers committed so far. `more`: arguments and settings of the processor."""
    await Processor(Rows, source=source, container=str(container), **more).run(until_end=True)
    return numbers(container)


def numbers(container: Path) -> list[int]:
    rows = dataset(container / "Rows" / "output", format="parquet")
    return sorted(rows.to_table()["n"].to_pylist()) if rows.files else []  # the folder comes before the first file
