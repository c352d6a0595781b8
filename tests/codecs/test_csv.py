"""CSV fields: the text that each type accepts, alone and in a batch."""

from __future__ import annotations

import csv
import io
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from actorproc.codecs.csv import CsvDecoder
from actorproc.errors import DecodeError
from actorproc.rows.output_schema import parse_schema

TYPED = "i int, l bigint, d double, f float, p decimal(38,2), b boolean, day date, t timestamp, s string"
EMPTY = dict.fromkeys([part.split()[0] for part in TYPED.split(", ")]) | {"s": ""}


DECODER = CsvDecoder(parse_schema(TYPED))


def parsed(values: list[bytes]) -> tuple[list[dict[str, Any]], dict[int, Exception]]:
    """Rows of the values, and by number why others have none."""
    columns = DECODER.columns(parse_schema(TYPED))
    table, errors = columns.parse(pa.array(values, pa.binary()), pa.array(range(len(values)), pa.int64()))
    return table.drop_columns(["_sequence"]).to_pylist(), errors


def line(name: str, text: str) -> bytes:
    """A line with one field that is not empty."""
    return ",".join(text if column == name else "" for column in EMPTY).encode()


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        *[(name, '""', None) for name in EMPTY if name != "s"],
        ("s", '""', ""),
        ("i", '"7"', 7),
        ("i", "2147483647", 2**31 - 1),
        ("d", "1e308", 1e308),
        ("d", "1e-400", 0.0),
        ("d", "inf", float("inf")),
        ("d", "-Infinity", float("-inf")),
        ("f", "1e38", 9.999999680285692e37),
        ("p", "1E+2", Decimal("100.00")),
        ("p", "0E-8", Decimal("0.00")),
        ("p", "9" * 36, Decimal("9" * 36 + ".00")),
        ("p", "0" * 90 + "1", Decimal("1.00")),
        ("day", "9999-12-31", date(9999, 12, 31)),
        ("s", "a\x00b", "a\x00b"),
        ("s", '"two\nlines"', "two\nlines"),
        ("s", '"two\rlines"', "two\rlines"),
        ("s", "0xFF", "0xFF"),
        ("s", "x" * 3_000_000, "x" * 3_000_000),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_field_of_csv_is_read_as_written(name: str, text: str, expected: Any) -> None:
    value, good = line(name, text), line("d", "1e1")
    for at, values in enumerate([[value], [good, value, good, line("p", "1e1")]]):
        rows, errors = parsed(values)
        assert errors == {}
        assert rows[at] == {**EMPTY, name: expected}
    assert DECODER.values().parse(value) == {**EMPTY, name: expected}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("i", "2147483648"), ("i", "0xFFFFFFFF"), ("i", "0x1"), ("i", "1_000"), ("i", "+1"), ("i", "1.0"), ("i", "1e3"),
        ("i", "NaN"), ("i", "1\x00"), ("i", '"1'), ("i", "null"), ("l", "9" * 19), ("l", "0XFFFFFFFFFFFFFFFF"),
        ("d", "1e400"), ("d", "-1e400"), ("d", "9" * 400), ("d", "0x1"), ("d", "1_000"), ("f", "1e39"), ("f", "-1e400"),
        ("p", "9" * 37), ("p", "340282366920938463463374607431768211457"),
        ("p", "3402823669209384634633746074317682115"),
        ("p", "3402823669209384634633746074317682114.57"), ("p", "1e36"), ("p", "1e1000000000"), ("p", "1e-3"),
        ("p", "1e-99999999999999999999"), ("p", "9" * 100_000), ("p", "0x1e"), ("p", "NaN"), ("b", "yes"),
        ("day", "0000-01-01"), ("day", "10000-01-01"), ("day", "2013-02-30"), ("t", "2013-01-01T00:00:00"),
        ("t", "0000-01-01T00:00:00Z"), ("s", "a\rb"), ("s", "a\nb"), ("s", "a,b"), ("s", '5" pipe'),
    ],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_a_field_of_csv_that_does_not_fit_is_refused_alone(name: str, text: str) -> None:
    value, good = line(name, text), line("d", "inf")
    for at, values in enumerate([[value], [good, value, good, line("p", "1e1")]]):
        rows, errors = parsed(values)
        assert (len(rows), list(errors)) == (len(values) - 1, [at])
    with pytest.raises(DecodeError):
        DECODER.values().parse(value)
    assert DECODER.values().parse_all(pa.array([good, value], pa.binary())) is None


def test_csv_is_read_as_python_writes_it() -> None:
    row = [7, None, 1.5, None, Decimal("1.25"), None, date(2013, 1, 31), None, "a, b"]
    written = io.StringIO()
    csv.writer(written, quoting=csv.QUOTE_ALL).writerow(row)
    rows, errors = parsed([written.getvalue().encode()])
    assert (rows, errors) == ([dict(zip(EMPTY, row, strict=True))], {})
