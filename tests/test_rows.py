"""Rows to Arrow: what fits is stored as it is, what does not is named with its record, column and reason."""

from __future__ import annotations

import enum
import io
from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple
from unittest.mock import patch
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from actorproc.errors import HandlerMisuse
from actorproc.records import Batch
from actorproc.rows.emitted import PIECE, Emitted
from actorproc.rows.encoder import RowEncoder
from actorproc.rows.schema import parse_schema

NOON = datetime(2013, 1, 1, 12, 30, 15, 250, tzinfo=UTC)
NAIVE = NOON.replace(tzinfo=None)


def encoder(ddl: str) -> RowEncoder:
    return RowEncoder(parse_schema(ddl))


def encode(ddl: str, *rows: Any) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """What is stored (without `_sequence`) and the misfits' messages; records are numbered from 100."""
    batch, misfits = encoder(ddl).encode(rows, range(100, 100 + len(rows)))
    batch.validate(full=True)
    pq.write_table(pa.Table.from_batches([batch]), io.BytesIO())  # which takes what it will take in a commit
    stored = [{k: v for k, v in row.items() if k != "_sequence"} for row in batch.to_pylist()]
    return stored, {sequence: str(misfit) for sequence, misfit in misfits.items()}


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
    assert misfits[100].startswith("column 'minuts': there is no column 'minuts'")


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
def test_a_struct_a_dataclass_and_a_pydantic_model_are_rows_by_their_fields(item: Callable[..., Any]) -> None:
    rows = [item(name="x", count=2), item(name="y"), item(name="z", count=3)]
    stored = [{"name": "x", "count": 2}, {"name": "y", "count": None}, {"name": "z", "count": 3}]
    assert encode("count int, name string", *rows) == (stored, {})
    assert encode("count int, name string", {"name": "w"}, *rows)[0][1:] == stored
    assert encode("name string", *rows)[1][100] == "column 'count': there is no column 'count'; there are: name"


def test_a_dict_is_a_dict_whatever_else_its_class_is() -> None:
    class Base(dict[str, int]):
        pass

    @dataclass(init=False)
    class Both(Base):
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
def test_a_struct_a_dataclass_and_a_pydantic_model_are_values_of_a_struct_column(item: Callable[..., Any]) -> None:
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


ROWS = st.one_of(
    st.tuples(st.integers(0, 9), st.sampled_from(["x", "y", 1])),
    st.fixed_dictionaries({"a": st.integers(0, 9)}, optional={"b": st.just("z"), "c": st.just(1)}),
    st.sampled_from([(1,), 5, {}]),
)


@given(
    st.lists(st.tuples(ROWS, st.booleans(), st.booleans())), st.integers(-1, 60), st.integers(0, 60), st.booleans(),
    st.integers(1, 8),
)  # fmt: skip
def test_rows_that_are_gathered_encoded_and_forgotten_become_what_they_would_have_become_at_once(
    given_rows: list[tuple[Any, bool, bool]], upto: int, count: int, copied: bool, together: int
) -> None:
    whole = encoder("a int, b string")
    rows, sequences = list[Any](), list[int]()
    with patch("actorproc.rows.emitted._TOGETHER", together), ExitStack() as stack:
        emitted = Emitted(whole)
        for row, gather, grow in given_rows:
            if len(rows) == count:
                stack.enter_context(emitted.still())
            sequences.append((sequences[-1] if sequences else 0) + grow)
            rows.append(row)
            emitted.rows.append(row)
            emitted.sequences.append(sequences[-1])
            if gather:
                emitted.gather()
    _, unfit = whole.encode(rows, sequences)
    upto = min([upto, *(sequence - 1 for sequence in unfit)])  # nobody commits beyond a record that fails
    emitted.forget(upto, count)
    keep = [index for index, sequence in enumerate(sequences) if index >= count or sequence > upto]
    assert len(emitted) == len(keep)
    tables, misfits = (emitted.copy() if copied else emitted).encode()
    expected, unfit = whole.encode([rows[index] for index in keep], [sequences[index] for index in keep])
    assert [row for table in tables for row in table.to_pylist()] == expected.to_pylist()
    assert {s: str(m) for s, m in misfits.items()} == {s: str(m) for s, m in unfit.items()}


