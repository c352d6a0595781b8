"""Odd records of each service, without its server: each becomes columns or is refused, and other records are processed.

For Kafka see test_kafka_odd_records.
"""

from __future__ import annotations

import base64
import json
import random
from hashlib import md5
from typing import Any

import orjson
import pytest

pytest.importorskip("azure.cosmos", reason="azure-cosmos is not installed")
pytest.importorskip("azure.eventhub", reason="azure-eventhub is not installed")

import msgspec
from azure.eventhub import EventData
from azure.eventhub._pyamqp.message import Message, Properties

from actorproc.connectors.cosmos import columns as cosmos
from actorproc.connectors.eventhubs import columns as eventhubs
from actorproc.connectors.kinesis.aggregation import HashRange, TooLarge, user_records
from actorproc.connectors.kinesis.columns import decode
from actorproc.connectors.kinesis.position import Position
from actorproc.errors import SourceError
from actorproc.records import Batch
from actorproc.sources.refusals import RecordParts, Unreadable, each

HALF = "\ud83d"
DEEP: Any = 7
for _ in range(300):
    DEEP = [DEEP]


def reasons(batch: Batch) -> dict[int, str]:
    texts = [] if batch.refused is None else batch.refused.to_pylist()
    return {index: why for index, why in enumerate(texts) if why is not None}


def test_each_item_is_made_once_and_failures_are_refused() -> None:
    asked, refused = list[int](), {2: "earlier"}

    def make(n: int) -> int:
        asked.append(n)
        return 10 // n

    assert each(make, [0, 1, 0, 2, 0], refused, "it") == [None, 10, None, 5, None]
    assert asked == [0, 1, 0, 2, 0]
    assert refused[2] == "earlier"
    assert refused[0] == "it cannot be read: ZeroDivisionError: integer division or modulo by zero"


@pytest.mark.parametrize(
    ("cause", "why"),
    [
        (KeyError("a"), "it cannot be read: KeyError: 'a'"),
        (ValueError("odd"), "it cannot be read: ValueError: odd"),
        (Unreadable("no place"), "it cannot be read: no place"),
        (ValueError(HALF), "it cannot be read: ValueError: \\ud83d"),
    ],
)
def test_a_part_of_a_record_and_a_column_give_the_same_reason(cause: Exception, why: str) -> None:
    def fail(*_: object) -> None:
        raise cause

    refused: dict[int, str] = {}
    each(fail, [0], refused, "it")
    parts = RecordParts()
    assert parts.read("it", 5, fail) == 5
    assert refused[0] == parts.reason == why


# Cosmos DB


def of_cosmos(*documents: dict[str, Any]) -> Batch:
    return cosmos.to_batch("0", documents, range(len(documents)), ["/plane"])


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        ({"text": HALF}, "its text cannot be read: UnicodeEncodeError"),
        ({HALF: 1}, "its text cannot be read: UnicodeEncodeError"),
        ({"plane": HALF}, "cannot be read: UnicodeEncodeError"),
        ({"_ts": 10**18}, "its time cannot be read"),
        ({"_ts": 10**400}, "its time cannot be read: OverflowError"),
        ({"_ts": "today"}, "its time cannot be read: TypeError"),
    ],
)
def test_an_odd_document_is_refused_with_its_text(odd: dict[str, Any], why: str) -> None:
    fine = {"id": "1", "plane": "N1", "_lsn": 5, "_ts": 7}
    batch = of_cosmos(fine, fine | odd, fine)
    assert reasons(batch).keys() == {1}
    assert why in reasons(batch)[1]
    assert json.loads(batch.values[1] or b"") == fine | odd
    assert batch.keys[::2] == [b"N1", b"N1"]


@pytest.mark.parametrize("odd", [{"n": 2**64}, {"n": -(10**300)}, {"deep": DEEP}, {"plane": 2**70}, {"_ts": None}])
def test_an_unusual_document_is_a_record(odd: dict[str, Any]) -> None:
    fine = {"id": "1", "plane": "N1", "_lsn": 5, "_ts": 7}
    batch = of_cosmos(fine | odd)
    assert (reasons(batch), json.loads(batch.values[0] or b"")) == ({}, fine | odd)


