"""Keyed state in columns: packed keys of a table, values to columns and back, many at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from functools import lru_cache
from itertools import repeat
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from msgspec import msgpack

from actorproc.errors import HandlerMisuse, StateMismatch
from actorproc.handler.state_schema import value_type
from actorproc.rows.output_schema import nullable
from actorproc.runtime.error_text import safe_repr

_VALUE = "value"  # name of the only column of a type without fields
_BUILTIN = (bytes, date, datetime)  # as they are, for Arrow
_encode = msgpack.Encoder().encode


class _Column(NamedTuple):
    name: str
    type: pa.DataType
    get: Callable[[Any], Any] | None
    """Takes the field from a value; None: the value itself."""


def packed_keys(table: pa.Table, on: str | Sequence[str]) -> list[bytes]:
    """The packed key of each row. Several columns make a tuple.

    Raises:
        HandlerMisuse: there is no such column.
        StateMismatch: it has a null, or its type is no type of keys.
    """
    names = [on] if isinstance(on, str) else list(on)
    columns = [_key_column(table, name) for name in names]
    return list(map(_encode, columns[0] if isinstance(on, str) else zip(*columns, strict=True)))


def _key_column(table: pa.Table, name: str) -> list[Any]:
    if name not in table.column_names:
        raise HandlerMisuse(f"ctx.state: on = {name!r}, and the table has {', '.join(table.column_names)}")
    column = table[name]
    kind = column.type.value_type if pt.is_dictionary(column.type) else column.type
    if column.null_count:
        raise StateMismatch(f"ctx.state: key column {name!r} has {column.null_count} nulls: filter them out first")
    if not any(fits(kind) for fits in (pt.is_string, pt.is_large_string, pt.is_binary, pt.is_integer)):
        raise StateMismatch(f"ctx.state: key column {name!r} is {kind}: string, binary or integer")
    return column.to_pylist()  # type: ignore[no-any-return]


@lru_cache(maxsize=64)  # the handlers of a host declare few types
def columns_of_kind(kind: Any) -> tuple[_Column, ...]:
    """The columns of a declared type: its fields, or one column `value`.

    Raises:
        HandlerMisuse: no columns hold its values.
    """
    found = value_type(kind)
    if found is None:
        raise HandlerMisuse(
            f"ctx.state: join and update need a State with column types, such as a msgspec.Struct or int, not "
            f"{safe_repr(kind)}: use get_many and set"
        )
    if not _has_fields(kind):
        return (_Column(_VALUE, nullable(pa.field("", found)).type, None),)
    return tuple(
        _Column(f.encode_name, nullable(found.field(f.encode_name)).type, attrgetter(f.name))
        for f in msgspec.structs.fields(kind)
    )


def _has_fields(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def joined_columns(table: pa.Table, kind: Any, found: Sequence[bytes | None]) -> pa.Table:
    """The table with the columns of the packed values of its rows; null where a row has none.

    Raises:
        HandlerMisuse: the table has a column of that name.
    """
    columns = columns_of_kind(kind)
    if taken := [column.name for column in columns if column.name in table.column_names]:
        raise HandlerMisuse(f"ctx.state.join: the table has a column {taken[0]!r}, as State has: rename it before")
    present = np.fromiter((value is not None for value in found), np.bool_, len(found))
    indexes = pa.array(np.cumsum(present) - 1, pa.int64(), mask=~present)
    values = _decoded(kind, [value for value in found if value is not None])
    for column in columns:
        table = table.append_column(pa.field(column.name, column.type), _array(column, values).take(indexes))
    return table


def _decoded(kind: Any, packed: list[bytes]) -> list[Any]:
    """The values, decoded in one call: packed values after the header of a msgpack array are a packed list."""
    return msgpack.decode(b"\xdd" + len(packed).to_bytes(4, "big") + b"".join(packed), type=list[kind])


def _array(column: _Column, values: list[Any]) -> pa.Array:
    items = values if column.get is None else list(map(column.get, values))
    if pt.is_nested(column.type):
        items = msgspec.to_builtins(items, builtin_types=_BUILTIN)
    return pa.array(items, column.type)


def packed_values(table: pa.Table, kind: Any, on: str | Sequence[str]) -> list[bytes]:
    """The packed value of each row, from its columns that are no keys.

    Raises:
        HandlerMisuse: a column is no field of the type, or one without a default is missing.
        msgspec.ValidationError: a value is not of its declared type.
    """
    keys, known = [on] if isinstance(on, str) else on, [column.name for column in columns_of_kind(kind)]
    given = [name for name in table.column_names if name not in keys]
    if unknown := [name for name in given if name not in known]:
        raise HandlerMisuse(f"ctx.state.update: column {unknown[0]!r} is no field of State: {', '.join(known)}")
    if not _has_fields(kind):
        return list(map(_encode, _checked(table, given[0], kind) if given else ()))
    fields = [field for field in msgspec.structs.fields(kind) if field.encode_name in given]
    lists = [_checked(table, field.encode_name, field.type) for field in fields]
    return list(map(_encode, _made(kind, [field.name for field in fields], lists, len(table))))


def _checked(table: pa.Table, name: str, kind: Any) -> list[Any]:
    """The items of a column, each of its declared type."""
    column = table[name]
    nested = pt.is_nested(column.type)
    items = column.to_pylist(maps_as_pydicts="strict") if nested else column.to_pylist()
    return msgspec.convert(items, list[kind])


def _made(kind: Any, names: Sequence[str], lists: Sequence[list[Any]], count: int) -> Iterable[Any]:
    try:
        if lists and kind.__match_args__[: len(names)] == tuple(names):
            return list(map(kind, *lists))  # by position, which takes a tenth
        rows = zip(*lists, strict=True) if lists else repeat((), count)
        return [kind(**dict(zip(names, row, strict=True))) for row in rows]
    except TypeError as error:
        raise HandlerMisuse(f"ctx.state.update: {error}; the table has {', '.join(names)}") from None
