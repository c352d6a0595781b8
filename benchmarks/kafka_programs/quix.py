"""Quix Streams: at least once into Parquet by a `BatchingSink`, with totals by key or without; or exactly once into a
topic, as it has no other sink.

Its defaults are those that its documentation recommends: a checkpoint every five seconds, JSON by orjson.
https://quix.io/docs/quix-streams/configuration.html
https://quix.io/docs/quix-streams/advanced/checkpointing.html
"""

from __future__ import annotations

import tempfile
from typing import Any

from quixstreams import Application, State
from quixstreams.sinks import BatchingSink, SinkBatch

from benchmarks.kafka_programs.parquet_rows import ParquetRows
from benchmarks.kafka_programs.task import Stopwatch, Task


class Sink(BatchingSink):  # type: ignore[misc]
    def __init__(self, task: Task) -> None:
        super().__init__()
        self._rows = ParquetRows(task.folder)

    def write(self, batch: SinkBatch) -> None:
        self._rows.add_events(item.value for item in batch)
        self._rows.write()


def add(event: dict[str, Any], state: State) -> dict[str, Any]:
    """The event with the total of its key, which RocksDB and a changelog topic keep."""
    total = state.get("total", 0.0) + event["minutes"]
    state.set("total", total)
    return {**event, "minutes": total}


def main(task: Task) -> None:
    watch = Stopwatch()
    once = task.variant == "exactly-once"
    app = Application(
        task.brokers,
        consumer_group=task.out.strip("/").replace("/", "-"),  # a part of the name of the changelog topic
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once" if once else "at-least-once",
        consumer_extra_config=task.properties,
        state_dir=tempfile.mkdtemp(),
        loglevel="WARNING",
        on_message_processed=lambda *_: watch.begin(),
    )
    events = app.dataframe(app.topic(task.topic, value_deserializer="json"))
    if once:
        result = app.topic(f"{task.topic}-{task.out.rpartition('/')[2]}", value_serializer="json")
        events[["carrier", "minutes", "id"]].to_topic(result)
    else:
        events = events.apply(add, stateful=True) if task.variant == "totals" else events
        events.sink(Sink(task))
    app.run(count=task.events, collect=False)  # commits before it returns
    watch.finish()


if __name__ == "__main__":
    main(Task.given())
