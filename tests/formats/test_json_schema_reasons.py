"""Reasons of values that are not valid by a JSON Schema: the right place, soon, also where schemas recurse."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from actorproc.errors import DecodeError
from actorproc.formats.json_schema.decoder import JsonSchemaDecoder
from tests.formats.recursive_models import All, Has, Not

DRAFTS = {
    "": "2020-12",
    "http://json-schema.org/draft-04/schema#": "draft 4",
    "http://json-schema.org/draft-06/schema#": "draft 6",
    "http://json-schema.org/draft-07/schema#": "draft 7",
    "https://json-schema.org/draft/2019-09/schema": "2019-09",
}
NO_BRANCH = "fits no schema of 'anyOf', or not exactly one of 'oneOf'"
LONGEST = 1.0
"""Seconds. They take milliseconds; the machine may be busy."""


class Rule(BaseModel):
    id: int
    when: Not | All | Has


def reason(schema: Any, value: Any) -> str:
    """The reason why the value is not valid; checks that it is found quickly."""
    decoder = JsonSchemaDecoder(json.dumps(schema))
    given, begun = json.dumps(value).encode(), time.perf_counter()
    with pytest.raises(DecodeError) as caught:
        decoder.check(given)
    assert time.perf_counter() - begun < LONGEST
    assert len(str(caught.value)) < 1_200
    return str(caught.value)


def deep(levels: int, leaf: Any, around: Callable[[Any, int], Any]) -> Any:
    for level in range(levels):
        leaf = around(leaf, level)
    return leaf


NODE = {"$ref": "#/$defs/n"}
LEFT: dict[str, Any] = {"type": "object", "properties": {"left": NODE}, "required": ["left"]}
RECURSIVE: dict[str, Any] = {
    "anyOf": {"anyOf": [LEFT, LEFT, {"type": "integer"}]},
    "oneOf": {"oneOf": [LEFT, LEFT, LEFT, {"type": "integer"}]},
    "not anyOf": {"not": {"not": {"anyOf": [LEFT, LEFT, {"type": "integer"}]}}},
    "if": {"if": {"type": "integer"}, "then": {}, "else": {"if": LEFT, "then": LEFT, "else": False}},
    "allOf": {"allOf": [{"properties": {"left": NODE}}] * 3},
    "allOf of anyOf": {"allOf": [{"anyOf": [LEFT, {"type": "integer"}]}] * 2},
    "patterns": {"patternProperties": {"^l": NODE, "t$": NODE}},
    "dependencies": {"dependentSchemas": {"left": LEFT}, "properties": {"left": NODE}},
    "unevaluated": {"anyOf": [LEFT, LEFT, {"type": "integer"}], "unevaluatedProperties": False},
    "dynamic": {"$dynamicAnchor": "x", "anyOf": [{"properties": {"left": {"$dynamicRef": "#x"}}}] * 2},
}


def test_a_nested_value_of_a_recursive_pydantic_schema_is_refused_soon() -> None:
    schema = Rule.model_json_schema()
    for levels in (2, 24, 90):
        when = deep(levels, {"op": "has", "name": 7}, lambda arg, level: {"op": ("not", "all")[level % 2], "arg": arg})
        assert reason(schema, {"id": 1, "when": when}).endswith(f", at ['when']: it {NO_BRANCH}")
        assert reason(schema, {"id": "x", "when": when}).startswith("not valid by the JSON Schema, at [")


@pytest.mark.parametrize("name", RECURSIVE)
@pytest.mark.parametrize("leaf", [1, "x"])
def test_a_recursive_schema_gives_a_reason_soon(name: str, leaf: Any) -> None:
    """With a leaf that fits, the other part of the schema fails."""
    schema = {"$defs": {"n": RECURSIVE[name]}, "allOf": [NODE, {"required": ["other"]}]}
    reason(schema, deep(90, leaf, lambda inner, _: {"left": inner}))


@pytest.mark.parametrize("draft", DRAFTS, ids=DRAFTS.values())
def test_a_reason_names_the_place(draft: str) -> None:
    definitions = {"n": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}
    schema = {
        **({"$schema": draft} if draft else {}),
        "definitions": definitions,
        "properties": {
            "one": {"$ref": "#/definitions/n"},
            "more": {"type": "array", "items": {"$ref": "#/definitions/n"}},
            "maybe": {"oneOf": [{"type": "null"}, {"$ref": "#/definitions/n"}]},
            "any": {"anyOf": [{"type": "null"}, {"type": "integer"}], "enum": [None, 1, "x"]},
        },
    }
    JsonSchemaDecoder(json.dumps(schema)).check(b'{"one": {"a": 1}, "maybe": null, "any": 1}')
    told = {
        "['one']['a']: \"x\" is not of type \"integer\"": {"one": {"a": "x"}},
        "['one']: \"a\" is a required property": {"one": {}},
        "['more'][1]['a']: null is not of type \"integer\"": {"more": [{"a": 1}, {"a": None}]},
        f"['maybe']: it {NO_BRANCH}": {"maybe": {"a": "x"}},
        f"['any']: it {NO_BRANCH}": {"any": "x"},
    }
    assert {place: reason(schema, value) for place, value in told.items()} == {
        place: f"not valid by the JSON Schema, at {place}" for place in told
    }


def test_words_beside_a_reference_count_only_from_draft_2019_on() -> None:
    schema = {"definitions": {"n": {"type": "object"}}, "properties": {"a": {"$ref": "#/definitions/n", "const": 5}}}
    old = {"$schema": "http://json-schema.org/draft-07/schema#", **schema, "required": ["b"]}
    assert reason(old, {"a": {}}) == 'not valid by the JSON Schema: "b" is a required property'
    assert reason(schema, {"a": {}}) == "not valid by the JSON Schema, at ['a']: 5 was expected"


def test_a_reference_into_a_union_leaves_the_reason_short() -> None:
    schema = {"properties": {"a": {"anyOf": [{"type": "null"}]}, "b": {"$ref": "#/properties/a/anyOf/0"}}}
    decoder = JsonSchemaDecoder(json.dumps(schema))
    for _ in range(2):
        with pytest.raises(DecodeError, match=r"^not valid by the JSON Schema$"):
            decoder.check(b'{"b": 1}')


def test_a_reference_to_another_schema_gives_a_reason_with_its_place() -> None:
    other = {"properties": {"left": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}}, "required": ["left"]}
    decoder = JsonSchemaDecoder(
        json.dumps({"properties": {"n": {"$ref": "other.json"}}}), {"other.json": json.dumps(other)}
    )
    with pytest.raises(DecodeError, match=r"at \['n'\]: \"left\" is a required property"):
        decoder.check(b'{"n": {}}')
    given = json.dumps({"n": deep(90, {}, lambda inner, _: {"left": inner})}).encode()
    with pytest.raises(DecodeError, match=NO_BRANCH):
        decoder.check(given)


def test_a_large_wrong_value_gives_a_short_reason() -> None:
    schema = {"properties": {"a": {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]}}}
    assert reason(schema, {"a": ["x"] * 20_000}).endswith(NO_BRANCH)
    assert reason({"type": "integer"}, "x" * 10**6).endswith("xxx")
