"""Events of Event Hubs as records, decoded by the official client: each value has one place or a reason."""

from __future__ import annotations

import re
import struct
import uuid
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

pytest.importorskip("azure.eventhub", reason="azure-eventhub is not installed")

from azure.eventhub import EventData
from azure.eventhub._pyamqp._encode import encode_payload
from azure.eventhub._pyamqp.message import Message, Properties
from azure.eventhub._transport._pyamqp_transport import PyamqpTransport

from actorproc.connectors.eventhubs.columns import _headers_of, to_batch
from actorproc.connectors.eventhubs.decoding import _handed_over, undecoded
from actorproc.connectors.eventhubs.sender import to_event
from actorproc.connectors.shared.amqp_decoding import ReceivedMessage
from actorproc.output.letter import HISTORY
from actorproc.records import Batch, Record
from actorproc.sources.refusals import RecordParts
from tests.partition.test_refused_records import reasons

NAME = uuid.UUID(int=7)
NOW = b"\0Sr\xc1\x1f\x02\xa3\x13x-opt-enqueued-time\x83"


def event(**sections: Any) -> EventData:
    """As the client gives it after it was sent."""
    encoded = bytearray()
    encode_payload(encoded, Message(**sections))
    return EventData.from_bytes(bytes(encoded))


def read(*events: EventData | bytes) -> Batch:
    return to_batch("0", [EventData.from_bytes(one) if isinstance(one, bytes) else one for one in events])


def value(one: EventData | bytes) -> Any:
    """Of an event that is not refused."""
    batch = read(one)
    assert reasons(batch) is None
    return batch.values[0]


def test_all_sections_of_a_body_are_one_body() -> None:
    assert value(event(data=[b'{"a": ', b'12, "b": "x"}'])) == b'{"a": 12, "b": "x"}'
    assert value(event(data=[b""])) == b""
    assert value(event(sequence=[[1, "a"], [2, None]])) == b'[1,"a",2,null]'
    assert value(event(sequence=[[b"a", 1]])) == b'["a",1]'


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (b"\xff", b"\xff"), ("\xe9", "\xe9".encode()), (5, b"5"), (1.5, b"1.5"), (True, b"true"), (None, None),
        (NAME, orjson.dumps(str(NAME))), (["a", b"b"], b'["a","b"]'), ({"a": {"b": [b"c", 7]}}, b'{"a":{"b":["c",7]}}'),
        ({b"a": 1, "b": None}, b'{"a":1,"b":null}'), ({1: "x", NAME: 2}, orjson.dumps({"1": "x", str(NAME): 2})),
        ([[[]]], b"[[[]]]"),
    ],
)  # fmt: skip
def test_a_body_of_values_becomes_json(given: Any, found: bytes | None) -> None:
    assert value(event(value=given)) == found


def nested(levels: int) -> Any:
    found: Any = None
    for _ in range(levels):
        found = [found]
    return found


REFUSED = [
    ([b"\xff"], "is not UTF-8, and the client does not say whether it is binary"),
    ({"a": float("nan")}, "nan is no"),
    ({b"\xff": 1}, "is not UTF-8"), ({True: 1}, "a key of type boolean"), ({None: 1}, "a key of type null"),
    ({1: 1, "1": 2}, "two keys with the text '1'"), (float("inf"), "inf is no number"),
    (nested(102), "are in each other"),
    ({1.5: 1}, "a key of type double"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "why"), REFUSED)
def test_a_value_without_a_place_refuses_its_event_alone(given: Any, why: str) -> None:
    bad_body, good = event(value=given), event(data=[b"x"], application_properties={"a": "b"})
    bad_property = event(data=[b"y"], application_properties={"c": "d", "bad": given, "e": None})
    batch = read(good, bad_body, bad_property, good)
    refused = reasons(batch)
    assert refused is not None
    assert (refused[0], refused[3]) == (None, None)
    assert re.fullmatch(f"the body cannot be read: .*{why}.*", str(refused[1]))
    assert re.fullmatch(f"property 'bad' cannot be read: .*{why}.*", str(refused[2]))
    assert batch.values == [b"x", None, b"y", b"x"]
    assert [dict(headers) for headers in batch.headers] == [
        {"a": b"b"},
        {},
        {"c": b"d", "bad": None, "e": None},
        {"a": b"b"},
    ]


def test_properties_of_every_type_become_headers() -> None:
    given = {
        "text": "\xe9", "bytes": b"\xff", "none": None, "true": True, "int": -1, "float": 1.5, "list": [1, b"a"],
        "id": NAME,
        "map": {b"a": {"b": 1}}, "time": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
    }  # fmt: skip
    batch = read(event(data=[b"x"], application_properties=given, properties=Properties(message_id=NAME, subject="s")))
    assert reasons(batch) is None
    assert dict(batch.headers[0]) == {
        "text": "\xe9".encode(), "bytes": b"\xff", "none": None, "true": b"true", "int": b"-1", "float": b"1.5",
        "list": b'[1,"a"]', "id": orjson.dumps(str(NAME)), "map": b'{"a":{"b":1}}',
        "time": b"1000", "message-id": orjson.dumps(str(NAME)), "subject": b"s",
    }  # fmt: skip


@pytest.mark.parametrize("footer", [b"\xc0\x02\x01\x40", b"\x40", b"\xa1\x01a"])
def test_a_footer_that_is_no_map_refuses_no_event(footer: bytes) -> None:
    batch = read(event(data=[b"y"]), b"\0Su\xa0\x01x\0Sx" + footer, event(data=[b"y"]))
    assert reasons(batch) is None
    assert batch.values == [b"y", b"x", b"y"]


