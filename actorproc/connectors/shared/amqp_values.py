"""Values of AMQP 1.0 as bytes, as JSON, and as text that names a message. The tables are in docs/queues.md."""

from __future__ import annotations

import math
import re
from base64 import b64encode
from typing import Any, NamedTuple

import orjson

from actorproc.sources.refusals import Unreadable

DEEPEST = 100
"""Levels of lists, maps and descriptors in each other that a value may have."""

WHOLE = ("ubyte", "ushort", "uint", "ulong", "byte", "short", "int", "long")
"""Types of whole numbers."""

_TEXT = ("string", "symbol", "char")
_DECIMAL = ("decimal32", "decimal64", "decimal128")
_NAMED = {"boolean": "bool", "double": "float", "timestamp": "timestamp", "uuid": "UUID"}
_TYPED = re.compile("(str|int|UUID|bytes|bool|float|timestamp):")
"""Begins the text of each value that is no string. Fixed: commits carry hashes of such texts."""


class Value(NamedTuple):
    """One value.

    Attributes:
        type: its name in the specification.
        content: None, bool, int (timestamp: milliseconds since 1970), float, Decimal, str, UUID or bytes.
            list and array: a list of Values. map: a list of pairs of Values. described: (descriptor, value).
    """

    type: str
    content: Any


class NoPlace(Unreadable):
    """The value cannot be JSON, or cannot name a message."""


def to_bytes(value: Value) -> bytes | None:
    """Binary and text as they are, null as None, anything else as JSON. Raises NoPlace."""
    if value.type in _TEXT:
        return str(value.content).encode()
    if value.type in ("null", "binary"):
        return value.content  # type: ignore[no-any-return]
    return orjson.dumps(_plain(value))


def to_key(value: Value) -> str:
    """Text of a map's key. Raises NoPlace."""
    if value.type in (*_TEXT, *WHOLE, "timestamp", "uuid"):
        return str(value.content)
    raise NoPlace(f"a map has a key of type {value.type}, and keys of JSON are text")


def to_text(value: Value, integer: str = "long") -> str:
    """Text that no other value has, of whatever type: that of a string is the string, unless it looks like another's.

    Args:
        integer: the type of whole numbers whose texts have no name of a type, as commits of earlier versions have it.

    Raises:
        NoPlace: the value cannot name a message: it is null or empty, not a number, or consists of other values.
    """
    kind, content = value
    if kind in (*_TEXT, "binary") and not content:
        raise NoPlace(f"is an empty {kind}")
    if kind == "string":
        return f"str:{content}" if _TYPED.match(content) else str(content)
    if kind in _TEXT:
        return f"str:{kind}:{content}"
    if kind == "binary":
        return f"bytes:{content.hex()}"
    if kind in WHOLE:
        return f"int:{content}" if kind == integer else f"int:{kind}:{content}"
    if content != content:  # NaN: there are many of them
        raise NoPlace("is not a number")
    if kind in ("float", *_DECIMAL):
        return f"float:{kind}:{content}"
    if kind in _NAMED:
        return f"{_NAMED[kind]}:{content}"
    raise NoPlace(f"is a value of type {kind}")


def _plain(value: Value) -> object:
    """The JSON that orjson writes."""
    kind, content = value
    match kind:
        case "float" | "double" | "decimal32" | "decimal64" | "decimal128":
            if content != content or content in (math.inf, -math.inf):  # also decimals beyond float
                raise NoPlace(f"{content} is no number of JSON")
            return str(content) if kind in _DECIMAL else content
        case "uuid":
            return str(content)
        case "binary":
            return b64encode(content).decode()
        case "list" | "array":
            return [_plain(item) for item in content]
        case "map":
            return _object(content)
        case "described":
            descriptor, described = content
            return {"descriptor": _plain(descriptor), "value": _plain(described)}
    return content


def _object(pairs: list[tuple[Value, Value]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, item in pairs:
        if (name := to_key(key)) in found:
            raise NoPlace(f"a map has two keys with the text {name!r:.100}")
        found[name] = _plain(item)
    return found


def text_or_bytes(value: bytes | None) -> Any:
    """Text where it is UTF-8, as AMQP has strings."""
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return value
