"""After any error of a decoder's library the record fails alone with a DecodeError; its neighbours are processed."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import orjson
import pyarrow as pa
import pytest
from pydantic import BaseModel, model_validator

from actorproc import PartitionContext, RecordHandler
from actorproc.errors import HandlerMisuse
from actorproc.handler.decoder import Columns, Decoder, Parsed, Values, columns_of, values_of
from actorproc.partition.results import Results
from actorproc.rows.encoder import RowEncoder
from actorproc.rows.output_schema import parse_schema
from tests.formats.samples import FIRST, FORMATS, SCHEMA, arrow_stream, handlers, process
from tests.partition.running import letters

N = 200
BAD = 77
DEEP = b'{"name": "x", "n": 1, "deep": ' + b"[" * 2000 + b"]" * 2000 + b"}"
TWICE = arrow_stream(pa.Table.from_arrays([pa.array(["a"])] * 2, names=["name", "name"]))
PANIC = bytes.fromhex("0afbffffffffffffffff01")


class Panic(BaseException):
    """As PanicException of PyO3: not an Exception."""


class Odd(Decoder):
    """Raises `error` for the value `bad`, in place of a value for each record."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.together: list[int] = []

    def values(self, kind: Any = Any) -> Values[Any]:
        return OddValues(self)

    def columns(self, schema: pa.Schema) -> Columns:
        return OddColumns(self, schema)

    def load(self, value: bytes | None) -> dict[str, Any]:
        if value == b"bad":
            raise self.error
        return {"name": str(value), "n": 1}


class OddValues(Values[Any]):
    def __init__(self, decoder: Odd) -> None:
        self._decoder = decoder

    def parse(self, value: bytes | None) -> Any:
        return self._decoder.load(value)

    def parse_all(self, values: pa.Array) -> list[Any]:
        parsed = list(map(self._decoder.load, values.to_pylist()))
        self._decoder.together.append(len(parsed))
        return parsed


class OddColumns(Columns):
    def __init__(self, decoder: Odd, schema: pa.Schema) -> None:
        self._decoder = decoder
        self._encoder = RowEncoder(schema)

    def parse(self, values: pa.Array, sequences: pa.Int64Array) -> Parsed:
        rows = list(map(self._decoder.load, values.to_pylist()))
        batch, _ = self._encoder.encode(rows, sequences.to_pylist())
        return pa.Table.from_batches([batch]), {}


def failed(outcome: Results) -> dict[int, str]:
    """The error types of dead letters by the index of their value; each had one attempt."""
    found = letters(outcome)
    assert {letter["attempts"] for letter in found.values()} <= {1}
    return {sequence - FIRST: letter["error"]["type"] for sequence, letter in found.items()}


def rows(outcome: Results) -> list[int]:
    """Indexes of the values that have rows."""
    return [n - FIRST for table in outcome.tables for n in table["_sequence"].to_pylist()]


OTHERS = [n for n in range(N) if n != BAD]


@pytest.mark.parametrize("delivery", ["at-least-once", "at-most-once"])
@pytest.mark.parametrize("way", handlers())
@pytest.mark.parametrize(("name", "bad"), [("protobuf", PANIC), ("arrow", TWICE), ("json", DEEP)])
async def test_a_value_that_breaks_its_library_fails_alone(name: str, bad: bytes, way: str, delivery: str) -> None:
    made = FORMATS[name]
    values = [made.value(n) for n in range(N)]
    values[BAD] = bad
    outcome = await process(handlers()[way], made.decoder, values, delivery=delivery)
    if name == "json" and way == "columns":  # a field that is passed over may be nested as deep as it likes
        assert set(rows(outcome)) >= set(OTHERS)
        return
    assert failed(outcome) == {BAD: "DecodeError"}
    assert rows(outcome) == OTHERS


@pytest.mark.parametrize("delivery", ["at-least-once", "at-most-once"])
@pytest.mark.parametrize("way", handlers())
@pytest.mark.parametrize("error", [Panic("broken"), KeyError("x"), RecursionError(), MemoryError(), BaseException()])
async def test_any_error_of_a_decoder_fails_its_record_alone(error: BaseException, way: str, delivery: str) -> None:
    values = [b"good"] * N
    values[BAD] = b"bad"
    outcome = await process(handlers()[way], Odd(error), values, delivery=delivery)
    assert failed(outcome) == {BAD: "DecodeError"}
    assert rows(outcome) == OTHERS


def test_the_neighbours_of_a_bad_value_are_decoded_together() -> None:
    odd = Odd(Panic())
    values = pa.array([b"good"] * 20 + [b"bad"] + [b"good"] * 29, pa.binary())
    pieces = list(values_of(odd, Any).parse_pieces(values, 10))
    assert [piece is None for piece in pieces] == [True, True, True, False, False]
    assert odd.together == [20]
    assert values_of(odd, Any).parse_all(values) is None


def test_values_that_all_break_their_library_have_no_rows() -> None:
    values = pa.array([b"bad"] * 5, pa.binary())
    table, errors = columns_of(Odd(Panic()), SCHEMA).parse(values, pa.array(range(5)))
    assert (table.num_rows, table.column_names) == (0, ["name", "n", "_sequence"])
    assert {at: str(error) for at, error in errors.items()} == dict.fromkeys(range(5), "Panic")


@pytest.mark.parametrize(
    "end", [KeyboardInterrupt(), SystemExit(), GeneratorExit(), asyncio.CancelledError(), HandlerMisuse("wrong use")]
)
def test_an_end_from_outside_is_no_failure_of_a_value(end: BaseException) -> None:
    values = pa.array([b"good", b"bad"], pa.binary())
    with pytest.raises(type(end)):
        values_of(Odd(end), Any).parse(b"bad")
    with pytest.raises(type(end)):
        list(values_of(Odd(end), Any).parse_pieces(values, 1))
    with pytest.raises(type(end)):
        columns_of(Odd(end), parse_schema(SCHEMA)).parse(values, pa.array([0, 1]))


class Struct(msgspec.Struct):
    n: int

    def __post_init__(self) -> None:
        if self.n == BAD:
            raise Panic(self.n)


class Model(BaseModel):
    n: int

    @model_validator(mode="after")
    def _odd(self) -> Model:
        if self.n == BAD:
            raise Panic(self.n)
        return self


@pytest.mark.parametrize("way", ["plain", "async"])
@pytest.mark.parametrize("kind", [Struct, Model])
@pytest.mark.parametrize("name", ["json", "json-schema", "avro", "protobuf"])
async def test_any_error_of_a_users_type_fails_its_record_alone(name: str, kind: type[Any], way: str) -> None:
    class Plain(RecordHandler[kind]):  # type: ignore[valid-type]
        output_schema = "n bigint"

        def process_record(self, value: Any, ctx: PartitionContext) -> dict[str, Any]:
            return {"n": value.n}

    class Awaited(Plain):
        async def process_record(self, value: Any, ctx: PartitionContext) -> dict[str, Any]:  # type: ignore[override]
            return {"n": value.n}

    values = [FORMATS[name].value(n) for n in range(N)]
    outcome = await process(Plain if way == "plain" else Awaited, FORMATS[name].decoder, values)
    assert failed(outcome) == {BAD: "DecodeError"}
    assert rows(outcome) == OTHERS
    assert "Panic: 77" in orjson.loads(outcome.letters[FIRST + BAD])["error"]["message"]
