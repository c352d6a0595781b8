"""The column type of a declared state: how its values look in a table, and how the declaration may change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec.inspect as mi
import pyarrow as pa
import pyarrow.types as pt

from actorproc.rows.ddl import type_ddl

_PLAIN: dict[type[mi.Type], pa.DataType] = {
    mi.BoolType: pa.bool_(),
    mi.IntType: pa.int64(),
    mi.FloatType: pa.float64(),
    mi.StrType: pa.string(),
    mi.BytesType: pa.binary(),
    mi.DateTimeType: pa.timestamp("us", "UTC"),
    mi.DateType: pa.date32(),
}


class _NoColumn(Exception):
    """No column holds values of this type."""


def value_type(kind: Any) -> pa.DataType | None:
    """The column type for values of a declared type, such as a `msgspec.Struct`. A field without a default is NOT NULL.

    None: no column holds all of them, as for a union, or `Any`.
    """
    try:
        return _column_type(mi.type_info(kind), ())
    except _NoColumn:
        return None


def _column_type(info: mi.Type, within: tuple[type, ...]) -> pa.DataType:
    if (plain := _PLAIN.get(type(info))) is not None:
        return plain
    match info:
        case mi.Metadata(type=inner):
            return _column_type(inner, within)
        case mi.UnionType(types=types) if len(given := [t for t in types if not isinstance(t, mi.NoneType)]) == 1:
            return _column_type(given[0], within)
        case mi.StructType(array_like=False, tag=None) | mi.DataclassType() | mi.TypedDictType():
            if info.cls in within or not info.fields:
                raise _NoColumn
            inside = (*within, info.cls)
            return pa.struct(
                [pa.field(f.encode_name, _column_type(f.type, inside), not f.required) for f in info.fields]
            )
        case mi.ListType() | mi.SetType() | mi.FrozenSetType() | mi.CollectionType() | mi.VarTupleType():
            return pa.list_(pa.field("element", _column_type(info.item_type, within)))
        case mi.DictType(key_type=mi.StrType()):
            return pa.map_(pa.string(), _column_type(info.value_type, within))
        case mi.LiteralType(values=values) if len(kinds := set(map(type, values))) == 1 and kinds <= {str, int}:
            return pa.string() if kinds == {str} else pa.int64()
    raise _NoColumn


def differences(old: pa.DataType, new: pa.DataType, path: str = "") -> Iterator[str]:
    """Why values stored as `old` do not go with the declaration `new`. Only fields with a default may be added."""
    if pt.is_struct(old) and pt.is_struct(new):
        yield from _field_differences(old, new, path)
    elif pt.is_list(old) and pt.is_list(new):
        yield from differences(old.value_type, new.value_type, f"{path}[]")
    elif pt.is_map(old) and pt.is_map(new):
        yield from differences(old.item_type, new.item_type, f"{path}.*")
    elif old != new:
        yield f"{_named(path)} was {type_ddl(old)}, is now {type_ddl(new)}"


def _field_differences(old: pa.StructType, new: pa.StructType, path: str) -> Iterator[str]:
    before, after = {field.name: field for field in old}, {field.name: field for field in new}
    for name, field in before.items():
        inside = f"{path}.{name}".lstrip(".")
        if name in after:
            yield from differences(field.type, after[name].type, inside)
        else:
            yield f"{_named(inside)} is gone: a change of a value would lose it"
    for name in after.keys() - before.keys():
        if not after[name].nullable:
            yield f"{_named(f'{path}.{name}'.lstrip('.'))} is new and has no default, but stored values lack it"


def _named(path: str) -> str:
    return f"field {path!r}" if path else "the value"
