"""Positions in a change feed: how far each span of hashed partition keys is read.

A partition is a physical range of the container. It has one span, except after a merge: then each half is read on from
where the parent that it comes from has ended, because the numbers of two parents do not compare. See `merge`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from actorproc.errors import SourceError
from actorproc.records import Cursor

SEQUENCE_BITS = 16
"""A sequence is the number of a transaction (LSN), and that of the document in the transaction in so many bits."""

MODES = {"latest": "LatestVersion", "all": "AllVersionsAndDeletes"}
"""The client's names of the modes."""


class Span(NamedTuple):
    """Hashed partition keys from `low` on and below `high`, read up to transaction `lsn`. As text: `LOW-HIGH:LSN`."""

    low: str
    high: str
    lsn: int

    def __str__(self) -> str:
        return f"{self.low}-{self.high}:{self.lsn}"

    @classmethod
    def parse(cls, text: str) -> Span:
        """Raises ValueError: the text is no span."""
        keys, _, lsn = text.rpartition(":")
        low, high = keys.split("-")
        return cls(low, high, int(lsn))

    @property
    def feed_range(self) -> dict[str, Any]:
        """As the client wants it."""
        return {"Range": {"min": self.low, "max": self.high, "isMinInclusive": True, "isMaxInclusive": False}}

    def token(self, container: str, mode: str) -> str:
        """The client's continuation token of this place.

        Made by ourselves, because the client's own cannot be resumed if reading began at a time (azure-cosmos 4.17
        takes its milliseconds for seconds), and because a split must give its children their own.

        Args:
            container: resource id of the container.
        """
        place = [{"token": f'"{self.lsn}"', "range": self.feed_range["Range"]}]
        state = {
            "v": "v2",
            "containerRid": container,
            "mode": MODES[mode],
            "startFrom": {"Type": "Beginning"},
            "continuation": {"v": "v2", "rid": container, "continuation": place, **self.feed_range},
        }
        return base64.b64encode(json.dumps(state).encode()).decode()


class Position(tuple[Span, ...]):
    """The spans of a partition, in order of their keys. As text: separated by commas."""

    __slots__ = ()

    def __str__(self) -> str:
        return ",".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> Position:
        """Raises SourceError: the text is no position in a change feed."""
        try:
            return cls(map(Span.parse, text.split(",")))
        except ValueError:
            raise SourceError(f"position {text!r} is no position in a change feed") from None

    @property
    def lsn(self) -> int:
        """Transaction up to which all spans are read."""
        return min(span.lsn for span in self)


NO_KEYS = Position([Span("", "", 0)])
"""Of a range that has nothing to read."""


def joined(spans: Iterable[Span]) -> Position:
    """The spans in order. Neighbours that are read equally far become one."""
    found = list[Span]()
    for span in sorted(spans):
        if found and found[-1].high == span.low and found[-1].lsn == span.lsn:
            found[-1] = found[-1]._replace(high=span.high)
        else:
            found.append(span)
    return Position(found)


def processed(cursor: Cursor) -> Position:
    """How far each span is processed, by a cursor that may be within a page. Transactions are committed whole."""
    done = cursor.sequence >> SEQUENCE_BITS
    return Position(span._replace(lsn=max(span.lsn, done)) for span in Position.parse(cursor.position))


def clipped(spans: Iterable[Span], low: str, high: str) -> Position | None:
    """Where to read a range from, by how far its parts were read; None if a part of it was not.

    Args:
        spans: oldest first. Where they overlap, as those of a grandparent and a parent do, the last one counts.
    """
    given = [Span(max(span.low, low), min(span.high, high), span.lsn) for span in spans]
    given = [span for span in given if span.low < span.high]
    bounds = sorted({low, high, *(span.low for span in given), *(span.high for span in given)})
    found = list[tuple[int, Span]]()
    for start, stop in pairwise(bounds):
        holders = [number for number, span in enumerate(given) if span.low <= start and stop <= span.high]
        if not holders:
            return None
        if found and found[-1][0] == holders[-1]:
            found[-1] = (holders[-1], found[-1][1]._replace(high=stop))
        else:
            found.append((holders[-1], Span(start, stop, given[holders[-1]].lsn)))
    return Position(span for _, span in found)


def sequences(lsns: Sequence[int]) -> tuple[list[int], list[int]]:
    """Sequences of documents whose transactions have these numbers, and the last one of each transaction.

    Raises:
        SourceError: a transaction has more documents than sequences can tell apart.
    """
    given, cuts, index = list[int](), list[int](), 0
    for number, lsn in enumerate(lsns):
        index = index + 1 if number and lsns[number - 1] == lsn else 0
        if index >> SEQUENCE_BITS:
            raise SourceError(f"transaction {lsn} of a change feed has more than {1 << SEQUENCE_BITS:,} documents")
        if given and not index:
            cuts.append(given[-1])
        given.append(lsn << SEQUENCE_BITS | index)
    return given, [*cuts, *given[-1:]]


def last_sequence(lsn: int) -> int:
    """The highest sequence that transactions up to `lsn` may have; -1 if there are none."""
    return (lsn + 1 << SEQUENCE_BITS) - 1 if lsn else -1


def places_in(state: Mapping[str, Any]) -> list[tuple[str | None, Mapping[str, str]]]:
    """Token and range of each part of a client's continuation, of Python's or Java's."""
    lowered = {name.lower(): value for name, value in state.items()}
    inner = lowered.get("continuation")
    if isinstance(inner, Mapping):
        return places_in(inner)
    return [(part["token"], part["range"]) for part in inner or []]


def lsn_of(token: str | None) -> int:
    """The transaction that an ETag of a feed names; 0 for none."""
    return int((token or "0").strip('"'))
