"""Avro schemas: parses their JSON into types whose references are resolved."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from actorproc.codecs.limits import MOST_LEVELS

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
NO_DEFAULT = object()
_KINDS_OF = {  # of a logical type: the types that it annotates; on any other type it is ignored
    "date": ("int",),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-micros": ("long",),
    "decimal": ("bytes", "fixed"),
}


@dataclass(slots=True, eq=False)
class AvroField:
    """A field of a record. `default` is the JSON of the schema, or `NO_DEFAULT`."""

    name: str
    type: AvroType
    default: Any = NO_DEFAULT
    aliases: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class AvroType:
    """A type of Avro.

    Attributes:
        kind: a primitive, or record, enum, fixed, array, map, union.
        name: the full name of a record, enum or fixed.
        aliases: other full names that a writer may use for it.
        inner: the type of the items of an array or of the values of a map.
        default: the symbol that an enum has for symbols that it lacks.
        logical: a logical type that is decoded. Others, such as `uuid`, are ignored: no column type has them.
        scale: of a decimal.
    """

    kind: str
    name: str = ""
    aliases: tuple[str, ...] = ()
    fields: list[AvroField] = field(default_factory=list)
    symbols: tuple[str, ...] = ()
    default: str | None = None
    size: int = 0
    inner: AvroType | None = None
    branches: tuple[AvroType, ...] = ()
    logical: str | None = None
    precision: int = 0
    scale: int = 0

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]

    def __str__(self) -> str:
        return self.name or self.kind


def parsed_avro(text: str, references: Mapping[str, str] | None = None) -> AvroType:
    """The type that a schema declares.

    Args:
        references: texts of the schemas whose types it names, each after those that it names itself.

    Raises:
        ValueError: it is not an Avro schema, or names an unknown type.
    """
    parser = _Parser()
    try:
        for reference in (references or {}).values():
            parser.parse(json.loads(reference))
        return parser.parse(json.loads(text))
    except RecursionError:
        raise _too_deep() from None


class _Parser:
    """Parses schemas, which may name the types of those before them."""

    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}

    def parse(self, schema: Any, namespace: str = "", depth: int = 0) -> AvroType:
        """The type of a schema. Names without a namespace belong to `namespace`."""
        if depth > MOST_LEVELS:
            raise _too_deep()
        if isinstance(schema, list):
            return self._union(schema, namespace, depth)
        if isinstance(schema, str):
            return AvroType(schema) if schema in PRIMITIVES else self._known(schema, namespace)
        if not isinstance(schema, dict) or "type" not in schema:
            raise ValueError(f"{_shown(schema)} is not an Avro type")
        kind = schema["type"]
        if kind in ("record", "error"):
            return self._record(schema, namespace, depth)
        if kind in ("enum", "fixed"):
            return self._named_leaf(kind, schema, namespace)
        if kind in ("array", "map"):
            part = "items" if kind == "array" else "values"
            if part not in schema:
                raise ValueError(f"{_shown(schema)} has no {part!r}")
            return AvroType(kind, inner=self.parse(schema[part], namespace, depth + 1))
        if kind in PRIMITIVES:
            return _with_logical(AvroType(kind), schema)
        return self.parse(kind, namespace, depth + 1)

    def _union(self, schema: list[Any], namespace: str, depth: int) -> AvroType:
        branches = tuple(self.parse(branch, namespace, depth + 1) for branch in schema)
        if any(branch.kind == "union" for branch in branches):
            raise ValueError("a union directly contains a union")
        return AvroType("union", branches=branches)

    def _record(self, schema: dict[str, Any], namespace: str, depth: int) -> AvroType:
        record, namespace = self._declared("record", schema, namespace)
        for given in _list_of(schema, "fields"):
            if not isinstance(given, dict) or not isinstance(given.get("name"), str) or "type" not in given:
                raise ValueError(f"{record.name}: {_shown(given)} is not a field with a name and a type")
            kind = self.parse(given["type"], namespace, depth + 1)
            aliases = tuple(map(str, given.get("aliases") or ()))
            record.fields.append(AvroField(given["name"], kind, given.get("default", NO_DEFAULT), aliases))
        names = [each.name for each in record.fields]
        if len(set(names)) < len(names):
            raise ValueError(f"{record.name} has a field twice: {', '.join(names)}")
        return record

    def _named_leaf(self, kind: str, schema: dict[str, Any], namespace: str) -> AvroType:
        leaf, _ = self._declared(kind, schema, namespace)
        if kind == "enum":
            leaf.symbols = tuple(map(str, _list_of(schema, "symbols")))
            default = schema.get("default")
            leaf.default = default if default in leaf.symbols else None
            return leaf
        size = schema.get("size")
        if type(size) is not int or size < 0:
            raise ValueError(f"{leaf.name} has the size {_shown(size)}")
        leaf.size = size
        return _with_logical(leaf, schema)

    def _declared(self, kind: str, schema: dict[str, Any], namespace: str) -> tuple[AvroType, str]:
        """A new named type, and the namespace within it."""
        name = schema.get("name")
        if not isinstance(name, str) or not name:
            raise ValueError(f"a type without a name: {_shown(schema)}")
        own = schema.get("namespace")
        full = _full_name(name, own if isinstance(own, str) else namespace)
        if full in self._named:
            raise ValueError(f"the type {full} is declared twice")
        namespace = full.rpartition(".")[0]
        aliases = tuple(_full_name(str(alias), namespace) for alias in schema.get("aliases") or ())
        found = self._named[full] = AvroType(kind, full, aliases)
        return found, namespace

    def _known(self, name: str, namespace: str) -> AvroType:
        found = self._named.get(_full_name(name, namespace)) or self._named.get(name)
        if found is None:
            raise ValueError(f"unknown type {_shown(name)}")
        return found


def _with_logical(kind: AvroType, schema: dict[str, Any]) -> AvroType:
    """The type with its logical type, unless that is unknown or wrong: Avro says to ignore such a one."""
    logical = schema.get("logicalType")
    if not isinstance(logical, str) or kind.kind not in _KINDS_OF.get(logical, ()):
        return kind
    if logical == "decimal":
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if (
            type(precision) is not int
            or type(scale) is not int
            or not 0 <= scale <= precision
            or not 0 < precision <= _DIGITS
        ):
            return kind
        kind.precision, kind.scale = precision, scale
    kind.logical = logical
    return kind


_DIGITS = 1_000_000  # of a decimal; more than any that is written


def _list_of(schema: dict[str, Any], part: str) -> list[Any]:
    found = schema.get(part)
    if not isinstance(found, list):
        raise ValueError(f"{_shown(schema.get('name'))} has no list of {part}")  # noqa: TRY004
    return found


def _full_name(name: str, namespace: str) -> str:
    return f"{namespace}.{name}" if namespace and "." not in name else name


def _too_deep() -> ValueError:
    return ValueError(f"its types are nested more than {MOST_LEVELS} deep")


def _shown(part: object) -> str:
    text = repr(part)
    return text if len(text) <= 80 else text[:80] + "..."
