"""JSON at the limits of its parsers: a value gives the same alone, among good ones and beside a bad one."""

from __future__ import annotations

import ast
import json
import time
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from actorproc import codecs
from actorproc.codecs.json import JsonDecoder
from actorproc.codecs.json_limits import has_loose_numbers
from actorproc.codecs.limits import MOST_COLUMNS, MOST_LEVELS
from actorproc.formats.json_schema.decoder import JsonSchemaDecoder
from actorproc.handler.decoder import Decoder
from actorproc.records import Batch
from actorproc.rows.output_schema import parse_schema


class Struct(msgspec.Struct):
    c: int | None = None


class Model(BaseModel):
    c: int | None = None


DECODERS: dict[str, Decoder] = {"json": JsonDecoder(), "json-schema": JsonSchemaDecoder('{"type": "object"}')}
KINDS = [Any, Struct, Model]
FAILED = "failed"


def nested(levels: int, *, objects: bool = False) -> bytes:
    """Arrays, or objects, within each other."""
    return b'{"a":' * levels + b"1" + b"}" * levels if objects else b"[" * levels + b"]" * levels


def read(decoder: Decoder, schema: str, values: list[bytes], at: int) -> Any:
    """The row of the columns, or the reason why there is none."""
    columns = decoder.columns(parse_schema(schema))
    table, errors = columns.parse(pa.array(values, pa.binary()), pa.array(range(len(values)), pa.int64()))
    rows = {row.pop("_sequence"): row for row in table.to_pylist()}
    assert rows.keys() ^ errors.keys() == set(range(len(values)))
    return rows.get(at, FAILED)


def read_object(decoder: Decoder, kind: Any, values: list[bytes], at: int) -> Any:
    decoded = decoder.values(kind)
    together = decoded.parse_all(pa.array(values, pa.binary()))
    try:
        alone = decoded.parse(values[at])
    except (ValueError, msgspec.ValidationError):
        assert together is None
        return FAILED
    assert together is None or repr(together[at]) == repr(alone)
    return alone


def in_all_places(decoder: Decoder, schema: str, value: bytes) -> str:
    found = {
        repr(read(decoder, schema, [value], 0)),
        repr(read(decoder, schema, [b"{}", value, b"{}"], 1)),
        repr(read(decoder, schema, [b"bad", value, b"{}"], 1)),
        repr(read(decoder, schema, [b"{}"] * 300 + [value] + [b"{}"] * 300, 300)),
    }
    assert len(found) == 1, found
    return found.pop()


@pytest.mark.parametrize("objects", [False, True])
@pytest.mark.parametrize("name", DECODERS)
def test_the_limit_of_depth_is_the_same_for_each_parser(name: str, objects: bool) -> None:
    decoder = DECODERS[name]
    for levels in (10, MOST_LEVELS - 1, MOST_LEVELS, MOST_LEVELS + 100, 1_100, 100_000):
        value = b'{"c": 1, "o": ' + nested(levels, objects=objects) + b"}"
        is_read = levels < MOST_LEVELS
        for schema in ("c bigint", "c bigint, m map<string, int>"):  # the second one is read by Python
            assert in_all_places(decoder, schema, value).startswith("{'c': 1" if is_read else repr(FAILED))
        for kind in KINDS:
            for others in ([], [b"{}"]):
                assert (read_object(decoder, kind, [value, *others], 0) != FAILED) is is_read


@pytest.mark.parametrize("name", DECODERS)
def test_a_deep_value_says_so(name: str) -> None:
    value = b'{"c": 1, "o": ' + nested(1_100) + b"}"
    columns = DECODERS[name].columns(parse_schema("c bigint"))
    _, errors = columns.parse(pa.array([b"{}", value], pa.binary()), pa.array([0, 1], pa.int64()))
    assert {at: str(error) for at, error in errors.items()} == {1: "the value is nested more than 200 deep"}
    with pytest.raises(ValueError, match="the value is nested more than 200 deep"):
        DECODERS[name].values().parse(value)


