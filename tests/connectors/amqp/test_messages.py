"""AMQP messages as records: every type has one place or a reason, and each id an identity of its own."""

from __future__ import annotations

import re
import struct
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import orjson
import pytest

pytest.importorskip("proton", reason="python-qpid-proton is not installed")

from proton import (
    UNDESCRIBED,
    Array,
    Data,
    Described,
    Message,
    char,
    decimal32,
    decimal64,
    decimal128,
    float32,
    int32,
    symbol,
    timestamp,
    ulong,
)

from actorproc.connectors.amqp import messages as queue_messages
from actorproc.connectors.amqp.messages import deliveries_of, identity_by, to_message
from actorproc.connectors.shared import amqp_decoding as decoding
from actorproc.connectors.shared.amqp_decoding import ReceivedMessage
from actorproc.records import Batch, Record
from actorproc.sources.queue_protocol import Deliveries

NAME = uuid.UUID(int=7)
NULL, HEADER, ID = b"\x40", b"\0SpE", b"\0Ss\xc0\x04\x01\xa1\x01i"
"""Encoded: a null, a header section, and properties with the message id "i"."""


def read(*messages: Message | bytes, identity: str = "message-id") -> Deliveries:
    encoded = [one if isinstance(one, bytes) else bytes(one.encode()) for one in messages]
    return deliveries_of("q", encoded, identity_by(identity))


def reasons(batch: Batch) -> list[Any]:
    return [None] * len(batch) if batch.refused is None else batch.refused.to_pylist()


def record(message: Message | bytes) -> Record:
    """The record of a message that is not refused."""
    batch = read(message).batch
    assert batch.refused is None, batch.refused
    return next(iter(batch))


def reason(message: Message | bytes, identity: str = "message-id") -> str:
    why = read(message, identity=identity).batch.refused
    assert why is not None
    return str(why[0])


def body_of(encoded: bytes) -> bytes:
    """A message with this value as its body."""
    return HEADER + ID + b"\0Sw" + encoded


def nested(levels: int) -> bytes:
    """Lists in each other."""
    encoded = NULL
    for _ in range(levels):
        encoded = b"\xd0" + struct.pack(">II", len(encoded) + 4, 1) + encoded
    return encoded


JSON: list[tuple[bytes, Any]] = [
    (b"\x41", True), (b"\x42", False), (b"\x56\x01", True), (b"\x56\x00", False),
    (b"\x50\xff", 255), (b"\x60\xff\xff", 65535), (b"\x70\xff\xff\xff\xff", 2**32 - 1), (b"\x52\x07", 7), (b"\x43", 0),
    (b"\x80" + b"\xff" * 8, 2**64 - 1), (b"\x53\x07", 7), (b"\x44", 0),
    (b"\x51\xff", -1), (b"\x61\x80\x00", -(2**15)), (b"\x71\x80\0\0\0", -(2**31)), (b"\x54\xff", -1),
    (b"\x81\x80" + b"\0" * 7, -(2**63)), (b"\x55\xff", -1),
    (b"\x72" + struct.pack(">f", 1.5), 1.5), (b"\x82" + struct.pack(">d", 0.1), 0.1),
    (b"\x74\x32\x00\x00\x0f", "1.5"), (b"\x74\xb2\x00\x00\x0f", "-1.5"), (b"\x74\x6c\xb8\x96\x7f", "9999999"),
    (b"\x84\x31\xa0" + b"\0" * 5 + b"\x0f", "1.5"), (b"\x84\x5f\xe0" + b"\0" * 5 + b"\x01", "1E+369"),
    (b"\x94\x30\x3e" + b"\0" * 13 + b"\x0f", "1.5"),
    (b"\x94\x30\x40\x00" + b"\xff" * 13, "20282409603651670423947251286015"),
    (b"\x94\x5f\xfe" + b"\0" * 13 + b"\x01", "1E+6111"),
    (b"\x73\0\x01\xf6\x00", "\U0001f600"), (b"\x83" + struct.pack(">q", -1), -1), (b"\x98" + NAME.bytes, str(NAME)),
    (b"\xa0\x02\xff\x00", "/wA="), (b"\xb0\0\0\0\x01a", "YQ=="), (b"\xa1\x02\xc3\xa9", "\xe9"),
    (b"\xb1\0\0\0\x01a", "a"),
    (b"\xa3\x01s", "s"), (b"\xb3\0\0\0\x01s", "s"), (b"\x45", []), (b"\xc0\x03\x02\x41\x40", [True, None]),
    (b"\xd0\0\0\0\x05\0\0\0\x01\x40", [None]), (b"\xc1\x05\x02\xa1\x01a\x41", {"a": True}),
    (b"\xc1\x05\x02\xa3\x01a\x41", {"a": True}), (b"\xc1\x04\x02\x55\xff\x41", {"-1": True}),
    (b"\xd1\0\0\0\x04\0\0\0\0", {}), (b"\xc1\x13\x02\x98" + NAME.bytes + b"\x41", {str(NAME): True}),
    (b"\xe0\x04\x02\x50\x01\x02", [1, 2]), (b"\xf0\0\0\0\x07\0\0\0\x02\x50\x01\x02", [1, 2]),
    (b"\xe0\x02\x03\x41", [True] * 3),
    (b"\0\xa3\x01u\xa1\x01v", {"descriptor": "u", "value": "v"}),
    (b"\xe0\x08\x02\0\xa3\x01u\x50\x01\x02", {"descriptor": "u", "value": [1, 2]}),
]  # fmt: skip
"""Encoded values, and their decoded form in a list of a body."""


