"""A decoder and good values for each format, and a batch processor that runs a handler with this decoder."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import fastavro
import orjson
import pyarrow as pa
import structlog
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from actorproc import DecodedRows, PartitionContext, PartitionHandler, RecordHandler
from actorproc.codecs.arrow import ArrowDecoder
from actorproc.codecs.csv import CsvDecoder
from actorproc.codecs.json import JsonDecoder
from actorproc.codecs.text import TextDecoder
from actorproc.config.settings import Settings
from actorproc.formats.avro.decoder import AvroDecoder
from actorproc.formats.avro.schema import parsed_avro
from actorproc.formats.json_schema.decoder import JsonSchemaDecoder
from actorproc.formats.protobuf.decoder import ProtobufDecoder
from actorproc.handler.decoder import Decoder
from actorproc.handler.info import PartitionInfo
from actorproc.partition.dead_letter_limit import DeadLetterLimit
from actorproc.partition.results import Results
from actorproc.records import Batch
from actorproc.rows.output_schema import parse_schema
from tests.partition.running import processor

SCHEMA = "name string, n bigint"
FIRST = 100  # sequence of the first value
AVRO_TEXT = (
    '{"type": "record", "name": "Order", "fields": [{"name": "name", "type": "string"}, {"name": "n", "type": "long"},'
    ' {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []}]}'
)
_AVRO = fastavro.parse_schema(json.loads(AVRO_TEXT))
JSON_SCHEMA = '{"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer"}}}'


def _message() -> Any:
    """Descriptor of a message with `name` and `n`, and of messages within it."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", syntax="proto3")
    part = file.message_type.add(name="Part")
    part.field.add(name="text", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    order = file.message_type.add(name="Order")
    order.field.add(name="name", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    order.field.add(name="n", number=2, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    order.field.add(name="ns", number=3, type=kinds.TYPE_INT64, label=kinds.LABEL_REPEATED)
    order.field.add(name="parts", number=4, type=kinds.TYPE_MESSAGE, type_name=".Part", label=kinds.LABEL_REPEATED)
    pool = DescriptorPool()
    pool.Add(file)
    return pool.FindMessageTypeByName("Order")


MESSAGE = _message()


def protobuf_value(n: int) -> bytes:
    order = GetMessageClass(MESSAGE)(name=f"name {n}", n=n, ns=[n, 1])
    order.parts.add(text="part")
    return bytes(order.SerializeToString())


def avro_value(n: int) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, _AVRO, {"name": f"name {n}", "n": n, "tags": ["a", "b"]})
    return stream.getvalue()


def arrow_value(*ns: int) -> bytes:
    return arrow_stream(pa.table({"name": [f"name {n}" for n in ns], "n": ns}))


def arrow_stream(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue()


def json_value(n: int) -> bytes:
    return orjson.dumps({"name": f"name {n}", "n": n, "tags": [["a"], {"b": 1.5}]})


@dataclass(frozen=True)
class Format:
    """A decoder, and the value that says `n`."""

    decoder: Decoder
    value: Callable[[int], bytes]
    schema: str = SCHEMA


FORMATS = {
    "json": Format(JsonDecoder(), json_value),
    "json-schema": Format(JsonSchemaDecoder(JSON_SCHEMA), json_value),
    "avro": Format(AvroDecoder(parsed_avro(AVRO_TEXT)), avro_value),
    "protobuf": Format(ProtobufDecoder(MESSAGE), protobuf_value),
    "csv": Format(CsvDecoder(parse_schema(SCHEMA)), lambda n: f"name {n},{n}".encode()),
    "text": Format(TextDecoder(), lambda n: f"name {n}".encode(), "value string"),
    "arrow": Format(ArrowDecoder(), arrow_value),
}


def handlers(schema: str = SCHEMA) -> dict[str, type[PartitionHandler]]:
    """Each way in which a handler gets decoded values. All emit one row for each value."""
    first = schema.split()[0]

    def row(value: Any) -> dict[str, Any]:
        value = value[0] if isinstance(value, list) and value else value
        return {first: value[first] if isinstance(value, dict) and isinstance(value.get(first), str) else str(value)}

    class Columns(DecodedRows):
        output_schema = schema

    class OneByOne(RecordHandler[Any]):
        output_schema = schema

        def process_record(self, value: Any, ctx: PartitionContext) -> dict[str, Any]:
            return row(value)

    class Awaited(RecordHandler[Any]):
        output_schema = schema

        async def process_record(self, value: Any, ctx: PartitionContext) -> dict[str, Any]:
            return row(value)

    class Whole(PartitionHandler):
        output_schema = schema

        def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record, value in ctx.decode(batch):
                ctx.emit(record, row(value))

    return {"columns": Columns, "one by one": OneByOne, "awaited": Awaited, "whole batches": Whole}


async def process(
    handler: type[PartitionHandler], decoder: Decoder, values: Sequence[bytes | None], **settings: Any
) -> Results:
    """Rows and dead letters of a batch with these values."""
    chosen = Settings(retry_backoff=0.001, retry_backoff_max=0.002, dead_letter_limit=1, **settings)
    schema = parse_schema(handler.output_schema)
    info = PartitionInfo("p", "h", "0", 1, log=structlog.get_logger(), decoder=decoder, output_schema=schema)
    run = processor(handler(), chosen, info=info, limit=DeadLetterLimit(chosen))
    return await run.process(Batch.of("0", values, range(FIRST, FIRST + len(values))))
