"""Damages that a verification finds: objects that are missing or altered, each with its remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from actorproc.errors import RESTORE, CorruptObject


@dataclass(frozen=True, slots=True)
class Damage:
    """An object that is missing or altered.

    Attributes:
        key: of the object in its store.
        what: the damage, as a clause.
        remedy: the next step, as a sentence.
        repair: does it, where that is safe; else None.
    """

    key: str
    what: str
    remedy: str = RESTORE
    repair: Callable[[], Awaitable[None]] | None = None

    @classmethod
    def of(cls, error: CorruptObject) -> Damage:
        what, _, remedy = error.why.partition("; ")
        return cls(error.key, what, remedy or RESTORE)


@dataclass(slots=True)
class Verification:
    """The result. `checked`: how many objects of each kind were read."""

    checked: Counter[str] = field(default_factory=Counter)
    damages: list[Damage] = field(default_factory=list)

    def found(self, damage: Damage) -> None:
        """Add a damage, unless it was found before."""
        if not any((known.key, known.what) == (damage.key, damage.what) for known in self.damages):
            self.damages.append(damage)


def runs(numbers: list[int]) -> list[tuple[int, int]]:
    """First and last of each run of consecutive numbers. `numbers` grow."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found
