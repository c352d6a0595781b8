"""A Kafka broker, a schema registry and the official serializer together: from messages to rows and dead letters."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from pathlib import Path

import anyio
import orjson
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from actorproc.connectors.kafka.sink import KafkaSink
from actorproc.connectors.log import LogSink
from actorproc.errors import UsageError
from actorproc.rows.output_schema import output_schema, parse_schema
from actorproc.runtime.clock import SYSTEM
from actorproc.sinks.protocol import Delivery, SinkError, SinkPlace, SinkRefused, SinkRow
from tests.connectors.kafka.server import Broker
from tests.formats import serialized
from tests.formats.registry_server import Registry

pytestmark = pytest.mark.servers


async def actorproc(folder: Path, *arguments: str) -> bytes:
    done = await anyio.run_process([sys.executable, "-m", "actorproc", *arguments], cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
async def test_avro_messages_become_rows_and_an_undecodable_one_a_dead_letter(
    broker: Broker, registry: Registry, tmp_path: Path
) -> None:
    from tests.connectors.kafka.topics import Topic

    topic = Topic(broker, partitions=1)
    old = serialized.avro(registry, f"{topic.name}-value")
    new = serialized.avro(registry, f"{topic.name}-value", serialized.AVRO_2)
    values = [old({"carrier": "AA", "delay": 2.5}), new({"carrier": "UA", "delay": None, "seats": 7})]
    broken = values[0][:-3]
    for value in (values[0], broken, values[1]):
        topic.producer.produce(topic.name, value, key=b"flight")
    assert topic.producer.flush(30) == 0

    handler = ["actorproc.handlers:DecodedRows", "-o", f"output_schema=registry:{topic.name}-value", "--name", "Rows"]
    decode = ["--set", "decode=avro", "--set", f"schema_registry={registry.url}"]
    source = ["--source", topic.url, "--container", "state"]
    await actorproc(tmp_path, "serve", *handler, *decode, *source, "--until-end")

    printed = await actorproc(tmp_path, "output", "--container", "state", "--name", "Rows", "--json")
    rows = [orjson.loads(line) for line in printed.splitlines()]
    assert [(row["carrier"], row["delay"], row["seats"], row["_sequence"]) for row in rows] == [
        ("AA", 2.5, None, 0), ("UA", None, 7, 2)
    ]  # fmt: skip
    listed = await actorproc(tmp_path, "dead-letters", "list", "--container", "state", "--name", "Rows", "--json")
    [letter] = [orjson.loads(line) for line in listed.splitlines()]
    assert (letter["sequence"], letter["error"]["type"]) == (1, "DecodeError")
    assert letter["error"]["message"] == f"schema id {int.from_bytes(broken[1:5], 'big')}: Avro: the value is cut short"


async def test_confluents_reader_gets_the_rows_of_a_sink(broker: Broker, registry: Registry) -> None:
    from tests.connectors.kafka.topics import Topic

    topic = Topic(broker, partitions=1)
    options = {"encode": "avro", "schema_registry": registry.url, "timeout": 10}
    first = SinkRow("x", 1, "t", 0, 1)
    async with KafkaSink(topic.url, options, SinkPlace("p", topic.name, SYSTEM)) as sink:
        await sink.open(output_schema(parse_schema("carrier string NOT NULL, at timestamp")))
        rows = pa.table([["AA"], pa.array([1], pa.timestamp("us", "UTC")), [7]], names=["carrier", "at", "_sequence"])
        await sink.write(Delivery("0", rows, 0, (1,), None, first))
    async with KafkaSink(topic.url, options, SinkPlace("p", topic.name, SYSTEM)) as sink:
        await sink.open(output_schema(parse_schema("carrier string NOT NULL, at timestamp, delay double")))
        rows = pa.table(
            [["UA"], pa.array([None], pa.timestamp("us", "UTC")), [2.5], [8]],
            names=["carrier", "at", "delay", "_sequence"],
        )
        await sink.write(Delivery("0", rows, 1, (1,), first, SinkRow("x", 1, "t", 0, 2)))
    client = serialized.client(registry.url)
    assert client.get_versions(f"{topic.name}-value") == [1, 2]
    read = AvroDeserializer(client)
    context = SerializationContext(topic.name, MessageField.VALUE)
    assert [read(message.value(), context) for message in topic.messages()] == [
        {"carrier": "AA", "at": datetime(1970, 1, 1, 0, 0, 0, 1, UTC)}, {"carrier": "UA", "at": None, "delay": 2.5}
    ]  # fmt: skip


async def test_a_sink_stops_at_a_schema_that_the_registry_refuses(broker: Broker, registry: Registry) -> None:
    from tests.connectors.kafka.topics import Topic

    topic = Topic(broker, partitions=1)
    subject = f"{topic.name}-value"
    serialized.register(registry, subject, "AVRO", '{"type": "record", "name": "r", "fields": []}')
    serialized.client(registry.url).set_compatibility(subject, "BACKWARD")
    place = SinkPlace("p", topic.name, SYSTEM)
    options = {"encode": "avro", "schema_registry": registry.url, "timeout": 10}
    async with KafkaSink(topic.url, options, place) as sink:
        with pytest.raises(SinkRefused, match=f"subject {subject}: the registry .* refuses the schema"):
            await sink.open(output_schema(parse_schema("n long NOT NULL")))
    wrong: list[tuple[dict[str, str], type[SinkError], str]] = [
        ({"subject": "nobodys", "register_schema": "false"}, SinkRefused, "subject nobodys: there is no such subject"),
        ({"schema_registry": "http://127.0.0.1:1"}, SinkError, "127.0.0.1:1"),
    ]
    for more, kind, why in wrong:
        async with KafkaSink(topic.url, options | more, place) as sink:
            with pytest.raises(kind, match=re.escape(why)):
                await sink.open(output_schema(parse_schema("n long")))
    with pytest.raises(UsageError, match="encode = avro needs schema_registry"):
        KafkaSink(topic.url, {"encode": "avro"}, place)
    with pytest.raises(UsageError, match=r"encode = 'avr': there is no such encoder; there are: avro, json"):
        KafkaSink(topic.url, {"encode": "avr"}, place)


async def test_a_row_that_does_not_fit_the_registered_schema_is_named(
    broker: Broker, registry: Registry, tmp_path: Path
) -> None:
    from tests.connectors.kafka.topics import Topic

    topic = Topic(broker, partitions=1)
    field = '{"name": "word", "type": "string"}'
    text = f'{{"type": "record", "name": "r", "fields": [{field}]}}'
    serialized.register(registry, f"{topic.name}-value", "AVRO", text)
    options = {"encode": "avro", "schema_registry": registry.url, "register_schema": False}
    names, first = ["word", "_sequence"], SinkRow("x", 1, "t", 0, 1)
    for url, more in ((topic.url, {"timeout": 10}), (f"log:{tmp_path / 'log'}", {"partitions": 1})):
        subject = {"subject": f"{topic.name}-value"}
        make = KafkaSink if url == topic.url else LogSink
        async with make(url, options | more | subject, SinkPlace("p", topic.name, SYSTEM)) as sink:
            await sink.open(output_schema(parse_schema("word string")))
            with pytest.raises(SinkRefused, match="the row of record 12 of partition 0: "):
                await sink.write(Delivery("0", pa.table([["a", None], [11, 12]], names=names), 0, (2,), None, first))
            assert await sink.read("0") is None
            await sink.write(Delivery("0", pa.table([["a", "b"], [11, 12]], names=names), 0, (2,), None, first))
    assert [(message.value() or b"")[5:] for message in topic.messages()] == [b"\x02a", b"\x02b"]


@pytest.mark.slow
async def test_a_processor_reads_what_the_one_before_wrote_as_avro(registry: Registry, tmp_path: Path) -> None:
    subject = serialized.new_subject()
    log_sink = ["--sink", "words=log:./words", "--sink-option", "words.encode=avro", "--sink-option"]
    log_sink += [f"words.schema_registry={registry.url}", "--sink-option", f"words.subject={subject}"]
    log_sink += ["--sink-option", "words.partitions=2"]
    rows = ["actorproc.handlers:JsonRows", "-o", "output_schema=word string, n long", "--container", "state"]
    (tmp_path / "events.jsonl").write_bytes(b"".join(orjson.dumps({"word": str(n), "n": n}) + b"\n" for n in range(50)))
    await actorproc(tmp_path, "produce", "--log", "events", "--partitions", "1", "events.jsonl")
    await actorproc(tmp_path, "serve", *rows, "--name", "One", "--source", "events", *log_sink, "--until-end")
    decode = ["--set", "decode=avro", "--set", f"schema_registry={registry.url}", "--source", "words"]
    read = ["actorproc.handlers:DecodedRows", "-o", f"output_schema=registry:{subject}", "--container", "state"]
    await actorproc(tmp_path, "serve", *read, "--name", "Two", *decode, "--until-end")
    printed = await actorproc(tmp_path, "output", "--container", "state", "--name", "Two", "--json")
    found = [orjson.loads(line) for line in printed.splitlines()]
    assert sorted((row["n"], row["word"]) for row in found) == [(n, str(n)) for n in range(50)]
