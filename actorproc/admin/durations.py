"""Durations in words, as operators read them."""

from __future__ import annotations


def duration(seconds: float | None) -> str:
    """`12 s`, `5 min`, `3 h`, `2 d`."""
    seconds = max(0.0, seconds or 0.0)
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"
