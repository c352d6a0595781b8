"""Reads Avro's binary encoding: functions for each type, and a budget for the items of a value.

A function takes the value, a place in it and the budget, and returns the result with the place behind it. `data[at]`
behind the end raises IndexError, which says that the value is cut short.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from actorproc.codecs.limits import MOST_LEVELS
from actorproc.errors import DecodeError

Read = Callable[[bytes, int, "Budget"], tuple[Any, int]]

_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")


class Budget:
    """The items that a value may still have, and the levels that it is deep in types that contain themselves."""

    __slots__ = ("_limit", "depth", "left")

    def __init__(self, limit: int) -> None:
        self._limit = self.left = limit
        self.depth = 0

    def take(self, items: int) -> None:
        self.left -= items
        if self.left < 0:
            raise DecodeError(f"the value has more than {self._limit:,} items (max_value_rows)")


class Node:
    """How a type is read.

    Attributes:
        weight: its items, without those in arrays, maps and unions. None: not known yet, as the type contains itself.
        depth: its levels of records, arrays and maps, without those of types that contain themselves.
    """

    __slots__ = ("depth", "read", "weight")

    def __init__(self, read: Read, weight: int | None = 1, depth: int = 0) -> None:
        self.read, self.weight, self.depth = read, weight, depth


def read_null(data: bytes, at: int, budget: Budget) -> tuple[None, int]:
    return None, at


def read_boolean(data: bytes, at: int, budget: Budget) -> tuple[bool, int]:
    byte = data[at]
    if byte > 1:
        raise DecodeError(f"{byte} is no boolean")
    return byte == 1, at + 1


def read_long(data: bytes, at: int, budget: Budget) -> tuple[int, int]:
    byte = data[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    number, shift = byte & 0x7F, 7
    while byte >= 0x80:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if number >> 64 or shift > 70:
            raise DecodeError("a number has more than 64 bits")
    return (number >> 1) ^ -(number & 1), at


def read_int(data: bytes, at: int, budget: Budget) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    number, at = read_long(data, at, budget)
    if not -0x8000_0000 <= number <= 0x7FFF_FFFF:
        raise DecodeError(f"{number} is no int")
    return number, at


def read_float(data: bytes, at: int, budget: Budget) -> tuple[float, int]:
    return _FLOAT.unpack_from(data, at)[0], at + 4


def read_double(data: bytes, at: int, budget: Budget) -> tuple[float, int]:
    return _DOUBLE.unpack_from(data, at)[0], at + 8


def to_float(number: float) -> float:
    """The nearest number of 32 bits."""
    return float(_FLOAT.unpack(_FLOAT.pack(number))[0])


def read_bytes(data: bytes, at: int, budget: Budget) -> tuple[bytes, int]:
    size, at = read_long(data, at, budget)
    end = at + size
    if size < 0:
        raise DecodeError(f"a length is {size}")
    if end > len(data):
        raise IndexError
    return data[at:end], end


def read_string(data: bytes, at: int, budget: Budget) -> tuple[str, int]:
    size = data[at]
    if size < 0x80 and not size & 1:  # most of them
        at += 1
        end = at + (size >> 1)
        if end > len(data):
            raise IndexError
        return data[at:end].decode(), end
    content, at = read_bytes(data, at, budget)
    return content.decode(), at


PRIMITIVES: dict[str, Read] = {
    "null": read_null,
    "boolean": read_boolean,
    "int": read_int,
    "long": read_long,
    "float": read_float,
    "double": read_double,
    "bytes": read_bytes,
    "string": read_string,
}


def fixed_reader(size: int) -> Read:
    def read(data: bytes, at: int, budget: Budget) -> tuple[bytes, int]:
        end = at + size
        if end > len(data):
            raise IndexError
        return data[at:end], end

    return read


def failing_reader(why: str) -> Read:
    def read(data: bytes, at: int, budget: Budget) -> tuple[Any, int]:
        raise DecodeError(why)

    return read


def converted(inner: Read, convert: Callable[[Any], Any]) -> Read:
    def read(data: bytes, at: int, budget: Budget) -> tuple[Any, int]:
        value, at = inner(data, at, budget)
        return convert(value), at

    return read


def enum_reader(symbols: Sequence[str | DecodeError]) -> Read:
    """Args: symbols: of the writer, each as the reader calls it, or why the reader has none."""

    def read(data: bytes, at: int, budget: Budget) -> tuple[str, int]:
        index, at = read_int(data, at, budget)
        if not 0 <= index < len(symbols):
            raise DecodeError(f"{index} is none of {len(symbols)} symbols of an enum")
        symbol = symbols[index]
        if isinstance(symbol, DecodeError):
            raise symbol
        return symbol, at

    return read


def array_reader(item: Node) -> Read:
    def read(data: bytes, at: int, budget: Budget) -> tuple[list[Any], int]:
        items: list[Any] = []
        count, at = _block(data, at, budget, item)
        while count:
            read_item = item.read
            for _ in range(count):
                value, at = read_item(data, at, budget)
                items.append(value)
            count, at = _block(data, at, budget, item)
        return items, at

    return read


def map_reader(item: Node) -> Read:
    def read(data: bytes, at: int, budget: Budget) -> tuple[dict[str, Any], int]:
        items: dict[str, Any] = {}
        count, at = _block(data, at, budget, item)
        while count:
            for _ in range(count):
                key, at = read_string(data, at, budget)
                items[key], at = item.read(data, at, budget)
            count, at = _block(data, at, budget, item)
        return items, at

    return read


def _block(data: bytes, at: int, budget: Budget, item: Node) -> tuple[int, int]:
    """The number of items in a block of an array or map; 0 at its end."""
    count, at = read_long(data, at, budget)
    if count < 0:
        count = -count
        size, at = read_long(data, at, budget)  # of the block in bytes, for readers that skip it
        if size < 0:
            raise DecodeError(f"a block has {size} bytes")
    budget.take(count * (item.weight or 1))
    return count, at


def union_reader(branches: Sequence[Node | DecodeError]) -> Read:
    """Args: branches: of the writer, or why the reader takes none of it."""

    def read(data: bytes, at: int, budget: Budget) -> tuple[Any, int]:
        index, at = read_long(data, at, budget)
        if not 0 <= index < len(branches):
            raise DecodeError(f"{index} is none of {len(branches)} types of a union")
        branch = branches[index]
        if isinstance(branch, DecodeError):
            raise branch
        if branch.weight != 1:
            budget.take(branch.weight or 1)
        return branch.read(data, at, budget)

    return read


def record_reader(
    fields: Sequence[tuple[str | None, Node]], absent: Mapping[str, Any], made: Mapping[str, Any]
) -> Read:
    """Reads records into dicts.

    Args:
        fields: of the writer, by the reader's names; None: the reader has no such field.
        absent: all names of the reader in order, with the defaults of those that the writer lacks.
        made: functions that make the defaults which can be changed, lists and dicts.
    """
    steps = [(name, node.read) for name, node in fields]
    if not made and [name for name, _ in fields] == list(absent):
        plain = [(str(name), read) for name, read in steps]

        def read_plain(data: bytes, at: int, budget: Budget) -> tuple[dict[str, Any], int]:
            row = {}
            for name, read in plain:
                row[name], at = read(data, at, budget)
            return row, at

        return read_plain

    def read_resolved(data: bytes, at: int, budget: Budget) -> tuple[dict[str, Any], int]:
        row = dict(absent)
        for name, read in steps:
            value, at = read(data, at, budget)
            if name is not None:
                row[name] = value
        for name, make in made.items():
            row[name] = make()
        return row, at

    return read_resolved


def repeated_reader(node: Node) -> Read:
    """A type within itself. Every level counts, so that no value exhausts the stack."""

    def read(data: bytes, at: int, budget: Budget) -> tuple[Any, int]:
        budget.depth += node.depth
        if budget.depth > MOST_LEVELS:
            raise DecodeError(f"the value is nested more than {MOST_LEVELS} deep")
        value, at = node.read(data, at, budget)
        budget.depth -= node.depth
        return value, at

    return read
