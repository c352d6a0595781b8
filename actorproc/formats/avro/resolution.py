"""Makes readers of Avro values: resolves the writer's schema into the reader's, as Avro's specification says."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from actorproc.codecs.limits import MOST_LEVELS
from actorproc.errors import DecodeError
from actorproc.formats.avro.defaults import default_value
from actorproc.formats.avro.logical import conversion
from actorproc.formats.avro.reading import (
    PRIMITIVES,
    Node,
    Read,
    array_reader,
    converted,
    enum_reader,
    failing_reader,
    fixed_reader,
    map_reader,
    record_reader,
    repeated_reader,
    to_float,
    union_reader,
)
from actorproc.formats.avro.schema import NO_DEFAULT, AvroField, AvroType

_MANY = 2**62
_STEPS = 100_000  # unions of records within each other take exponentially many
_SYMBOL = 64  # characters of an enum's symbol that count as an item; its one byte in a value may stand for many


_PROMOTIONS: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("int", "long"): int,
    ("int", "float"): to_float,
    ("int", "double"): float,
    ("long", "float"): to_float,
    ("long", "double"): float,
    ("float", "double"): float,
    ("string", "bytes"): str.encode,
    ("bytes", "string"): bytes.decode,
}


def resolved_reader(writer: AvroType, reader: AvroType) -> Node:
    """Reads values of the schema `writer` as values of the schema `reader`.

    Raises:
        ValueError: the one cannot be resolved into the other.
    """
    try:
        return _Resolver().node(writer, reader, 0)
    except RecursionError:
        raise ValueError("its types are nested too deep") from None


class _NoField(ValueError):
    """A field cannot be resolved; names it."""


class _Resolver:
    """Resolves types. `steps`: shared with the resolvers that try a branch of a union."""

    def __init__(self, steps: Iterator[int] | None = None) -> None:
        self._steps = count() if steps is None else steps
        self._records: dict[tuple[int, int], Node] = {}
        self._failed: dict[tuple[int, int], str] = {}
        self._edges: dict[tuple[int, int], list[Node]] = {}  # from within records that are not finished

    def node(self, writer: AvroType, reader: AvroType, depth: int) -> Node:
        if depth > MOST_LEVELS:
            raise ValueError(f"its types are nested more than {MOST_LEVELS} deep")
        if next(self._steps) > _STEPS:
            raise ValueError(f"its types are resolved in more than {_STEPS:,} steps")
        if writer.kind == "union":
            return self._union(writer, reader, depth)
        if reader.kind == "union":
            reader = self._branch_for(writer, reader, depth)
        if writer.kind == "record" and reader.kind == "record":
            return self._record(writer, reader, depth)
        if writer.kind == reader.kind == "enum":
            return _enum(writer, reader)
        if writer.kind == reader.kind and writer.inner is not None and reader.inner is not None:
            item = self._item(writer.inner, reader.inner, depth + 1)
            read = array_reader(item) if writer.kind == "array" else map_reader(item)
            return Node(read, 1, item.depth + 1)
        return Node(_leaf(writer, reader))

    def _item(self, writer: AvroType, reader: AvroType, depth: int) -> Node:
        """Of an array or a map, which may be empty: only then does it not matter that its items cannot be resolved."""
        try:
            return self.node(writer, reader, depth)
        except ValueError as error:
            return Node(failing_reader(str(error)))

    def _union(self, writer: AvroType, reader: AvroType, depth: int) -> Node:
        branches: list[Node | DecodeError] = []
        for branch in writer.branches:
            try:
                branches.append(self.node(branch, branch if writer is reader else reader, depth + 1))
            except ValueError as error:
                branches.append(DecodeError(str(error)))
        nodes = [branch for branch in branches if isinstance(branch, Node)]
        if writer.branches and not nodes:
            raise branches[0]  # type: ignore[misc]  # all are errors
        return Node(union_reader(branches), 1, max([node.depth for node in nodes], default=0))

    def _branch_for(self, writer: AvroType, reader: AvroType, depth: int) -> AvroType:
        """The branch of the reader's union that takes the writer's type: the same type before a promotion, as Java."""
        alike = [branch for branch in reader.branches if branch.kind == writer.kind]
        if writer.name:
            exact = [branch for branch in alike if branch.name == writer.name or writer.name in branch.aliases]
            short = [branch for branch in alike if branch.short_name == writer.short_name]
            if named := exact or short:
                return named[0]
            for branch in alike if writer.kind == "record" else []:  # one with other fields is another one
                try:
                    _Resolver(self._steps).node(writer, branch, depth)
                except ValueError:
                    continue
                return branch
        elif alike:
            return alike[0]
        else:
            for branch in reader.branches:
                if (writer.kind, branch.kind) in _PROMOTIONS:
                    return branch
        raise ValueError(f"the reader's union has no {writer}")

    def _record(self, writer: AvroType, reader: AvroType, depth: int) -> Node:
        key = id(writer), id(reader)
        if key in self._failed:
            raise ValueError(self._failed[key])
        if key in self._edges:  # within itself
            edge = Node(repeated_reader(self._records[key]), None, 0)
            self._edges[key].append(edge)
            return edge
        if key not in self._records:
            node = self._records[key] = Node(PRIMITIVES["null"])
            self._edges[key] = []
            try:
                self._fill(node, writer, reader, depth)
            except ValueError as error:
                self._failed[key] = str(error)
                node.read = failing_reader(str(error))  # other records, which it contains, may contain it
                raise
            finally:
                for edge in self._edges.pop(key):
                    edge.weight = node.weight
        return self._records[key]

    def _fill(self, node: Node, writer: AvroType, reader: AvroType, depth: int) -> None:
        wanted = {name: field for field in reader.fields for name in (*field.aliases, field.name)}
        if writer is not reader:  # a field of this very name goes before an alias
            wanted |= {field.name: field for field in reader.fields}
        fields: list[tuple[str | None, Node]] = []
        absent: dict[str, Any] = dict.fromkeys([field.name for field in reader.fields])
        missing = {field.name: field for field in reader.fields}
        for field in writer.fields:
            target = wanted.get(field.name)
            if target is not None and target.name not in missing:
                target = None  # another field of the writer was it
            try:
                inner = self.node(field.type, field.type if target is None else target.type, depth + 1)
            except _NoField:
                raise
            except ValueError as error:
                raise _NoField(f"{reader}.{field.name}: {error}") from None
            fields.append((None if target is None else target.name, inner))
            if target is not None:
                del missing[target.name]
        made: dict[str, Callable[[], Any]] = {}
        weight = 1
        for field in missing.values():
            absent[field.name], size = _default(reader, field)
            weight += size
            if isinstance(absent[field.name], (list, dict)):
                made[field.name] = _copier(absent[field.name])
        weights = [inner.weight for _, inner in fields]
        if None in weights:
            raise ValueError(f"{writer} contains itself in each of its values")
        node.weight = min(_MANY, weight + sum(each or 0 for each in weights))
        node.depth = 1 + max([inner.depth for _, inner in fields], default=0)
        node.read = record_reader(fields, absent, made)


def _default(reader: AvroType, field: AvroField) -> tuple[Any, int]:
    if field.default is NO_DEFAULT:
        raise ValueError(
            f"{reader}.{field.name}: the value has no such field, and the reader's schema no default of it"
        )
    try:
        return default_value(field.type, field.default)
    except ValueError as error:
        raise ValueError(f"{reader}.{field.name}: its default {error}") from None


def _copier(value: Any) -> Callable[[], Any]:
    return lambda: copy.deepcopy(value)


def _enum(writer: AvroType, reader: AvroType) -> Node:
    _check_name(writer, reader)
    symbols: list[str | DecodeError] = []
    for symbol in writer.symbols:
        found = symbol if symbol in reader.symbols else reader.default
        symbols.append(DecodeError(f"{reader} has no symbol {symbol!r}") if found is None else found)
    longest = max([len(symbol) for symbol in (*reader.symbols, "")])
    return Node(enum_reader(symbols), 1 + longest // _SYMBOL)


def _leaf(writer: AvroType, reader: AvroType) -> Read:
    """Of a primitive or a fixed."""
    read = PRIMITIVES.get(writer.kind)
    if writer.kind == reader.kind == "fixed":
        _check_name(writer, reader)
        if writer.size != reader.size:
            raise ValueError(f"{writer} has {writer.size} bytes, and the reader's {reader} {reader.size}")
        read = fixed_reader(writer.size)
    elif read is None or (writer.kind != reader.kind and (writer.kind, reader.kind) not in _PROMOTIONS):
        raise ValueError(f"{writer} cannot be read as {reader}")
    if (convert := conversion(writer, reader)) is not None:
        return converted(read, convert)
    promote = _PROMOTIONS.get((writer.kind, reader.kind))
    return read if promote is None or promote is int else converted(read, promote)


def _check_name(writer: AvroType, reader: AvroType) -> None:
    if writer.short_name != reader.short_name and writer.name not in reader.aliases:
        raise ValueError(f"{writer} cannot be read as {reader}, which is another {reader.kind}")
