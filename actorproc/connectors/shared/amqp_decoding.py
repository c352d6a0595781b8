"""Messages of AMQP 1.0, from the bytes that a broker delivers: sections, fields and typed values.

Proton's own decoder keeps only the last of several data sections, and one field that it cannot read costs the message.
https://docs.oasis-open.org/amqp/core/v1.0/os/amqp-core-types-v1.0-os.html
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any
from uuid import UUID

from actorproc.connectors.shared.amqp_values import DEEPEST, Value
from actorproc.sources.refusals import Unreadable

HEADER, MESSAGE_ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES, DATA, SEQUENCE, VALUE = (
    0x70, 0x72, 0x73, 0x74, 0x75, 0x76, 0x77,
)  # fmt: skip
"""Descriptors of sections."""

_SECTIONS = {
    f"amqp:{name}": code
    for name, code in {
        "header:list": HEADER, "delivery-annotations:map": 0x71, "message-annotations:map": MESSAGE_ANNOTATIONS,
        "properties:list": PROPERTIES, "application-properties:map": APPLICATION_PROPERTIES, "data:binary": DATA,
        "amqp-sequence:list": SEQUENCE, "amqp-value:*": VALUE, "footer:map": 0x78,
    }.items()
}  # fmt: skip

FIELDS = (
    "message-id", "user-id", "to", "subject", "reply-to", "correlation-id", "content-type", "content-encoding",
    "absolute-expiry-time", "creation-time", "group-id", "group-sequence", "reply-to-group-id",
)  # fmt: skip
"""Of the properties, in order."""
_DELIVERY_COUNT = 4  # field of the header
_NULL = b"\x40"

_MOST_VALUES = 1_000_000  # in one part of a message
_EMPTY_ELEMENTS = 1_000  # elements that take no bytes: a few bytes could stand for billions


class Malformed(Unreadable):
    """The bytes are not AMQP 1.0."""


class ReceivedMessage:
    """A message. Each part is decoded when it is asked for, and one that is malformed leaves the others readable."""

    def __init__(self, data: bytes) -> None:
        self._sections: dict[int, list[memoryview]] = {}
        self._fields: dict[int, list[memoryview]] = {}
        self._rest = b""
        """Bytes from the first section on that has no end. They may hide sections, and `body` says why."""
        self._why = ""
        reader, end = _Reader(memoryview(data)), 0
        try:
            while end < len(data):
                code, content = reader.section()
                self._sections.setdefault(code, []).append(content)
                end = reader.at
        except Malformed as error:
            self._rest, self._why = data[end:], str(error)

    def field(self, name: str) -> Value | None:
        """Of the properties, by its name in the specification; None if it is not set. Raises Malformed."""
        return self._field(PROPERTIES, FIELDS.index(name))

    @property
    def delivery_count(self) -> Value | None:
        """Raises Malformed."""
        return self._field(HEADER, _DELIVERY_COUNT)

    def pairs(self, section: int) -> list[tuple[Value, Value]]:
        """Of the annotations or application properties. Raises Malformed."""
        return [pair for content in self._sections.get(section, ()) for pair in _typed(content, "map").content]

    def body(self) -> Value:
        """All data sections as one binary, all sequences as one list, or the value. Raises Malformed."""
        if self._rest:
            raise Malformed(self._why)
        bodies = {code: self._sections[code] for code in (DATA, SEQUENCE, VALUE) if code in self._sections}
        if not bodies:
            return Value("null", None)
        if len(bodies) > 1 or len(bodies.get(VALUE, ())) > 1:
            raise Malformed("there are several bodies")
        ((code, contents),) = bodies.items()
        if code == VALUE:
            return decode(contents[0])
        if code == DATA:
            return Value("binary", b"".join(_typed(content, "binary").content for content in contents))
        return Value("list", [item for content in contents for item in _typed(content, "list").content])

    def encoded_body(self) -> bytes:
        """The values of all body sections, and sections that cannot be read, as they came."""
        values = [content for code in (DATA, SEQUENCE, VALUE) for content in self._sections.get(code, ())]
        return b"".join([*values, self._rest])

    def _field(self, section: int, index: int) -> Value | None:
        fields = self._fields.get(section)
        if fields is None:
            fields = [item for content in self._sections.get(section, ()) for item in _items(content)]
            self._fields[section] = fields
        if index >= len(fields) or fields[index] == _NULL:
            return None
        return decode(fields[index])


def decode(data: memoryview | bytes) -> Value:
    """The one value that these bytes are. Raises Malformed."""
    reader = _Reader(memoryview(data))
    value = reader.value(0)
    if reader.at != len(data):
        raise Malformed("there is more than one value")
    return value


def _typed(content: memoryview, kind: str) -> Value:
    value = decode(content)
    if value.type != kind:
        raise Malformed(f"there is a value of type {value.type} in place of a {kind}")
    return value


def _items(content: memoryview) -> Iterator[memoryview]:
    """Items of a list, encoded."""
    reader = _Reader(content)
    kind = reader.code()
    if kind not in _LISTS:
        raise Malformed("there is no list")
    _, count = reader.compound(kind)
    for _ in range(count):
        start = reader.at
        reader.skip(0)
        yield content[start : reader.at]


class _Reader:
    """Reads values one after the other. Everything it raises is Malformed."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.at = 0
        self._left, self._empty = _MOST_VALUES, _EMPTY_ELEMENTS

    def section(self) -> tuple[int, memoryview]:
        """Descriptor and encoded value of the next section."""
        if self.code() != 0:
            raise Malformed("a section has no descriptor")
        kind, name = self.value(0)
        code: int | None = name if kind == "ulong" else _SECTIONS.get(name) if kind == "symbol" else None
        if code is None or code not in _SECTIONS.values():
            raise Malformed(f"there is no section {name!r:.50}")
        start = self.at
        self.skip(0)
        return code, self.data[start : self.at]

    def code(self) -> int:
        at, self.at = self.at, self.at + 1
        if at >= len(self.data):
            raise Malformed("it is cut off")
        return self.data[at]

    def skip(self, depth: int) -> None:
        """Go to the end of the value, as its size says."""
        code = self.code()
        if code == 0:
            _check(depth)
            self.skip(depth + 1)
            self.skip(depth + 1)
            return
        width = _WIDTHS.get(code >> 4)
        if width is None:
            raise Malformed(f"there is no type {code:#04x}")
        self._take(width if width >= 0 else self._size(code))

    def value(self, depth: int) -> Value:
        _check(depth)
        code = self.code()
        if code == 0:
            return Value("described", (self.value(depth + 1), self.value(depth + 1)))
        return self._of(code, depth)

    def compound(self, code: int) -> tuple[int, int]:
        """Where a list, map or array ends, and the count of its items."""
        if code == _LIST0:
            return self.at, 0
        wide = code & 0x10
        end = self._size(code) + self.at
        count = int.from_bytes(self._take(4 if wide else 1))
        if end > len(self.data):
            raise Malformed("it is cut off")
        return end, count

    def _of(self, code: int, depth: int) -> Value:
        """The value behind the code of its type."""
        _check(depth)
        self._left -= 1
        if self._left < 0:
            raise Malformed(f"there are more than {_MOST_VALUES:,} values")
        if (fixed := _FIXED.get(code)) is not None:
            kind, size, convert = fixed
            try:
                return Value(kind, convert(self._take(size)))
            except (ValueError, OverflowError) as error:
                raise Malformed(f"there is no such {kind}: {error}") from None
        if (kind := _VARIABLE.get(code, "")) != "":
            content = self._take(self._size(code))
            try:
                return Value(kind, content.tobytes() if kind == "binary" else str(content, _ENCODINGS[kind]))
            except UnicodeDecodeError:
                raise Malformed(f"a {kind} is not {_ENCODINGS[kind]}: {content.tobytes()!r:.60}") from None
        if code not in _COMPOUND:
            raise Malformed(f"there is no type {code:#04x}")
        return self._compound(code, depth)

    def _compound(self, code: int, depth: int) -> Value:
        end, count = self.compound(code)
        kind = _COMPOUND[code]
        if kind == "array":
            value = self._array(count, depth)
        elif count > end - self.at or (kind == "map" and count % 2):
            raise Malformed(f"a {kind} has not the count of items that it says")
        else:
            items: list[Any] = [self.value(depth + 1) for _ in range(count)]
            value = Value(kind, list(zip(items[::2], items[1::2], strict=True)) if kind == "map" else items)
        if self.at != end:
            raise Malformed(f"a {kind} and its items have different sizes")
        return value

    def _array(self, count: int, depth: int) -> Value:
        """An array of described values becomes a described array: the descriptor may be large, and the values many."""
        descriptor = None
        if (code := self.code()) == 0:
            descriptor, code = self.value(depth + 1), self.code()
        items = list[Value]()
        for _ in range(count):
            before = self.at
            items.append(self._of(code, depth + 1))
            if self.at == before:
                self._empty -= 1
                if self._empty < 0:
                    raise Malformed(f"arrays have more than {_EMPTY_ELEMENTS} elements without bytes")
        array = Value("array", items)
        return array if descriptor is None else Value("described", (descriptor, array))

    def _size(self, code: int) -> int:
        return int.from_bytes(self._take(4)) if code & 0x10 else self.code()

    def _take(self, size: int) -> memoryview:
        start, self.at = self.at, self.at + size
        if self.at > len(self.data):
            raise Malformed("it is cut off")
        return self.data[start : self.at]


