"""Generated AMQP messages: each becomes columns or is refused. An id has one identity with each encoder."""

from __future__ import annotations

import math
import tracemalloc
from decimal import Decimal
from typing import Any, cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("proton", reason="python-qpid-proton is not installed")
pytest.importorskip("azure.eventhub", reason="azure-eventhub is not installed")

import proton
from azure.eventhub import EventData
from azure.eventhub._pyamqp import message as pyamqp
from azure.eventhub._pyamqp._encode import encode_payload
from azure.eventhub._pyamqp.aio import _receiver_async
from proton import UNDESCRIBED, Array, Data, Described, Message

from actorproc.connectors.amqp.messages import deliveries_of, identity_by, to_message
from actorproc.connectors.eventhubs.columns import to_batch
from actorproc.connectors.eventhubs.decoding import odd_events_handed_over
from actorproc.connectors.shared.amqp_decoding import ReceivedMessage
from actorproc.connectors.shared.amqp_values import Value
from actorproc.records import Batch
from tests.partition.test_refused_records import reasons

GOOD = bytes(Message(id="good", body=b'{"a": 1}', properties={"p": "q"}).encode())
ANNOTATED = b"\0Sr\xc1\x1a\x02\xa3\x15x-opt-sequence-number\x54\x05"
"""A section with the sequence number 5."""

_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
_SYMBOL = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=8)
_BINARY = st.binary(max_size=20)


def _whole(kind: Any, bits: int, *, signed: bool) -> st.SearchStrategy[Any]:
    least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.integers(least, most).map(kind)


IDS = st.one_of(st.integers(0, 2**64 - 1), st.uuids(), _BINARY, _TEXT)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.floats(), st.floats(width=32).map(proton.float32), st.uuids(), _BINARY, _TEXT,
    _SYMBOL.map(proton.symbol), st.characters(exclude_categories=["Cs"]).map(proton.char),
    _whole(proton.ubyte, 8, signed=False), _whole(proton.ushort, 16, signed=False),
    _whole(proton.uint, 32, signed=False), _whole(proton.ulong, 64, signed=False),
    _whole(proton.byte, 8, signed=True), _whole(proton.short, 16, signed=True), _whole(proton.int32, 32, signed=True),
    _whole(int, 64, signed=True), _whole(proton.timestamp, 64, signed=True),
    _whole(proton.decimal32, 32, signed=False), _whole(proton.decimal64, 64, signed=False),
    st.binary(min_size=16, max_size=16).map(proton.decimal128),
)  # fmt: skip
ARRAYS = st.one_of(
    st.lists(_whole(int, 64, signed=True), max_size=4).map(lambda items: _array(Data.LONG, items)),
    st.lists(_TEXT, max_size=4).map(lambda items: _array(Data.STRING, items)),
    st.lists(st.booleans(), max_size=4).map(lambda items: _array(Data.BOOL, items)),
)


def _array(kind: int, items: list[Any]) -> Array:
    return Array(cast(Any, UNDESCRIBED), kind, *items)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    maps = st.dictionaries(SCALARS.filter(lambda key: key == key), inner, max_size=4)
    described = st.builds(Described, _SYMBOL.map(proton.symbol), inner)
    return st.one_of(st.lists(inner, max_size=4), maps, described)


VALUES = st.recursive(SCALARS | ARRAYS, _containers, max_leaves=8)
MESSAGES = st.builds(
    Message,
    body=VALUES,
    id=st.none() | IDS,
    correlation_id=st.none() | IDS,
    group_id=st.none() | _TEXT,
    properties=st.dictionaries(_TEXT, VALUES, max_size=3),
    annotations=st.dictionaries(_SYMBOL.map(proton.symbol), VALUES, max_size=3),
    inferred=st.booleans(),
    creation_time=st.integers(0, 2**53).map(lambda milliseconds: milliseconds / 1000),
)
KINDS = st.sampled_from(["message-id", "body", "property:p", "annotation:p"])


def encoded(message: Message) -> bytes:
    return bytes(message.encode())


