"""FastStream on confluent_kafka: batches, each a Parquet file, acknowledged after it.

Fast by its documentation: `batch=True`, a decoder of our own, and no validation (`apply_types=False`).
https://faststream.ag2.ai/latest/confluent/
"""

from __future__ import annotations

import asyncio
from typing import Any

from faststream import AckPolicy, FastStream
from faststream.confluent import KafkaBroker

from benchmarks.kafka_programs.parquet_rows import ParquetRows
from benchmarks.kafka_programs.task import Stopwatch, Task

BATCH = 10_000


async def bodies(message: Any) -> Any:
    """The values of a batch as they are; the handler parses them."""
    return message.body


async def main(task: Task) -> None:
    watch, rows = Stopwatch(), ParquetRows(task.folder)
    done = asyncio.Event()
    broker = KafkaBroker(task.brokers, config=task.properties, apply_types=False, logger=None)

    @broker.subscriber(
        task.topic,
        group_id=task.out,
        auto_offset_reset="earliest",
        batch=True,
        max_records=BATCH,
        ack_policy=AckPolicy.REJECT_ON_ERROR,
        decoder=bodies,
    )  # type: ignore[untyped-decorator]
    async def handle(values: list[bytes]) -> None:
        watch.begin()
        rows.add_values(values)
        rows.write()
        if rows.total >= task.events:
            done.set()

    app = FastStream(broker, logger=None)
    running = asyncio.create_task(app.run())
    await done.wait()
    watch.finish()
    app.exit()
    await running


if __name__ == "__main__":
    asyncio.run(main(Task.given()))
