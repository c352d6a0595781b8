"""Finds the newest record of a shard, which Kinesis does not name: by times, with a handful of reads."""

from __future__ import annotations

from actorproc.connectors.kinesis.position import SEQUENCE_BITS, Position
from actorproc.connectors.kinesis.stream import Page, Stream

_FIRST_STEP = 1_000  # milliseconds back from now
_STEP = 8  # times as far back with each read that finds nothing
_PAGE = 1_000  # records of a read
_NARROW = 1_000  # milliseconds that are read through


async def place_after_newest(stream: Stream, shard: str) -> Position:
    """The position after the newest record; of a shard without records, its beginning. Raises as `Stream.pages`."""
    page, low, high = await _last_span(stream, shard)
    while page is not None and not (page.is_at_end or page.has_ended):
        if high - low <= _NARROW:
            page = await stream.first_page(shard, page.place, _PAGE)
            continue
        middle = (low + high) // 2
        found = await stream.first_page(shard, Position.at_time(middle), _PAGE)
        if len(found.batch):
            page, low = found, max(middle, found.place.sequence >> SEQUENCE_BITS)
        else:
            high = middle
    return Position() if page is None else page.place


async def _last_span(stream: Stream, shard: str) -> tuple[Page | None, int, int]:
    """A page with records, and times between which the newest record is; None: there is no record."""
    now, oldest, step = stream.now, stream.oldest, _FIRST_STEP
    high = now
    while (low := now - step) > oldest:
        page = await stream.first_page(shard, Position.at_time(low), _PAGE)
        if len(page.batch):
            return page, low, high
        high, step = low, step * _STEP
    page = await stream.first_page(shard, Position(), _PAGE)
    return page if len(page.batch) else None, oldest, high