@pytest.mark.parametrize("size", [1, 100, PIECE, 3 * PIECE])
@pytest.mark.parametrize("odd", [None, 7, 2 * PIECE])
def test_rows_that_are_added_many_at_once_become_what_they_would_have_become_one_by_one(
    size: int, odd: int | None
) -> None:
    rows: list[Any] = [(index, "x") for index in range(5 * PIECE)]
    if odd is not None:
        rows[odd] = (odd,)
    whole, sequences = encoder("a int, b string"), list(range(100, 100 + len(rows)))
    emitted = Emitted(whole)
    for at in range(0, len(rows), size):
        emitted.add(rows[at : at + size], pa.array(sequences[at : at + size]))
        assert len(emitted) == min(at + size, len(rows))
    tables, misfits = emitted.encode()
    expected, unfit = whole.encode(rows, sequences)
    assert pa.concat_tables(tables).to_pylist() == expected.to_pylist()
    assert list(misfits) == list(unfit) == ([] if odd is None else [100 + odd])


def test_rows_are_encoded_while_they_come_and_not_all_kept_as_objects() -> None:
    emitted = Emitted(encoder("a int, b string"))
    for index in range(20 * PIECE):
        emitted.rows.append((index, "x"))
        emitted.sequences.append(index)
        if len(emitted.rows) >= PIECE:
            emitted.gather()
        assert emitted.waiting <= 4 * PIECE


class Strange(tuple[int, ...]):
    __slots__ = ()

    @property
    def _fields(self) -> list[str]:
        return ["a"]


def test_a_row_class_whose_fields_are_known_of_an_instance_alone_is_no_row_or_goes_by_them() -> None:
    assert encode("a int", Strange((1,))) == ([{"a": 1}], {})


class Unshowable:
    def __repr__(self) -> str:
        raise ZeroDivisionError


def test_a_value_that_cannot_be_shown_is_a_misfit_like_any_other() -> None:
    stored, misfits = encode("a int", {"a": 1}, {"a": Unshowable()})
    assert stored == [{"a": 1}]
    assert "Unshowable has no text: ZeroDivisionError" in misfits[101]


def filled(emitted: Emitted, count: int, value: Any = 1) -> Emitted:
    for index in range(count):
        emitted.rows.append((value, "x"))
        emitted.sequences.append(index)
        if len(emitted.rows) >= PIECE:
            emitted.gather()
    return emitted


def test_encoding_that_fails_while_rows_come_is_tried_again_in_the_end_and_repeats_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encode_columns, failed = RowEncoder.encode_columns, list[int]()

    def short_of_memory(self: RowEncoder, values: Any, sequences: Any) -> Any:
        if not failed:
            failed.append(len(sequences))
            raise MemoryError
        return encode_columns(self, values, sequences)

    monkeypatch.setattr(RowEncoder, "encode_columns", short_of_memory)
    tables, _ = filled(Emitted(encoder("a int, b string")), 20 * PIECE).encode()
    assert failed == [4 * PIECE]
    assert pa.concat_tables(tables)["_sequence"].to_pylist() == list(range(20 * PIECE))


def test_values_that_take_a_look_at_each_and_rows_added_by_the_thousand_are_not_encoded_while_they_come() -> None:
    slow = filled(Emitted(encoder("a double, b string")), 20 * PIECE, np.float64(1))
    assert slow.waiting == 16 * PIECE, "after the first piece, which showed it"
    many = Emitted(encoder("a int, b string"))
    many.add([(1, "x")] * 20 * PIECE, pa.array(range(20 * PIECE)))
    assert many.waiting == 20 * PIECE


