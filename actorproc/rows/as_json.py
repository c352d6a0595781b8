"""Values as JSON: binary in base64, a decimal as text, a duration in seconds, times in ISO 8601; NaN and infinity as null."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

_OPTIONS = orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS


def to_json(document: object) -> bytes:
    """The document as one line."""
    return orjson.dumps(document, default=_plain, option=_OPTIONS)


def rows_to_json(rows: pa.RecordBatch) -> pa.BinaryArray:
    """Each row as an object with all its columns. CPU-heavy: run it off the loop."""
    names = rows.schema.names
    columns = [_items(column) for column in rows.columns]
    lines = [to_json(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]
    return pa.array(lines if columns else [b"{}"] * rows.num_rows, pa.binary())


def _items(column: pa.Array) -> list[Any]:
    """The values of a column; what Arrow writes faster than Python does as text already."""
    if pt.is_timestamp(column.type):
        return pc.utf8_replace_slice(column.cast(pa.string()), 10, 11, "T").to_pylist()  # type: ignore[no-any-return]
    if pt.is_map(column.type) and not pt.is_string(column.type.key_type):
        return [None if pairs is None else {_key(key): value for key, value in pairs} for pairs in column.to_pylist()]
    return column.to_pylist(maps_as_pydicts="lossy")  # type: ignore[no-any-return]


def _key(key: object) -> object:
    return _plain(key) if type(key) in _FORMS else key


_FORMS: dict[type, Callable[[Any], object]] = {
    bytes: lambda value: base64.b64encode(value).decode(),
    Decimal: str,
    timedelta: timedelta.total_seconds,
}


def _plain(value: object) -> object:
    form = _FORMS.get(type(value))
    if form is None:
        raise TypeError(f"{type(value)!r} has no JSON form")
    return form(value)
