"""Events per second and core of each format that `decode` names: into columns, into a typed object, into a dict.

The same events in each format, through the decoder that a processor uses. Avro, Protobuf and JSON Schema with the id of
their schema before each value; the registry's answer is at hand, as it is after the first record.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable
from io import BytesIO
from typing import Any, cast

import anyio
import fastavro
import msgspec
import orjson
import pyarrow as pa
from google.protobuf.message_factory import GetMessageClass
from rich.console import Console
from rich.table import Table

from actorproc.codecs.arrow import ArrowDecoder
from actorproc.codecs.csv import CsvDecoder
from actorproc.codecs.json import JsonDecoder
from actorproc.codecs.text import TextDecoder
from actorproc.formats.avro.registry_format import AvroFormat
from actorproc.formats.json_schema.registry_format import JsonSchemaFormat
from actorproc.formats.protobuf.files import parsed_protobuf
from actorproc.formats.protobuf.registry_format import ProtobufFormat
from actorproc.formats.registry.client import RegistrySchema, SchemaRegistry
from actorproc.formats.registry.decoder import RegistryDecoder, RegistryFormat
from actorproc.handler.decoder import Decoder
from actorproc.rows.output_schema import parse_schema

BATCH, PIECE = 10_000, 512  # records in a batch, and those that ctx.decode takes at a time
SCHEMA = "id bigint, carrier string, origin string, dest string, minutes double, tail string"
AVRO = {
    "type": "record",
    "name": "Flight",
    "fields": [{"name": "id", "type": "long"}, {"name": "minutes", "type": "double"}]
    + [{"name": name, "type": "string"} for name in ("carrier", "origin", "dest", "tail")],
}
PROTO = """syntax = "proto3";
message Flight {
  int64 id = 1; string carrier = 2; string origin = 3; string dest = 4; double minutes = 5; string tail = 6;
}"""
JSON_SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "minutes": {"type": "number"},
        **{name: {"type": "string"} for name in ("carrier", "origin", "dest", "tail")},
    },
    "required": ["id", "carrier"],
}


class Flight(msgspec.Struct):
    id: int
    carrier: str
    origin: str
    dest: str
    minutes: float
    tail: str


def make_events(count: int) -> list[dict[str, Any]]:
    draw = random.Random(7)
    return [
        {
            "id": number, "carrier": draw.choice(["AA", "UA", "DL", "B6"]), "origin": draw.choice(["JFK", "EWR"]),
            "dest": "LAX", "minutes": float(draw.randint(-20, 300)), "tail": f"N{draw.randint(1, 4000)}",
        }
        for number in range(count)
    ]  # fmt: skip


class _Registered:
    """A registry that has answered."""

    url = "http://registry"

    def __init__(self, kind: str, text: str) -> None:
        self._schema = RegistrySchema(1, kind, text)

    async def schema(self, schema_id: int) -> RegistrySchema:
        return self._schema


def of_registry(use: RegistryFormat, text: str) -> Decoder:
    return RegistryDecoder(cast(SchemaRegistry, _Registered(use.kind, text)), use)


def avro_value(event: dict[str, Any], schema: Any = fastavro.parse_schema(AVRO)) -> bytes:  # noqa: B008
    stream = BytesIO()
    fastavro.schemaless_writer(stream, schema, event)
    return stream.getvalue()


def arrow_value(event: dict[str, Any]) -> bytes:
    batch, sink = pa.RecordBatch.from_pylist([event]), BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def formats() -> dict[str, tuple[Decoder, Callable[[dict[str, Any]], bytes]]]:
    """By name the decoder, and what writes its values."""
    message = GetMessageClass(parsed_protobuf(PROTO).message_types_by_name["Flight"])
    frame = b"\x00" + (1).to_bytes(4, "big")
    return {
        "json": (JsonDecoder(), orjson.dumps),
        "json-schema": (
            of_registry(JsonSchemaFormat(), orjson.dumps(JSON_SCHEMA).decode()),
            lambda event: frame + orjson.dumps(event),
        ),
        "avro": (of_registry(AvroFormat(), orjson.dumps(AVRO).decode()), lambda event: frame + avro_value(event)),
        "protobuf": (
            of_registry(ProtobufFormat(), PROTO),
            lambda event: frame + b"\x00" + message(**event).SerializeToString(),
        ),
        "csv": (
            CsvDecoder(parse_schema(SCHEMA)),
            lambda event: ",".join(map(str, event.values())).encode(),
        ),
        "text": (TextDecoder(), orjson.dumps),
        "arrow": (ArrowDecoder(), arrow_value),
    }


def rate(work: Callable[[pa.Array], object], batches: list[pa.Array], rounds: int) -> str:
    """Events per CPU second, the median of all rounds."""
    rates = []
    for _ in range(rounds):
        gc.collect()
        began = time.process_time()
        for batch in batches:
            work(batch)
        rates.append(sum(map(len, batches)) / (time.process_time() - began))
    return f"{statistics.median(rates):,.0f}"


def in_pieces(decoder: Decoder, kind: Any) -> Callable[[pa.Array], None]:
    values = decoder.values(kind)

    def work(batch: pa.Array) -> None:
        for start in range(0, len(batch), PIECE):
            decoded = values.parse_all(batch[start : start + PIECE])
            if decoded is None:
                raise RuntimeError("a value does not decode")

    return work


def into_columns(decoder: Decoder, schema: str) -> Callable[[pa.Array], None]:
    columns, sequences = decoder.columns(parse_schema(schema)), pa.array(range(BATCH), pa.int64())

    def work(batch: pa.Array) -> None:
        table, errors = columns.parse(batch, sequences[: len(batch)])
        if errors or table.num_rows != len(batch):
            raise RuntimeError(f"values do not decode: {errors}")

    return work


def run(events: int = 500_000, rounds: int = 5) -> None:
    made = make_events(events)
    table = Table("decode", "bytes an event", "columns", "typed object", "dict", title="events per second and core")
    for name, (decoder, write) in formats().items():
        values = pa.array(map(write, made[: events // 10] if name == "arrow" else made), pa.binary())
        batches = [values[start : start + BATCH] for start in range(0, len(values), BATCH)]
        anyio.run(decoder.prepare, values)
        schema, objects = ("value string", str) if name == "text" else (SCHEMA, Flight)
        kinds = [list[Flight] if name == "arrow" else objects, Any]
        rates = [rate(into_columns(decoder, schema), batches, rounds)]
        rates += [rate(in_pieces(decoder, kind), batches, rounds) for kind in kinds]
        table.add_row(name, f"{values.nbytes / len(values) - 4:.0f}", *rates)
    Console().print(table)