def test_very_wide_rows_are_not_encoded_while_they_come() -> None:
    wide = Emitted(encoder(", ".join(f"c{number} int" for number in range(200))))
    for sequence in range(3 * PIECE):
        wide.rows.append((1,) * 200)
        wide.sequences.append(sequence)
        if len(wide.rows) >= PIECE:
            wide.gather()
    assert wide.waiting == 3 * PIECE


def test_committing_record_by_record_leaves_nothing_behind_that_the_next_commit_has_to_go_through() -> None:
    emitted = Emitted(encoder("a int, b string"))
    for sequence in range(6 * PIECE):
        emitted.rows.append((1, "x"))
        emitted.sequences.append(sequence)
        if sequence % PIECE == 0:
            filled(emitted, 3 * PIECE, sequence)
        with emitted.still():
            assert len(emitted.copy().encode()[0]) <= 1
            emitted.forget(max(sequence, 3 * PIECE), len(emitted))
        assert len(emitted) == 0


SEVERAL = "by several threads at once"


def crossed(emitted: Emitted) -> None:
    emitted.sequences.append(5)  # of a thread that is just about to add its row


def busy(emitted: Emitted) -> None:
    emitted._at_work.acquire()


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("collision", [crossed, busy])
def test_threads_that_emit_at_once_are_noticed_and_not_forgotten(
    collision: Callable[[Emitted], None], alike: bool
) -> None:
    for emit in (
        Emitted.gather,
        lambda emitted: emitted.add([(1, "x")] * PIECE, pa.array(range(PIECE))),
        Emitted.encode,
    ):
        emitted = filled(Emitted(encoder("a int, b string")), 5)
        if not alike:
            emitted.rows[2] = {"a": 2}
            emitted.gather()
        emitted.check()
        collision(emitted)
        with pytest.raises(HandlerMisuse, match=SEVERAL):
            emit(emitted)
        with pytest.raises(HandlerMisuse, match=SEVERAL):
            emitted.check()


def test_what_another_thread_adds_while_rows_are_gathered_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    columns, emitted = RowEncoder.columns, Emitted(encoder("a int, b string"))

    def beside(self: RowEncoder, rows: Any) -> Any:
        emitted.sequences.append(99)
        emitted.rows.append((99, "late"))
        return columns(self, rows)

    filled(emitted, 5)
    monkeypatch.setattr(RowEncoder, "columns", beside)
    emitted.gather()
    monkeypatch.undo()
    tables, _ = emitted.encode()
    assert pa.concat_tables(tables)["_sequence"].to_pylist() == [0, 1, 2, 3, 4, 99]


def test_rows_come_by_sequence_and_those_of_one_record_as_they_were_emitted() -> None:
    batch, _ = encoder("n int").encode([{"n": n} for n in range(6)], [5, 3, 5, 4, 3, 5])
    assert [(row["_sequence"], row["n"]) for row in batch.to_pylist()] == [
        (3, 1),
        (3, 4),
        (4, 3),
        (5, 0),
        (5, 2),
        (5, 5),
    ]


def test_no_rows_make_an_empty_batch() -> None:
    batch, misfits = encoder("a int, b array<string>").encode([], [])
    assert (batch.num_rows, batch.schema.names, misfits) == (0, ["a", "b", "_sequence"], {})


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


