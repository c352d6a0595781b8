"""A Kafka broker, a schema registry and the official serializer together: from messages to rows and dead letters."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import orjson
import pytest

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
