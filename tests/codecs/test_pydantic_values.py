"""Values of pydantic models: unions that recurse and lists of errors take bounded time and memory."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any, Literal

import msgspec
import pytest
from pydantic import BaseModel, Field

from actorproc import RecordHandler
from actorproc.codecs.converted_values import converter
from actorproc.codecs.json import JsonDecoder
from actorproc.codecs.pydantic_values import ModelValues, recursive_members
from actorproc.codecs.typed_values import TypedValues
from actorproc.errors import DecodeError
from actorproc.runtime.error_text import error_message
from tests.formats.recursive_models import All, Has, Not
from tests.formats.samples import FIRST, process
from tests.partition.running import letters

LONGEST = 5.0
"""Seconds. A value takes one at most; the machine may be busy."""


class Rule(BaseModel):
    when: Not | All | Has
    either: Not | int | None = None


class Told(BaseModel):
    op: Literal["not"]
    arg: Annotated[Told | Has, Field(discriminator="op")]


class First(BaseModel):
    kids: list[First | Second | Third]


class Second(BaseModel):
    kids: dict[str, First | Second | Third]


class Third(BaseModel):
    kids: list[First] | list[Second] | None = None


class Tree(BaseModel):
    left: Tree | None = None
    right: Tree | int | None = None
    name: int | str | None = None


class Many(BaseModel):
    items: list[Has] = []
    pairs: tuple[int, ...] = ()
    named: dict[str, set[int]] = {}


class NotStruct(msgspec.Struct, tag_field="op", tag="not"):
    arg: NotStruct | HasStruct


class HasStruct(msgspec.Struct, tag_field="op", tag="has"):
    name: str


def nested(levels: int, leaf: Any) -> Any:
    value: Any = {"op": "has", "name": leaf}
    for _ in range(levels):
        value = {"op": "not", "arg": value}
    return value


def ways(kind: type[BaseModel]) -> list[Any]:
    """Functions that make instances of plain objects: through JSON, and directly."""
    parse = TypedValues(kind).parse
    return [lambda value: parse(json.dumps(value).encode()), converter(kind)]


def test_members_of_unions_that_recurse_are_counted() -> None:
    kinds: dict[type[BaseModel], int] = {Rule: 2, Not: 2, Told: 1, Tree: 1, Has: 1, Many: 1, First: 3, Third: 3}
    assert {kind: recursive_members(kind.__pydantic_core_schema__) for kind in kinds} == kinds


@pytest.mark.parametrize("way", [0, 1])
def test_a_deep_value_of_a_recursive_union_is_refused_soon(way: int) -> None:
    make = ways(Rule)[way]
    for levels in (1, 5, 9, 12, 13, 14, 24, 90):
        begun = time.perf_counter()
        with pytest.raises(ValueError, match=r"validation error|Give these unions a discriminator") as caught:
            make({"when": nested(levels, 7)})
        assert len(error_message(caught.value)) < 20_000
        assert time.perf_counter() - begun < LONGEST
    assert make({"when": nested(10, "x")}).when.arg.arg.op == "not"
    with pytest.raises(DecodeError, match="92 objects, nested 92 deep"):
        make({"when": nested(90, "x")})


@pytest.mark.parametrize("way", [0, 1])
def test_many_objects_count_as_depth_does(way: int) -> None:
    make = ways(First)[way]
    assert len(make({"kids": [{"kids": []}] * 1000}).kids) == 1000
    with pytest.raises(DecodeError, match=r"40,001 objects, nested 2 deep.* 3 members"):
        make({"kids": [{"kids": []}] * 40_000})


@pytest.mark.parametrize("way", [0, 1])
def test_types_without_recursive_unions_have_no_limit(way: int) -> None:
    deep: Any = {"name": 1}
    for _ in range(150):
        deep = {"left": {"name": 1}, "right": deep}
    assert ways(Tree)[way](deep).left.name == 1
    assert ways(Told)[way](nested(90, "x")).arg.arg.op == "not"
    with pytest.raises(ValueError, match="1 validation error for Told"):
        ways(Told)[way](nested(90, 7))


@pytest.mark.parametrize("way", [0, 1])
def test_a_list_ends_at_its_first_wrong_item(way: int) -> None:
    make = ways(Many)[way]
    good: Any = {"items": [{"op": "has", "name": "x"}], "pairs": [1], "named": {"a": [1]}}
    assert make(good) == Many(items=[Has(op="has", name="x")], pairs=(1,), named={"a": {1}})
    assert type(make(good)) is Many
    for wrong in (
        {"items": [{"op": "has", "name": "x"}, *[{}] * 1000]},
        {"pairs": ["x"] * 1000},
        {"named": {"a": ["x"] * 1000}},
    ):
        with pytest.raises(ValueError, match=r"[12] validation errors? for Many\n") as caught:
            make(wrong)
        assert "items.1.op" in str(caught.value) or "items" not in wrong


def test_a_value_with_many_errors_has_a_short_reason() -> None:
    with pytest.raises(DecodeError, match="20,000 validation errors for Many"):
        ModelValues(Many).from_object({"named": dict.fromkeys(map(str, range(20_000)))})


def test_tagged_structs_of_msgspec_are_tried_once() -> None:
    with pytest.raises(ValueError, match="Expected `str`, got `int`"):
        TypedValues(NotStruct).parse(json.dumps(nested(150, 7)).encode())


async def test_a_value_that_is_too_deep_is_a_dead_letter_alone() -> None:
    class Rules(RecordHandler[Rule]):
        output_schema = "op string"

        def process_record(self, rule: Rule, ctx: Any) -> dict[str, Any]:
            return {"op": rule.when.op}

    values = [json.dumps({"when": nested(levels, "x")}).encode() for levels in (1, 60, 2)]
    outcome = await process(Rules, JsonDecoder(), values)
    assert {number: letter["error"]["type"] for number, letter in letters(outcome).items()} == {
        FIRST + 1: "DecodeError"
    }
