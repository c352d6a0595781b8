"""Versions of rows with keys in a SQL database: (life, depth, commit number) as one integer, and the count of lives."""

from __future__ import annotations

from collections.abc import Mapping
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


def create_statement(types: Mapping[str, str]) -> str:
    text, number = types["text"], types["number"]
    return (
        f"CREATE TABLE IF NOT EXISTS {LIVES} (target {text} NOT NULL, registration {text} NOT NULL, "
        f"number {number} NOT NULL, PRIMARY KEY (target, registration), UNIQUE (target, number))"
    )


def life_of(cursor: Any, mark: str, target: str, registration: str, lock: str = "") -> int:
    """The number of a registration, which is added if it is new. Of two at once one fails on the unique number.

    Args:
        lock: appended to the query.
    """
    query = f"SELECT number FROM {LIVES} WHERE target = {mark} AND registration = {mark} {lock}"
    cursor.execute(query, (target, registration))
    if (found := cursor.fetchone()) is None:
        cursor.execute(
            f"INSERT INTO {LIVES} (target, registration, number) "
            f"SELECT {mark}, {mark}, COALESCE(MAX(number), 0) + 1 FROM {LIVES} WHERE target = {mark}",
            (target, registration, target),
        )
        cursor.execute(query, (target, registration))
        found = cursor.fetchone()
    return int(found[0])


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
