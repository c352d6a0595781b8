"""Casts Arrow columns to the types of an output schema without loss, and finds the rows that do not fit."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from actorproc.runtime.error_text import safe_repr

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)

_ASCII = 0x7F

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
    """Why a row does not fit: the column, the value in it, and the reason."""

    column: str
    value: str
    why: str


def short_repr(value: object) -> str:
    """The value as a message shows it, cut after `SHOWN` characters."""
    text = str(value) if isinstance(value, Decimal) else safe_repr(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def can_cast(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether columns of type `source` can be cast to `target` without loss. Single values may still not fit."""
    if source == target or pt.is_null(source):
        return True
    if pt.is_dictionary(source):
        return can_cast(source.value_type, target)
    if pt.is_integer(target) or pt.is_floating(target):
        return bool(pt.is_integer(source) or pt.is_floating(source))
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
            and can_cast(source.key_type, target.key_type)
            and can_cast(source.item_type, target.item_type)
        )
    if pt.is_list(target):
        lists = pt.is_list(source) or pt.is_large_list(source) or pt.is_fixed_size_list(source)
        return bool(lists and can_cast(source.value_type, target.value_type))
    if pt.is_struct(target) and pt.is_struct(source):  # fields that only the target has become null
        indexes = [target.get_field_index(field.name) for field in source]
        return (
            len({*indexes}) == len(indexes)
            and all(at >= 0 for at in indexes)
            and all(can_cast(field.type, target[at].type) for field, at in zip(source, indexes, strict=True))
        )
    return False


def cast_columns(table: pa.Table, schema: pa.Schema) -> tuple[pa.Table, dict[int, Unfit]]:
    """Cast the columns to the types of `schema`.

    Args:
        table: columns as in `schema`, in the same order, of types that `can_cast` allows.

    Returns:
        The rows that fit, in order, and the reason for each other row, by its index in `table`.
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
    rest = np.flatnonzero(keep)
    # These rows may have misfits, too: nulls were not checked in columns with values that cannot be cast.
    fitting, more = cast_columns(table.filter(pa.array(keep)), schema)
    return fitting, unfit | {int(rest[index]): why for index, why in more.items()}


def _shown_at(column: pa.ChunkedArray, index: int) -> str:
    try:
        return short_repr(column[index].as_py())
    except (ValueError, OverflowError):  # a datetime of Python has no nanoseconds, and no such year
        return " ".join(column.slice(index, 1).combine_chunks().to_string().split())[:SHOWN]


def _fit(column: pa.ChunkedArray, field: pa.Field) -> tuple[pa.ChunkedArray, dict[int, str]]:
    """The column as the field's type, or the reasons why single values do not fit, by index."""
    try:
        fitted = cast(column, field.type)
    except pa.ArrowInvalid:
        return column, _search(column, field.type)
    nulls = {} if field.nullable or not fitted.null_count else pc.indices_nonzero(fitted.is_null()).to_pylist()
    return fitted, dict.fromkeys(nulls, "it is NOT NULL")


def _search(column: pa.ChunkedArray, kind: pa.DataType, start: int = 0) -> dict[int, str]:
    """Values that cannot be cast, and the reasons, by index. Halves the column until such a value is alone."""
    try:
        cast(column, kind)
    except pa.ArrowInvalid as error:
        if len(column) == 1:
            return {start: str(error)}
        half = len(column) // 2
        return _search(column[:half], kind, start) | _search(column[half:], kind, start + half)
    return {}


def cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """The column as `kind`. Nothing is rounded except to the precision of a float.

    Times must be in the years 1 to 9999, text in UTF-8, and NOT NULL fields of structs without nulls.

    Raises:
        pa.ArrowInvalid: a value does not fit.
    """
    if column.type == kind and not (needs_checks(kind) or _has_text(kind)):
        return column
    return pa.chunked_array([_cast(chunk, kind) for chunk in column.chunks], kind)


def needs_checks(kind: pa.DataType) -> bool:
    """Whether a column of this very type may have values that do not fit: a time outside the years 1 to 9999, null in
    a NOT NULL field, a decimal with more digits, as Arrow's CSV reader makes them."""
    if pt.is_struct(kind):
        return any(not field.nullable or needs_checks(field.type) for field in kind)
    if pt.is_map(kind):
        return needs_checks(kind.key_type) or needs_checks(kind.item_type)
    return needs_checks(kind.value_type) if pt.is_list(kind) else kind in _YEARS or pt.is_decimal(kind)


def _has_text(kind: pa.DataType) -> bool:
    """Whether the type contains text, which Arrow does not check for UTF-8 unless it made it."""
    return bool(pt.is_string(kind) or any(_has_text(kind.field(at).type) for at in range(kind.num_fields)))


