"""Limits of values and schemas, whatever their format: `Limits`, `MOST_COLUMNS` and `MOST_LEVELS`."""

from __future__ import annotations

from dataclasses import dataclass

from actorproc.errors import DecodeError

MOST_COLUMNS = 10_000
"""Columns that a schema may have, with those within columns. Types that name others twice double them with each level:
a schema of 20 types can have a million, and a value of two bytes would become a row of all of them."""

MOST_LEVELS = 200
"""Levels of objects and arrays in a value of JSON or Avro, the outermost included. All JSON parsers that are used take
as many; beyond it each has a limit of its own, and some depend on the depth of the caller's stack. Not a setting: with
more, a value is read or not by the parser that meets it. (Protobuf has at most 100 levels, a limit of its library.)"""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one value may unpack to: the settings `max_value_rows` and `max_value_bytes`.

    A decoder asks before it unpacks, since a few bytes can stand for gigabytes.

    Attributes:
        rows: rows of a value, or elements of its arrays and maps together.
        bytes: of a value in memory, once it is decoded.
    """

    rows: int = 1_000_000
    bytes: int = 64 * 2**20

    def check_rows(self, count: int, what: str = "rows") -> None:
        """Raises DecodeError: the value has more of them."""
        if count > self.rows:
            raise DecodeError(f"the value has {count:,} {what}, and max_value_rows is {self.rows:,}")

    def check_bytes(self, count: int) -> None:
        """Raises DecodeError: the value unpacks to more."""
        if count > self.bytes:
            raise DecodeError(f"the value unpacks to {count:,} bytes, and max_value_bytes is {self.bytes:,}")


DEFAULT = Limits()