@pytest.mark.parametrize(("encoded", "plain"), JSON, ids=lambda one: one.hex() if isinstance(one, bytes) else "")
def test_each_type_has_its_place_in_json(encoded: bytes, plain: Any) -> None:
    items = b"\xd0" + struct.pack(">II", len(encoded) + 5, 2) + encoded + NULL
    assert orjson.loads(record(body_of(items)).value or b"") == [plain, None]


@pytest.mark.parametrize(
    ("encoded", "why"),
    [
        (b"\x82" + struct.pack(">d", float("nan")), "nan is no number of JSON"),
        (b"\x72" + struct.pack(">f", float("-inf")), "-inf is no number of JSON"),
        (b"\x74\x7c\0\0\0", "NaN is no number of JSON"), (b"\x84\xf8" + b"\0" * 7, "-Infinity is no number of JSON"),
        (b"\x73\0\0\xd8\x00", "there is no such char"), (b"\x73\x7f\xff\xff\xff", "there is no such char"),
        (b"\xc1\x03\x02\x40\x41", "a key of type null"), (b"\xc1\x03\x02\x45\x41", "a key of type list"),
        (b"\xc1\x04\x02\xa0\x00\x41", "a key of type binary"),
        (b"\xc1\x08\x04\xa1\x011\x41\x50\x01\x41", "two keys with the text '1'"),
        (b"\xa1\x01\xff", "a string is not utf-8"), (b"\xa3\x01\xe9", "a symbol is not ascii"),
        (b"\xa1\x05abc", "it is cut off"), (b"\x3f", "there is no type 0x3f"),
        (b"\x56\x02", "there is no such boolean"),
        (b"\xc0\xff\xff" + NULL * 3, "it is cut off"), (b"\xc0\x02\x05\x40", "not the count of items that it says"),
        (b"\xc1\x02\x01\x40", "not the count of items that it says"), (b"\xc0\x03\x01\x40\x40", "different sizes"),
        (nested(150), "are in each other"), (b"\xe0\x0b\x01\xf0\0\0\0\x05\xff\xff\xff\xff\x40", "without bytes"),
        (b"\xf0\0\0\0\x05\xff\xff\xff\xff\x40", "elements without bytes"),
        (b"\0" * 150 + b"\x40", "are in each other"), (b"\0\x40" * 150 + b"\x40", "are in each other"),
    ],
)  # fmt: skip
def test_a_value_without_a_place_refuses_its_message_and_keeps_its_identity(encoded: bytes, why: str) -> None:
    found = read(body_of(encoded), Message(id="other", body=b"x"))
    assert found.identities == ["i", "other"]
    first, second = reasons(found.batch)
    assert second is None
    assert re.search(why, first), first
    assert (found.batch.values[0] or b"").endswith(encoded), "the letter has the bytes as they came"
    assert found.batch.values[1] == b"x"


def test_the_deepest_value_that_is_read_is_a_row() -> None:
    assert record(body_of(nested(100))).value == b"[" * 100 + b"null" + b"]" * 100


def test_too_many_values_are_refused_before_they_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "_MOST_VALUES", 1_000)
    items = b"\xd0" + struct.pack(">II", 1_004, 1_000) + NULL * 1_000
    assert reason(body_of(items)) == "the body cannot be read: there are more than 1,000 values"


