"""Looks up positions in a partition of the log: its first segment, its end, and the first record at a time."""

from __future__ import annotations

from typing import NamedTuple

from actorproc.errors import CorruptObject
from actorproc.log.segment import Segment, SegmentFooter
from actorproc.storage.listing import numbered_files
from actorproc.storage.names import log_dir, log_file
from actorproc.storage.parquet import read_footer
from actorproc.storage.store import Store

_PAGE = 100  # keys per listing; one or a few are expected
_MOST_LISTED = 1_000  # segments of one listing


class LogEnd(NamedTuple):
    """The end of a partition."""

    base: int
    """Of the next segment."""
    running: int
    """The greatest timestamp below `base`, in microseconds since 1970."""
    newest: int
    """Base of the newest segment."""


async def first_base(store: Store, partition: str, at: int = 0) -> int | None:
    """Base of the first segment at or after base `at`, or None."""
    page = await _bases(store, partition, at, limit=1)
    return page[0] if page else None


async def last_base(store: Store, partition: str, hint: int = 0) -> int | None:
    """Base of the newest segment, or None if there is none.

    Args:
        hint: a base that was the newest once. With a recent one this takes one request. With an old one the number of
            requests grows with the logarithm of the number of records.
    """
    page = await _bases(store, partition, hint)
    if not page:
        return await last_base(store, partition) if hint else None
    if len(page) < _PAGE:
        return page[-1]
    low, step = page[-1], page[-1] - page[0]
    while page := await _bases(store, partition, low + step):
        low, step = page[-1], step * 2
        if len(page) < _PAGE:
            return low
    high = low + step  # there is no segment at or after it
    while high - low > 1:
        middle = (low + high) // 2
        page = await _bases(store, partition, middle)
        if page:
            low = page[-1]
            if len(page) < _PAGE:
                break
        else:
            high = middle
    return low


async def end_base(store: Store, partition: str, hint: int = 0) -> int:
    """The base that the next segment will get. `hint` as in `last_base`."""
    found = await newest_segment(store, partition, hint)
    return 0 if found is None else found[1]


async def stored_bytes(store: Store, partition: str, base: int, skip: int, end: int) -> int:
    """Stored size of the records from number `skip` of the segment at `base` up to base `end`, from one listing.

    Bytes count evenly for the records of the listed segments. So the size is exact if `skip` is 0, and an estimate if
    there are more segments than one listing shows.
    """
    found = [one for one in await numbered_files(store, log_dir(partition), base, _MOST_LISTED) if one.number < end]
    if not found:
        return 0
    first, upto = found[0].number, end
    if len(found) == _MOST_LISTED:  # the number of records in the last one is not known
        upto = found.pop().number
    size = sum(entry.size for _, entry in found)
    return round(size * (end - max(base + skip, first)) / (upto - first))


async def base_of(store: Store, partition: str, sequence: int, lowest: int = 0) -> int:
    """Base of the segment with the record of this sequence; of the first one, or the last one, if there is none.

    A bisection over the bases from `lowest` on: the number of requests grows with the logarithm of the records.
    """
    found = await first_base(store, partition, lowest)
    low, high = lowest, sequence
    while found is not None and low < high:
        middle = (low + high + 1) // 2
        base = await first_base(store, partition, middle)
        if base is None or base > sequence:
            high = middle - 1
        else:
            found = low = base
    return lowest if found is None else found


async def position_of_time(store: Store, partition: str, time: int, hint: int = 0, lowest: int = 0) -> tuple[int, int]:
    """Position of the first record whose timestamp is at or after `time` (microseconds since 1970).

    Timestamps need not grow from record to record, but their running maximum does, and each segment's footer has it. A
    bisection over the bases from `lowest` on finds the first segment whose running maximum reaches `time`.

    Returns:
        The base of its segment, and the number of records before it in that segment. The end of the partition and 0 if
        there is no such record.
    """
    low, high = lowest, await end_base(store, partition, hint)
    found = high
    while low < high:
        middle = (low + high) // 2
        base = await first_base(store, partition, middle)
        if base is None or base >= high:
            high = middle
        elif await running_timestamp(store, partition, base) >= time:
            found, high = base, middle
        else:
            low = base + 1
    while (stored := await store.get(log_file(partition, found))) is not None:
        segment = await store.clock.run_in_thread(Segment, partition, found, stored.body)
        first = await store.clock.run_in_thread(segment.first_at, time)
        if first < segment.rows or segment.footer.ended:
            return found, first
        found += segment.rows  # the running maximum came from a segment that was trimmed
        while (footer := await read_footer(store, key := log_file(partition, found))) is not None:
            parsed = SegmentFooter.parse(key, footer)
            if parsed.newest >= time or parsed.ended:
                break
            found += footer.rows
    return found, 0


async def newest_segment(store: Store, partition: str, hint: int = 0) -> tuple[int, int] | None:
    """Base of the newest segment and the base after it, or None if there is none. `hint` as in `last_base`."""
    base = await last_base(store, partition, hint)
    while base is not None:
        try:
            return base, (await read_footer_at(store, partition, base))[1]
        except CorruptObject:
            listed, base = base, await last_base(store, partition, hint)
            if base == listed:
                raise
            # A trim deleted this segment, because another one was appended meanwhile.
    return None


async def read_footer_at(store: Store, partition: str, base: int) -> tuple[SegmentFooter, int]:
    """The footer of the segment at `base`, and the base after it."""
    key = log_file(partition, base)
    footer = await read_footer(store, key)
    if footer is None:
        raise CorruptObject(key, "was listed and is gone: files of a log are deleted while it is read")
    return SegmentFooter.parse(key, footer), base + footer.rows


async def log_end(store: Store, partition: str, hint: int) -> LogEnd:
    """The end of the partition now. `hint` as in `last_base`."""
    found = await newest_segment(store, partition, hint)
    if found is None:
        return LogEnd(0, 0, 0)
    # Both values come from one segment. A segment that is appended meanwhile is in neither.
    newest, base = found
    return LogEnd(base, await running_timestamp(store, partition, newest), newest)


async def running_timestamp(store: Store, partition: str, base: int) -> int:
    """The greatest timestamp up to the end of the segment at `base`. Trimmed segments may be left out."""
    newest, _ = await read_footer_at(store, partition, base)
    running, at = newest.running, newest.covers
    while at < base:  # segments of other producers, which `running` leaves out
        key = log_file(partition, at)
        footer = await read_footer(store, key)
        if footer is None:
            at = await first_base(store, partition, at + 1) or base
        else:
            running = max(running, SegmentFooter.parse(key, footer).newest)
            at += footer.rows
    return running


async def _bases(store: Store, partition: str, at: int, limit: int = _PAGE) -> list[int]:
    """Bases of the first segments at or after base `at`, in order."""
    return [found.number for found in await numbered_files(store, log_dir(partition), at, limit)]
