"""Faust (faust-streaming): an agent that takes 10,000 events at a time, a Parquet file each, acknowledged after it.

With totals by key in a table, or without.

Fast by its documentation: `stream.take_events`, and raw values without a model.
https://faust-streaming.github.io/faust/userguide/streams.html#take-buffer-up-values-in-the-stream
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import faust
import orjson

from benchmarks.kafka_programs.parquet_rows import ParquetRows
from benchmarks.kafka_programs.task import Stopwatch, Task

BATCH = 10_000


def main(task: Task) -> None:
    watch, rows = Stopwatch(), ParquetRows(task.folder)
    app = faust.App(
        task.out.strip("/").replace("/", "-"),
        broker=f"kafka://{task.brokers}",
        datadir=tempfile.mkdtemp(),
        topic_replication_factor=1,
        topic_disable_leader=True,
        stream_buffer_maxsize=BATCH,
        web_enabled=False,
    )
    topic = app.topic(task.topic, key_type=str, value_type=bytes, key_serializer="raw", value_serializer="raw")
    table = app.Table("totals", default=float, partitions=task.partitions) if task.variant == "totals" else None

    def with_totals(events: Sequence[faust.types.EventT[bytes]]) -> Iterator[dict[str, Any]]:
        """The events, each with the total of its key. A changelog topic keeps the table."""
        assert table is not None
        for event in events:
            values = orjson.loads(event.value)
            total = table[event.key] = table[event.key] + values["minutes"]
            yield {**values, "minutes": total}

    def begun(value: bytes) -> bytes:
        watch.begin()
        return value

    @app.agent(topic)  # type: ignore[untyped-decorator]
    async def handle(stream: faust.Stream[bytes]) -> None:
        stream.add_processor(begun)
        async for events in stream.take_events(BATCH, within=1):
            if table is None:
                rows.add_values(event.value for event in events)
            else:
                rows.add_events(with_totals(events))
            rows.write()
            if rows.total >= task.events:
                watch.finish()
                os._exit(0)  # leaving the group takes longer than the work

    faust.Worker(app, loglevel="WARN", quiet=True).execute_from_commandline()


if __name__ == "__main__":
    main(Task.given())