def read_among_others(message: bytes, kind: str = "message-id") -> tuple[Batch, str | None]:
    """The one record, and its identity, after a check that its neighbours are as they would be without it."""
    identity = identity_by(kind)
    found = deliveries_of("q", [GOOD, message, GOOD], identity)
    alone = deliveries_of("q", [GOOD], identity)
    for at in (0, 2):
        one = found.batch[at : at + 1]
        assert (one.data, reasons(one)) == (alone.batch.data, reasons(alone.batch))
        assert found.identities[at] == alone.identities[0]
    assert reasons(found.batch[1:2]) is not None or found.identities[1] is not None
    return found.batch[1:2], found.identities[1]


@given(MESSAGES, KINDS)
def test_any_message_becomes_columns_or_is_refused(message: Message, kind: str) -> None:
    batch, identity = read_among_others(encoded(message), kind)
    assert read_among_others(encoded(message), kind)[1] == identity
    (record,) = batch
    if reasons(batch) is None:
        if isinstance(message.body, list | dict | Described | Array | bool | float):
            orjson.loads(record.value or b"")
        again, identity_again = read_among_others(encoded(to_message(record, "replay-1")))
        assert identity_again != identity or identity is None
        assert (again.values, again.keys) == (batch.values, batch.keys)


_DECODED = st.recursive(
    SCALARS | ARRAYS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=8,
)
"""Values that proton decodes rightly. It fails at keys of bytes, and loses the value after a described one."""


@given(st.lists(_DECODED, max_size=3))
def test_values_equal_those_that_proton_decodes(values: list[Any]) -> None:
    data = encoded(Message(body=values))
    expected = Message()
    expected.decode(data)
    assert repr(plain(ReceivedMessage(data).body())) == repr(from_proton(expected.body))


def plain(value: Value) -> Any:
    kind, content = value
    match kind:
        case "list" | "array":
            return [plain(item) for item in content]
        case "map":
            return {repr(plain(key)): plain(item) for key, item in content}
        case "decimal32" | "decimal64" | "decimal128":
            return kind
    return content


def from_proton(value: Any) -> Any:
    match value:
        case list() | Array():
            return [from_proton(item) for item in value]
        case dict():
            return {repr(from_proton(key)): from_proton(item) for key, item in value.items()}
        case memoryview():
            return bytes(value)
        case proton.decimal32() | proton.decimal64() | proton.decimal128():
            return type(value).__name__
        case bool() | None:
            return value
    return next((kind(value) for kind in (str, int, float) if isinstance(value, kind)), value)


@given(st.lists(IDS, min_size=2, max_size=20, unique_by=lambda one: (type(one), one)))
def test_different_ids_have_different_identities_with_each_encoder(ids: list[Any]) -> None:
    identities = deliveries_of("q", [encoded(Message(id=one)) for one in ids], identity_by("message-id")).identities
    names = [name for name in identities if name is not None]
    assert len(set(names)) == len(ids) - sum(one in ("", b"") for one in ids)
    for one, identity in zip(ids, identities, strict=True):
        if one not in ("", b""):  # the client of Azure leaves them out
            other = bytearray()
            encode_payload(other, pyamqp.Message(properties=pyamqp.Properties(message_id=one), data=[b"x"]))
            assert deliveries_of("q", [bytes(other)], identity_by("message-id")).identities == [identity]
        again = Message()
        again.decode(encoded(Message(id=one)))
        again.id = bytes(again.id) if isinstance(again.id, memoryview) else again.id
        assert deliveries_of("q", [encoded(again)], identity_by("message-id")).identities == [identity]


@given(st.lists(SCALARS, min_size=2, max_size=20, unique_by=lambda one: (type(one), repr(one))))
def test_different_properties_have_different_identities(values: list[Any]) -> None:
    messages = [encoded(Message(properties={"p": one})) for one in values]
    found = deliveries_of("q", messages, identity_by("property:p")).identities
    decimals = (proton.decimal32, proton.decimal64, proton.decimal128)  # several encodings are one number
    names = [name for name, one in zip(found, values, strict=True) if name and not isinstance(one, decimals)]
    assert len(set(names)) == len(names)
    for name, one in zip(found, values, strict=True):
        assert (name is None) == (one is None or one in ("", b"") or _is_nan(one))


def _is_nan(one: Any) -> bool:
    if isinstance(one, float):
        return math.isnan(one)
    bits = {proton.decimal32: 32, proton.decimal64: 64, proton.decimal128: 128}.get(type(one))
    number = int.from_bytes(one) if isinstance(one, bytes) else one
    return bits is not None and number >> (bits - 6) & 0x1F == 0x1F


