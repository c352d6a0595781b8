"""RecordHandler[Kind]: values parsed into a declared type, each for itself."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar

import msgspec
import orjson
import pytest
from pydantic import BaseModel

from actorproc import RecordHandler
from actorproc.errors import HandlerDefinitionError
from actorproc.handler.base import Decision
from actorproc.handler.context import PartitionContext
from actorproc.records import Batch, Record
from tests.handlers.running import run

Kind = TypeVar("Kind")
Other = TypeVar("Other")


class Struct(msgspec.Struct):
    n: int
    of: str = "nobody"


@dataclass
class Data:
    n: int
    of: str = "nobody"


class Tuple(NamedTuple):
    n: int
    of: str = "nobody"


class Model(BaseModel):
    n: int
    of: str = "nobody"


class Mapping(TypedDict):
    n: int


class Numbers(RecordHandler[Struct]):
    output_schema = "n int, who string"

    def process_record(self, number: Struct, ctx: PartitionContext) -> dict[str, Any]:
        return {"n": number.n, "who": number.of}


def values(count: int) -> list[bytes | None]:
    return [orjson.dumps({"n": n, "more": [n]}) for n in range(count)]


@pytest.mark.parametrize("kind", [Struct, Data, Model])
async def test_process_record_gets_the_decoded_value(kind: type[Struct]) -> None:
    class Doubled(RecordHandler[kind]):  # type: ignore[valid-type]
        output_schema = "n int, kind string, who string, thread string"

        def process_record(self, number: Any, ctx: PartitionContext) -> dict[str, Any]:
            thread = threading.current_thread().name
            return {"n": number.n * 2, "kind": type(number).__name__, "who": number.of, "thread": thread}

    result = await run(Doubled, values(5_000))
    assert [(row["_sequence"], row["n"]) for row in result.rows] == [(100 + n, n * 2) for n in range(5_000)]
    assert {(row["kind"], row["who"]) for row in result.rows} == {(kind.__name__, "nobody")}
    assert threading.main_thread().name not in {row["thread"] for row in result.rows}


@pytest.mark.parametrize(
    ("kind", "value"), [(Mapping, b'{"n": 3}'), (Tuple, b'[3, "x"]'), (dict, b'{"n": 3}'), (int, b"3")]
)
async def test_any_type_that_json_can_become_will_do(kind: type[Any], value: bytes) -> None:
    class Read(RecordHandler[kind]):  # type: ignore[valid-type]
        output_schema = "n int"

        def process_record(self, number: Any, ctx: PartitionContext) -> dict[str, Any]:
            return {"n": number if kind is int else number[0] if kind is Tuple else number["n"]}

    assert [row["n"] for row in (await run(Read, [value] * 3)).rows] == [3] * 3


UNFIT: dict[bytes | None, str] = {
    b'{"n": "4"}': "Expected `int`, got `str` - at `$.n`",
    b'{"of": "x"}': "Object missing required field `n`",
    b'{"n": 4': "the value is not JSON: Input data was truncated",
    b'{"n": 4}, {"n": 5}': "the value is not JSON: JSON is malformed: trailing characters (byte 9)",
    b'{"n": 4} {"n": 5}': "the value is not JSON: JSON is malformed: trailing characters (byte 10)",
    b'{"n": 4}\n{"n": 5}': "the value is not JSON: JSON is malformed: trailing characters (byte 10)",
    b"": "the value is not JSON: Input data was truncated",
    None: "the record has no value",
}


class LeavesItToUs(Numbers):
    def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision | None:
        return None


@pytest.mark.parametrize("style", ["plain", "async", "on_error without an opinion"])
async def test_a_value_that_does_not_fit_fails_alone_and_says_why(style: str) -> None:
    class Awaited(RecordHandler[Struct]):
        output_schema = Numbers.output_schema

        async def process_record(self, number: Struct, ctx: PartitionContext) -> dict[str, Any]:
            return {"n": number.n, "who": number.of}

    given = values(600)
    for at, value in zip(range(5, 600, 70), UNFIT, strict=False):
        given[at] = value
    result = await run({"plain": Numbers, "async": Awaited}.get(style, LeavesItToUs), given)
    assert {given[s - 100]: letter["error"]["message"] for s, letter in result.letters.items()} == UNFIT
    assert {letter["attempts"] for letter in result.letters.values()} == {1}, "trying again would not help"
    assert [row["n"] for row in result.rows] == [n for n in range(600) if given[n] not in UNFIT]


async def test_on_error_decides_about_values_that_do_not_fit() -> None:
    asked: list[tuple[str, int]] = []

    class Choosing(Numbers):
        def process_record(self, number: Struct, ctx: PartitionContext) -> dict[str, Any]:
            if number.n == 1:
                msgspec.json.decode(b"what a service answered")
            return super().process_record(number, ctx)

        def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision | None:
            asked.append((type(error).__name__, attempt))
            return Decision.SKIP if failed[0].value == b'{"n": "x"}' else None

    result = await run(Choosing, [b'{"n": 1}', b'{"n": "x"}', b'{"n": 3}'])
    assert [(s, letter["error"]["type"]) for s, letter in result.letters.items()] == [(100, "DecodeError")]
    assert asked.count(("ValidationError", 1)) == 1
    assert [attempt for name, attempt in asked if name == "DecodeError"] == [1, 2, 3]
    assert [row["n"] for row in result.rows] == [3]


async def test_on_error_is_called_for_a_subclass_with_its_own_process() -> None:
    class Own(Numbers):
        def process(self, batch: Batch, ctx: PartitionContext) -> None:
            raise ValueError("always")

    result = await run(Own, values(2))
    assert {letter["error"]["message"] for letter in result.letters.values()} == {"always"}
    assert {letter["attempts"] for letter in result.letters.values()} != {1}


class Known(msgspec.Struct):
    n: int

    def __post_init__(self) -> None:
        if self.n == 4_700:
            raise KeyError(self.n)


@pytest.mark.parametrize("style", ["plain", "async"])
async def test_an_error_of_the_types_own_code_fails_its_record_only(style: str) -> None:
    seen: list[int] = []

    class Plain(RecordHandler[Known]):
        output_schema = "n int"

        def process_record(self, known: Known, ctx: PartitionContext) -> dict[str, Any]:
            seen.append(known.n)
            return {"n": known.n}

    class Awaited(Plain):
        async def process_record(self, known: Known, ctx: PartitionContext) -> dict[str, Any]:  # type: ignore[override]
            return super().process_record(known, ctx)

    result = await run(Plain if style == "plain" else Awaited, values(4_800))
    assert {s - 100: letter["error"]["type"] for s, letter in result.letters.items()} == {4_700: "DecodeError"}
    assert [row["n"] for row in result.rows] == sorted(seen) == [n for n in range(4_800) if n != 4_700]


@pytest.mark.parametrize("wrong", [[], [700], [0, 511, 512, 2047, 2048, 4999]])
async def test_values_that_do_not_fit_fail_alone_among_thousands(wrong: list[int]) -> None:
    given: list[bytes | None] = [orjson.dumps({"n": n, "of": "x" * (n % 90)}) for n in range(5000)]
    for n in wrong:
        given[n] = b'{"n": "none"}' if n % 2 else None
    result = await run(Numbers, given)
    assert [(row["_sequence"], row["n"], row["who"]) for row in result.rows] == [
        (n + 100, n, "x" * (n % 90)) for n in range(5000) if n not in wrong
    ]
    assert sorted(result.letters) == [n + 100 for n in wrong]


async def test_two_values_never_merge_into_other_rows() -> None:
    for empty in (b"", b"{"):
        result = await run(Numbers, [b'{"n": 1}{"n": 2}', empty, b'{"n": 3}'])
        assert [(row["_sequence"], row["n"]) for row in result.rows] == [(102, 3)]
        assert sorted(result.letters) == [100, 101]
    result = await run(Numbers, [b'{"n": 1}{"n": 2}', b'{"n": 3}'])
    assert [(row["_sequence"], row["n"]) for row in result.rows] == [(101, 3)]
    assert "trailing characters" in result.letters[100]["error"]["message"]


@pytest.mark.parametrize("kind", [Struct, Data, Model])
async def test_the_value_itself_may_be_the_row_or_one_of_several(kind: type[Struct]) -> None:
    class Same(RecordHandler[kind]):  # type: ignore[valid-type]
        output_schema = "n int, of string"

        def process_record(self, value: Any, ctx: PartitionContext) -> Any:
            return value if value.n < 2 else [value, value]

    result = await run(Same, [b'{"n": 1}', b'{"n": 2, "of": "x"}'])
    assert result.letters == {}
    assert [(row["n"], row["of"]) for row in result.rows] == [(1, "nobody"), (2, "x"), (2, "x")]


@pytest.mark.parametrize("style", ["plain", "async"])
async def test_the_record_behind_the_value_is_at_hand(style: str) -> None:
    class Keyed(RecordHandler[Struct]):
        output_schema = "key string, n int"

        def process_record(self, number: Struct, ctx: PartitionContext) -> Any:
            if number.n == 2:
                ctx.dead_letter(self.record, "a two")
            return {"key": (self.record.key or b"").decode(), "n": number.n}

    class Awaited(Keyed):
        concurrency = 3

        async def process_record(self, number: Struct, ctx: PartitionContext) -> Any:
            return super().process_record(number, ctx)

    batch = Batch.of("0", values(5), range(100, 105), keys=[b"k%d" % n for n in range(5)])
    result = await run(Keyed if style == "plain" else Awaited, batch)
    assert [(row["key"], row["n"]) for row in result.rows] == [(f"k{n}", n) for n in (0, 1, 3, 4)]
    assert list(result.letters) == [102]


async def test_an_error_in_process_record_is_that_records() -> None:
    class Failing(Numbers):
        def process_record(self, number: Struct, ctx: PartitionContext) -> dict[str, Any]:
            if number.n in (3, 4700):
                raise RuntimeError(f"{self.record.sequence} is bad")
            return super().process_record(number, ctx)

    result = await run(Failing, values(4_800))
    assert {s: letter["error"]["message"] for s, letter in result.letters.items()} == {
        103: "103 is bad",
        4800: "4800 is bad",
    }
    assert len(result.rows) == 4_798


async def test_a_generic_base_may_leave_the_type_to_its_subclasses() -> None:
    kind = TypeVar("kind")

    class Base(RecordHandler[kind], Generic[kind]):
        output_schema = "n int"

        def process_record(self, number: Any, ctx: PartitionContext) -> dict[str, Any]:
            return {"n": number.json() if isinstance(number, Record) else number.n}

    class Typed(Base[Struct]):
        pass

    class Again(Typed):
        pass

    class Plain(Base[Record]):
        pass

    for handler in (Typed, Again):
        assert [row["n"] for row in (await run(handler, values(3))).rows] == [0, 1, 2]
    assert [row["n"] for row in (await run(Plain, [b"7"])).rows] == [7]


async def test_other_type_arguments_of_a_generic_base_do_not_change_the_type() -> None:
    class Base(RecordHandler[Kind], Generic[Other, Kind]):
        output_schema = "n int"

        def process_record(self, number: Any, ctx: PartitionContext) -> dict[str, Any]:
            return {"n": number.n}

    class Typed(Base[bytes, Struct]):
        pass

    class Fixed(Numbers, Generic[Other]):
        pass

    class Chosen(Fixed[bytes]):
        pass

    for handler in (Typed, Chosen):
        assert [row["n"] for row in (await run(handler, values(3))).rows] == [0, 1, 2]


def test_a_type_without_json_form_is_refused_at_definition() -> None:
    with pytest.raises(
        HandlerDefinitionError, match=r"Wrong: JSON cannot be parsed into .*Give RecordHandler\[\.\.\.\] a msg"
    ):

        class Wrong(RecordHandler["Later"]):  # type: ignore[name-defined]
            def process_record(self, number: Any, ctx: PartitionContext) -> Any:
                return None


class NoStruct:
    def __init__(self, n: int) -> None:
        self.n = n


class Holding(msgspec.Struct):
    within: NoStruct


class Chain(msgspec.Struct):
    n: int
    following: Chain | None = None
    anything: object = None


@pytest.mark.parametrize("kind", [NoStruct, Holding, complex])
def test_a_plain_class_is_refused_at_the_handlers_definition(kind: type[Any]) -> None:
    with pytest.raises(HandlerDefinitionError, match=r"is a plain class.*msgspec\.Struct, dataclass"):

        class Wrong(RecordHandler[kind]):  # type: ignore[valid-type]
            def process_record(self, number: Any, ctx: PartitionContext) -> Any:
                return None


@pytest.mark.parametrize("kind", [Chain, Chain | None, object])
async def test_types_that_hold_themselves_or_anything_are_allowed(kind: Any) -> None:
    class Read(RecordHandler[kind]):
        output_schema = "n int"

        def process_record(self, value: Any, ctx: PartitionContext) -> dict[str, Any]:
            return {"n": value["n"] if isinstance(value, dict) else value.n}

    assert [row["n"] for row in (await run(Read, [b'{"n": 3, "following": {"n": 4}}'])).rows] == [3]