TAKEN = [
    ("boolean", True, True),
    ("boolean", np.bool_(False), False),
    ("tinyint", -128, -128),
    ("bigint", 2**63 - 1, 2**63 - 1),
    ("int", 7.0, 7),
    ("int", np.int16(7), 7),
    ("int", Level.HIGH, 3),
    ("int", Decimal("7.00"), 7),
    ("double", 2**53, 2.0**53),
    ("double", np.float32(0.5), 0.5),
    ("double", float("inf"), float("inf")),
    ("float", 0.5, 0.5),
    ("float", 0.1, float(np.float32(0.1))),
    ("float", float("-inf"), float("-inf")),
    ("string", "é\0", "é\0"),
    ("string", Colour.RED, "red"),
    ("binary", b"\xff", b"\xff"),
    ("binary", bytearray(b"x"), b"x"),
    ("binary", memoryview(b"x"), b"x"),
    ("date", date(1, 1, 1), date(1, 1, 1)),
    ("timestamp", NOON, NOON),
    ("timestamp", NOON.astimezone(ZoneInfo("Europe/Berlin")), NOON),
    ("timestamp", NOON.astimezone(timezone(timedelta(hours=-3, seconds=7))), NOON),
    ("timestamp", pd.Timestamp(NOON), NOON),
    ("timestamp_ntz", NAIVE, NAIVE),
    ("timestamp_ntz", pd.Timestamp(NAIVE), NAIVE),
    ("decimal(5,2)", Decimal("999.99"), Decimal("999.99")),
    ("decimal(5,2)", Decimal("1.500"), Decimal("1.50")),
    ("decimal(5,2)", Decimal("1E+2"), Decimal("100.00")),
    ("decimal(5,2)", Decimal("0E-999999999"), Decimal("0.00")),
    ("decimal(5,2)", Decimal("0E+999999999"), Decimal("0.00")),
    ("bigint", Decimal("9E+18"), 9 * 10**18),
    ("tinyint", Decimal("0E+100"), 0),
    ("decimal(5,2)", -7, Decimal("-7.00")),
    ("array<int>", [1, None], [1, None]),
    ("array<int>", (1, 2), [1, 2]),
    ("array<int>", np.array([1, 2]), [1, 2]),
    ("array<int>", range(2), [0, 1]),
    ("array<double>", [1, 2.5], [1.0, 2.5]),
    ("map<string, int>", {"x": 1, "y": None}, [("x", 1), ("y", None)]),
    ("map<int, array<string>>", MappingProxyType({1: ["x"]}), [(1, ["x"])]),
    ("struct<x: int, y: string>", {"y": "z"}, {"x": None, "y": "z"}),
    ("struct<x: int>", {}, {"x": None}),
    ("struct<x: int>", OrderedDict(x=1), {"x": 1}),
    ("array<struct<x: array<timestamp>>>", [{"x": [NOON, None]}, None], [{"x": [NOON, None]}, None]),
]


@pytest.mark.parametrize(("kind", "value", "stored"), TAKEN)
def test_a_value_that_fits_is_stored_as_it_is_alone_and_beside_others(kind: str, value: object, stored: object) -> None:
    assert encode(f"c {kind}", {"c": value}) == ([{"c": stored}], {})
    assert encode(f"c {kind}", {"c": None}, {"c": value}, {}) == ([{"c": None}, {"c": stored}, {"c": None}], {})


