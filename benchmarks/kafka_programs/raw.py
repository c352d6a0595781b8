"""confluent_kafka by hand: consume only, or parse and write Parquet, and commit the offsets after each file."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaException

from benchmarks.kafka_programs.parquet_rows import ParquetRows
from benchmarks.kafka_programs.task import Stopwatch, Task

ROWS = 100_000
"""In a file."""


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
        rows.add_values([message.value() or b"" for message in messages])
        if rows.waiting >= ROWS or seen >= task.events:
            rows.write()
            consumer.commit(asynchronous=False)
    watch.finish()
    consumer.close()


if __name__ == "__main__":
    main(Task.given())