def check_text(array: pa.StringArray) -> None:
    """Raises pa.ArrowInvalid if a value is not UTF-8."""
    _, offsets, content = array.buffers()
    if not len(array) or content is None:
        return
    stop = array.offset + len(array)
    ends = np.frombuffer(offsets, np.int32, stop + 1)
    text = np.frombuffer(content, np.uint8)[ends[array.offset] : ends[stop]]
    if len(text) and text.max() > _ASCII:  # a look at that takes a tenth of the time
        array.view(pa.binary()).cast(pa.string())


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast nested types part by part. Arrow's own cast also casts, and refuses, values that a null or a slice hides,
    and ignores nulls in fields that are NOT NULL."""
    if pt.is_null(array.type):
        return nulls(len(array), kind)
    if pt.is_dictionary(array.type):
        return _cast(array.dictionary_decode(), kind)
    if pt.is_struct(kind):
        return _cast_struct(array, kind)
    if pt.is_map(kind):
        offsets, inside = _entries(array)
        keys, items = _cast(array.keys.take(inside), kind.key_type), _cast(array.items.take(inside), kind.item_type)
        return pa.MapArray.from_arrays(offsets, keys, items, kind, mask=array.is_null())
    if pt.is_list(kind):
        elements = _cast(array.flatten(), kind.value_type)
        return pa.ListArray.from_arrays(_offsets(array), elements, kind, mask=array.is_null())
    if pt.is_decimal(kind) and pt.is_decimal(array.type) and array.type != kind:
        array = _wide(array, kind)
    result = array.cast(kind)
    if pt.is_string(kind):
        check_text(result)
    if pt.is_decimal(kind):
        result.validate(full=True)  # its digits
    if pt.is_float32(kind) and pc.any(pc.and_(pc.is_inf(result), pc.is_finite(array.cast(pa.float64())))).as_py():
        raise pa.ArrowInvalid("out of range for float")
    if kind in _YEARS:
        earliest, latest = _YEARS[kind]
        span = pc.min_max(result.cast(pa.int32() if pt.is_date32(kind) else pa.int64())).as_py()
        if span["min"] is not None and (span["min"] < earliest or span["max"] > latest):
            raise pa.ArrowInvalid("outside the years 1 to 9999")
    return result


def _wide(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Decimals in a wider type. Arrow's cast multiplies modulo 2^128 before it checks the precision, so some numbers
    that are too large would fit afterwards."""
    if not pt.is_decimal256(array.type):
        return array.cast(pa.decimal256(76, kind.scale))
    digits = kind.precision - kind.scale
    if array.type.precision - array.type.scale > digits:
        bound = pa.scalar(Decimal(10) ** digits, array.type)
        if pc.any(pc.greater_equal(pc.abs(array), bound)).as_py():
            raise pa.ArrowInvalid(f"out of range for {kind}")
    return array


def _cast_struct(array: pa.StructArray, kind: pa.StructType) -> pa.StructArray:
    children = []
    given = dict(zip([field.name for field in array.type], array.flatten(), strict=True))
    for field in kind:
        child = given.get(field.name)
        child = nulls(len(array), field.type) if child is None else _cast(child, field.type)
        if not field.nullable and child.null_count > array.null_count:  # a null struct has null fields
            raise pa.ArrowInvalid(f".{field.name}: it is NOT NULL")
        children.append(child if field.nullable else _filled(child))
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())


def fitted(rows: Rows, schema: pa.Schema) -> Rows:
    """Stored rows in the columns of a later schema of their output: columns that they do not have are null."""
    there, columns = set(rows.schema.names), []
    for field in schema:
        column = rows[field.name] if field.name in there else nulls(rows.num_rows, field.type)
        columns.append(column if column.type.equals(field.type) else column.cast(field.type))
    return type(rows).from_arrays(columns, schema=schema)


def nulls(count: int, kind: pa.DataType) -> pa.Array:
    """Nulls that Parquet accepts: in those of `pa.nulls` the NOT NULL fields of a struct are null, too."""
    if not pt.is_nested(kind):
        return pa.nulls(count, kind)
    return pa.array([None], kind).take(pa.array(np.zeros(count, np.int64)))


def _filled(array: pa.Array) -> pa.Array:
    """With a value in place of each null: Parquet refuses a null in a NOT NULL field even inside of a null struct."""
    if not array.null_count:
        return array
    indexes = pc.if_else(array.is_null(), len(array), pa.array(range(len(array)), pa.int64()))
    return pa.concat_arrays([array, pa.array([_something(array.type)], array.type)]).take(indexes)


def _something(kind: pa.DataType) -> object:
    """Any value of the type."""
    if pt.is_struct(kind):
        return {field.name: _something(field.type) for field in kind}
    if pt.is_map(kind) or pt.is_list(kind):
        return []
    return "" if pt.is_string(kind) else b"" if pt.is_binary(kind) else False if pt.is_boolean(kind) else 0


def _entries(maps: pa.MapArray) -> tuple[pa.Int32Array, pa.Int64Array]:
    """Offsets of the maps in a dense list of their entries, and the indexes of these entries in the array.

    The array may also hold entries of nulls, and entries outside of its slice.
    """
    starts = maps.offsets.to_numpy()
    lengths = np.where(maps.is_valid().to_numpy(zero_copy_only=False), np.diff(starts), 0)
    ends = np.cumsum(lengths, dtype=np.int64)
    inside = np.repeat(starts[:-1] - (ends - lengths), lengths) + np.arange(lengths.sum())
    return pa.array(np.concatenate([[0], ends]), pa.int32()), pa.array(inside, pa.int64())


def _offsets(lists: pa.Array) -> pa.Int32Array:
    """Offsets of the lists in the elements that `flatten` returns."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    ends = pc.cumulative_sum(lengths.cast(pa.int32()))
    return pa.concat_arrays([pa.array([0], pa.int32()), ends])
