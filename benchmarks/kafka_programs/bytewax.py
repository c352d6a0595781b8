"""Bytewax: the rows are parsed and written in batches by a sink. Without recovery, so a restart begins again; with
totals by key, recovery keeps them.

Fast by its documentation: whole batches instead of one item at a time, and `batch_size` as it is ("a suitable starting
point for higher throughput dataflows").
https://docs.bytewax.io/stable/api/bytewax/bytewax.connectors.kafka.html
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import bytewax.operators as op
import orjson
from bytewax.connectors.kafka import KafkaSource
from bytewax.dataflow import Dataflow
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import run_main

from benchmarks.kafka_programs.parquet_rows import ParquetRows
from benchmarks.kafka_programs.task import Stopwatch, Task

ROWS = 100_000
"""In a file."""


class Part(StatelessSinkPartition[Any]):  # type: ignore[misc]
    def __init__(self, task: Task, watch: Stopwatch) -> None:
        self._rows = ParquetRows(task.folder)
        self._watch = watch
        self._keyed = task.variant == "totals"

    def write_batch(self, items: list[Any]) -> None:
        self._watch.begin()
        if self._keyed:
            self._rows.add_events(event for _, event in items)
        else:
            self._rows.add_values([item.value for item in items])
        if self._rows.waiting >= ROWS:
            self._rows.write()

    def close(self) -> None:
        self._rows.write()
        self._watch.finish()


class Sink(DynamicSink[Any]):  # type: ignore[misc]
    def __init__(self, task: Task) -> None:
        self._task = task

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Part:
        return Part(self._task, Stopwatch())


def add(total: float | None, event: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """The new total of a key, and the event with it."""
    total = (total or 0.0) + event["minutes"]
    return total, {**event, "minutes": total}


def main(task: Task) -> None:
    flow, recovery = Dataflow("bench"), None
    source = KafkaSource([task.brokers], [task.topic], tail=False, add_config=task.properties)
    items = op.input("in", flow, source)
    if task.variant == "totals":
        keyed = op.map("key", items, lambda item: (item.key.decode(), orjson.loads(item.value)))
        items = op.stateful_map("total", keyed, add)
        folder = Path(tempfile.mkdtemp())
        init_db_dir(folder, 1)
        recovery = RecoveryConfig(folder)
    op.output("out", items, Sink(task))
    run_main(flow, recovery_config=recovery)


if __name__ == "__main__":
    main(Task.given())
