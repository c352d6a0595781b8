"""Defaults of Avro schemas: from their JSON to the values that a reader gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actorproc.codecs.limits import MOST_LEVELS
from actorproc.formats.avro.logical import converter
from actorproc.formats.avro.reading import to_float
from actorproc.formats.avro.schema import NO_DEFAULT, AvroType

_ITEMS = 100_000  # of one default
_TEXT = 16  # characters that count as an item


def default_value(kind: AvroType, default: Any) -> tuple[Any, int]:
    """The value that the JSON of a default means for a type, and how many items it has.

    Raises:
        ValueError: it is none of this type. The message names its type.
    """
    builder = _Builder()
    try:
        return builder.build(kind, default, 0), builder.items
    except ArithmeticError:
        raise ValueError("is out of range") from None
    except RecursionError:
        raise ValueError("is nested too deep") from None


class _Builder:
    def __init__(self) -> None:
        self.items = 0

    def build(self, kind: AvroType, default: Any, depth: int) -> Any:
        self.items += 1 + (len(default) // _TEXT if isinstance(default, str) else 0)
        if self.items > _ITEMS or depth > MOST_LEVELS:
            raise ValueError(f"has more than {_ITEMS:,} items, or more than {MOST_LEVELS} levels")
        if kind.kind == "union":
            return self._of_union(kind, default, depth)
        convert = converter(kind)
        value = self._plain(kind, default, depth)
        return value if convert is None else convert(value)

    def _of_union(self, kind: AvroType, default: Any, depth: int) -> Any:
        """As the first branch of whose type it is. Before Avro 1.12 only the very first one counted."""
        for branch in kind.branches:
            before = self.items
            try:
                return self.build(branch, default, depth + 1)
            except (ValueError, ArithmeticError):
                self.items = before if self.items <= _ITEMS else self.items
        raise ValueError(f"is of none of the types of its union: {default!r:.80}")

    def _plain(self, kind: AvroType, default: Any, depth: int) -> Any:
        if kind.kind == "record" and isinstance(default, dict):
            return {field.name: self._of_field(kind, field, default, depth) for field in kind.fields}
        if kind.kind == "array" and isinstance(default, list) and kind.inner is not None:
            return [self.build(kind.inner, each, depth + 1) for each in default]
        if kind.kind == "map" and isinstance(default, dict) and kind.inner is not None:
            return {key: self.build(kind.inner, each, depth + 1) for key, each in default.items()}
        if kind.kind == "enum" and default in kind.symbols:
            return default
        if kind.kind == "fixed" and type(default) is str and len(default) == kind.size:
            return default.encode("latin-1")
        of = _PRIMITIVES.get(kind.kind)
        if of is None or not of[0](default):
            raise ValueError(f"is no {kind}: {default!r:.80}")
        return of[1](default)

    def _of_field(self, kind: AvroType, field: Any, default: dict[str, Any], depth: int) -> Any:
        given = default.get(field.name, field.default)
        if given is NO_DEFAULT:
            raise ValueError(f"has no {field.name}, nor has {kind} a default of it")
        return self.build(field.type, given, depth + 1)


def _is_number(default: Any) -> bool:
    return type(default) in (int, float)


_PRIMITIVES: dict[str, tuple[Callable[[Any], bool], Callable[[Any], Any]]] = {
    "null": (lambda default: default is None, lambda default: None),
    "boolean": (lambda default: type(default) is bool, bool),
    "int": (lambda default: type(default) is int and -(2**31) <= default < 2**31, int),
    "long": (lambda default: type(default) is int and -(2**63) <= default < 2**63, int),
    "float": (_is_number, to_float),
    "double": (_is_number, float),
    "string": (lambda default: type(default) is str, str),
    "bytes": (lambda default: type(default) is str, lambda default: default.encode("latin-1")),
}