def test_a_depth_is_of_brackets_outside_of_texts() -> None:
    for text in (b"[" * 5_000, b'\\"[' * 5_000, b"[{" * 500 + b"\\\\", b"]" * 500 + b"["):
        value = b'{"c": 1, "o": "' + text + b'"}'
        assert in_all_places(DECODERS["json"], "c bigint", value) == "{'c': 1}"
    wide = b'{"c": 1, "o": [' + b",".join([b'{"a": [1]}'] * 5_000) + b"]}"
    assert in_all_places(DECODERS["json"], "c bigint", wide) == "{'c': 1}"


def test_an_open_text_is_looked_at_in_linear_time() -> None:
    began = time.monotonic()
    for text in (b'\\"' * 1_000_000, b'"' * 1_000_001, b"\\" * 1_000_001):
        value = b'{"c": 1, "o": ' + b"[" * 300 + b'"' + text
        assert in_all_places(DECODERS["json"], "c bigint", value) == repr(FAILED)
    assert time.monotonic() - began < 5


IGNORED = [
    nested(150), b"1" * 5_000, b"1e400", b"-1e400", b"1e99999999999999999999", b"1e-99999999999999999999",
    b"0e99999999999999999999", b"0." + b"1" * 5_000, b"NaN", b"Infinity", b"-Infinity", b"-NaN", b"Inf", b"-Inf",
    b"[-NaN]", b"nan", b'"Inf -NaN"', b'"\\ud800"', b'"\\udc00\\ud800"', b'"\xff"', b'"\xed\xa0\x80"', b'"\xc0\x80"',
    b'"\x00"', b'"\x01"', b'"\t"', b'"\\u0000"', b'"\\x"', b'"\\u12"', b"01", b"-", b"+1", b".5", b"1.", b"1e", b"tru",
    b"[1,]", b'{"a": 1,}', b'{"a"}', b"{1: 2}", b"1 2", b"/**/1", b'{"": 1}', b'{"c": 2}', b"1 // x", b"\xe2\x80\x831",
]  # fmt: skip


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("ignored", IGNORED, ids=lambda value: repr(value)[:25])
def test_a_field_that_is_passed_over_gives_one_answer(name: str, ignored: bytes) -> None:
    value = b'{"c": 1, "o": ' + ignored + b"}"
    found = in_all_places(DECODERS[name], "c bigint", value)
    assert found in (repr({"c": 1}), repr(FAILED))
    for kind in KINDS:
        read_object(DECODERS[name], kind, [value], 0)
        read_object(DECODERS[name], kind, [b"{}", value], 1)


@pytest.mark.parametrize(
    "ignored", [b"1" * 5_000, b"1e400", b"1e99999999999999999999", b"1e-99999999999999999999", b"NaN"]
)
def test_a_long_number_that_is_passed_over_does_not_refuse_its_record(ignored: bytes) -> None:
    assert in_all_places(DECODERS["json"], "c bigint", b'{"c": 1, "o": ' + ignored + b"}") == "{'c': 1}"