@pytest.mark.parametrize("odd", [{}, {"_lsn": None}, {"_lsn": "x"}, {"metadata": {}}, {"metadata": 7}])
def test_a_document_without_a_transaction_is_named(odd: dict[str, Any]) -> None:
    with pytest.raises(SourceError, match=r"without the number of its transaction"):
        cosmos.lsn_of_document({"id": "1"} | odd)


@pytest.mark.parametrize("seed", range(20))
def test_documents_of_any_form_become_columns_or_are_refused(seed: int) -> None:
    chance = random.Random(seed)

    def some(depth: int = 0) -> Any:
        if depth < 3 and chance.random() < 0.3:
            return {some_text(): some(depth + 1) for _ in range(3)} if chance.random() < 0.5 else [some(depth + 1)] * 2
        number = chance.choice([0, 1.5, 2**63, -(2**80), 1e308, 10**17])
        return chance.choice([None, True, number, some_text(), DEEP])

    def some_text() -> str:
        return chance.choice(["", "plain", "\x00", "\U0001f600", HALF, "\udfff"])

    def document() -> dict[str, Any]:
        system: dict[str, Any] = chance.choice(
            [{"_lsn": 5}, {"metadata": {"lsn": 5, "operationType": some(), "crts": some()}}]
        )
        return {some_text(): some(), "plane": some(), "_ts": some(), "current": some(), **system}

    documents = [document() for _ in range(100)]
    assert len({cosmos.lsn_of_document(one) for one in documents}) == 1
    batch = of_cosmos(*documents)
    assert 0 < len(reasons(batch)) < 100
    for index, value in enumerate(batch.values):
        assert json.loads(value or b"") == documents[index]


# Event Hubs


def event(number: int, **more: Any) -> EventData:
    where = {b"x-opt-sequence-number": number, b"x-opt-enqueued-time": 1_700_000_000_000, **more.pop("where", {})}
    return EventData._from_message(Message(**{"data": [b"fine"], "message_annotations": where} | more))


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        ({"where": {b"x-opt-enqueued-time": 2**62}}, "the enqueued time cannot be read: ValueError: year"),
        ({"application_properties": {b"\xff": 1}}, "the name of a property cannot be read: UnicodeDecodeError"),
        ({"application_properties": {b"a": {b"b": b"c"}}}, None),
        ({"properties": Properties(creation_time=2**62)}, None),
    ],
)
def test_an_odd_event_is_refused_alone(odd: dict[str, Any], why: str | None) -> None:
    batch = eventhubs.to_batch("0", [event(1), event(2, **odd), event(3)])
    assert batch.values[::2] == [b"fine", b"fine"]
    assert batch.sequences == [1, 2, 3]
    assert reasons(batch).keys() <= {1}
    assert why is None or why in reasons(batch)[1]


@pytest.mark.parametrize("seed", range(20))
def test_events_of_any_form_become_columns_or_are_refused(seed: int) -> None:
    chance = random.Random(seed)

    def some() -> Any:
        texts = [b"", b"\xff", b"plain", "text", HALF]
        return chance.choice([None, 1, 2**70, 1.5, *texts, {b"k": b"v"}, {1: HALF}, [b"\xff", {}], object(), 10**18])

    def odd(number: int) -> EventData:
        body = chance.choice(
            [{"data": [b"\xff", b"x"]}, {"data": None, "value": some()}, {"data": None, "sequence": [[some()]]}]
        )
        properties = {chance.choice([b"a", "b", b"\xff", HALF]): some() for _ in range(chance.choice([0, 1, 3]))}
        where = {b"x-opt-enqueued-time": chance.choice([0, 1_700_000_000_000, 2**62, -(2**62)])}
        where |= {b"x-opt-partition-key": some(), b"x-opt-other": some()}
        system = Properties(message_id=some(), creation_time=chance.choice([None, 1, 2**62]))
        return event(number, where=where, application_properties=properties, properties=system, **body)

    batch = eventhubs.to_batch("0", [odd(n) if n % 2 else event(n) for n in range(1, 101)])
    assert batch.sequences == [*range(1, 101)]
    assert reasons(batch).keys() <= {*range(0, 100, 2)}
    assert reasons(batch)


