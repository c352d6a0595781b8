"""The parts of one record, each read under a guard: a part that is wrong refuses its record, and no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

R = TypeVar("R")
T = TypeVar("T")


class Parts:
    """Reads parts of a record, and remembers why some cannot be read."""

    def __init__(self) -> None:
        self._reasons: list[str] = []

    def read(self, what: str, otherwise: T, read: Callable[..., R], *arguments: Any) -> R | T:
        """What a function returns, or `otherwise` if it raises.

        Args:
            what: names the part, such as "the body". Empty: the error says it.
        """
        try:
            return read(*arguments)
        except Exception as error:  # noqa: BLE001
            why = str(error) if isinstance(error, ValueError) else repr(error)
            self._reasons.append(f"{what} cannot be read: {why}" if what else why)
            return otherwise

    @property
    def reason(self) -> str | None:
        """Why the record must be refused; None: it was read."""
        return "; ".join(self._reasons) or None
