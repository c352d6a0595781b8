"""Times in an input: ISO 8601 text, or numbers since 1970."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime

from actorproc.errors import UsageError
from actorproc.log.serializers import EARLIEST, LATEST, microseconds

_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_LONGEST = 30  # characters of a number
_SECONDS, _MILLISECONDS, _MICROSECONDS = 10**11, 10**14, 10**17
"""Numbers below are of this unit: seconds until the year 5138, milliseconds and so on from 1973 on."""


def input_time(value: object) -> int | None:
    """Microseconds since 1970, or None if the value is no time.

    Args:
        value: ISO 8601 text, in UTC if it names no zone; or a number, also as text, of seconds, milliseconds,
            microseconds or nanoseconds since 1970. Its size decides the unit.
    """
    if type(value) is str:
        if number := _NUMBER.fullmatch(value):
            return _of_number(float(value) if number[1] else int(value)) if len(value) <= _LONGEST else None
        with suppress(ValueError):
            time = datetime.fromisoformat(value)
            return _of_time(time if time.tzinfo else time.replace(tzinfo=UTC))
    return _of_number(value) if type(value) is int or type(value) is float else None


def wrong_time(place: str, value: object) -> str:
    """Why a bad line is bad."""
    return f"{place} is no time: {str(value)[:80]!r}. A time is ISO 8601, or a number since 1970"


class Times:
    """The times of the records of an input, in order.

    A record without a time gets that of the record before it, and the first ones that of the first one with a time.
    Now, for example, would be far from its neighbours' times: it would move stream time, and fire their timers.
    """

    def __init__(self) -> None:
        self._latest: int | None = None

    def fill(self, times: Sequence[int | None]) -> list[int]:
        """The times of the next records, in microseconds since 1970."""
        latest = self._latest
        if latest is None:
            latest = next((time for time in times if time is not None), 0)
        found = [latest := latest if time is None else time for time in times]
        self._latest = latest
        return found


def _of_time(time: datetime) -> int | None:
    try:
        return microseconds(time)
    except UsageError:  # beyond the years 1 to 9999 in UTC
        return None


def _of_number(number: int | float) -> int | None:
    size = abs(number)
    if size < _SECONDS:
        return round(number * 1_000_000)
    if size < _MILLISECONDS:
        return round(number * 1_000)
    time = round(number) if size < _MICROSECONDS else round(number / 1_000)
    return time if EARLIEST <= time <= LATEST else None