# Kinesis


MAGIC = b"\xf3\x89\x9a\xc2"
ALL = HashRange(0, 2**128)


def of_kinesis(*records: dict[str, Any], raw: dict[bytes, bytes] | None = None) -> Batch:
    given = [
        {"SequenceNumber": str(n), "Data": "djE=", "PartitionKey": "k", "ApproximateArrivalTimestamp": 1.7e9} | one
        for n, one in enumerate(records)
    ]
    body = json.dumps({"Records": given, "NextShardIterator": "next", "MillisBehindLatest": 0}).encode()
    for before, after in (raw or {}).items():
        body = body.replace(before, after)
    return decode(body, "shard", Position(), ALL).batch


def packed(body: bytes) -> dict[str, str]:
    data = MAGIC + body + md5(body, usedforsecurity=False).digest()
    return {"Data": base64.b64encode(data).decode()}


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(number: int) -> bytes:
    return bytes([number & 0x7F | 0x80]) + varint(number >> 7) if number > 0x7F else bytes([number])


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        ({"PartitionKey": HALF}, "its partition key cannot be read: UnicodeEncodeError"),
        ({"PartitionKey": None}, "it is not of its form"),
        ({"Data": "?"}, "it is not of its form"),
        ({"Data": 7}, "it is not of its form"),
    ],
)
def test_an_odd_record_of_kinesis_is_refused(odd: dict[str, Any], why: str) -> None:
    batch = of_kinesis({}, odd, {})
    assert reasons(batch).keys() == {1}
    assert why in reasons(batch)[1]
    assert (batch.keys[::2], batch.values[::2]) == ([b"k", b"k"], [b"v1", b"v1"])
    assert [headers[0][1] for headers in batch.headers] == [b"0", b"1", b"2"]


def test_a_partition_key_that_is_not_utf8_is_refused() -> None:
    batch = of_kinesis({}, {"PartitionKey": "odd"}, raw={b'"odd"': b'"\xff"'})
    assert reasons(batch).keys() == {1}
    assert batch.values == [b"v1", b"v1"]


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"Records": 7}', b'{"Records": [{}]}', b"[" * 100_000])
def test_an_answer_of_another_form_is_an_error(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(body, "shard", Position(), ALL)


def test_a_small_aggregated_record_cannot_fill_the_memory() -> None:
    bomb = field(1, b"k" * 10_000) + field(3, varint(1 << 3) + varint(0) + field(3, b"")) * 10_000
    batch = of_kinesis({}, packed(bomb), {})
    assert reasons(batch) == {1: "the records in it, with their keys, take more than 64 times its bytes"}
    assert batch.data.nbytes < 200_000
    with pytest.raises(TooLarge):
        user_records(base64.b64decode(packed(bomb)["Data"]), ALL)


def test_an_endless_number_in_an_aggregated_record_takes_no_time() -> None:
    batch = of_kinesis(packed(b"\xff" * 2**20 + b"\x01"))
    assert (len(batch), reasons(batch)) == (1, {})  # as it came, as for any malformed one


@pytest.mark.parametrize("seed", range(20))
def test_aggregated_records_of_any_bytes_become_records(seed: int) -> None:
    chance = random.Random(seed)

    def part() -> bytes:
        inner = varint(1 << 3) + varint(chance.randrange(3)) + field(3, chance.randbytes(4))
        return chance.choice([
            field(1, chance.choice([b"key", b"\xff", b""])), field(2, chance.choice([b"7", b"x", b"9" * 5000])),
            field(3, inner), field(3, chance.randbytes(6)), varint(chance.randrange(2**40)), chance.randbytes(3),
        ])  # fmt: skip

    records = [packed(b"".join(part() for _ in range(chance.randrange(12)))) for _ in range(200)]
    batch = of_kinesis(*records)
    assert len({headers[0][1].partition(b".")[0] for headers in batch.headers}) > 100
    assert orjson.dumps(batch.sequences) == orjson.dumps(sorted(batch.sequences))
