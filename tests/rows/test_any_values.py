"""Any values at all: alone and mixed, as whole columns and one by one, they are judged and stored the same."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.rows.encoding import Colour, Level, encode

# The fast path is strict, too: whole columns accept and refuse the same values as single values do.

values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-130, 130),
    st.floats(),
    st.floats(width=32),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=st.just(UTC)),
    st.datetimes(timezones=st.timezones()),
    st.decimals(),
    st.decimals(-1000, 1000, places=2),
    st.builds("{}E{}".format, st.integers(), st.integers(-(10**8), 10**8)).map(Decimal),
    st.sampled_from([np.int64(3), np.float64(1.5), np.bool_(True), Level.HIGH, Colour.RED]),
)
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
    "boolean",
    "tinyint",
    "int",
    "bigint",
    "float",
    "double",
    "string",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
    "decimal(5,2)",
    "decimal(38,0)",
]
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
def test_a_value_is_stored_the_same_with_any_neighbours(ddl: str, column: list[Any]) -> None:
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
def test_numbers_that_fit_a_double_come_back_bit_by_bit(numbers: list[float]) -> None:
    stored, misfits = encode("c double", *({"c": number} for number in numbers))
    assert misfits == {}
    assert repr([row["c"] for row in stored]) == repr([float(number) for number in numbers])


@given(st.lists(st.datetimes(timezones=st.timezones()), min_size=1))
def test_an_instant_comes_back_as_the_same_instant(times: list[datetime]) -> None:
    stored, misfits = encode("c timestamp", *({"c": time} for time in times))
    refused = [time for index, time in enumerate(times) if 100 + index in misfits]
    assert {time.year for time in refused} <= {1, 9999}  # in UTC they are before or after these years
    taken = [time for index, time in enumerate(times) if 100 + index not in misfits]
    assert [row["c"] for row in stored] == [time.astimezone(UTC) for time in taken]
