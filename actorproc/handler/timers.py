"""Timers of a handler: `ctx.wake` and `ctx.cancel_wake`. They are keyed state, under a name of their own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple

from msgspec import msgpack

from actorproc.errors import HandlerMisuse, StateMismatch
from actorproc.handler.keyed_state import MOST_SECONDS, TIMERS, AttemptState, Key
from actorproc.runtime.error_text import safe_repr

TimeOf = Literal["stream", "wall"]
"""- `stream`: the greatest timestamp of the partition's processed records.
- `wall`: the clock of the store.
"""

_HOW = "give at, a datetime with a zone (stream time), or after, seconds from now on (wall time), at most 100 years"


class Timer(NamedTuple):
    """When a key is due, as stored: seconds since 1970, by one of the two clocks."""

    at: float
    clock: TimeOf


_decoder = msgpack.Decoder(Timer)
_LAST = datetime.max.replace(tzinfo=UTC).timestamp() - 1


def unpack_timer(packed: bytes) -> Timer:
    return _decoder.decode(packed)


def set_timer(state: AttemptState, key: Key, at: object, after: object) -> None:
    """See `PartitionContext.wake`. A time may come from a record, so a wrong one fails the record.

    Raises:
        HandlerMisuse: the handler has no `on_wake`, or gave both times.
        StateMismatch: the key or the time cannot be used.
    """
    if not state.kinds.wakes:
        raise HandlerMisuse("ctx.wake: the handler has no on_wake(self, key, ctx)")
    state.view(TIMERS).set(key, list(_due(state, at, after)))


def cancel_timer(state: AttemptState, key: Key) -> None:
    """See `PartitionContext.cancel_wake`."""
    state.view(TIMERS).delete(key)


def _due(state: AttemptState, at: Any, after: Any) -> tuple[float, TimeOf]:
    if isinstance(at, datetime) and at.tzinfo is not None and after is None:
        return at.timestamp(), "stream"
    seconds = after.total_seconds() if isinstance(after, timedelta) else after
    if at is None and type(seconds) in (int, float) and 0 <= seconds <= MOST_SECONDS:
        return (state.now() + seconds if seconds else 0.0), "wall"  # at once, whatever the clock of the next owner
    kind = StateMismatch if at is None or after is None else HandlerMisuse
    raise kind(f"ctx.wake(at={safe_repr(at):.80}, after={safe_repr(after):.80}): {_HOW}")


def utc(seconds: float) -> datetime:
    """Seconds since 1970 as a datetime; the last one that there is, if no datetime holds the time."""
    return datetime.fromtimestamp(min(seconds, _LAST), UTC)
