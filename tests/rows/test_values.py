"""Values that fit their column are stored unchanged. Others are refused with record, column and reason."""

from __future__ import annotations

from collections import OrderedDict
from datetime import date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from types import MappingProxyType
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest

from tests.rows.encoding import NAIVE, NOON, Colour, Level, encode, encoder

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
    ("timestamp", NOON.astimezone(timezone(timedelta(microseconds=500))), NOON),
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
def test_a_value_that_fits_is_stored_unchanged(kind: str, value: object, stored: object) -> None:
    assert encode(f"c {kind}", {"c": value}) == ([{"c": stored}], {})
    assert encode(f"c {kind}", {"c": None}, {"c": value}, {}) == ([{"c": None}, {"c": stored}, {"c": None}], {})


class Nowhere(tzinfo):
    """A zone of which Python says that it is none."""

    def utcoffset(self, _: datetime | None) -> None:
        return None

    dst = tzname = utcoffset


REFUSED = [
    ("boolean", 1, "1 (int) does not fit boolean; give True or False"),
    ("int", "1", "'1' (str) does not fit int; give an int, or a float without a fraction"),
    ("int", True, "True (bool) does not fit int"),
    ("int", 1.5, "1.5 (float) does not fit int"),
    ("int", float("nan"), "nan (float) does not fit int"),
    ("int", Decimal("sNaN"), "sNaN (Decimal)"),
    ("tinyint", 128, "128 is out of range for tinyint (-128 to 127)"),
    ("bigint", 2**63, "is out of range for bigint"),
    ("bigint", np.uint64(2**63), "is out of range for bigint"),
    ("double", True, "True (bool) does not fit double; give a float or an int"),
    ("double", "1.5", "'1.5' (str) does not fit double"),
    ("double", Decimal("1.5"), "1.5 (Decimal) does not fit double"),
    ("double", 2**53 + 1, "an int that double cannot hold exactly; use float() if it may be rounded"),
    ("bigint", np.timedelta64(5, "D"), "(timedelta64) does not fit bigint"),
    ("double", np.timedelta64(5, "ns"), "(timedelta64) does not fit double"),
    ("decimal(5,2)", np.timedelta64("NaT"), "(timedelta64) does not fit decimal"),
    ("array<bigint>", np.array([5], "m8[ns]"), "(timedelta64) does not fit bigint"),
    ("array<double>", np.array([5], "M8[ns]"), "(datetime64) does not fit double"),
    ("timestamp", datetime(2013, 1, 1, tzinfo=Nowhere()), "does not fit timestamp; give a datetime with a zone"),
    ("float", 1e300, "1e+300 is out of range for float"),
    ("float", 2**24 + 1, "an int that float cannot hold exactly"),
    ("string", 1, "1 (int) does not fit string; give a str"),
    ("array<int>", np.array(5), "does not fit array; give a list"),
    ("string", b"x", "b'x' (bytes) does not fit string; give a str, as bytes.decode() makes one"),
    ("string", "\ud800", "is not valid text: surrogates not allowed"),
    ("binary", "x", "'x' (str) does not fit binary; give bytes, as str.encode() makes them"),
    ("date", NOON, "(datetime) does not fit date; give a date, as datetime.date() makes one"),
    ("date", 5, "5 (int) does not fit date"),
    ("date", "2013-01-01", "'2013-01-01' (str) does not fit date"),
    (
        "timestamp",
        NAIVE,
        "does not fit timestamp; give a datetime with a zone (tzinfo); or declare the column timestamp_ntz",
    ),
    (
        "timestamp_ntz",
        NOON,
        "does not fit timestamp_ntz; give a datetime without a zone; or declare the column timestamp",
    ),
    ("timestamp", NOON.date(), "(date) does not fit timestamp"),
    ("timestamp", 5, "5 (int) does not fit timestamp"),
    ("timestamp", pd.NaT, "NaT (NaTType) does not fit timestamp"),
    ("timestamp", pd.Timestamp(1001, tz="UTC"), "has nanoseconds; timestamp holds microseconds"),
    ("timestamp", datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))), "is out of range for timestamp"),
    (
        "decimal(5,2)",
        1.5,
        "1.5 (float) does not fit decimal(5,2); give a Decimal or an int (Decimal(str(x)) keeps what is shown)",
    ),
    ("decimal(5,2)", "1.5", "'1.5' (str) does not fit decimal(5,2)"),
    ("decimal(5,2)", True, "True (bool) does not fit decimal(5,2)"),
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
    (
        "decimal(12,11)",
        Decimal("1.608126325076719527001631374511690804194E-11"),
        "has more than 11 digits after the point",
    ),
    ("array<decimal(5,2)>", [Decimal("1E-42")], "[0]: 1E-42 has more than 2"),
    ("decimal(5,2)", Decimal(1000), "is out of range for decimal(5,2)"),
    ("decimal(5,2)", Decimal("NaN"), "NaN is not finite"),
    ("array<int>", "12", "'12' (str) does not fit array; give a list"),
    ("array<int>", {1, 2}, "{1, 2} (set) does not fit array"),
    ("array<int>", [1, "x"], "[1]: 'x' (str) does not fit int"),
    ("map<string, int>", [("x", 1)], "(list) does not fit map; give a dict"),
    ("map<string, int>", {"x": "y"}, "['x']: 'y' (str) does not fit int"),
    ("map<string, int>", {1: 1}, "key 1: 1 (int) does not fit string"),
    ("map<string, int>", {None: 1}, "key None: it is NOT NULL"),
    ("struct<x: int>", [("x", 1)], "(list) does not fit struct; give a dict"),
    ("struct<count: int>", {"cuont": 1}, "there is no field 'cuont'; did you mean 'count'? there are: count"),
    ("struct<x: int NOT NULL>", {}, ".x: it is NOT NULL"),
    (
        "array<struct<x: map<string, struct<y: int NOT NULL>>>>",
        [{"x": {"k": {"y": None}}}],
        "[0].x['k'].y: it is NOT NULL",
    ),
    ("int NOT NULL", None, "it is NOT NULL"),
]