NUMBERS = [
    ("bigint", b"1" * 5_000, FAILED),
    ("bigint", b"-0", 0),
    ("bigint", b"1." + b"0" * 5_000, 1),
    ("bigint", b"1e400", FAILED),
    ("bigint", b"1e99999999999999999999", FAILED),
    ("bigint", b"9223372036854775807", 2**63 - 1),
    ("bigint", b"9223372036854775808", FAILED),
    ("double", b"1" * 5_000, FAILED),
    ("double", b"-0", -0.0),
    ("double", b"1e400", FAILED),
    ("double", b"1e99999999999999999999", FAILED),
    ("double", b"-1e99999999999999999999", FAILED),
    ("double", b"1e-99999999999999999999", 0.0),
    ("double", b"0e99999999999999999999", 0.0),
    ("double", b"5e-324", 5e-324),
    ("double", b"9007199254740993", 9007199254740992.0),
    ("double", b"-NaN", FAILED),
    ("double", b"Inf", FAILED),
    ("double", b"-Infinity", float("-inf")),
    ("float", b"1" * 5_000, FAILED),
    ("float", b"1e39", FAILED),
    ("decimal(5,2)", b"1" * 5_000, FAILED),
    ("decimal(5,2)", b"1e99999999999999999999", FAILED),
    ("decimal(5,2)", b"1e-99999999999999999999", FAILED),
    ("string", b'"\\ud800"', FAILED),
    ("string", b'"\xff"', FAILED),
    ("string", b'"\\u0000"', "\0"),
    ("array<int>", nested(300), FAILED),
    ("struct<x: int>", b'{"x": 1, "x": 2}', {"x": 2}),
    ("bigint", b'1, "c": 2', 2),
    ("bigint", b'"x", "c": 2', 2),
    ("bigint", b'2, "\\u0063": 3', 3),
    ("bigint", b'2, "c": null', None),
]


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize(("kind", "text", "expected"), NUMBERS, ids=lambda value: repr(value)[:25])
def test_a_field_gives_one_answer(name: str, kind: str, text: bytes, expected: Any) -> None:
    value = b'{"c": ' + text + b"}"
    found = in_all_places(DECODERS[name], f"c {kind}", value)
    if name == "json":
        assert found == repr(FAILED if expected == FAILED else {"c": expected})


pieces = st.sampled_from(
    [b"[", b"]", b"{", b"}", b'"', b"\\", b":", b",", b"1", b"-", b"NaN", b"Inf", b"inity", b"e9", b".0", b'"c":', b" ",
     b"null", b"[" * 210, b"]" * 210, b"\\u0063", b"\xff", b"\n"]
)  # fmt: skip


@pytest.mark.parametrize("name", DECODERS)
@given(st.lists(pieces, max_size=12).map(b"".join), st.booleans())
def test_any_text_gives_one_answer(name: str, text: bytes, is_whole: bool) -> None:
    value = b'{"c": 1, "o": ' + text + b"}" if is_whole else text
    decoder = DECODERS[name]
    assert repr(read(decoder, "c bigint", [value], 0)) == repr(read(decoder, "c bigint", [b"x", value, b"{}"], 1))
    read_object(decoder, Any, [value, b"{}"], 0)


@pytest.mark.parametrize("number", [b"-NaN", b"Inf", b"-Inf"])
def test_a_loose_number_is_found_wherever_it_is(number: bytes) -> None:
    border = 64 * 2**10
    for at in range(border - 6, border + 3):
        assert has_loose_numbers(b" " * at + number + b"}"), at
        assert not has_loose_numbers(b'"' + b" " * at + number + b'"}'), "in a text"


@pytest.mark.parametrize("limit", [MOST_COLUMNS, MOST_LEVELS])
def test_a_limit_of_all_formats_is_spelled_once(limit: int) -> None:
    others = {"unknown_ids.py", "registry.py"}  # numbers of ids and references
    found = [
        file.name
        for file in Path(codecs.__path__[0]).glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value == limit
    ]
    assert set(found) - others == {"limits.py"}
    assert found.count("limits.py") == 1


@pytest.mark.parametrize(
    "value", [b"[18446744073709551616]", b"[-9223372036854775809]", b"[1e400]", nested(900), b"[0.1]"]
)
def test_a_record_parses_its_json_exactly(value: bytes) -> None:
    (record,) = Batch.of("0", [value], [0])
    if value == b"[1e400]":
        with pytest.raises(orjson.JSONDecodeError, match="infinity"):
            record.json()
    else:
        assert record.json() == json.loads(value)


@pytest.mark.parametrize("value", [None, b"", b"{", b"{} {}", b'"\xff"', b'"\\ud800"', b"NaN", nested(5_000)])
def test_a_record_that_is_not_json_says_so_as_orjson_does(value: bytes | None) -> None:
    (record,) = Batch.of("0", [value], [0])
    with pytest.raises(orjson.JSONDecodeError):
        record.json()