@given(MESSAGES, st.data(), KINDS)
def test_damaged_messages_become_columns_or_are_refused(message: Message, data: st.DataObject, kind: str) -> None:
    damaged = bytearray(encoded(message))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.integers(len(damaged) // 2, 2 * len(damaged))) :]
    read_among_others(bytes(damaged), kind)


@given(st.binary(max_size=200), KINDS)
def test_any_bytes_become_columns_or_are_refused(data: bytes, kind: str) -> None:
    read_among_others(data, kind)


_NATIVE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**31), 2**31 - 1), st.floats(), st.uuids(), _BINARY, _TEXT),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.one_of(_TEXT, _BINARY, st.integers(0, 9), st.booleans(), st.none()), inner, max_size=4)
    ),
    max_leaves=8,
)
_BODIES = st.one_of(
    st.lists(_BINARY, min_size=1, max_size=3).map(lambda sections: {"data": sections}),
    st.lists(st.lists(_NATIVE, max_size=3), min_size=1, max_size=3).map(lambda sections: {"sequence": sections}),
    _NATIVE.map(lambda value: {"value": value}),
)


@given(_BODIES, st.dictionaries(_TEXT | _BINARY, _NATIVE, max_size=3), IDS)
def test_any_event_becomes_columns_or_is_refused(body: dict[str, Any], properties: dict[Any, Any], name: Any) -> None:
    data = bytearray()
    own = pyamqp.Properties(message_id=name)
    encode_payload(data, pyamqp.Message(**body, application_properties=properties, properties=own))
    good = EventData.from_bytes(GOOD)
    batch = to_batch("0", [good, EventData.from_bytes(bytes(data)), good])
    refused = reasons(batch) or [None] * 3
    assert (refused[0], refused[2]) == (None, None)
    assert batch.values[0] == batch.values[2]
    if refused[1] is None and "data" in body:
        assert batch.values[1] == b"".join(body["data"])


@given(MESSAGES, st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3))
def test_any_event_of_the_service_becomes_columns_or_is_refused(message: Message, damages: list[Any]) -> None:
    """The service puts its annotations first, in one section with those of the sender."""
    message.annotations = None
    damaged = bytearray(encoded(message))
    for at, value in damages:
        damaged[at % len(damaged)] = value
    with odd_events_handed_over():
        try:
            received = vars(_receiver_async)["decode_payload"](memoryview(ANNOTATED + bytes(damaged)))
            event = EventData._from_message(received)
            sequence = event.sequence_number
        except Exception:  # noqa: BLE001
            assert b"\0Sr" in damaged or b"\0\x80" in damaged, "other annotations took the place of the service's"
            return
    if sequence == 5:
        assert to_batch("0", [event]).sequences == [5]


def test_an_event_that_claims_many_items_takes_no_memory() -> None:
    """The client would take eight bytes for each claimed item, in each of a thousand lists within lists."""
    forged = b"\0Sw" + b"\xd0\0\0\0\x08\x7f\xff\xff\xff" * 50
    tracemalloc.start()
    try:
        with odd_events_handed_over():
            received = vars(_receiver_async)["decode_payload"](memoryview(ANNOTATED + forged))
        batch = to_batch("0", [EventData._from_message(received)])
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()
    assert batch.sequences == [5]
    assert reasons(batch) is not None


@given(st.integers(0, 2**128 - 1), st.sampled_from([(4, 7, 101), (8, 16, 398), (16, 34, 6176)]))
def test_decimals_are_those_of_the_standard(number: int, form: tuple[int, int, int]) -> None:
    size, digits, bias = form
    code = {4: 0x74, 8: 0x84, 16: 0x94}[size]
    coefficient = number % 10**digits
    exponent = number % {4: 192, 8: 768, 16: 12288}[size] - bias
    most = {4: 23, 8: 53, 16: 113}[size]
    if coefficient < 2**most:
        bits = (exponent + bias) << most | coefficient
    else:
        bits = 3 << (8 * size - 3) | (exponent + bias) << (most - 2) | coefficient & (1 << (most - 2)) - 1
    data = b"\0Sw" + bytes([code]) + bits.to_bytes(size)
    assert ReceivedMessage(data).body().content == Decimal((0, tuple(map(int, str(coefficient))), exponent))
