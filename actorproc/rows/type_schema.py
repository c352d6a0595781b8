"""Columns of a class: the fields of a `msgspec.Struct`, dataclass, NamedTuple, TypedDict or pydantic model."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

import msgspec
import pyarrow as pa
from pydantic import BaseModel

from actorproc.errors import SchemaError

_PLAIN = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    datetime: pa.timestamp("us", "UTC"),
    date: pa.date32(),
}
_LISTS = (list, Sequence)
_MAPS = (dict, Mapping)


def columns_of_type(kind: type) -> list[pa.Field]:
    """A nullable column for each field, so that a later version of the class may leave one out.

    Raises:
        SchemaError: `kind` has no declared fields, or a field is of a type that no column holds.
    """
    return list(_struct(kind, (), kind.__name__))


def _struct(kind: type, within: tuple[type, ...], path: str) -> pa.StructType:
    names = _field_names(kind)
    if not names:
        raise SchemaError(f"{path} is {kind.__name__}, a class without declared fields, so it has no columns")
    if kind in within:
        raise SchemaError(f"{path} is {kind.__name__}, which contains itself: declare output_schema as DDL")
    hints = get_type_hints(kind)
    return pa.struct([(name, _column_type(hints[name], (*within, kind), f"{path}.{name}")) for name in names])


def _field_names(kind: type) -> Sequence[str]:
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    if issubclass(kind, BaseModel):
        return list(kind.model_fields)
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    return list(kind.__annotations__) if is_typeddict(kind) else getattr(kind, "_fields", ())


def _column_type(hint: Any, within: tuple[type, ...], path: str) -> pa.DataType:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _column_type(arguments[0], within, path)
    if origin in (Union, types.UnionType):
        given = [argument for argument in arguments if argument is not type(None)]
        if len(given) == 1:
            return _column_type(given[0], within, path)
    elif origin is Literal:
        kinds = {type(value) for value in arguments if value is not None}
        if len(kinds) == 1:
            return _column_type(kinds.pop(), within, path)
    elif origin in _LISTS or (origin is tuple and arguments[1:] == (...,)):
        return pa.list_(pa.field("element", _column_type(arguments[0], within, f"{path}[]")))
    elif origin in _MAPS:
        return pa.map_(*(_column_type(argument, within, f"{path}.*") for argument in arguments))
    elif isinstance(hint, type):
        if hint in _PLAIN:
            return _PLAIN[hint]
        if not issubclass(hint, Enum) and _field_names(hint):
            return _struct(hint, within, path)
    raise SchemaError(
        f"{path} is {getattr(hint, '__name__', hint)}, which no column holds: declare output_schema as DDL"
    )