def test_all_sections_of_a_body_are_one_body() -> None:
    data = [b"\0Su\xa0%c%s" % (len(part), part) for part in (b'{"a": ', b"", b'12, "b": "x"}')]
    assert record(HEADER + ID + b"".join(data)).json() == {"a": 12, "b": "x"}
    sequences = [b"\0Sv\xc0\x04\x02\x50%c\x40" % n for n in (1, 2)] + [b"\0Sv\x45"]
    assert record(HEADER + ID + b"".join(sequences)).json() == [1, None, 2, None]


def test_sections_may_be_named_by_symbols() -> None:
    assert record(HEADER + ID + b"\0\xa3\x10amqp:data:binary\xa0\x01x").value == b"x"


@pytest.mark.parametrize(("group", "key"), [(None, None), ("", b""), ("\xe9", "\xe9".encode())])
def test_the_group_id_is_the_key(group: str | None, key: bytes | None) -> None:
    found = record(Message(id="i", body=b"x", group_id=group))
    assert (found.key, record(to_message(found, "replay-1")).key) == (key, key)


def test_a_message_without_a_body_has_a_null_value() -> None:
    assert record(HEADER + ID).value is None


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        (b"\0Su\xa0\x01x\0Sw\x40", "several bodies"), (b"\0Sw\x40\0Sw\x40", "several bodies"),
        (b"\0Su\xa1\x01x", "type string in place of a binary"), (b"\0Sv\x40", "type null in place of a list"),
        (b"\0Sw", "cut off"), (b"\0\x53\x99\x40", "no section 153"), (b"x", "no descriptor"),
        (b"\0\xa1\x01a\x40", "no section"), (b"\0\x45\x40", "no section"),
    ],
)  # fmt: skip
def test_sections_that_are_no_body_refuse_their_message(sections: bytes, why: str) -> None:
    found = read(HEADER + ID + sections)
    assert found.identities == ["i"]
    assert re.search(why, reasons(found.batch)[0])
    assert found.batch.values[0]


@pytest.mark.parametrize("message", [b"", b"AMQP", b"\0", b"\0Ss\xc0\xff", b"\0Ss\x40", b'{"n": 1}', b"\xff" * 50])
def test_bytes_that_are_no_message_are_refused(message: bytes) -> None:
    found = read(message)
    assert found.identities == [None]
    assert reasons(found.batch) != [None]
    assert found.batch.values[0] in (message, None)


def test_properties_keep_their_values() -> None:
    given = {
        "text": "\xe9", "bytes": b"\xff", "none": None, "true": True, "long": 2**40, "int": int32(-1),
        "float": float32(1.5),
        "list": [1, "a", b"\xff"], "map": {"a": timestamp(5)}, "id": NAME, "symbol": symbol("s"), "char": char("c"),
        "described": Described(symbol("com.microsoft:uri"), "http://x"),
        "array": Array(cast(Any, UNDESCRIBED), Data.INT, 1, 2),
        "decimal32": decimal32(0x3200000F), "decimal64": decimal64(0x31A000000000000F),
        "decimal128": decimal128(b"\x30\x3e" + b"\0" * 13 + b"\x0f"),
    }  # fmt: skip
    headers = dict(record(Message(id="i", body=b"x", properties=given)).headers)
    assert [headers[name] for name in given] == [
        "\xe9".encode(), b"\xff", None, b"true", b"1099511627776", b"-1", b"1.5", b'[1,"a","/w=="]', b'{"a":5}',
        b'"%s"' % str(NAME).encode(), b"s", b"c", b'{"descriptor":"com.microsoft:uri","value":"http://x"}', b"[1,2]",
        b'"1.5"', b'"1.5"', b'"1.5"',
    ]  # fmt: skip


def test_a_property_without_a_place_refuses_its_message() -> None:
    message = Message(id="i", body=b"x", group_id="k", properties={"a": float("nan"), "b": "c"}, creation_time=1)
    assert reason(message) == "property 'a' cannot be read: nan is no number of JSON"
    found = read(message).batch[0]
    assert (found.value, found.key, dict(found.headers)["b"]) == (b"x", b"k", b"c")
    assert found.timestamp == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


def created_again(found: Record) -> int:
    """Creation time of the message that is sent again, in milliseconds since 1970."""
    created = ReceivedMessage(bytes(to_message(found, "replay-1").encode())).field("creation-time")
    assert created is not None
    return int(created.content)


