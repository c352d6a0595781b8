"""What the answers of a server mean. A server is not trusted: texts and waits have bounds."""

from __future__ import annotations

from datetime import UTC
from email.utils import parsedate_to_datetime

from actorproc.sinks.protocol import SinkError, SinkRefused

_SHOWN = 200
"""Characters of a body that messages show."""

_AGAIN = {408, 425, 429}
"""Statuses of 4xx that say nothing about the request: too slow, too early, too many."""


def failure(url: str, status: int, body: bytes, again_in: float) -> SinkError:
    """The error that an answer means that is no acknowledgement.

    Args:
        again_in: seconds that it asks to wait.
    """
    said = printable(body[: 4 * _SHOWN].decode(errors="replace"))[:_SHOWN]
    why = ", a redirect, which is not followed" if 300 <= status < 400 else ""
    why = ", so some of the rows may have failed" if status < 300 else why
    text = f"{url} answers {status}{why}{f': {said}' if said else ''}"
    kind = SinkRefused if status < 300 or (400 <= status < 500 and status not in _AGAIN) else SinkError
    return kind(text, again_in=again_in)


def printable(text: str) -> str:
    """On one line, without control characters."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def retry_after(text: str | None, now: float, most: float) -> float:
    """Seconds that the header `Retry-After` asks to wait, from 0 to `most`; 0 if it is neither a number nor a date.

    Args:
        now: seconds since 1970.
    """
    text = (text or "").strip()
    if text.isascii() and text.isdigit():
        return min(most, float(text[:20]))
    try:
        date = parsedate_to_datetime(text[:100])
        seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return min(most, max(0.0, seconds))
