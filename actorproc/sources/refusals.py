"""Makes columns from a service's records one by one, so that a record that has no place in them is refused alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from actorproc.runtime.error_text import format_error

A = TypeVar("A")
B = TypeVar("B")


def each(make: Callable[[A], B], items: Sequence[A], refused: dict[int, str], what: str) -> list[B | None]:
    """`make(item)` of each item, at the speed of `map`. Where it raises: None, and a reason in `refused`.

    It is called once for each item. (Kafka's client has odd headers only once.)

    Args:
        refused: reasons by index, for `Batch.refusing`. The first reason of a record stays.
        what: for the reason, such as "its headers".
    """
    found: list[B | None] = []
    making = map(make, items)
    while len(found) < len(items):
        try:
            found.extend(making)
        except Exception as error:  # noqa: BLE001  # of a client, or of bytes that mean nothing
            refused.setdefault(len(found), f"{what} cannot be read: {format_error(error.__cause__ or error)}")
            found.append(None)
    return found
