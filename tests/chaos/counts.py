"""Keyed state of a chaos run: a counter and a session per key, as the handler and the check keep them."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

import msgspec

from actorproc.handler.keyed_state import KeyedState

KEYS = 8  # for each key of a record
CYCLE = 5
"""At this count a key is deleted, and begins anew with its next record."""
GAP = 2.0
"""Seconds without a record after which another session of the key begins."""


class Session(msgspec.Struct):
    """`last`: when its latest record was sent, seconds since 1970."""

    last: float
    records: int


Key = tuple[str, int]
Row = Mapping[str, Any]
Counts = KeyedState | MutableMapping[Key, int]
Sessions = KeyedState | MutableMapping[Key, Session]


def keeps_counts(partition: str) -> bool:
    """Whether the handler keeps state in this partition: in every other three of them."""
    return int(partition.rpartition("-")[2]) // 3 % 2 == 0


def count_key(key: bytes, number: int) -> Key:
    """The key in the state of a producer's record `number`, whose own key this is."""
    return key.decode(), number % KEYS


def count(counts: Counts, sessions: Sessions, key: Key, time: float) -> dict[str, int]:
    """Count a record that was sent at `time`, and return the running values that its rows bear."""
    counted = counts.get(key, 0) + 1
    if counted < CYCLE:
        counts[key] = counted
    else:
        del counts[key]
    session: Session = sessions.get(key) or Session(time, 0)
    session = Session(time, session.records + 1 if time - session.last < GAP else 1)
    sessions[key] = session
    return {"count": counted, "session": session.records}


def timer_row(key: Key, session: Session, **made: Any) -> dict[str, Any]:
    """The row of the timer that ends a session."""
    text, number = key
    return {"producer": text, "number": number, "part": -1, "parts": 0, "session": session.records, **made}


def is_timer_row(row: Row) -> bool:
    return bool(row["part"] == -1)


def wrong_timer(row: Row, sessions: MutableMapping[Key, Session], time: float) -> str | None:
    """End the session of a timer that has fired. Returns the fault of the session, or None.

    Args:
        time: the greatest timestamp of the records before it.
    """
    session = sessions.pop(key := (row["producer"], row["number"]), None)
    if session is None:
        return f"the timer of {key} has fired, and none is set"
    if session.records != row["session"]:
        return f"the timer of {key} has {row['session']} records, not {session.records}"
    if session.last + GAP > time:
        return f"the timer of {key}, due at {session.last + GAP}, fired when stream time was {time}"
    return None