@pytest.mark.parametrize("milliseconds", [2**63 - 1, -(2**63), 1_700_000_000_000_000, 253_402_300_800_000])
def test_a_time_out_of_range_is_no_timestamp_and_stays_in_a_header(milliseconds: int) -> None:
    fields = b"\xa1\x01i" + NULL * 8 + b"\x83" + struct.pack(">q", milliseconds)
    found = record(HEADER + b"\0Ss\xc0%c\x0a" % (len(fields) + 1) + fields + b"\0Su\xa0\x01x")
    assert found.timestamp is None
    assert dict(found.headers)["amqp.creation-time"] == str(milliseconds).encode()
    assert created_again(found) == milliseconds


ODD = datetime(1970, 1, 1, 0, 0, 1, 1000, UTC)  # 1.001 s, which is 1000.99 ms as a float


def test_a_time_in_range_is_exact() -> None:
    for when in (datetime(9999, 12, 31, 23, 59, 59, 999000, UTC), datetime(1, 1, 1, tzinfo=UTC), ODD):
        milliseconds = (when - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
        found = record(Message(id="i", body=b"x", annotations={"x-opt-enqueued-time": timestamp(milliseconds)}))
        assert found.timestamp == when
        assert "amqp.creation-time" not in dict(found.headers)
        assert created_again(found) == milliseconds


def test_a_time_that_no_message_can_have_is_not_sent_again() -> None:
    found = record(Message(id="i", body=b"x", annotations={"x-opt-enqueued-time": ulong(2**63)}))
    assert dict(found.headers)["amqp.creation-time"] == b"%d" % 2**63
    assert to_message(found, "replay-1").creation_time == 0


IDS = [
    7, "7", "int:7", "str:int:7", NAME, str(NAME), f"UUID:{NAME}", b"7", b"x", "x", "bytes:b'x'", "bytes:78",
    b"\xff\x00",
    "\ufffd", b"\xef\xbf\xbd", NAME.bytes, 0, "0", 2**64 - 1, " 7",
]  # fmt: skip


def test_ids_of_different_types_differ() -> None:
    messages = [Message(id=one) for one in IDS]
    found = read(*messages)
    assert found.batch.refused is None
    assert len(set(found.identities)) == len(IDS)
    assert read(*messages).identities == found.identities


@pytest.mark.parametrize(
    ("given", "identity"),
    [("order:7", "order:7"), ("int:7", "str:int:7"), (7, "int:7"), (NAME, f"UUID:{NAME}"), ("\xe9 ", "\xe9 ")],
)
def test_identities_are_those_of_earlier_versions(given: Any, identity: str) -> None:
    """Commits carry hashes of them."""
    assert read(Message(id=given)).identities == [identity]


PROPERTIES = [
    True, False, 1, int32(1), ulong(1), 1.0, float32(1.0), float32(0.1), 0.1, -0.0, 0.0, timestamp(1),
    char("1"), symbol("1"), "1", b"1",
    NAME, decimal32(1), decimal64(1), decimal128(b"\0" * 15 + b"\1"), "str:symbol:1", "symbol:1", "str:char:1",
    "int:int:1",
    "int:1", "float:float:1.0", float("inf"),
]  # fmt: skip


@pytest.mark.parametrize("place", ["property", "annotation"])
def test_properties_and_annotations_of_different_types_differ(place: str) -> None:
    where = "properties" if place == "property" else "annotations"
    messages = [Message(**{where: {"id": one}}) for one in PROPERTIES]
    identities = read(*messages, identity=f"{place}:id").identities
    assert None not in identities
    assert len(set(identities)) == len(PROPERTIES)
    assert identities[2] == "int:1", "as in earlier versions"


@pytest.mark.parametrize(
    "value", [None, "", b"", [1], {"a": 1}, float("nan"), Array(cast(Any, UNDESCRIBED), Data.INT, 1), Described(1, 2)]
)
def test_a_value_that_names_nothing_for_good_is_no_identity(value: Any) -> None:
    found = read(Message(body=b"x", properties={"id": value}), Message(body=b"x"), identity="property:id")
    assert found.identities == [None, None]
    assert "by which the message would be recognized" in reasons(found.batch)[0]


def test_equal_bodies_are_one_message_also_if_they_are_refused() -> None:
    bodies = [b"x", "x", b"y", None, {"a": 1.5}, {"a": float("nan")}, {"b": float("nan")}]
    messages = [Message(body=one, properties={"n": n}) for n, one in enumerate(bodies)]
    first = read(*messages, identity="body").identities
    assert first == read(*messages, identity="body").identities
    assert first[0] == first[1] == "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    assert len(set(first)) == len(bodies) - 1


def test_a_message_that_is_sent_again_has_an_id_of_its_own_and_the_other_fields() -> None:
    again = [to_message(record(Message(id=one, correlation_id=one, body=b"x")), "replay-1") for one in IDS]
    assert all(isinstance(one.id, str) and one.id.endswith("/replay-1") for one in again)
    names = [*read(*again).identities, *read(*(Message(id=one) for one in IDS)).identities]
    assert len(set(names)) == 2 * len(IDS)
    for one, sent in zip(IDS, again, strict=True):
        found, expected = (ReceivedMessage(bytes(m.encode())) for m in (sent, Message(correlation_id=one)))
        assert found.field("correlation-id") == expected.field("correlation-id")
    given = Message(
        id="i", body=b"x", subject="s", reply_to="r", content_type="c", group_id="k", properties={"a": "b",
        "c": b"\xff"},
        creation_time=1.5,
    )  # fmt: skip
    one = to_message(record(given), "replay-1")
    assert (one.subject, one.reply_to, one.content_type, one.group_id, one.creation_time) == ("s", "r", "c", "k", 1.5)
    assert one.properties == {"a": "b", "c": b"\xff"}


FIELDS = [
    "message-id", "correlation-id", "subject", "to", "reply-to", "content-type", "delivery-count", "creation-time",
    "group-id", "property.subject", "property.property.subject", "",
]  # fmt: skip


@pytest.mark.parametrize("field", FIELDS)
def test_a_property_with_the_name_of_a_field_stays_a_property(field: str) -> None:
    name = f"amqp.{field}"
    found = record(Message(id="i", body=b"x", properties={name: "7"}))
    headers = dict(found.headers)
    assert headers[f"amqp.property.{name}"] == b"7"
    assert headers["amqp.message-id"] == b"i"
    assert headers["amqp.delivery-count"] == b"0"
    again = dict(record(to_message(found, "replay-1")).headers)
    assert again == {**headers, "amqp.message-id": b"i/replay-1"}
    assert to_message(found, "replay-1").properties == {name: "7"}


def again(*headers: tuple[str, bytes | None]) -> Message:
    """The message sent for a record with these headers, as an earlier version may have read it."""
    (found,) = Batch.of("q", [b"x"], [0], headers=[list(headers)])
    return to_message(found, "replay-1")


ODD_IDS = [
    "int:-5", "int:18446744073709551616", "int:" + "9" * 5_000, "int: 5", "int:1_0", "int:05", "int:٣", "UUID:zz",
    f"UUID:{{{NAME}}}", f"UUID:{NAME.hex}", "bytes:zz", "bytes:a b", "bytes:AB", "str", "int:", ":", "",
]  # fmt: skip


@pytest.mark.parametrize("text", ODD_IDS)
def test_an_id_that_only_looks_like_another_type_is_sent_as_text(text: str) -> None:
    message = again(("amqp.correlation-id", text.encode()))
    assert message.correlation_id == text
    message.encode()


def test_a_record_that_cannot_be_a_message_is_refused_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def to_message_or_not(record: Record, transaction: str) -> Message:
        errors = {1: AssertionError(), 2: OverflowError("too large"), 3: ValueError("odd")}
        if record.sequence in errors:
            raise errors[record.sequence]
        return to_message(record, transaction)

    monkeypatch.setattr(queue_messages, "to_message", to_message_or_not)
    sent, refused = queue_messages.encoded(Batch.of("q", [b"x"] * 5, range(5)), "replay-1")
    assert (list(sent), list(refused)) == ([0, 4], [1, 2, 3])
    assert refused[2] == "it cannot be an AMQP message: OverflowError: too large"


def test_no_sender_knows_the_id_of_a_letter_that_is_sent_again() -> None:
    """A message with that id would be taken for the letter, or the letter for it."""
    sequence = "actorproc.dead_letter.sequence"
    assert again(("amqp.message-id", b"m4"), (sequence, b"7")).id == "m4/replay-1/7"
    assert again(("amqp.message-id", b"m4/replay"), (sequence, b"8")).id == "m4/replay/replay-1/8"
    assert again((sequence, b"forged"), (sequence, b"7")).id == "replay-1/7", "the last one is of this replay"


def test_the_property_by_which_artemis_drops_duplicates_is_left_out() -> None:
    found = record(Message(id="i", body=b"x", properties={"_AMQ_DUPL_ID": "d", "a": "b"}))
    assert ("_AMQ_DUPL_ID", b"d") in found.headers
    assert to_message(found, "replay-1").properties == {"a": "b"}
