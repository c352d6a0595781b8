"""Packs the values of keyed state, and refuses those that would not come back as they are."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from actorproc.errors import StateMismatch
from actorproc.runtime.error_text import safe_repr

_encode = msgspec.msgpack.Encoder().encode
_PLAIN = frozenset({str, bytes, int, float, bool, type(None)})


def packed_value(key: object, value: Any) -> bytes:
    """A value of a state without a declared type, as stored.

    Raises:
        StateMismatch: it cannot be stored, or a part of it would come back as another type.
    """
    if type(value) not in _PLAIN and (odd := _odd_part(value)) is not None:
        raise _changes_type(key, odd)
    try:
        return _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise StateMismatch(f"ctx.state: the value of {safe_repr(key):.80} cannot be stored: {error}") from None


class _Found:
    """A part of a value, which may be None itself."""

    def __init__(self, part: object) -> None:
        self.part = part


def _odd_part(value: Any) -> _Found | None:
    """The first part of the value that msgpack gives back as another type; None: there is none."""
    todo, seen = [value], set[int]()
    while todo:
        part = todo.pop()
        kind = type(part)
        if kind in _PLAIN or id(part) in seen:
            continue
        seen.add(id(part))  # a list may contain itself
        if kind is list:
            todo += part
        elif kind is dict:
            if not _PLAIN.issuperset(map(type, part)):
                return _Found(next(key for key in part if type(key) not in _PLAIN))
            todo += part.values()
        elif kind is not datetime or part.tzinfo is None:
            return _Found(part)
    return None


def check_kept(key: object, value: Any, again: Any) -> None:
    """Compare a value of a declared type with the one that would be read.

    Raises:
        StateMismatch: a part of it would come back as another type or value. `==` alone would not find this: an
            IntEnum equals its int, and a Counter its dict.
    """
    if (odd := _difference(value, again)) is not None:
        raise _changes_type(key, odd)


def _difference(value: Any, again: Any) -> _Found | None:
    """The first part of the value that differs when it is read again. None: they are the same, as NaN is."""
    todo = [(value, again)]
    while todo:
        one, other = todo.pop()
        if type(one) is not type(other):
            if type(one) is int and type(other) is float and one == other:
                continue  # declared as float
            return _Found(one)
        if type(one) in _PLAIN and one == other:
            continue
        ones, others = _parts(one), _parts(other)
        if ones is None or others is None:
            if one is not other and _encode(one) != _encode(other):  # UNSET is itself, and has no bytes
                return _Found(one)
        elif len(ones) != len(others):
            return _Found(one)
        elif (kinds := [*map(type, ones)]) != [*map(type, others)] or not _PLAIN.issuperset(kinds) or ones != others:
            todo += zip(ones, others, strict=True)
    return None


def _parts(value: Any) -> list[Any] | None:
    """The parts of a container in the order in which they are stored, that of a set sorted; None: it is none."""
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, msgspec.Struct):
        return list(msgspec.structs.astuple(value))
    if isinstance(value, set | frozenset):
        return sorted(value, key=_sort_key)
    if (fields := getattr(type(value), "__dataclass_fields__", None)) is not None:
        return [getattr(value, name) for name in fields]
    if (attributes := getattr(type(value), "__attrs_attrs__", None)) is not None:
        return [getattr(value, attribute.name) for attribute in attributes]
    return None


def _sort_key(item: Any) -> bytes:
    """The same bytes for an item of a set and for the item that is read again."""
    if isinstance(item, tuple):
        return b"".join(map(_sort_key, item))
    return b"".join(sorted(map(_sort_key, item))) if isinstance(item, frozenset) else _encode(item)


def _changes_type(key: object, odd: _Found) -> StateMismatch:
    part = odd.part
    kind = "datetime without a zone" if isinstance(part, datetime) and part.tzinfo is None else type(part).__name__
    return StateMismatch(
        f"ctx.state: the value of {safe_repr(key):.80} has a {kind} in it ({safe_repr(part):.80}), which would not "
        "come back as it is: declare the type of the values as State, or store plain values (None, bool, int, float, "
        "str, bytes, datetimes with a zone, lists and dicts)"
    )
