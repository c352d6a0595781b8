"""Fitting Arrow columns to an output schema: lossless casts only, and which rows do not fit."""

from __future__ import annotations

from datetime import date
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

SHOWN = 80
"""Characters of a value that a message shows."""


_FIRST = date(1970, 1, 1) - date.min
_LAST = date.max - date(1970, 1, 1)
_DAY = 86_400_000_000  # microseconds
_MICROSECONDS = (-_FIRST.days * _DAY, (_LAST.days + 1) * _DAY - 1)
_YEARS = {  # first and last value of the years 1 to 9999
    pa.date32(): (-_FIRST.days, _LAST.days),
    pa.timestamp("us"): _MICROSECONDS,
    pa.timestamp("us", "UTC"): _MICROSECONDS,
}


class Unfit(NamedTuple):
    """Why a row does not fit: the column, the value in it, and what is wrong with it."""

    column: str
    value: str
    why: str


def shown(value: object) -> str:
    """The value as a message shows it."""
    text = repr(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def castable(source: pa.DataType, target: pa.DataType, *, nested: bool = False) -> bool:
    """Can columns of type `source` become `target` with nothing lost, unless single values stand against it?"""
    if source == target or pt.is_null(source):
        return True
    if pt.is_dictionary(source):
        return castable(source.value_type, target, nested=nested)
    if pt.is_integer(target):
        return bool(pt.is_integer(source) or pt.is_floating(source))
    if pt.is_floating(target):  # the overflow of a double is looked for in plain columns only, see `cast`
        overflows = nested and pt.is_float64(source) and pt.is_float32(target)
        return bool(pt.is_integer(source) or (pt.is_floating(source) and not overflows))
    if pt.is_string(target):
        return bool(pt.is_large_string(source) or pt.is_string_view(source))
    if pt.is_binary(target):
        return bool(pt.is_large_binary(source) or pt.is_binary_view(source) or pt.is_fixed_size_binary(source))
    if pt.is_date(target):
        return bool(pt.is_date(source))
    if pt.is_timestamp(target):
        return bool(pt.is_timestamp(source) and (source.tz is None) == (target.tz is None))
    if pt.is_decimal(target):
        return bool(pt.is_decimal(source) or (pt.is_uint64(source) and target == pa.decimal128(20, 0)))
    if pt.is_map(target):
        return bool(
            pt.is_map(source)
            and castable(source.key_type, target.key_type, nested=True)
            and castable(source.item_type, target.item_type, nested=True)
        )
    if pt.is_list(target):  # list views are left out: Arrow 26 casts them to empty lists
        lists = pt.is_list(source) or pt.is_large_list(source) or pt.is_fixed_size_list(source)
        return bool(lists and castable(source.value_type, target.value_type, nested=True))
    if pt.is_struct(target) and pt.is_struct(source):  # fields that only the target has become null
        places = [target.get_field_index(field.name) for field in source]
        return all(at >= 0 for at in places) and all(
            castable(field.type, target[at].type, nested=True) for field, at in zip(source, places, strict=True)
        )
    return False


def fit_columns(table: pa.Table, schema: pa.Schema) -> tuple[pa.Table, dict[int, Unfit]]:
    """The rows that fit, as `schema` says.

    Args:
        table: columns as in `schema`, in that order, of types that Arrow can cast to its types.

    Returns:
        The rows that fit, in order, and why each other row does not, by its index in `table`.
    """
    columns: list[pa.ChunkedArray] = []
    unfit: dict[int, Unfit] = {}
    for column, field in zip(table.columns, schema, strict=True):
        fitted, why = _fit(column, field)
        columns.append(fitted)
        for index, reason in why.items():
            unfit.setdefault(index, Unfit(field.name, _shown_at(column, index), reason))
    if not unfit:
        return pa.Table.from_arrays(columns, schema=schema), {}
    keep = np.ones(table.num_rows, dtype=bool)
    keep[list(unfit)] = False
    fitting, _ = fit_columns(table.filter(pa.array(keep)), schema)
    return fitting, unfit


def _shown_at(column: pa.ChunkedArray, index: int) -> str:
    try:
        return shown(column[index].as_py())
    except (ValueError, OverflowError):  # nanoseconds, or a year, that Python's datetime has not
        return " ".join(column.slice(index, 1).combine_chunks().to_string().split())[:SHOWN]


def _fit(column: pa.ChunkedArray, field: pa.Field) -> tuple[pa.ChunkedArray, dict[int, str]]:
    """The column as the field's type, or why single values are against it, by index."""
    try:
        fitted = cast(column, field.type)
    except pa.ArrowInvalid:
        unfit = _search(column, field.type, 0, len(column))
        if unfit:
            return column, unfit
        fitted = cast(_part(column, 0, len(column)), field.type)
    nulls = {} if field.nullable or not fitted.null_count else pc.indices_nonzero(fitted.is_null()).to_pylist()
    return fitted, dict.fromkeys(nulls, "the column is NOT NULL")


def _search(column: pa.ChunkedArray, kind: pa.DataType, start: int, stop: int) -> dict[int, str]:
    """Values between two indices that cannot be cast, and why: halves until they stand alone."""
    try:
        cast(_part(column, start, stop), kind)
    except pa.ArrowInvalid as error:
        if stop - start == 1:
            return {start: str(error)}
        middle = (start + stop) // 2
        return _search(column, kind, start, middle) | _search(column, kind, middle, stop)
    return {}


def _part(column: pa.ChunkedArray, start: int, stop: int) -> pa.ChunkedArray:
    """A copy: of a slice of lists, Arrow casts the whole list's elements, and finds fault with those outside."""
    return column.take(pa.array(np.arange(start, stop)))


def cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """The column as `kind`, checked: nothing rounded (but to the precision of a float), no null where a struct has none,
    no time outside the years 1 to 9999.

    Raises:
        pa.ArrowInvalid: a value does not fit.
    """
    loose = relaxed(kind)
    if column.type != loose:
        strict, column = column, column.cast(loose)
        if pt.is_float32(loose) and pt.is_float64(strict.type):
            lost = pc.and_(pc.is_inf(column), pc.is_finite(strict))
            if pc.any(lost).as_py():
                raise pa.ArrowInvalid("out of range for float")
    for chunk in column.chunks:
        _check_years(chunk)
    return column if loose == kind else column.cast(kind)


def has_times(kind: pa.DataType) -> bool:
    """Is it, or does it contain, a date or timestamp?"""
    if pt.is_struct(kind):
        return any(has_times(field.type) for field in kind)
    if pt.is_map(kind):
        return has_times(kind.key_type) or has_times(kind.item_type)
    return has_times(kind.value_type) if pt.is_list(kind) else bool(pt.is_date(kind) or pt.is_timestamp(kind))


def _check_years(array: pa.Array) -> None:
    """Refuse times that readers in Python could not even show, by an error for the whole column."""
    kind = array.type
    if not has_times(kind):
        return
    if pt.is_struct(kind):
        for child in array.flatten():
            _check_years(child)
    elif pt.is_map(kind):
        _check_years(array.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)]))))
    elif pt.is_list(kind):
        _check_years(array.flatten())
    else:
        earliest, latest = _YEARS[kind]
        span = pc.min_max(array.cast(pa.int32() if pt.is_date32(kind) else pa.int64())).as_py()
        if span["min"] is not None and (span["min"] < earliest or span["max"] > latest):
            raise pa.ArrowInvalid("outside the years 1 to 9999")


def relaxed(kind: pa.DataType) -> pa.DataType:
    """The type with every field of its structs nullable. Arrow checks nulls on the way from it to `kind` only."""
    if pt.is_struct(kind):
        return pa.struct([pa.field(field.name, relaxed(field.type)) for field in kind])
    if pt.is_map(kind):
        return pa.map_(relaxed(kind.key_type), relaxed(kind.item_type))
    if pt.is_list(kind):
        return pa.list_(pa.field("element", relaxed(kind.value_type)))
    return kind
