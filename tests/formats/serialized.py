"""Flights as confluent-kafka's serializers write them, with their schemas in a registry."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import orjson
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from grpc_tools import protoc

from tests.formats.registry_server import Registry

Serialize = Callable[[Any], bytes]

_NUMBERS = count()

AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Flight",
    "fields": [{"name": "carrier", "type": "string"}, {"name": "delay", "type": ["null", "double"], "default": None}],
}
AVRO_2 = {**AVRO, "fields": [*AVRO["fields"], {"name": "seats", "type": "int", "default": 100}]}

PLACE_PROTO = 'syntax = "proto3"; package lib; message Place { string name = 1; double lat = 2; }'
FLIGHT_PROTO = """syntax = "proto3"; package air;
import "lib/place.proto";
import "google/protobuf/timestamp.proto";
message Cancelled { string why = 1; }
message Flight {
  enum Kind { PASSENGERS = 0; CARGO = 1; }
  message Leg { int32 number = 1; }
  string carrier = 1; int64 number = 2; optional double delay = 3; lib.Place origin = 4; repeated string tags = 5;
  map<string, int32> counts = 6; google.protobuf.Timestamp at = 7; Kind kind = 8; repeated Leg legs = 9;
}
"""

JSON_SCHEMA: dict[str, Any] = {
    "title": "Flight",
    "type": "object",
    "properties": {"carrier": {"type": "string"}, "delay": {"type": ["number", "null"]}},
    "required": ["carrier"],
}


def new_subject() -> str:
    """A name that no other test uses; its topic is the same without `-value`."""
    return f"flights-{next(_NUMBERS)}-value"


@cache  # each keeps its connections, which are never closed
def client(registry_url: str) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": registry_url, "timeout": 10})


def avro(registry: Registry, subject: str, schema: Mapping[str, Any] = AVRO) -> Serialize:
    return _in_context(AvroSerializer(client(registry.url), orjson.dumps(schema).decode()), subject)


def json_schema(registry: Registry, subject: str, schema: Mapping[str, Any] = JSON_SCHEMA) -> Serialize:
    return _in_context(JSONSerializer(orjson.dumps(schema).decode(), client(registry.url)), subject)


def protobuf(registry: Registry, subject: str, message: Any) -> Serialize:
    return _in_context(ProtobufSerializer(message, client(registry.url)), subject)


def register(registry: Registry, subject: str, kind: str, text: str, **references: str) -> int:
    """Register a schema as text. `references`: by name, the subjects of version 1 that it builds upon."""
    named = [SchemaReference(name, of, 1) for name, of in references.items()]
    return client(registry.url).register_schema(subject, Schema(text, kind, named))


def framed(schema_id: int, payload: bytes) -> bytes:
    return b"\x00" + schema_id.to_bytes(4, "big") + payload


def generated(folder: Path) -> Any:
    """The module that protoc generates of FLIGHT_PROTO. The same for all tests: Protobuf knows each file once."""
    if "flight_pb2" not in sys.modules:
        (folder / "lib").mkdir()
        (folder / "lib" / "place.proto").write_text(PLACE_PROTO)
        (folder / "flight.proto").write_text(FLIGHT_PROTO)
        files = ["flight.proto", "lib/place.proto"]
        included = Path(protoc.__file__).parent / "_proto"
        assert protoc.main(["protoc", f"-I{folder}", f"-I{included}", f"--python_out={folder}", *files]) == 0
        sys.path.insert(0, str(folder))
    return importlib.import_module("flight_pb2")


def _in_context(serializer: Any, subject: str) -> Serialize:
    context = SerializationContext(subject.removesuffix("-value"), MessageField.VALUE)
    return lambda value: bytes(serializer(value, context))