REFUSED = [
    ("boolean", 1, "1 (int) is no boolean; give True or False"),
    ("int", "1", "'1' (str) is no int; give an int, or a float without a fraction"),
    ("int", True, "True (bool) is no int"),
    ("int", 1.5, "1.5 (float) is no int"),
    ("int", float("nan"), "nan (float) is no int"),
    ("int", Decimal("sNaN"), "Decimal('sNaN')"),
    ("tinyint", 128, "128 is out of range for tinyint (-128 to 127)"),
    ("bigint", 2**63, "is out of range for bigint"),
    ("bigint", np.uint64(2**63), "is out of range for bigint"),
    ("double", True, "True (bool) is no double; give a float or an int"),
    ("double", "1.5", "'1.5' (str) is no double"),
    ("double", Decimal("1.5"), "Decimal('1.5') (Decimal) is no double"),
    ("double", 2**53 + 1, "an int that double cannot hold exactly; convert it with float() if it may be rounded"),
    ("float", 1e300, "1e+300 is out of range for float"),
    ("float", 2**24 + 1, "an int that float cannot hold exactly"),
    ("string", 1, "1 (int) is no string; give a str"),
    ("array<int>", np.array(5), "is no array; give a list"),
    ("string", b"x", "b'x' (bytes) is no string; give a str, as bytes.decode() makes one"),
    ("string", "\ud800", "is no text: surrogates not allowed"),
    ("binary", "x", "'x' (str) is no binary; give bytes, as str.encode() makes them"),
    ("date", NOON, "(datetime) is no date; give a date, as datetime.date() makes one"),
    ("date", 5, "5 (int) is no date"),
    ("date", "2013-01-01", "'2013-01-01' (str) is no date"),
    ("timestamp", NAIVE, "is no timestamp; give a datetime with a zone (tzinfo); or declare the column timestamp_ntz"),
    ("timestamp_ntz", NOON, "is no timestamp_ntz; give a datetime without a zone; or declare the column timestamp"),
    ("timestamp", NOON.date(), "(date) is no timestamp"),
    ("timestamp", 5, "5 (int) is no timestamp"),
    ("timestamp", pd.NaT, "NaT (NaTType) is no timestamp"),
    ("timestamp", pd.Timestamp(1001, tz="UTC"), "has nanoseconds; timestamp holds microseconds"),
    ("timestamp", datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))), "is out of range for timestamp"),
    ("decimal(5,2)", 1.5, "1.5 (float) is no decimal(5,2); give a Decimal or an int (Decimal(str(x)) keeps what is shown)"),
    ("decimal(5,2)", "1.5", "'1.5' (str) is no decimal(5,2)"),
    ("decimal(5,2)", True, "True (bool) is no decimal(5,2)"),
    ("decimal(5,2)", Decimal("1.005"), "has more than 2 digits after the point, too many for decimal(5,2)"),
    ("decimal(5,2)", Decimal("1E-42"), "has more than 2 digits after the point"),
    ("decimal(5,2)", Decimal("1E-9999999"), "has more than 2 digits after the point"),
    ("decimal(5,2)", Decimal("1E+9999999"), "is out of range for decimal(5,2)"),
    ("decimal(38,0)", Decimal("1329227995784915872903807060280344576E-104"), "has more than 0 digits after the point"),
    ("array<decimal(5,2)>", [Decimal("1E-999999999")], "has more than 2 digits after the point"),
    ("struct<x: decimal(5,2)>", {"x": Decimal("1E-999999999")}, "has more than 2 digits after the point"),
    ("map<string, decimal(5,2)>", {"x": Decimal("1E-999999999")}, "has more than 2 digits after the point"),
    ("bigint", Decimal("1E+300000000"), "is out of range for bigint"),
    ("struct<x: int>", {10**5000: 1}, "there is no field"),
    ("decimal(12,11)", Decimal("1.608126325076719527001631374511690804194E-11"), "has more than 11 digits after the point"),
    ("array<decimal(5,2)>", [Decimal("1E-42")], "[0]: Decimal('1E-42') has more than 2"),
    ("decimal(5,2)", Decimal(1000), "is out of range for decimal(5,2)"),
    ("decimal(5,2)", Decimal("NaN"), "NaN is not finite"),
    ("array<int>", "12", "'12' (str) is no array; give a list"),
    ("array<int>", {1, 2}, "{1, 2} (set) is no array"),
    ("array<int>", [1, "x"], "[1]: 'x' (str) is no int"),
    ("map<string, int>", [("x", 1)], "(list) is no map; give a dict"),
    ("map<string, int>", {"x": "y"}, "['x']: 'y' (str) is no int"),
    ("map<string, int>", {1: 1}, "key 1: 1 (int) is no string"),
    ("map<string, int>", {None: 1}, "key None: it is NOT NULL"),
    ("struct<x: int>", [("x", 1)], "(list) is no struct; give a dict"),
    ("struct<count: int>", {"cuont": 1}, "there is no field 'cuont'; did you mean 'count'? there are: count"),
    ("struct<x: int NOT NULL>", {}, ".x: it is NOT NULL"),
    ("array<struct<x: map<string, struct<y: int NOT NULL>>>>", [{"x": {"k": {"y": None}}}], "[0].x['k'].y: it is NOT NULL"),
    ("int NOT NULL", None, "it is NOT NULL"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "message"), REFUSED)
