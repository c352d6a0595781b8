"""Faust (faust-streaming): an agent that takes 10,000 values at a time, a Parquet file each, acknowledged after it.

With totals by key in a table it takes single events, as tables need.

Fast by its documentation: `stream.take`, and raw values without a model.
https://faust-streaming.github.io/faust/userguide/streams.html#take-buffer-up-values-in-the-stream
"""

from __future__ import annotations

import os
import tempfile

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

    def begun(value: bytes) -> bytes:
        watch.begin()
        return value

    @app.agent(topic)  # type: ignore[untyped-decorator]
    async def handle(stream: faust.Stream[bytes]) -> None:
        stream.add_processor(begun)
        if table is not None:  # a table may be changed by single events only
            async for event in stream.events():
                values = orjson.loads(event.value)
                total = table[event.key] = table[event.key] + values["minutes"]
                rows.add_events([{**values, "minutes": total}])
                if rows.waiting >= BATCH or rows.total >= task.events:
                    done(rows)
        async for values in stream.take(BATCH, within=1):
            rows.add_values(values)
            done(rows)

    def done(rows: ParquetRows) -> None:
        """Write the rows that wait. Leaving the group takes longer than the work, so the last ones end the process."""
        rows.write()
        if rows.total >= task.events:
            watch.finish()
            os._exit(0)

    faust.Worker(app, loglevel="WARN", quiet=True).execute_from_commandline()


if __name__ == "__main__":
    main(Task.given())
