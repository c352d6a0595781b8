"""Protobuf decodes as with Google's library, for any bytes, alone and in a batch."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError as NotAMessage
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from actorproc.errors import DecodeError
from actorproc.formats.protobuf.decoder import ProtobufDecoder, ProtobufFile
from actorproc.formats.protobuf.files import parsed_protobuf
from actorproc.formats.protobuf.objects import MessageType, reachable

VARINT, FIXED64, LENGTH, START, END, FIXED32 = range(6)

PROTO3 = """syntax = "proto3";
import "google/protobuf/duration.proto"; import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto"; import "google/type/date.proto"; import "google/type/timeofday.proto";
enum E { A = 0; B = 1; }
message S { int32 x = 1; repeated int32 y = 2; S s = 3; }
message Oneof { oneof o { int32 a = 1; string b = 2; S s = 3; S t = 4; } }
message Fields { S s = 1; int32 i = 2; repeated int32 packed = 3; repeated int32 single = 4 [packed = false]; E e = 5;
  repeated E es = 6; optional int32 o = 7; string text = 8; double d = 9; }
message Maps { map<string, S> m = 1; map<int32, E> e = 2; map<bool, bytes> b = 3; }
message Known { google.protobuf.Int32Value w = 1; google.protobuf.Timestamp t = 2; google.protobuf.Duration d = 3;
  google.protobuf.Struct s = 4; }
message Days { google.type.Date d = 1; google.type.TimeOfDay t = 2; google.protobuf.Timestamp at = 3; }
"""
PROTO2 = """syntax = "proto2";
enum E { A = 0; B = 2; }
message Old { optional group G = 1 { optional int32 a = 1; } repeated group H = 2 { optional int32 b = 1; }
  optional int32 d = 3 [default = 7]; optional E e = 4; repeated E es = 5; map<int32, E> m = 6; extensions 100 to 200; }
message Closed { optional E e = 1; repeated E es = 2; map<int32, E> m = 3; optional E f = 4 [default = B]; }
message Required { required int32 r = 1; optional Required inner = 2; }
extend Old { optional int32 ext = 100; }
"""
EDITION = """edition = "2023";
enum E { A = 0; B = 1; }
enum C { option features.enum_type = CLOSED; D = 1; }
message S { int32 x = 1; }
message New { int32 a = 1; string s = 2 [features.field_presence = IMPLICIT];
  S d = 3 [features.message_encoding = DELIMITED];
  repeated int32 r = 4 [features.repeated_field_encoding = EXPANDED]; E e = 5; C c = 6; map<string, S> m = 7; }