def test_a_value_that_does_not_fit_is_named_and_the_others_are_stored(kind: str, value: object, message: str) -> None:
    good = {
        "boolean": True,
        "string": "x",
        "binary": b"x",
        "date": NOON.date(),
        "timestamp": NOON,
        "timestamp_ntz": NAIVE,
    }
    fine: Any = good.get(kind, [] if kind.startswith("array") else {} if kind.startswith("map") else 1)
    if kind.startswith("struct"):
        fine = {"x": 1} if "x:" in kind else {}
    stored, misfits = encode(f"c {kind}, d int", {"c": fine, "d": 1}, {"c": value, "d": 2}, {"c": fine, "d": 3})
    assert [row["d"] for row in stored] == [1, 3]
    assert list(misfits) == [101]
    assert misfits[101].startswith("column 'c': ")
    assert message in misfits[101]


def test_an_unknown_column_is_refused_as_it_may_be_a_typo() -> None:
    stored, misfits = encode(
        "minutes double, carrier string", {"minutes": 1.0}, {"minuts": 1.0}, {"carrier": "x", "n": 1}
    )
    assert stored == [{"minutes": 1.0, "carrier": None}]
    assert misfits == {
        101: "column 'minuts': there is no column 'minuts'; did you mean 'minutes'? there are: minutes, carrier",
        102: "column 'n': there is no column 'n'; there are: minutes, carrier",
    }


def test_an_unknown_column_is_seen_beside_all_known_ones_and_in_place_of_one() -> None:
    assert list(encode("a int, b int", {"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3})[1]) == [101]
    assert list(encode("a int, b int", {"a": 1, "b": 2}, {"a": 1, "c": 3})[1]) == [101]


def test_a_row_that_is_no_mapping_is_refused_and_a_mapping_that_is_no_dict_is_taken() -> None:
    stored, misfits = encode("n int", {"n": 1}, "n", ["n"], None, OrderedDict(n=5), MappingProxyType({"n": 6}))
    assert stored == [{"n": 1}, {"n": 5}, {"n": 6}]
    assert misfits[101] == "a row is a dict of column to value, or a tuple in their order, not 'n' (str)"
    assert list(misfits) == [103, 102, 101]


def test_a_row_without_a_declared_schema_is_refused() -> None:
    assert encode("", {"n": 1}, {}) == (
        [],
        dict.fromkeys([101, 100], "a row was emitted, but the handler declares no output_schema"),
    )


def test_a_record_is_named_once_with_its_first_misfit_and_its_other_rows_are_left() -> None:
    batch, misfits = encoder("a int, b int").encode(
        [{"a": 1}, {"a": "x", "b": "y"}, {"b": "z"}, {"a": 2}], [5, 5, 5, 6]
    )
    assert {s: str(m) for s, m in misfits.items()} == {
        5: "column 'a': 'x' (str) is no int; give an int, or a float without a fraction"
    }
    assert batch.column("_sequence").to_pylist() == [5, 6]


def test_a_long_value_is_shown_in_part() -> None:
    _, misfits = encode("a int", {"a": "x" * 10_000})
    assert len(misfits[100]) < 200


# What is fast is also strict: any values, alone and mixed, whole columns and single values judge the same.

values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-130, 130), st.floats(), st.floats(width=32), st.text(max_size=3),
    st.binary(max_size=3), st.dates(), st.datetimes(), st.datetimes(timezones=st.just(UTC)), st.datetimes(timezones=st.timezones()),
    st.decimals(), st.decimals(-1000, 1000, places=2), st.builds("{}E{}".format, st.integers(), st.integers(-(10**8), 10**8)).map(Decimal), st.sampled_from([np.int64(3), np.float64(1.5), np.bool_(True), Level.HIGH, Colour.RED]),
)  # fmt: skip
nested = st.recursive(
    values,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=2).map(tuple),
        st.dictionaries(st.sampled_from(["x", "y"]), inner, max_size=2),
    ),
    max_leaves=4,
)
LEAVES = [
    "boolean", "tinyint", "int", "bigint", "float", "double", "string", "binary", "date", "timestamp", "timestamp_ntz",
    "decimal(5,2)", "decimal(38,0)",
]  # fmt: skip
declared = st.one_of(
    st.sampled_from(LEAVES),
    st.sampled_from(LEAVES).flatmap(
        lambda leaf: st.sampled_from(
            [
                f"array<{leaf}>",
                f"map<string, {leaf}>",
                f"struct<x: {leaf}, y: array<{leaf}>>",
                f"struct<x: {leaf} NOT NULL>",
            ]
        )
    ),
    st.sampled_from(LEAVES).map(lambda leaf: f"{leaf} NOT NULL"),
)


