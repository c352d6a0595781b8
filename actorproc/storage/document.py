"""Our JSON documents: each says its version, and one that is not as it was written is refused by its key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import orjson

from actorproc.errors import RESTORE, CorruptObject

VERSION = 1

_MOST_DIGITS = 1_000
"""With zeros in front. Of more than some thousands Python makes no number, and raises."""

MOST_NUMBER = 2**63 - 1
"""Positions, numbers of files and the like are no larger: what reads a document may have 64 bits for it."""


def whole_number(text: str) -> int | None:
    """What these digits say; None: they are not a number from 0 to `MOST_NUMBER`."""
    if not text.isdecimal() or len(text) > _MOST_DIGITS:
        return None
    number = int(text)
    return number if number <= MOST_NUMBER else None


def to_document(fields: Mapping[str, Any]) -> bytes:
    """The document with `fields`, its keys in order so that people find them."""
    return orjson.dumps({"version": VERSION, **fields}, option=orjson.OPT_SORT_KEYS)


def check_types(fields: Mapping[str, Any], types: Mapping[str, tuple[type, ...]]) -> None:
    """Each of these fields is there, and its value is of one of its types, as JSON has them: `true` is no integer.

    Raises:
        KeyError: one is not there.
        TypeError: one is of another type; names it, its value, and what is allowed.
    """
    for name, allowed in types.items():
        if type(fields[name]) not in allowed:
            wanted = " or ".join(kind.__name__ for kind in allowed)
            raise TypeError(f"{name} = {fields[name]!r:.80}: {wanted}")


@contextmanager
def document(key: str, body: bytes | str, what: str) -> Iterator[dict[str, Any]]:
    """The fields of the document in `body`, read from `key`. What they give rise to in the block is their fault:

    Raises:
        CorruptObject: it is no `what`, or of a newer version.
    """
    try:
        fields: dict[str, Any] = orjson.loads(body)
        version = fields.pop("version")
        if version != VERSION:
            raise CorruptObject(key, f"has version {version!r}, this actorproc knows {VERSION}: update it here")
        yield fields
    except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:  # OSError: of a codec
        raise CorruptObject(
            key, f"is no {what} ({error!r}). It is written whole or not at all: look who changed it, and {RESTORE}"
        ) from None
