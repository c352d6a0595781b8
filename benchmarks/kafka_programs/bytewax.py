"""Bytewax: the rows are parsed and written in batches by a sink. Without recovery, so a restart begins again.

Fast by its documentation: whole batches instead of one item at a time, and `batch_size` as it is ("a suitable starting
point for higher throughput dataflows").
https://docs.bytewax.io/stable/api/bytewax/bytewax.connectors.kafka.html
"""

from __future__ import annotations

from typing import Any

import bytewax.operators as op
from bytewax.connectors.kafka import KafkaSource
from bytewax.dataflow import Dataflow
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import run_main

from benchmarks.kafka_programs.parquet_rows import ParquetRows
from benchmarks.kafka_programs.task import Stopwatch, Task

ROWS = 100_000
"""In a file."""


class Part(StatelessSinkPartition[Any]):  # type: ignore[misc]
    def __init__(self, task: Task, watch: Stopwatch) -> None:
        self._rows = ParquetRows(task.folder)
        self._watch = watch

    def write_batch(self, items: list[Any]) -> None:
        self._watch.begin()
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


def main(task: Task) -> None:
    flow = Dataflow("bench")
    source = KafkaSource([task.brokers], [task.topic], tail=False, add_config=task.properties)
    op.output("out", op.input("in", flow, source), Sink(task))
    run_main(flow)


if __name__ == "__main__":
    main(Task.given())
