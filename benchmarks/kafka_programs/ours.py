"""actorproc on a `kafka://` source, with a handler of each kind: exactly once, into its own output.

The process is set up as `actorproc serve` does.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import anyio
import msgspec
import pyarrow as pa
import pyarrow.json

from actorproc import Batch, JsonRows, PartitionContext, PartitionHandler, Processor, RecordHandler
from actorproc.connectors.kafka import KafkaSource
from actorproc.connectors.kafka.forwarder import KafkaForwarder
from actorproc.handler.info import PartitionInfo
from actorproc.runtime.own_process import set_up_process
from benchmarks.kafka_programs.task import Stopwatch, Task
from benchmarks.processes import only_warnings

SCHEMA = "carrier string, minutes double, id bigint"
_WATCH = Stopwatch()


class Watched(PartitionHandler):
    """The clock begins before the first partition is read."""

    output_schema = SCHEMA

    async def opened(self, info: PartitionInfo) -> None:
        _WATCH.begin()


class Emit(Watched):
    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            event = record.json()
            row = {"carrier": event["carrier"], "minutes": event["minutes"], "id": event["id"]}
            ctx.emit(record, row)


class Lists(Watched):
    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for records, events in ctx.decode_lists(batch):
            rows = [{"carrier": e["carrier"], "minutes": e["minutes"], "id": e["id"]} for e in events]
            ctx.emit_each(records, rows)


class Event(msgspec.Struct):
    carrier: str
    minutes: float
    id: int


class Typed(Watched, RecordHandler[Event]):
    def process_record(self, event: Event, ctx: PartitionContext) -> tuple[object, ...]:
        return event.carrier, event.minutes, event.id


class Keyed(Watched, RecordHandler[Event]):
    """`Totals` without its state."""

    def process_record(self, event: Event, ctx: PartitionContext) -> tuple[object, ...]:
        key = self.record.key or b""
        return event.carrier if key else "", event.minutes, event.id


class Totals(Watched, RecordHandler[Event]):
    """The total of each key so far."""

    def process_record(self, event: Event, ctx: PartitionContext) -> tuple[object, ...]:
        key = self.record.key or b""
        total = ctx.state.get(key, 0.0) + event.minutes
        ctx.state.set(key, total)
        return event.carrier, total, event.id


class Rows(Watched, JsonRows):
    pass


class Columns(Watched):
    """By hand, with Arrow's own JSON reader."""

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        table = batch.to_arrow()
        values = table["value"].combine_chunks()
        lines = b"\n".join(values.to_numpy(zero_copy_only=False))
        rows = pyarrow.json.read_json(pa.BufferReader(lines), _READ, _PARSE)
        ctx.emit_arrow(rows.append_column("_sequence", table["_sequence"]))


class Forward(KafkaForwarder):
    """Into a topic, each message once. The clock begins when the first partition has its producer."""

    async def opened(self, ctx: PartitionInfo) -> None:
        await super().opened(ctx)
        _WATCH.begin()


_READ = pyarrow.json.ReadOptions(use_threads=False, block_size=64 * 2**20)
_PARSE = pyarrow.json.ParseOptions(
    explicit_schema=pa.schema([("carrier", pa.string()), ("minutes", pa.float64()), ("id", pa.int64())]),
    unexpected_field_behavior="ignore",
)

HANDLERS: dict[str, type[Any]] = {
    "emit": Emit, "lists": Lists, "typed": Typed, "keyed": Keyed, "totals": Totals, "rows": Rows, "columns": Columns,
    "forward": Forward,
}  # fmt: skip


class _WithoutPandas:
    """As the other libraries' environment: pyarrow imports pandas where it is installed, here for Spark's sake."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def hide_pandas() -> None:
    sys.meta_path.insert(0, _WithoutPandas())


async def main(task: Task) -> None:
    source = KafkaSource(f"kafka://{task.brokers}/{task.topic}", task.properties)
    options = {"brokers": task.brokers, "topic": task.new_topic()} if task.variant == "forward" else None
    handler = HANDLERS[task.variant]
    processor = Processor(handler, source=source, container=task.out, name="bench", options=options)
    await processor.run(until_end=True)
    _WATCH.finish()
    os._exit(0)  # the end of the interpreter is not measured


if __name__ == "__main__":
    hide_pandas()
    set_up_process()
    only_warnings()
    anyio.run(main, Task.given())
