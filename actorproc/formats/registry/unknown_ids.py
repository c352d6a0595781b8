"""`UnknownIds`: schema ids that the registry does not know, and how many more it may be asked for."""

from __future__ import annotations

from collections import deque

from actorproc.runtime.clock import Clock

LARGEST = 2**31 - 1
"""Ids are Java's integers. A registry answers to a larger one as to a wrong URL, so it is never asked."""

REFUSED_FOR = 30.0
"""Seconds for which an id stays unknown: a replica of a registry may lag, and a schema may come after its values."""

PERIOD = 60.0
MOST = 200
"""Ids that turned out unknown, within `PERIOD` seconds. After so many the registry is not asked for others.

A writer makes one new id a day. Random ids come by thousands, from values that are no values of this format.
"""


class UnknownIds:
    """Of one host. Used on its event loop, apart from `reason`."""

    def __init__(self, registry: str, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock
        self._until: dict[int, float] = {}  # by id
        self._lately: deque[float] = deque()
        self._being_asked = 0

    def __contains__(self, number: int) -> bool:
        """Whether the id counts as unknown now."""
        return not 0 < number <= LARGEST or self._until.get(number, 0.0) > self._clock.monotonic()

    def may_ask(self) -> bool:
        """Whether the registry may be asked for one more id, which is then followed by `answered`."""
        now = self._clock.monotonic()
        while self._lately and self._lately[0] <= now - PERIOD:
            self._lately.popleft()
        if len(self._lately) + self._being_asked >= MOST:
            return False
        self._being_asked += 1
        return True

    def answered(self, number: int, *, known: bool | None) -> None:
        """The registry knows the id, does not know it, or has not answered (None)."""
        self._being_asked -= 1
        if known is not False:
            return
        now = self._clock.monotonic()
        self._lately.append(now)
        self._until[number] = now + REFUSED_FOR
        if len(self._until) > 10 * MOST:
            self._until = {id_: until for id_, until in self._until.items() if until > now}

    def reason(self, number: int) -> str:
        """Why an id that is not known has no schema. From any thread."""
        if not 0 < number <= LARGEST:
            return f"schema id {number} cannot be one: ids go from 1 to {LARGEST}"
        if number in self._until:
            return f"schema id {number} is not in the registry {self._registry}"
        return (
            f"schema id {number} was not looked up: the registry {self._registry} did not know {MOST} other ids "
            f"within {PERIOD:g} s. If the id is right, replay this record"
        )
