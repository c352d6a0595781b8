"""Durations and sizes: numbers, or text with a unit."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

from actorproc.errors import SettingsError

LONGEST = 36_500 * 86_400.0
"""Seconds of the longest duration, a century: sums with times of today stay times."""

LARGEST = 2**63 - 1
"""Bytes of the largest size."""

_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_NUMBER_UNIT = re.compile(r"\s*([+-]?[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*")


def seconds(value: object) -> object:
    """A duration in seconds from text with a unit ('500ms', '13s', '2m', '1h', '7d'). Other values stay as they are.

    Raises:
        ValueError: the text is not a duration.
    """
    if not isinstance(value, str):
        return value
    return _amount(value, _SECONDS, "write seconds, or a number with ms, s, m, h or d, such as '500ms'")


def size(value: object) -> object:
    """A size in bytes from text with a unit ('64MiB', '10kB'). Other values stay as they are.

    Raises:
        ValueError: the text is not a size.
    """
    if not isinstance(value, str):
        return value
    return int(_amount(value, _BYTES, "write bytes, or a number with kB, MB, GB, KiB, MiB or GiB, such as '64MiB'"))


def duration(name: str, given: float | str, least: float = 0.0) -> float:
    """Seconds of the argument `name`. Raises SettingsError if it is no duration from `least` to a century."""
    return _checked(name, given, seconds, least, LONGEST, "s")


def count_of_bytes(name: str, given: int | str, least: int = 1) -> int:
    """Bytes of the argument `name`. Raises SettingsError if it is no size from `least` on."""
    return int(_checked(name, given, size, least, LARGEST, "bytes"))


def _amount(text: str, units: Mapping[str, float], expected: str) -> float:
    match = _NUMBER_UNIT.fullmatch(text)
    if not match or match[2].lower() not in units:
        raise ValueError(expected)
    amount = float(match[1]) * units[match[2].lower()]
    if math.isinf(amount):
        raise ValueError("the number is too large")
    return amount


def _checked(
    name: str, given: object, parse: Callable[[object], object], least: float, most: float, unit: str
) -> float:
    try:
        found = parse(given)
    except ValueError as error:
        raise SettingsError(f"{name} = {given!r}: {error}") from None
    if isinstance(found, bool) or not isinstance(found, int | float) or not least <= found < math.inf:
        raise SettingsError(f"{name} = {given!r}: at least {least:g} {unit}")
    if found > most:
        raise SettingsError(f"{name} = {given!r:.100}: at most {most:.0f} {unit}")
    return found