"""


@cache
def decoder(text: str, message: str) -> ProtobufDecoder:
    return ProtobufDecoder(_file(text).message_types_by_name[message])


@cache
def _file(text: str) -> Any:
    return parsed_protobuf(text)


def varint(number: int) -> bytes:
    number &= 2**64 - 1
    written = bytearray()
    while number >= 0x80:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])


def field(number: int, value: int | bytes) -> bytes:
    """A field with a number, or with a text or message."""
    if isinstance(value, int):
        return varint(number << 3 | VARINT) + varint(value)
    return varint(number << 3 | LENGTH) + varint(len(value)) + value


def group(number: int, content: bytes) -> bytes:
    return varint(number << 3 | START) + content + varint(number << 3 | END)


def row(of: ProtobufDecoder, value: bytes) -> dict[str, Any]:
    """The value as an object, which is the same alone and among others."""
    values = of.values()
    found = values.parse(value)
    assert values.parse_all(pa.array([value, value], pa.binary())) == [found, found]
    return dict(found)


X1, X2, Y2 = field(1, 1), field(1, 2), field(2, 2)


@pytest.mark.parametrize(
    ("text", "message", "value", "expected"),
    [
        (PROTO3, "Oneof", field(1, 5) + field(2, b"x"), {"a": None, "b": "x"}),
        (PROTO3, "Oneof", field(2, b"x") + field(1, 5), {"a": 5, "b": None}),
        (PROTO3, "Oneof", field(3, X1) + field(3, Y2), {"s": {"x": 1, "y": [2], "s": None}}),
        (PROTO3, "Oneof", field(3, X1) + field(4, b"") + field(3, Y2),
         {"s": {"x": 0, "y": [2], "s": None}, "t": None}),
        (PROTO3, "Fields", field(1, X1) + field(1, Y2), {"s": {"x": 1, "y": [2], "s": None}}),
        (PROTO3, "Fields", field(1, field(3, X1)) + field(1, field(3, Y2)),
         {"s": {"x": 0, "y": [], "s": X1 + b"\x12\x01\x02"}}),
        (PROTO3, "Fields", field(2, 1) + field(2, 2), {"i": 2}),
        (PROTO3, "Fields", field(2, 2**40 + 3), {"i": 3}),
        (PROTO3, "Fields", field(3, b"\x01\x02") + field(3, 3), {"packed": [1, 2, 3]}),
        (PROTO3, "Fields", field(4, b"\x01\x02") + field(4, 3), {"single": [1, 2, 3]}),
        (PROTO3, "Fields", field(5, 5) + field(6, b"\x00\x05\x01"), {"e": "5", "es": ["A", "5", "B"]}),
        (PROTO3, "Fields", field(2, b"ignored") + field(90, 1) + group(91, X1), {"i": 0, "s": None}),
        (PROTO3, "Maps", field(1, b"") + field(1, field(1, b"k")),
         {"m": {"": {"x": 0, "y": [], "s": None}, "k": {"x": 0, "y": [], "s": None}}}),
        (PROTO3, "Maps", field(1, field(2, X1) + field(1, b"k")) + field(1, field(2, X2) + field(1, b"k")),
         {"m": {"k": {"x": 2, "y": [], "s": None}}}),
        (PROTO3, "Maps", field(2, field(1, 1)) + field(2, field(1, 2) + field(2, 9)), {"e": {1: "A", 2: "9"}}),
        (PROTO3, "Maps", field(3, field(1, 1)), {"b": {True: b""}}),
        (PROTO3, "Known", field(1, X1) + field(1, b""), {"w": 1}),
        (PROTO3, "Known", field(2, X1) + field(2, field(2, 5000)), {"t": datetime(1970, 1, 1, 0, 0, 1, 5, UTC)}),
        (PROTO3, "Known", field(2, field(1, -1) + field(2, 999_999_000)),
         {"t": datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)}),
        (PROTO3, "Known", field(3, field(1, 315_576_000_000)), {"d": timedelta(seconds=315_576_000_000)}),
        (PROTO3, "Known", field(3, field(1, -1) + field(2, -5_000)), {"d": timedelta(seconds=-1, microseconds=-5)}),
        (PROTO3, "Days", field(1, field(1, 2024) + field(2, 2) + field(3, 29)), {"d": date(2024, 2, 29)}),
        (PROTO2, "Old", group(1, field(1, 5)) + group(2, field(1, 6)) + group(2, b""),
         {"g": {"a": 5}, "h": [{"b": 6}, {"b": None}]}),
        (PROTO2, "Old", group(1, field(1, 5)) + group(1, b""), {"g": {"a": 5}}),
        (PROTO2, "Old", field(4, 9) + field(5, 2) + field(5, 9) + field(6, field(1, 1) + field(2, 9)),
         {"e": None, "es": ["B"], "m": {}}),
        (PROTO2, "Old", field(100, 3), {"d": None}),
        (PROTO2, "Closed", field(1, 9) + field(2, 2) + field(2, 9) + field(3, field(1, 1) + field(2, 9)),
         {"e": None, "es": ["B"], "m": {}}),
        (PROTO2, "Closed", field(1, 2) + field(1, 9), {"e": "B"}),
        (PROTO2, "Required", X1 + field(2, X2), {"r": 1, "inner": X2}),
        (EDITION, "New", field(1, 5) + group(3, X1) + field(4, 1) + field(4, b"\x02"),
         {"a": 5, "d": {"x": 1}, "r": [1, 2]}),
        (EDITION, "New", field(5, 7) + field(6, 7) + field(7, field(1, b"k")), {"e": "7", "m": {"k": {"x": None}}}),
        (EDITION, "New", field(6, 1), {"c": "D"}),
    ],
)  # fmt: skip
def test_a_message_decodes_as_by_google(text: str, message: str, value: bytes, expected: dict[str, Any]) -> None:
    found = row(decoder(text, message), value)
    assert {name: found[name] for name in expected} == expected


def test_absent_fields_are_null_if_they_can_be_absent() -> None:
    assert row(decoder(PROTO3, "Fields"), b"") == {
        "s": None, "i": 0, "packed": [], "single": [], "e": "A", "es": [], "o": None, "text": "", "d": 0.0,
    }  # fmt: skip
    assert row(decoder(PROTO3, "Fields"), field(7, 0))["o"] == 0
    assert row(decoder(PROTO2, "Closed"), b"") == {"e": None, "es": [], "m": {}, "f": None}
    assert row(decoder(PROTO2, "Old"), b"")["d"] is None
    assert row(decoder(EDITION, "New"), b"") == {
        "a": None, "s": "", "d": None, "r": [], "e": None, "c": None, "m": {},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message", "value", "why"),
    [
        (PROTO3, "Fields", field(8, b"\xff"), "bad UTF-8"),
        (PROTO3, "Fields", b"\x0a\xfb\xff\xff\xff\xff\xff\xff\xff\xff\x01", "corrupt"),
        (PROTO3, "Fields", varint(90 << 3 | END), "corrupt"),
        (PROTO3, "Fields", b"\x00\x01", "corrupt"),
        (PROTO3, "Oneof", field(3, b"\x1a\x02" * 3), "Error parsing"),
        (PROTO2, "Required", b"", "required fields are missing: r"),
        (PROTO2, "Required", X1 + field(2, b""), r"required fields are missing: inner\.r"),
        (PROTO3, "Days", field(1, field(1, 2024) + field(2, 2)), r"2024-2-0 \(google.type.Date\) is no whole date"),
        (PROTO3, "Days", field(1, field(1, 2023) + field(2, 2) + field(3, 29)), "2023-2-29 .* is no whole date"),
        (PROTO3, "Days", field(2, field(1, 25)), r"25:0:0.0 \(google.type.TimeOfDay\) is no time of a day"),
        (PROTO3, "Days", field(3, field(1, 10**18)), "a time is out of range"),
    ],
)
def test_a_value_that_is_not_the_message_is_refused_alone(text: str, message: str, value: bytes, why: str) -> None:
    of = decoder(text, message)
    with pytest.raises(DecodeError, match=why):
        of.values().parse(value)
    good = field(1, 1) if message == "Required" else b""
    table, errors = of.columns(pa.schema([])).parse(pa.array([good, value, good], pa.binary()), pa.array([0, 1, 2]))
    assert (table.num_rows, list(errors)) == (2, [1])


def test_a_message_that_names_others_twice_is_refused() -> None:
    """Some lines of a schema, and 2^40 columns."""
    file = FileDescriptorProto(name="bomb.proto", syntax="proto3")
    file.message_type.add(name="M0")
    for level in range(1, 40):
        message = file.message_type.add(name=f"M{level}")
        for number in (1, 2):
            _add_field(message, number, FieldDescriptorProto.TYPE_MESSAGE, kind=f".M{level - 1}")
    with pytest.raises(ValueError, match="more than 10,000 fields within fields"):
        ProtobufDecoder(_pool(file).FindMessageTypeByName("M39"))
    named = ProtobufFile(_pool(file).FindFileByName("bomb.proto"))
    bomb, small = b"\x02\x4e", b"\x02\x02"  # the indexes 39 and 1
    values = pa.array([small, bomb, small + X1, b"\x02\x82\x00"], pa.binary())
    table, errors = named.columns(pa.schema([])).parse(values, pa.array(range(4)))
    assert table.num_rows == 3
    assert list(errors) == [1]
    assert "message M39 cannot be used: it has more than 10,000 fields" in str(errors[1])


def _overlong(indexes: tuple[int, ...], wider: int) -> bytes:
    """Indexes as varints; the bits of `wider` say which of them have bytes that they do not need."""
    made = b""
    for at, number in enumerate((len(indexes), *indexes)):
        extra = wider >> 2 * at & 3
        digits = [2 * number >> 7 * place & 0x7F for place in range(1 + extra)]
        made += bytes([*(digit | 0x80 for digit in digits[:-1]), digits[-1]])
    return made


def _nested_file() -> ProtobufFile:
    """The message A, which contains B, which contains C, each with the field x."""
    file = FileDescriptorProto(name="nested.proto", syntax="proto3")
    message = file.message_type.add(name="A")
    for name in ("B", "C", None):
        _add_field(message, 1, FieldDescriptorProto.TYPE_INT32)
        message = message.nested_type.add(name=name) if name else message
    return ProtobufFile(_pool(file).FindFileByName("nested.proto"))


def test_message_types_written_in_many_ways_take_one_pass() -> None:
    types = [(0,), (0, 0), (0, 0, 0)]
    assert {len(_overlong(indexes, 0)) for indexes in types} == {2, 3, 4}
    heads = [_overlong(indexes, wider) for indexes in types for wider in range(4 ** (1 + len(indexes)))]
    assert len({*heads}) == len(heads) > 300
    broken = [b"\x02", b"\x01", b"", b"\x02\x12", b"\xff" * 9]
    given = [head + X1 for _ in range(30) for head in heads] + broken + [b"\x00" + X1]
    decoder = _nested_file()
    groups, errors = decoder.split(pa.array(given, pa.binary()))
    assert len(groups) < 10
    assert sorted(errors) == list(range(len(given) - 6, len(given) - 1))
    found = {
        int(index): (group.part.name, payload)
        for group in groups
        for index, payload in zip(group.indexes, group.payloads.to_pylist(), strict=True)
    }
    names = ["message A", "message A.B", "message A.B.C"]
    per_type = [4 ** (1 + len(indexes)) for indexes in types]
    expected = [(name, X1) for name, count in zip(names, per_type, strict=True) for _ in range(count)] * 30
    assert [found[index] for index in range(len(expected))] == expected
    assert all(np.all(np.diff(group.indexes) > 0) for group in groups)
    table, misfits = decoder.columns(pa.schema([])).parse(pa.array(given, pa.binary()), pa.array(range(len(given))))
    assert (table.num_rows, misfits.keys()) == (len(given) - 5, errors.keys())


def test_an_unknown_message_type_has_a_short_reason() -> None:
    decoder = _nested_file()
    for count in (60, 100, 101, 2**30):
        head = _overlong((7,) * 60, 0)[1:]
        number = 2 * count
        value = bytes([number >> 7 * place & 0x7F | 0x80 for place in range(4)]) + bytes([number >> 28]) + head * 2000
        with pytest.raises(DecodeError, match="there is no message type") as caught:
            decoder.split_one(value)
        assert len(str(caught.value)) < 100


def test_messages_that_are_deep_are_refused() -> None:
    file = FileDescriptorProto(name="deep.proto", syntax="proto3")
    file.message_type.add(name="M0")
    for level in range(1, 300):
        _add_field(file.message_type.add(name=f"M{level}"), 1, FieldDescriptorProto.TYPE_MESSAGE, kind=f".M{level - 1}")
    with pytest.raises(ValueError, match="nested more than 100 deep"):
        ProtobufDecoder(_pool(file).FindMessageTypeByName("M299"))


# For any schema and bytes: columns equal the values that Google's library decodes.

SCALARS = [number for number in range(1, 19) if number not in (10, 11)]  # neither groups nor messages


def _add_field(message: DescriptorProto, number: int, of: Any, *, kind: str = "", label: Any = 1) -> Any:
    named = {"type_name": kind} if kind else {}
    return message.field.add(name=f"f{number}", number=number, type=of, label=label, **named)


def _pool(file: FileDescriptorProto) -> DescriptorPool:
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool


@st.composite
def messages(draw: st.DrawFn) -> Any:
    """Descriptor of a message with fields of all kinds."""
    syntax = draw(st.sampled_from(["proto2", "proto3"]))
    file = FileDescriptorProto(name="any.proto", syntax=syntax)
    kind = file.enum_type.add(name="E")
    for number in (0, 1, 5):
        kind.value.add(name=f"V{number}", number=number)
    inner = file.message_type.add(name="S")
    outer = file.message_type.add(name="M")
    for message in (inner, outer):
        in_oneof = False
        for number in range(1, draw(st.integers(1, 6)) + 1):
            of = draw(st.sampled_from([*SCALARS, 11, 11, 10] if syntax == "proto2" else [*SCALARS, 11, 11]))
            if of == FieldDescriptorProto.TYPE_GROUP:
                message.nested_type.add(name=f"F{number}").field.add(name="x", number=1, type=5, label=1)
                _add_field(message, number, of, kind=f".{message.name}.F{number}", label=draw(st.sampled_from([1, 3])))
                continue
            type_name = {11: ".S", 14: ".E"}.get(of, "")
            shape = draw(st.sampled_from(["single", "single", "repeated", "map", "oneof"]))
            if shape == "map":
                entry = message.nested_type.add(name=f"F{number}Entry")
                entry.options.map_entry = True
                entry.field.add(name="key", number=1, type=draw(st.sampled_from([3, 5, 8, 9, 17])), label=1)
                _add_field(entry, 2, of, kind=type_name).name = "value"
                _add_field(message, number, 11, kind=f".{message.name}.F{number}Entry", label=3)
                continue
            made = _add_field(message, number, of, kind=type_name, label=3 if shape == "repeated" else 1)
            if shape == "oneof":
                in_oneof = True
                made.oneof_index = 0
        if in_oneof:
            message.oneof_decl.add(name="o")
    return _pool(file).FindMessageTypeByName("M")


@st.composite
def values(draw: st.DrawFn, message: Any, depth: int = 0) -> bytes:
    """Fields of a message in any order and number, some with other wire types, or damaged."""
    pieces = []
    for _ in range(draw(st.integers(0, 5))):
        chosen = draw(st.sampled_from(list(message.fields)))
        number = chosen.number
        if chosen.type == chosen.TYPE_GROUP:
            pieces.append(group(number, draw(values(chosen.message_type, depth + 1))))
        elif chosen.message_type is not None:
            inner = draw(values(chosen.message_type, depth + 1)) if depth < 3 else b""
            pieces.append(field(number, inner))
        elif chosen.type in (9, 12):
            pieces.append(field(number, draw(st.sampled_from([b"", b"a", "ü".encode(), b"\xff"]))))
        elif chosen.type in (1, 6, 16):
            pieces.append(varint(number << 3 | FIXED64) + draw(st.binary(min_size=8, max_size=8)))
        elif chosen.type in (2, 7, 15):
            pieces.append(varint(number << 3 | FIXED32) + draw(st.binary(min_size=4, max_size=4)))
        else:
            numbers = st.sampled_from([0, 1, 5, 7, -1, 2**31, 2**40 + 1])
            if draw(st.booleans()):
                pieces.append(field(number, draw(numbers)))
            else:  # packed
                pieces.append(field(number, b"".join(map(varint, draw(st.lists(numbers, max_size=3))))))
    whole = b"".join(pieces)
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(whole)))
        whole = whole[:at] + draw(st.binary(max_size=2)) + whole[at + 1 :]
    return whole


def google(message: Any, written: Iterable[bytes]) -> list[Any]:
    read: list[Any] = []
    fields = [field for each in reachable(message) for field in each.fields]
    maps = [each for each in reachable(message) if each.GetOptions().map_entry]
    cleaned = bool(maps) or any(field.enum_type is not None and field.enum_type.is_closed for field in fields)
    for value in written:
        try:
            found = GetMessageClass(message).FromString(value)
            if cleaned:
                found.DiscardUnknownFields()
            read.append(MessageType(message).convert(found))
        except (NotAMessage, DecodeError):  # the latter for text that proto2 does not check
            read.append(None)
    return read


def shown(value: Any) -> str:
    """As text, so that NaN equals itself, and with maps in one order."""
    if isinstance(value, dict):
        return "{" + ", ".join(sorted(f"{key!r}: {shown(item)}" for key, item in value.items())) + "}"
    return "[" + ", ".join(map(shown, value)) + "]" if isinstance(value, list) else repr(value)


@given(st.data())
def test_columns_and_objects_decode_as_by_google(data: st.DataObject) -> None:
    message = data.draw(messages())
    written = data.draw(st.lists(values(message), min_size=1, max_size=4))
    of = ProtobufDecoder(message)
    table, errors = of.columns(of.schema).parse(pa.array(written, pa.binary()), pa.array(range(len(written))))
    expected = google(message, written)
    assert sorted(errors) == [at for at, row in enumerate(expected) if row is None]
    rows = table.drop_columns(["_sequence"]).to_pylist(maps_as_pydicts="strict")
    assert shown(rows) == shown([row for row in expected if row is not None])
