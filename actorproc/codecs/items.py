"""The items that one value may have: fields, and items of arrays and maps."""

from __future__ import annotations

from actorproc.errors import DecodeError

ITEMS = 1_000_000
"""Default. A few bytes can say that a value has billions of items that take no bytes."""


def too_many(limit: int) -> DecodeError:
    return DecodeError(f"the value has more than {limit:,} items")