@given(declared, st.lists(nested, min_size=1, max_size=6))
def test_a_value_is_judged_and_stored_the_same_whatever_stands_beside_it(ddl: str, column: list[Any]) -> None:
    rows = [{"c": value} for value in column]
    together, misfits = encode(f"c {ddl}", *rows)
    alone = [encode(f"c {ddl}", row) for row in rows]
    assert repr(together) == repr([stored[0] for stored, _ in alone if stored])  # repr: a NaN is itself
    assert sorted(misfits) == [100 + index for index, (stored, _) in enumerate(alone) if not stored]


@given(declared, nested)
def test_whole_columns_and_single_values_are_judged_by_the_same_rules(ddl: str, value: Any) -> None:
    """Something that is no plain value sends a column through the rules for single values."""
    plain, plain_misfits = encode(f"c {ddl}", {"c": value})

    class Odd:
        pass

    rows, misfits = encode(f"c {ddl}", {"c": Odd()}, {"c": value})
    assert 100 in misfits
    assert repr(rows) == repr(plain)
    assert (101 in misfits) == (100 in plain_misfits)


@given(st.lists(st.floats() | st.integers(-(2**24), 2**24), min_size=1))
def test_what_fits_a_double_comes_back_bit_by_bit(numbers: list[float]) -> None:
    stored, misfits = encode("c double", *({"c": number} for number in numbers))
    assert misfits == {}
    assert repr([row["c"] for row in stored]) == repr([float(number) for number in numbers])


@given(st.lists(st.datetimes(timezones=st.timezones()), min_size=1))
def test_an_instant_comes_back_as_the_same_instant(times: list[datetime]) -> None:
    stored, misfits = encode("c timestamp", *({"c": time} for time in times))
    refused = [time for index, time in enumerate(times) if 100 + index in misfits]
    assert {time.year for time in refused} <= {1, 9999}  # in UTC they lie before or after
    taken = [time for index, time in enumerate(times) if 100 + index not in misfits]
    assert [row["c"] for row in stored] == [time.astimezone(UTC) for time in taken]


@pytest.mark.parametrize("kind", ["string", "boolean"])
def test_values_of_types_that_arrow_cannot_tell_apart_are_refused_and_end_no_process(kind: str) -> None:
    rows, unfit = encode(f"x {kind}", {"x": np.datetime64("2020-01-01")}, {"x": np.float32(1.5)}, {"x": None})
    assert rows == [{"x": None}]
    assert sorted(unfit) == [100, 101]
