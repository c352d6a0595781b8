"""confluent_kafka by hand: consume; or parse and write Parquet, with a commit after each file; or forward messages."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaException, Message, Producer

from benchmarks.kafka_programs.parquet_rows import ParquetRows
from benchmarks.kafka_programs.task import Stopwatch, Task

ROWS = 100_000
"""In a file."""

MESSAGES = 10_000
"""In a transaction."""


class Forwarding:
    """Sends each message to another topic, in transactions that also hold the position."""

    def __init__(self, task: Task) -> None:
        self._topic = task.new_topic()
        self._producer = Producer({"bootstrap.servers": task.brokers, "transactional.id": self._topic, "linger.ms": 5})
        self._producer.init_transactions(30)
        self._open = 0  # messages of the transaction

    def send(self, messages: list[Message]) -> None:
        if not self._open:
            self._producer.begin_transaction()
        for message in messages:
            time = message.timestamp()[1]
            self._producer.produce(self._topic, message.value(), message.key(), timestamp=time)
        self._producer.poll(0)
        self._open += len(messages)

    def commit_if(self, consumer: Consumer, *, last: bool) -> None:
        if self._open >= MESSAGES or last:
            positions = consumer.position(consumer.assignment())
            self._producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata())
            self._producer.commit_transaction()
            self._open = 0


def main(task: Task) -> None:
    watch = Stopwatch()
    consumer = Consumer(
        {
            "bootstrap.servers": task.brokers,
            "group.id": task.out,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **task.properties,
        }
    )
    consumer.subscribe([task.topic])
    rows, seen = ParquetRows(task.folder), 0
    forwarding = Forwarding(task) if task.variant == "forward" else None
    while seen < task.events:
        messages = consumer.consume(1_000, 0.1)
        if not messages:
            continue
        watch.begin()
        for message in messages:
            if (error := message.error()) is not None:
                raise KafkaException(error)
        seen += len(messages)
        if task.variant == "consume":
            continue
        if forwarding is not None:
            forwarding.send(messages)
            forwarding.commit_if(consumer, last=seen >= task.events)
            continue
        rows.add_values([message.value() or b"" for message in messages])
        if rows.waiting >= ROWS or seen >= task.events:
            rows.write()
            consumer.commit(asynchronous=False)
    watch.finish()
    consumer.close()


if __name__ == "__main__":
    main(Task.given())
