"""Values that name their schema in a registry, written by the official serializers."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import msgspec
import orjson
import pyarrow as pa
import pytest

from actorproc import Batch, DecodedRows, PartitionContext, PartitionHandler, Processor, RecordHandler, Settings
from actorproc.codecs import open_decoder
from actorproc.errors import SettingsError, SourceError, UsageError
from actorproc.formats.opening import open_registry
from actorproc.testing import run_handler
from actorproc.testing.memory_source import MemorySource
from tests.formats import serialized
from tests.formats.registry_server import Registry
from tests.formats.serialized import AVRO, AVRO_2, FLIGHT_PROTO, PLACE_PROTO, framed, new_subject

pytestmark = pytest.mark.servers


class Flights(DecodedRows):
    output_schema = "carrier string, delay double"


class Flight(msgspec.Struct):
    carrier: str
    delay: float | None = None


class TypedFlights(RecordHandler[Flight]):
    output_schema = "carrier string, delay double"

    def process_record(self, flight: Flight, ctx: PartitionContext) -> Flight:
        return flight


class AwaitedFlights(TypedFlights):
    async def process_record(self, flight: Flight, ctx: PartitionContext) -> Flight:  # type: ignore[override]
        return flight


class LoopedFlights(PartitionHandler):
    output_schema = "carrier string, delay double"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record, flight in ctx.decode(batch):
            ctx.emit(record, {"carrier": flight["carrier"], "delay": flight.get("delay")})


def settings(registry: Registry, decode: str, **more: Any) -> Settings:
    return Settings(decode=decode, schema_registry=registry.url, **more)


def rows(result: Any, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns) for row in result.rows]


@pytest.mark.parametrize("handler", [Flights, TypedFlights, AwaitedFlights, LoopedFlights])
@pytest.mark.parametrize("decode", ["avro", "json-schema"])
async def test_every_way_of_writing_a_handler_gets_the_decoded_values(
    registry: Registry, handler: type[PartitionHandler], decode: str
) -> None:
    write = serialized.avro if decode == "avro" else serialized.json_schema
    serialize = write(registry, new_subject())
    values = [serialize({"carrier": "AA", "delay": 2.5}), serialize({"carrier": "UA", "delay": None})]
    result = await run_handler(handler, values, settings=settings(registry, decode))
    assert not result.dead_letters
    assert rows(result, "carrier", "delay", "_sequence") == [("AA", 2.5, 0), ("UA", None, 1)]


@pytest.mark.parametrize("handler", [Flights, TypedFlights, LoopedFlights])
async def test_values_of_two_schema_versions_in_one_batch(registry: Registry, handler: type[PartitionHandler]) -> None:
    subject = new_subject()
    old, new = serialized.avro(registry, subject), serialized.avro(registry, subject, AVRO_2)
    values = [
        old({"carrier": "AA", "delay": 1.0}),
        new({"carrier": "UA", "delay": 2.0, "seats": 7}),
        old({"carrier": "DL", "delay": 3.0}),
    ]
    result = await run_handler(handler, values, settings=settings(registry, "avro"))
    assert rows(result, "carrier", "delay", "_sequence") == [("AA", 1.0, 0), ("UA", 2.0, 1), ("DL", 3.0, 2)]


async def test_old_values_take_the_defaults_of_the_readers_schema(registry: Registry) -> None:
    class Seats(DecodedRows):
        output_schema = "carrier string, seats int"

    subject = new_subject()
    old, new = serialized.avro(registry, subject), serialized.avro(registry, subject, AVRO_2)
    values = [old({"carrier": "AA", "delay": 1.0}), new({"carrier": "UA", "delay": 2.0, "seats": 7})]
    plain = await run_handler(Seats, values, settings=settings(registry, "avro"))
    assert rows(plain, "carrier", "seats") == [("AA", None), ("UA", 7)]
    for reader, seats in ((f"registry:{subject}", [100, 7]), (f"registry:{subject}:1", [None, None])):
        resolved = await run_handler(Seats, values, settings=settings(registry, "avro", decode_schema=reader))
        assert [row["seats"] for row in resolved.rows] == seats


@pytest.mark.parametrize("handler", [Flights, TypedFlights, AwaitedFlights, LoopedFlights])
async def test_records_that_do_not_decode_become_dead_letters(
    registry: Registry, handler: type[PartitionHandler]
) -> None:
    subject = new_subject()
    good = serialized.avro(registry, subject)({"carrier": "AA", "delay": 1.0})
    number = int.from_bytes(good[1:5], "big")
    other = serialized.json_schema(registry, new_subject())({"carrier": "AA"})
    values = [good, good[:-3], b"{}", framed(999_999, b"x"), None, other, good + b"x", good]
    result = await run_handler(handler, values, settings=settings(registry, "avro", dead_letter_limit=1))
    assert [row["_sequence"] for row in result.rows] == [0, 7]
    letters = {letter["sequence"]: letter["error"] for letter in result.dead_letters}
    assert {letter["type"] for letter in letters.values()} == {"DecodeError"}
    messages = {sequence: letter["message"] for sequence, letter in letters.items()}
    assert messages[1] == f"schema id {number}: Avro: the value is cut short"
    assert messages[2].startswith("the value begins with b'{}', and not with a zero byte and a schema id")
    assert messages[3] == f"schema id 999999 is not in the registry {registry.url}"
    assert messages[4] == "the record has no value"
    assert "is JSON, and the setting decode expects AVRO" in messages[5]
    assert messages[6] == f"schema id {number}: Avro: 1 bytes are left over after the value: it has another schema"


async def test_a_type_of_a_referenced_avro_schema(registry: Registry) -> None:
    class Places(DecodedRows):
        output_schema = "name string, place struct<lat: double>"

    place = {"type": "record", "name": "lib.Place", "fields": [{"name": "lat", "type": "double"}]}
    of_place, subject = new_subject(), new_subject()
    serialized.register(registry, of_place, "AVRO", orjson.dumps(place).decode())
    fields = [{"name": "name", "type": "string"}, {"name": "place", "type": "lib.Place"}]
    text = orjson.dumps({"type": "record", "name": "Airport", "fields": fields}).decode()
    number = serialized.register(registry, subject, "AVRO", text, **{"lib.Place": of_place})
    value = framed(number, b"\x06JFK" + bytes(8))
    result = await run_handler(Places, [value], settings=settings(registry, "avro"))
    assert rows(result, "name", "place") == [("JFK", {"lat": 0.0})]


@pytest.fixture
def flight_pb2(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return serialized.generated(tmp_path_factory.mktemp("protos"))


class ProtobufFlights(DecodedRows):
    output_schema = (
        "carrier string, number bigint, delay double, origin struct<name: string>, tags array<string>, "
        "counts map<string, int>, at timestamp, kind string, legs array<struct<number: int>>"
    )


async def test_protobuf_becomes_columns_by_the_registered_descriptor(registry: Registry, flight_pb2: Any) -> None:
    serialize = serialized.protobuf(registry, new_subject(), flight_pb2.Flight)
    flight = flight_pb2.Flight(carrier="AA", number=2**40, tags=["x", "y"], counts={"bags": 3}, kind="CARGO")
    flight.at.FromJsonString("2013-01-01T05:00:00Z")
    flight.origin.name, flight.origin.lat = "JFK", 40.6
    flight.legs.add(number=1)
    empty = flight_pb2.Flight()
    values = [serialize(flight), serialize(empty), serialize(flight)[:-2]]
    result = await run_handler(ProtobufFlights, values, settings=settings(registry, "protobuf"))
    first, second = (
        {name: value for name, value in row.items() if name not in ("_sequence", "partition")} for row in result.rows
    )
    assert first == {
        "carrier": "AA", "number": 2**40, "delay": None, "origin": {"name": "JFK"}, "tags": ["x", "y"],
        "counts": {"bags": 3}, "at": datetime(2013, 1, 1, 5, tzinfo=UTC), "kind": "CARGO", "legs": [{"number": 1}],
    }  # fmt: skip
    assert second == {
        "carrier": "", "number": 0, "delay": None, "origin": None, "tags": [], "counts": {}, "at": None,
        "kind": "PASSENGERS", "legs": [],
    }  # fmt: skip
    [letter] = result.dead_letters
    assert letter["sequence"] == 2
    assert letter["error"]["message"].startswith("schema id ")


async def test_the_message_type_is_taken_from_its_indexes(registry: Registry, flight_pb2: Any) -> None:
    class Numbers(RecordHandler[dict[str, Any]]):
        output_schema = "text string"

        def process_record(self, value: dict[str, Any], ctx: PartitionContext) -> dict[str, Any]:
            return {"text": str(value)}

    subject = new_subject()
    leg = serialized.protobuf(registry, subject, flight_pb2.Flight.Leg)(flight_pb2.Flight.Leg(number=7))
    cancelled = serialized.protobuf(registry, subject, flight_pb2.Cancelled)(flight_pb2.Cancelled(why="fog"))
    wrong = leg[:5] + b"\x02\x12" + leg[8:]  # the tenth message type
    result = await run_handler(Numbers, [leg, cancelled, leg, wrong], settings=settings(registry, "protobuf"))
    assert rows(result, "text") == [("{'number': 7}",), ("{'why': 'fog'}",), ("{'number': 7}",)]
    [letter] = result.dead_letters
    assert "there is no message type at [9]" in letter["error"]["message"]


async def test_proto_files_that_are_registered_as_text_are_compiled(registry: Registry, flight_pb2: Any) -> None:
    of_place, subject = new_subject(), new_subject()
    serialized.register(registry, of_place, "PROTOBUF", PLACE_PROTO)
    number = serialized.register(registry, subject, "PROTOBUF", FLIGHT_PROTO, **{"lib/place.proto": of_place})
    flight = flight_pb2.Flight(carrier="AA")
    flight.origin.name = "JFK"
    value = framed(number, b"\x02\x02" + flight.SerializeToString())
    result = await run_handler(ProtobufFlights, [value], settings=settings(registry, "protobuf"))
    assert rows(result, "carrier", "origin") == [("AA", {"name": "JFK"})]


async def test_json_that_is_not_valid_by_its_schema_names_the_place(registry: Registry) -> None:
    place = {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]}
    of_place, subject = new_subject(), new_subject()
    serialized.register(registry, of_place, "JSON", orjson.dumps(place).decode())
    schema = orjson.dumps({"type": "object", "properties": {"origin": {"$ref": "place.json"}}}).decode()
    number = serialized.register(registry, subject, "JSON", schema, **{"place.json": of_place})

    class Origins(DecodedRows):
        output_schema = "origin struct<lat: double>"

    values = [framed(number, b'{"origin": {"lat": 1}}'), framed(number, b'{"origin": {}}')]
    result = await run_handler(Origins, values, settings=settings(registry, "json-schema"))
    assert rows(result, "origin") == [({"lat": 1.0},)]
    [letter] = result.dead_letters
    assert letter["error"]["message"] == (
        f"schema id {number}: not valid by the JSON Schema, at ['origin']: \"lat\" is a required property"
    )


async def test_the_output_takes_its_columns_from_a_subject(registry: Registry) -> None:
    subject = new_subject()
    old = serialized.avro(registry, subject)
    value = old({"carrier": "AA", "delay": 1.0})
    options = {"output_schema": f"registry:{subject}"}
    result = await run_handler(DecodedRows, [value], options=options, settings=settings(registry, "avro"))
    assert rows(result, "carrier", "delay") == [("AA", 1.0)]
    with pytest.raises(UsageError, match=r"output_schema = 'registry:nothing': http.* has no such subject or version"):
        await run_handler(
            DecodedRows, [value], options={"output_schema": "registry:nothing"}, settings=settings(registry, "avro")
        )


async def test_columns_of_the_three_kinds_of_schemas(registry: Registry, flight_pb2: Any) -> None:
    avro_subject, json_subject, protobuf_subject = new_subject(), new_subject(), new_subject()
    fields = [
        *AVRO["fields"],
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "legs", "type": {"type": "array", "items": {"type": "map", "values": "int"}}},
    ]
    serialized.register(registry, avro_subject, "AVRO", orjson.dumps({**AVRO, "fields": fields}).decode())
    serialized.json_schema(registry, json_subject)({"carrier": "AA"})
    serialized.protobuf(registry, protobuf_subject, flight_pb2.Cancelled)(flight_pb2.Cancelled())

    async def columns(decode: str, subject: str) -> pa.Schema:
        decoder = open_decoder(settings(registry, decode))
        try:
            return await decoder.output_schema(subject)
        finally:
            await decoder.close()

    assert await columns("avro", avro_subject) == pa.schema(
        [
            ("carrier", pa.string()),
            ("delay", pa.float64()),
            ("at", pa.timestamp("us", "UTC")),
            ("price", pa.decimal128(9, 2)),
            ("id", pa.string()),
            ("legs", pa.list_(pa.field("element", pa.map_(pa.string(), pa.int32())))),
        ]
    )
    assert await columns("json-schema", json_subject) == pa.schema([("carrier", pa.string()), ("delay", pa.float64())])
    assert await columns("protobuf", protobuf_subject) == pa.schema([("why", pa.string())])


class FlightKey(msgspec.Struct):
    carrier: str
    delay: float | None = None


class Keyed(RecordHandler[dict[str, Any]]):
    """The carrier of the key, beside that of the value."""

    output_schema = "carrier string, of_key string"

    def process_record(self, flight: dict[str, Any], ctx: PartitionContext) -> tuple[str, str]:
        key = ctx.decode_key(self.record, FlightKey)
        assert ctx.decode_key(self.record) == {"carrier": key.carrier, "delay": key.delay}
        return flight["carrier"], key.carrier


async def test_keys_are_decoded_and_one_that_does_not_fails_its_record(registry: Registry) -> None:
    key, value = (serialized.avro(registry, new_subject()) for _ in range(2))
    keys = [key({"carrier": "K1", "delay": 1.0}), b"no avro", key({"carrier": "K3", "delay": None})]
    values = [value({"carrier": f"V{n}", "delay": None}) for n in range(3)]
    result = await run_handler(
        Keyed, Batch.of("0", values, range(3), keys=keys), settings=settings(registry, "avro", decode_key="avro")
    )
    assert rows(result, "carrier", "of_key") == [("V0", "K1"), ("V2", "K3")]
    assert [(letter["sequence"], letter["error"]["type"]) for letter in result.dead_letters] == [(1, "DecodeError")]


async def test_subjects_with_their_versions_and_compatibility(registry: Registry) -> None:
    subject = new_subject()
    serialized.avro(registry, subject)({"carrier": "AA"})
    serialized.avro(registry, subject, AVRO_2)({"carrier": "AA", "seats": 1})
    serialized.client(registry.url).set_compatibility(subject, "FULL")
    schemas = open_registry(settings(registry, "avro"))
    found, there = await schemas.subjects(limit=1_000)
    assert there == len(found)
    [shown] = [one for one in found if one.name == subject]
    assert (shown.version, shown.kind, shown.compatibility) == (2, "AVRO", "FULL")
    first, of_all = await schemas.subjects(limit=1)
    assert (len(first), of_all) == (1, there)
    await schemas.close()


async def test_doctor_lists_subjects_and_fails_if_the_registry_does_not_answer(
    registry: Registry, tmp_path: Path
) -> None:
    subject = new_subject()
    serialized.avro(registry, subject)({"carrier": "AA"})

    async def doctor(url: str, *more: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "actorproc", "doctor", str(tmp_path), "--set", f"schema_registry={url}", *more]
        done = await anyio.run_process(command, check=False, env={**os.environ, "COLUMNS": "200"})
        return done.returncode, done.stdout.decode()

    code, shown = await doctor(registry.url)
    assert code == 0
    assert any(
        line.split() == [subject, "1", line.split()[2], "AVRO", "NONE"]
        for line in shown.splitlines()
        if subject in line
    )
    code, shown = await doctor("http://127.0.0.1:9", "--json")
    assert code == 1
    found = orjson.loads(shown)
    assert found["safe"]
    assert found["schema_registry"]["error"].startswith("schema registry http://127.0.0.1:9: ConnectError")


@pytest.mark.slow
async def test_no_record_becomes_a_dead_letter_while_the_registry_is_away(registry: Registry, tmp_path: Path) -> None:
    subject = new_subject()
    old, new = serialized.avro(registry, subject), serialized.avro(registry, subject, AVRO_2)
    before, behind = old({"carrier": "AA", "delay": 1.0}), new({"carrier": "UA", "delay": 2.0, "seats": 7})
    source = MemorySource(1)
    quick = settings(registry, "avro", commit_interval=0.1, restart_backoff_max=1)
    async with Processor(Flights, source=source, container=str(tmp_path), settings=quick) as processor:
        source.append("0", [before])
        await _until(lambda: processor.statistics().counts.rows == 1)
        registry.stop()
        source.append("0", [before] * 2)  # this schema is known
        await _until(lambda: processor.statistics().counts.rows == 3)
        source.append("0", [behind])
        await _until(lambda: any(p.error for p in processor.statistics().partitions))
        [partition] = processor.statistics().partitions
        assert f"schema registry {registry.url}: ConnectError: " in str(partition.error)
        await anyio.to_thread.run_sync(registry.start)
        await _until(lambda: processor.statistics().counts.rows == 4)
        assert processor.statistics().counts.dead_letters == 0


async def _until(condition: Any, seconds: float = 60) -> None:
    with anyio.fail_after(seconds):
        while not condition():
            await anyio.sleep(0.05)


async def test_a_url_without_a_registry_is_an_outage_and_no_unknown_schema(registry: Registry) -> None:
    elsewhere = Settings(decode="avro", schema_registry=registry.url + "/elsewhere")
    decoder = open_decoder(elsewhere)
    with pytest.raises(SourceError, match=r"schema registry http.*elsewhere: "):
        await decoder.prepare(pa.array([framed(1, b"x")]))
    await decoder.close()


def test_wrong_settings_are_refused_without_showing_secrets(registry: Registry) -> None:
    def refused(**given: Any) -> str:
        with pytest.raises(SettingsError) as error:
            open_decoder(Settings(**given))
        return str(error.value)

    url = registry.url
    assert "no credentials in a URL" in refused(decode="avro", schema_registry="http://me:secret@host")
    wrong = refused(decode="avro", schema_registry=url, schema_registry_options={"basic.auth.user.info": "secret"})
    assert "must be in the form of {username}:{password}" in wrong
    assert "secret" not in wrong
    absent = {"basic.auth.user.info": "@/none"}
    assert (
        "schema registry option basic.auth.user.info: begins with @, and the file that it names cannot be read"
        in refused(decode="avro", schema_registry=url, schema_registry_options=absent)
    )
    assert "Unrecognized properties: tiemout" in refused(
        decode="avro", schema_registry=url, schema_registry_options={"tiemout": 1}
    )
    assert "registry:SUBJECT" in refused(decode="protobuf", schema_registry=url, decode_schema="registry:a")
    assert "secret" not in repr(Settings(schema_registry_options={"basic.auth.user.info": "me:secret"}))
