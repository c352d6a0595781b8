"""Packs the values of keyed state, and refuses those that would come back as another type."""

from __future__ import annotations

import math
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
        StateMismatch: a part of it, declared as Any or as a bare container, would come back as another type.
    """
    if again != value and (odd := _difference(value, again)) is not None:
        raise _changes_type(key, odd)


def _difference(value: Any, again: Any) -> _Found | None:
    """The first part of the value that differs from what is read; None: they are the same, as NaN is."""
    todo = [(value, again)]
    while todo:
        one, other = todo.pop()
        if type(one) is not type(other):
            return _Found(one)
        if isinstance(one, dict) and one.keys() == other.keys():
            todo += ((one[name], other[name]) for name in one)
        elif isinstance(one, list | tuple) and len(one) == len(other):
            todo += zip(one, other, strict=True)
        elif names := getattr(one, "__struct_fields__", None) or getattr(one, "__dataclass_fields__", None):
            todo += ((getattr(one, name), getattr(other, name)) for name in names)
        elif isinstance(one, dict | list | tuple) or not (one == other or _are_nan(one, other)):
            return _Found(one)
    return None


def _are_nan(one: Any, other: Any) -> bool:
    return isinstance(one, float) and math.isnan(one) and math.isnan(other)


def _changes_type(key: object, odd: _Found) -> StateMismatch:
    part = odd.part
    kind = "datetime without a zone" if isinstance(part, datetime) and part.tzinfo is None else type(part).__name__
    return StateMismatch(
        f"ctx.state: the value of {safe_repr(key):.80} has a {kind} in it ({safe_repr(part):.80}), which would come "
        "back as another type: declare the type of the values as State, or store plain values (None, bool, int, float, "
        "str, bytes, datetimes with a zone, lists and dicts)"
    )
