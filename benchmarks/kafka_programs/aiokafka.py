"""aiokafka: `getmany`, a Parquet file for 50,000 events, and a commit after it.

Fast by its documentation: batches by `getmany`, since "calling `getone` in a loop" costs a coroutine per message.
https://aiokafka.readthedocs.io/en/stable/consumer.html
"""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaConsumer

from benchmarks.kafka_programs.parquet_rows import ParquetRows
from benchmarks.kafka_programs.task import Stopwatch, Task

ROWS = 50_000
"""In a file."""


async def main(task: Task) -> None:
    watch, rows = Stopwatch(), ParquetRows(task.folder)
    consumer = AIOKafkaConsumer(
        task.topic,
        bootstrap_servers=task.brokers,
        group_id=task.out,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    await consumer.start()
    while rows.total < task.events:
        batches = await consumer.getmany(timeout_ms=100, max_records=10_000)
        for messages in batches.values():
            watch.begin()
            rows.add_values([message.value for message in messages])
        if rows.waiting >= ROWS or (rows.waiting and rows.total >= task.events):
            rows.write()
            await consumer.commit()
    watch.finish()
    await consumer.stop()


if __name__ == "__main__":
    asyncio.run(main(Task.given()))