def _check(depth: int) -> None:
    if depth > DEEPEST:
        raise Malformed(f"more than {DEEPEST} lists, maps and descriptors are in each other")


def _boolean(data: memoryview) -> bool:
    if data[0] > 1:
        raise ValueError(data[0])
    return bool(data[0])


def _char(data: memoryview) -> str:
    return str(data, "utf-32-be")


def _number(form: str) -> Callable[[memoryview], Any]:
    unpack = struct.Struct(f">{form}").unpack
    return lambda data: unpack(data)[0]


def _decimal(bits: int, exponent_bits: int, bias: int) -> Callable[[memoryview], Decimal]:
    """IEEE 754-2008 with the coefficient as a binary integer, as AMQP says."""
    digits = {32: 7, 64: 16, 128: 34}[bits]

    def convert(data: memoryview) -> Decimal:
        number = int.from_bytes(data)
        sign, top = number >> (bits - 1), number >> (bits - 5) & 0xF
        if top == 0xF:
            return Decimal("NaN" if number >> (bits - 6) & 1 else "-Infinity" if sign else "Infinity")
        large = top >> 2 == 3  # the coefficient begins with the bits 100, which are not written
        tail = bits - 1 - exponent_bits - (2 if large else 0)
        coefficient = (4 << tail if large else 0) | number & (1 << tail) - 1
        if coefficient >= 10**digits:  # stands for zero
            coefficient = 0
        exponent = (number >> tail & (1 << exponent_bits) - 1) - bias
        return Decimal((sign, tuple(map(int, str(coefficient))), exponent))

    return convert


