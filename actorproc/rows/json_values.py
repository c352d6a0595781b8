"""Writes Arrow values as JSON.

Binary is base64, a decimal text, a duration seconds, a time ISO 8601; NaN and infinity are null. A map is an object. A
map whose keys are nested, or have the same text, is an array of `{"key": ..., "value": ...}`.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

Form = Callable[[Any], Any]

_OPTIONS = orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS


def to_json(document: object) -> bytes:
    """The document as one line."""
    return orjson.dumps(document, default=_plain, option=_OPTIONS)


def rows_to_json(rows: pa.RecordBatch, *, nulls: bool = True) -> pa.BinaryArray:
    """Each row as an object with all its columns. CPU-heavy: run it off the loop.

    Args:
        nulls: False: without the columns that are null.
    """
    names = rows.schema.names
    columns = [_items(column) for column in rows.columns]
    objects = (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))
    if not nulls:
        objects = ({name: value for name, value in row.items() if value is not None} for row in objects)
    lines = [to_json(row) for row in objects]
    return pa.array(lines if columns else [b"{}"] * rows.num_rows, pa.binary())


def plain_rows(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    """Each row as a dict that `to_json` takes."""
    columns = [_values(column) for column in rows.columns]
    return [dict(zip(rows.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def _items(column: pa.Array) -> list[Any]:
    """The values of a column; timestamps as text, which Arrow writes faster than Python."""
    if pt.is_timestamp(column.type):
        return pc.utf8_replace_slice(column.cast(pa.string()), 10, 11, "T").to_pylist()  # type: ignore[no-any-return]
    return _values(column)


def _values(column: pa.Array) -> list[Any]:
    values, form = column.to_pylist(), _form(column.type)
    return values if form is None else [form(value) for value in values]


def _form(kind: pa.DataType) -> Form | None:
    """A function from `to_pylist` values, where maps are lists of pairs, to values for `to_json`. None: no change."""
    make = _of_map(kind) if pt.is_map(kind) else _of_struct(kind) if pt.is_struct(kind) else _of_list(kind)
    return make and (lambda value: None if value is None else make(value))


def _of_list(kind: pa.DataType) -> Form | None:
    element = _form(kind.value_type) if pt.is_list(kind) else None
    return element and (lambda values: list(map(element, values)))


def _of_struct(kind: pa.StructType) -> Form | None:
    forms = {field.name: form for field in kind if (form := _form(field.type)) is not None}
    return (lambda row: row | {name: form(row[name]) for name, form in forms.items()}) if forms else None


def _of_map(kind: pa.MapType) -> Form:
    key_form, item_form = _form(kind.key_type) or _key, _form(kind.item_type)
    single = not pt.is_nested(kind.key_type)

    def make(pairs: Sequence[tuple[Any, Any]]) -> Any:
        entries = [(key_form(key), item if item_form is None else item_form(item)) for key, item in pairs]
        if single and len(by_key := dict(entries)) == len(entries):
            return by_key
        return [{"key": key, "value": item} for key, item in entries]

    return make


def _key(key: Any) -> Any:
    """The key of an object. Keys must differ in their text."""
    if type(key) is float and not math.isfinite(key):  # JSON would have null for each
        return "NaN" if math.isnan(key) else "Infinity" if key > 0 else "-Infinity"
    return _plain(key) if type(key) in _FORMS else key


_FORMS: dict[type, Form] = {
    bytes: lambda value: base64.b64encode(value).decode(),
    Decimal: str,
    timedelta: timedelta.total_seconds,
}


def _plain(value: object) -> object:
    form = _FORMS.get(type(value))
    if form is None:
        raise TypeError(f"{type(value)!r} has no JSON form")
    return form(value)
