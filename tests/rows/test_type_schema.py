"""Columns of classes, given as `output_schema`."""

from __future__ import annotations

import dataclasses
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pyarrow as pa
import pytest
from pydantic import BaseModel, Field

from actorproc import PartitionContext, RecordHandler
from actorproc.errors import SchemaError
from actorproc.rows.output_schema import parse_schema
from actorproc.testing import run_handler


class Place(BaseModel):
    lat: Annotated[float, Field(ge=-90)]
    name: str | None = None


class Flight(msgspec.Struct):
    carrier: str
    number: int
    cancelled: bool
    at: datetime
    day: date
    raw: bytes
    kind: Literal["cargo", "passengers"]
    legs: list[Place]
    counts: dict[str, int | None]


@dataclasses.dataclass
class Delay:
    carrier: str
    minutes: float


class Pair(NamedTuple):
    left: int
    right: tuple[str, ...]


class Typed(TypedDict):
    n: int


class Loop(msgspec.Struct):
    again: list[Loop]


class Price(msgspec.Struct):
    amount: Decimal


PLACE = "struct<lat: double, name: string>"


@pytest.mark.parametrize(
    ("kind", "ddl"),
    [
        (
            Flight,
            "carrier string, number bigint, cancelled boolean, at timestamp, day date, raw binary, kind string, "
            f"legs array<{PLACE}>, counts map<string, bigint>",
        ),
        (Place, "lat double, name string"),
        (Delay, "carrier string, minutes double"),
        (Pair, "left bigint, right array<string>"),
        (Typed, "n bigint"),
    ],
)
def test_a_class_declares_a_nullable_column_for_each_field(kind: type, ddl: str) -> None:
    assert parse_schema(kind).equals(parse_schema(ddl))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Loop, r"Loop.again\[\] is Loop, which contains itself"),
        (Price, "Price.amount is Decimal, which no column holds: declare output_schema as DDL"),
        (int, "int is int, a class without declared fields"),
    ],
)
def test_a_class_that_columns_cannot_hold_is_refused(kind: type, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        parse_schema(kind)


async def test_a_handler_declares_its_rows_as_a_class() -> None:
    class Delays(RecordHandler[dict[str, Any]]):
        output_schema = Delay

        def process_record(self, flight: dict[str, Any], ctx: PartitionContext) -> Delay:
            return Delay(flight["carrier"], flight["dep_delay"])

    result = await run_handler(Delays, [b'{"carrier": "AA", "dep_delay": 2.5}'])
    assert [(row["carrier"], row["minutes"]) for row in result.rows] == [("AA", 2.5)]


def test_names_of_columns_are_checked_as_in_a_schema() -> None:
    Reserved = dataclasses.make_dataclass("Reserved", [("partition", str)])  # noqa: N806
    with pytest.raises(SchemaError, match="readers get 'partition' from the output's folders"):
        parse_schema(Reserved)
    assert parse_schema(pa.schema([])) == parse_schema("")
