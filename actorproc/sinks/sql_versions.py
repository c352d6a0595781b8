"""Versions of rows with keys in a SQL database: (life, depth, commit number) as one integer, and the count of lives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from actorproc.sinks.keyed_rows import commit_numbers
from actorproc.sinks.protocol import Delivery, SinkRefused

LIVES = "actorproc_sink_lives"
"""Table of the registrations that have delivered to each table, in their order."""

VERSION = "_version"
"""Column of the version of a row."""

_DEPTH_BITS, _NUMBER_BITS = 13, 36
_LIVES, _DEPTHS, _NUMBERS = 2**14, 2**_DEPTH_BITS, 2**_NUMBER_BITS


def columns(types: Mapping[str, str]) -> str:
    """Its columns, as SQL declares them."""
    text, number = types["text"], types["number"]
    return (
        f"target {text} NOT NULL, registration {text} NOT NULL, number {number} NOT NULL, "
        f"PRIMARY KEY (target, registration), UNIQUE (target, number)"
    )


def life_of(cursor: Any, mark: str, lives: str, targets: Sequence[str], registration: str, lock: str = "") -> int:
    """The number of a registration, which is added if it is new. Of two at once one fails on the unique number.

    Args:
        lives: SQL name of the table.
        targets: names of the target, of which one at least is in the table if the target has lives. A new life gets
            the first one.
        lock: appended to the query.
    """
    known = f"FROM {lives} WHERE target IN ({', '.join([mark] * len(targets))})"
    query = f"SELECT number {known} AND registration = {mark} ORDER BY number DESC {lock}"
    cursor.execute(query, (*targets, registration))
    if not (found := cursor.fetchall()):
        cursor.execute(
            f"INSERT INTO {lives} (target, registration, number) "
            f"SELECT {mark}, {mark}, COALESCE(MAX(number), 0) + 1 {known}",
            (targets[0], registration, *targets),
        )
        cursor.execute(query, (*targets, registration))
        found = cursor.fetchall()
    return int(found[0][0])


def versions(delivery: Delivery, life: int) -> pa.Int64Array:
    """The version of each row.

    Raises:
        SinkRefused: a part of it is too large.
    """
    numbers = commit_numbers(delivery)
    last = delivery.since + len(delivery.counts)
    if life >= _LIVES or delivery.depth >= _DEPTHS or last >= _NUMBERS:
        raise SinkRefused(f"life {life}, depth {delivery.depth}, commit {last}: too large for a version")
    base = (life << _DEPTH_BITS | delivery.depth) << _NUMBER_BITS
    return pa.array(np.int64(base) + numbers.to_numpy())