@pytest.mark.parametrize(("kind", "value", "message"), REFUSED)
def test_only_the_value_that_does_not_fit_is_refused(kind: str, value: object, message: str) -> None:
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


class Unshowable:
    def __repr__(self) -> str:
        raise ZeroDivisionError


def test_a_value_that_cannot_be_shown_is_a_misfit_like_any_other() -> None:
    stored, misfits = encode("a int", {"a": 1}, {"a": Unshowable()})
    assert stored == [{"a": 1}]
    assert "Unshowable has no text: ZeroDivisionError" in misfits[101]


def test_a_record_is_named_once_with_its_first_misfit() -> None:
    batch, misfits = encoder("a int, b int").encode(
        [{"a": 1}, {"a": "x", "b": "y"}, {"b": "z"}, {"a": 2}], [5, 5, 5, 6]
    )
    assert {s: str(m) for s, m in misfits.items()} == {
        5: "column 'a': 'x' (str) does not fit int; give an int, or a float without a fraction"
    }
    assert batch.column("_sequence").to_pylist() == [5, 6]


def test_a_long_value_is_shown_in_part() -> None:
    _, misfits = encode("a int", {"a": "x" * 10_000})
    assert len(misfits[100]) < 200


@pytest.mark.parametrize("kind", ["string", "boolean"])
def test_values_that_crash_arrow_are_refused(kind: str) -> None:
    rows, unfit = encode(f"x {kind}", {"x": np.datetime64("2020-01-01")}, {"x": np.float32(1.5)}, {"x": None})
    assert rows == [{"x": None}]
    assert sorted(unfit) == [100, 101]
