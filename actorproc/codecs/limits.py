"""`Limits`: how much one value may unpack to."""

from __future__ import annotations

from dataclasses import dataclass

from actorproc.errors import DecodeError


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
