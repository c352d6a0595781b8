"""Shapes of rows: dicts, tuples and classes with fields. A row has exactly the columns of the schema."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import msgspec
import pyarrow as pa
import pytest
from pydantic import BaseModel

from actorproc.records import Batch
from actorproc.rows.encoder import RowEncoder
from actorproc.rows.output_schema import parse_schema
from tests.rows.encoding import encode, encoder


def test_rows_get_the_declared_columns_and_then_the_sequence() -> None:
    batch, misfits = encoder("carrier string, minutes double NOT NULL").encode(
        [{"minutes": 2, "carrier": "AA"}, {"minutes": 3.5}], [7, 9]
    )
    assert misfits == {}
    assert batch.schema == pa.schema(
        [("carrier", pa.string()), pa.field("minutes", pa.float64(), False), pa.field("_sequence", pa.int64(), False)]
    )
    assert batch.to_pylist() == [
        {"carrier": "AA", "minutes": 2.0, "_sequence": 7},
        {"carrier": None, "minutes": 3.5, "_sequence": 9},
    ]


def test_a_tuple_is_a_row_in_the_order_of_the_schema() -> None:
    assert encode("carrier string, minutes double", ("AA", 2), (None, 3.5)) == (
        [{"carrier": "AA", "minutes": 2.0}, {"carrier": None, "minutes": 3.5}],
        {},
    )


def test_a_tuple_with_too_few_or_too_many_values_is_refused() -> None:
    stored, misfits = encode("a int, b int", (1, 2), (3,), (4, 5, 6), ({"a": 1}, {"a": 2}, {"a": 3}))
    assert stored == [{"a": 1, "b": 2}]
    assert misfits[101] == (
        "a tuple is one row, with a value for each of a, b: this one has 1. Several rows go in a list"
    )
    assert list(misfits) == [103, 102, 101]


class Arrival(NamedTuple):
    minutes: float
    carrier: str


class Misspelt(NamedTuple):
    minuts: float


def test_a_named_tuple_goes_by_its_names() -> None:
    both = [{"carrier": "AA", "minutes": 2.0}, {"carrier": "B6", "minutes": -1.0}]
    assert encode("carrier string, minutes double", Arrival(2, "AA"), Arrival(-1, "B6")) == (both, {})
    assert encode("carrier string, minutes double", Arrival(2, "AA"), ("B6", -1)) == (both, {})
    assert encode("n int, carrier string, minutes double", Arrival(2, "AA"))[0] == [both[0] | {"n": None}]
    stored, misfits = encode("carrier string, minutes double", Misspelt(1.0))
    assert stored == []
    assert misfits[100].startswith("there is no column 'minuts'")


class StructItem(msgspec.Struct):
    name: str
    count: int | None = None


@dataclass(frozen=True, slots=True)
class DataItem:
    known: ClassVar[int] = 1
    name: str
    count: int | None = None


class ModelItem(BaseModel):
    name: str
    count: int | None = None


ITEMS = pytest.mark.parametrize("item", [StructItem, DataItem, ModelItem])


@ITEMS
def test_objects_with_fields_are_rows(item: Callable[..., Any]) -> None:
    rows = [item(name="x", count=2), item(name="y"), item(name="z", count=3)]
    stored = [{"name": "x", "count": 2}, {"name": "y", "count": None}, {"name": "z", "count": 3}]
    assert encode("count int, name string", *rows) == (stored, {})
    assert encode("count int, name string", {"name": "w"}, *rows)[0][1:] == stored
    assert encode("name string", *rows)[1][100] == "there is no column 'count'; there are: name"


def test_a_dict_subclass_that_is_a_dataclass_is_a_dict() -> None:
    class Base(dict[str, int]):
        pass

    @dataclass(init=False)
    class Both(Base):
        """Without a docstring, Python 3.11.2 fails here: it makes one of the signature."""

        a: int = 0

    encoder = RowEncoder(parse_schema("a long"))
    assert encoder.encode([Both(a=7)], [0])[0].column("a").to_pylist() == [7]
    assert encoder.encode([Both(a=7), {"a": 1}], [0, 1])[0].column("a").to_pylist() == [7, 1]


def test_a_field_of_a_struct_that_is_unset_is_left_out() -> None:
    class Partly(msgspec.Struct):
        a: int | msgspec.UnsetType = msgspec.UNSET
        b: int = 1

    batch, misfits = RowEncoder(parse_schema("a long, b long")).encode([Partly()], [0])
    assert not misfits
    assert batch.select(["a", "b"]).to_pylist() == [{"a": None, "b": 1}]


@ITEMS
def test_objects_with_fields_fit_a_struct_column(item: Callable[..., Any]) -> None:
    ddl = "main struct<name: string, count: int>, others array<struct<name: string, count: int>>"
    row = {"main": item(name="x", count=1), "others": [{"name": "y"}, item(name="z"), None]}
    others = [{"name": "y", "count": None}, {"name": "z", "count": None}, None]
    assert encode(ddl, row, {}) == (
        [{"main": {"name": "x", "count": 1}, "others": others}, {"main": None, "others": None}],
        {},
    )
    refused = encode("main struct<name: string>", {"main": item(name="x")})[1][100]
    assert refused == "column 'main': there is no field 'count'; there are: name"


def test_a_class_and_the_record_itself_are_no_rows() -> None:
    (record,) = Batch.of("0", [b"x"], [1])
    stored, misfits = encode("sequence long, value binary", {}, DataItem, record)
    assert len(stored) == 1
    assert all("a row is a dict of column to value" in misfits[number] for number in (101, 102))


def test_dicts_and_tuples_may_be_mixed() -> None:
    assert encode("a int, b int", (1, 2), {"b": 4, "a": 3}, (5, 6)) == (
        [{"a": 1, "b": 2}, {"a": 3, "b": 4}, {"a": 5, "b": 6}],
        {},
    )


class Strange(tuple[int, ...]):
    __slots__ = ()

    @property
    def _fields(self) -> list[str]:
        return ["a"]


def test_a_row_class_with_fields_known_per_instance_only() -> None:
    assert encode("a int", Strange((1,))) == ([{"a": 1}], {})


def test_an_unknown_column_is_refused_as_it_may_be_a_typo() -> None:
    stored, misfits = encode(
        "minutes double, carrier string", {"minutes": 1.0}, {"minuts": 1.0}, {"carrier": "x", "n": 1}
    )
    assert stored == [{"minutes": 1.0, "carrier": None}]
    assert misfits == {
        101: "there is no column 'minuts'; did you mean 'minutes'? there are: minutes, carrier",
        102: "there is no column 'n'; there are: minutes, carrier",
    }


def test_an_unknown_column_is_found_in_any_row() -> None:
    assert list(encode("a int, b int", {"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3})[1]) == [101]
    assert list(encode("a int, b int", {"a": 1, "b": 2}, {"a": 1, "c": 3})[1]) == [101]


def test_any_mapping_is_a_row_and_other_values_are_refused() -> None:
    stored, misfits = encode("n int", {"n": 1}, "n", ["n"], None, OrderedDict(n=5), MappingProxyType({"n": 6}))
    assert stored == [{"n": 1}, {"n": 5}, {"n": 6}]
    assert misfits[101] == "a row is a dict of column to value, or a tuple in the order of the columns, not 'n' (str)"
    assert list(misfits) == [103, 102, 101]


def test_a_row_without_a_declared_schema_is_refused() -> None:
    assert encode("", {"n": 1}, {}) == (
        [],
        dict.fromkeys([101, 100], "a row was emitted, but the handler declares no output_schema"),
    )