ANNOTATIONS = ["x-opt-sequence-number", "x-opt-offset", "x-opt-enqueued-time", "x-opt-partition-key"]


@pytest.mark.parametrize("is_decoded", [True, False])
@pytest.mark.parametrize("name", ANNOTATIONS)
def test_a_property_with_the_name_of_an_annotation_stays(name: str, is_decoded: bool) -> None:
    one = event(data=[b"x"], application_properties={name: "mine"}, message_annotations={b"x-opt-sequence-number": 7})
    if not is_decoded:
        encoded = bytearray()
        encode_payload(encoded, one._message)
        handed_over = _handed_over(memoryview(encoded))
        assert handed_over is not None
        one = EventData._from_message(handed_over)
    assert (undecoded(one) is None) == is_decoded
    batch = read(one)
    assert reasons(batch) is None
    assert batch.headers[0] == ((name, b"mine"),)


@pytest.mark.parametrize("milliseconds", [2**63 - 1, 253_402_300_800_000])
def test_a_time_out_of_range_refuses_its_event(milliseconds: int) -> None:
    batch = read(NOW + struct.pack(">q", milliseconds) + b"\0Su\xa0\x01x", event(data=[b"y"]))
    assert [why is None for why in reasons(batch) or []] == [False, True]
    assert batch.values == [b"x", b"y"]


def decimal(digits: int, scale: int) -> bytes:
    """A decimal as the .NET client sends one, which is the only form that this client reads."""
    exponent = 6176 - scale
    return bytes([exponent >> 9, (exponent & 0x7F) << 1, 0, 0]) + digits.to_bytes(12)


def test_a_decimal_that_the_client_may_have_read_wrongly_is_refused() -> None:
    """It joins the decimal digits of 32 bits each: 2**32 becomes 100000000."""
    right, wrong, lucky = (read(b"\0Sw\x94" + decimal(digits, 2)) for digits in (12345678, 2**32, 123456789))
    assert (right.values, reasons(right)) == ([b'"123456.78"'], None)
    for batch in (wrong, lucky):
        assert reasons(batch) == ["the body cannot be read: the client reads decimals of more than 8 digits wrongly"]


SECTIONS: dict[str, Any] = {
    "properties": Properties(
        message_id="m", user_id=b"u", to="t", subject="field", reply_to="r", correlation_id=b"\xff",
        content_type="c/t", content_encoding="gzip", absolute_expiry_time=1_700_000_000_000, creation_time=5,
        group_id="g", group_sequence=7, reply_to_group_id="rg",
    ),
    "application_properties": {
        "subject": "mine", "message-id": 7, "group-sequence": b"\xfe", "a": "b", "amqp.property.a": "c", "to": None,
    },
}  # fmt: skip


def sent_again(record: Record) -> EventData:
    """As the client gives it after a replay."""
    transport: Any = PyamqpTransport
    outgoing = transport.to_outgoing_amqp_message(to_event(record).raw_amqp_message)
    encoded = bytearray()
    encode_payload(encoded, outgoing)
    return EventData.from_bytes(bytes(encoded))


def test_properties_named_like_fields_stay_beside_them_also_when_replayed() -> None:
    (record,) = read(event(data=[b"x"], **SECTIONS))
    headers = dict(record.headers)
    assert len(headers) == len(record.headers) == 13 + 6
    assert (headers["subject"], headers["amqp.property.subject"]) == (b"field", b"mine")
    assert headers["amqp.property.amqp.property.a"] == b"c"
    again = sent_again(record)
    assert dict(read(again)[0].headers) == headers
    assert again.properties is not None
    assert again.properties[b"subject"] == b"mine"


def test_an_event_that_the_client_cannot_decode_has_the_same_headers() -> None:
    good = event(data=[b"x"], **SECTIONS)
    encoded = bytearray()
    encode_payload(encoded, Message(data=[b"x"], **SECTIONS))
    found = list(_headers_of(ReceivedMessage(bytes(encoded)), RecordParts()))
    assert sorted(found) == sorted(read(good)[0].headers)


def test_a_letter_of_an_earlier_version_keeps_property_and_field() -> None:
    headers: list[tuple[str, bytes | None]] = [("subject", b"mine"), ("to", b"t"), ("subject", b"field")]
    (record,) = Batch.of("0", [b"x"], [0], headers=[headers])
    (again,) = read(sent_again(record))
    assert dict(again.headers) == {"subject": b"field", "to": b"t", "amqp.property.subject": b"mine"}


@pytest.mark.parametrize(
    "name", ["message-id", "group-sequence", "creation-time", "content-type", "subject", "user-id"]
)
@pytest.mark.parametrize("value", [b"", b"\xff", b"-1", b"4294967296", b"9" * 30, "٣".encode(), b"\x00", None])
def test_a_header_that_no_field_can_have_stops_no_replay(name: str, value: bytes | None) -> None:
    (record,) = Batch.of("0", [b"x"], [0], headers=[[(name, value), ("a", b"b")]])
    assert ("a", b"b") in read(sent_again(record))[0].headers


def test_a_property_stays_where_an_annotation_has_its_name_and_ours_are_the_last() -> None:
    headers: list[tuple[str, bytes | None]] = [
        ("x", b"property"), ("x", b"annotation"), (f"{HISTORY}sequence", b"forged"), (f"{HISTORY}sequence", b"7"),
    ]  # fmt: skip
    (record,) = Batch.of("0", [b"x"], [0], headers=[headers])
    assert to_event(record).properties == {"x": "property", f"{HISTORY}sequence": "7"}
