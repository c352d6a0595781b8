"""Reads the parts of a service's records: an unreadable part refuses only its own record, with a reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from actorproc.runtime.error_text import error_message, format_error

A = TypeVar("A")
B = TypeVar("B")


class Unreadable(ValueError):
    """A part of a record cannot be read. The message alone is the reason."""


def reason(what: str, error: Exception) -> str:
    """Why a part of a record cannot be read.

    Args:
        what: names the part, such as "the body". Empty: the error says it.
        error: of a client, or of bytes that mean nothing. If it has a cause, that one says more.
    """
    why = error_message(error) if isinstance(error, Unreadable) else format_error(error.__cause__ or error)
    return f"{what} cannot be read: {why}" if what else why


def each(make: Callable[[A], B], items: Sequence[A], refused: dict[int, str], what: str) -> list[B | None]:
    """One part of many records: `make(item)` of each, at the speed of `map`. Where it raises: None.

    It is called once for each item. (Kafka's client has odd headers only once.)

    Args:
        refused: is given reasons by index, for `Batch.refusing`. The first reason of a record stays.
        what: as for `reason`.
    """
    found: list[B | None] = []
    making = map(make, items)
    while len(found) < len(items):
        try:
            found.extend(making)
        except Exception as error:  # noqa: BLE001
            refused.setdefault(len(found), reason(what, error))
            found.append(None)
    return found


class RecordParts:
    """The parts of one record, read one by one."""

    def __init__(self) -> None:
        self._reasons: list[str] = []

    def read(self, what: str, otherwise: B, read: Callable[..., A], *arguments: Any) -> A | B:
        """The result of a function, or `otherwise` if it raises. `what`: as for `reason`."""
        try:
            return read(*arguments)
        except Exception as error:  # noqa: BLE001
            self._reasons.append(reason(what, error))
            return otherwise

    @property
    def reason(self) -> str | None:
        """Why the record must be refused; None: it was read."""
        return "; ".join(self._reasons) or None