_LIST0 = 0x45
_LISTS = (_LIST0, 0xC0, 0xD0)
_COMPOUND = {_LIST0: "list", 0xC0: "list", 0xD0: "list", 0xC1: "map", 0xD1: "map", 0xE0: "array", 0xF0: "array"}
_VARIABLE = {0xA0: "binary", 0xB0: "binary", 0xA1: "string", 0xB1: "string", 0xA3: "symbol", 0xB3: "symbol"}
_ENCODINGS = {"string": "utf-8", "symbol": "ascii"}

_WIDTHS = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16} | dict.fromkeys(range(0xA, 0x10), -1)
"""Bytes of a value, by the first half of its type's code; -1: the value begins with its size."""

_FIXED: dict[int, tuple[str, int, Callable[[memoryview], Any]]] = {
    0x40: ("null", 0, lambda _: None), 0x41: ("boolean", 0, lambda _: True), 0x42: ("boolean", 0, lambda _: False),
    0x56: ("boolean", 1, _boolean), 0x43: ("uint", 0, lambda _: 0), 0x44: ("ulong", 0, lambda _: 0),
    0x50: ("ubyte", 1, _number("B")), 0x60: ("ushort", 2, _number("H")), 0x70: ("uint", 4, _number("I")),
    0x52: ("uint", 1, _number("B")), 0x80: ("ulong", 8, _number("Q")), 0x53: ("ulong", 1, _number("B")),
    0x51: ("byte", 1, _number("b")), 0x61: ("short", 2, _number("h")), 0x71: ("int", 4, _number("i")),
    0x54: ("int", 1, _number("b")), 0x81: ("long", 8, _number("q")), 0x55: ("long", 1, _number("b")),
    0x72: ("float", 4, _number("f")), 0x82: ("double", 8, _number("d")), 0x73: ("char", 4, _char),
    0x74: ("decimal32", 4, _decimal(32, 8, 101)), 0x84: ("decimal64", 8, _decimal(64, 10, 398)),
    0x94: ("decimal128", 16, _decimal(128, 14, 6176)), 0x83: ("timestamp", 8, _number("q")),
    0x98: ("uuid", 16, lambda data: UUID(bytes=bytes(data))),
}  # fmt: skip
