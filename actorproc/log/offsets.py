"""Looks up offsets of a partition of the log: its beginning, its end, and the first record of a time."""

from __future__ import annotations

from actorproc.errors import CorruptObject
from actorproc.log.segment import Segment, SegmentFooter
from actorproc.storage.listing import numbered_files
from actorproc.storage.names import log_dir, log_file
from actorproc.storage.parquet import read_footer
from actorproc.storage.store import Store

_PAGE = 100  # keys asked for where one or a few are expected


async def first_base(store: Store, partition: str, at: int = 0) -> int | None:
    """Base of the first file from base `at` on, or None."""
    page = await _bases(store, partition, at, limit=1)
    return page[0] if page else None


async def last_base(store: Store, partition: str, hint: int = 0) -> int | None:
    """Base of the newest file, or None if there is none.

    Args:
        hint: a base that was the newest once. With a fresh one this is one request; with an old one it grows with the
            logarithm of the number of records, not with the number of files.
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
    high = low + step  # nothing is there or beyond
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


async def end_of(store: Store, partition: str, hint: int = 0) -> int:
    """The base that the next file will get. `hint` as in `last_base`."""
    found = await newest_file(store, partition, hint)
    return 0 if found is None else found[1]


async def find_time(store: Store, partition: str, time: int, hint: int = 0, lowest: int = 0) -> tuple[int, int]:
    """Where the first record lies that is as late as `time`, in microseconds since 1970.

    Timestamps need not grow from record to record, but their running maximum does, and each file's footer has it: the
    first file in which it reaches `time` is found by bisection over the bases, from `lowest` on.

    Returns:
        Base of its file, and how many records of that come before it. The end of the partition, if there is none.
    """
    low, high = lowest, await end_of(store, partition, hint)
    found = high
    while low < high:
        middle = (low + high) // 2
        base = await first_base(store, partition, middle)
        if base is None or base >= high:
            high = middle
        elif await running_time(store, partition, base) >= time:
            found, high = base, middle
        else:
            low = base + 1
    while (stored := await store.get(log_file(partition, found))) is not None:
        file = await store.clock.run_in_thread(Segment, partition, found, stored.body)
        first = await store.clock.run_in_thread(file.first_at, time)
        if first < file.rows:
            return found, first
        found += file.rows  # the running maximum was that of a file that is trimmed
        while (footer := await read_footer(store, key := log_file(partition, found))) is not None:
            if SegmentFooter.from_footer(key, footer).newest >= time:
                break
            found += footer.rows
    return found, 0


async def _bases(store: Store, partition: str, at: int, limit: int = _PAGE) -> list[int]:
    """Bases of the first files from base `at` on, in order."""
    return [found.number for found in await numbered_files(store, log_dir(partition), at, limit)]


async def newest_file(store: Store, partition: str, hint: int = 0) -> tuple[int, int] | None:
    """Base of the newest file, and the base after it; None if there is none. `hint` as in `last_base`.

    Raises:
        CorruptObject: it is not what was written there.
    """
    base = await last_base(store, partition, hint)
    while base is not None:
        try:
            return base, (await read_notes(store, partition, base))[1]
        except CorruptObject:
            listed, base = base, await last_base(store, partition, hint)
            if base == listed:
                raise
            # Another file was appended meanwhile, and a trim took this one.
    return None


async def read_notes(store: Store, partition: str, base: int) -> tuple[SegmentFooter, int]:
    """Notes of the file at `base`, and the base after it."""
    key = log_file(partition, base)
    footer = await read_footer(store, key)
    if footer is None:
        raise CorruptObject(key, "was listed and is gone: files of a log are deleted while it is read")
    return SegmentFooter.from_footer(key, footer), base + footer.rows


async def running_time(store: Store, partition: str, base: int) -> int:
    """The greatest timestamp up to and with the file at `base`; of files that were trimmed it may not be known."""
    notes, _ = await read_notes(store, partition, base)
    running, at = notes.running, notes.covers
    while at < base:  # files that slipped in between; each lets us find the next
        key = log_file(partition, at)
        footer = await read_footer(store, key)
        if footer is None:
            at = await first_base(store, partition, at + 1) or base
        else:
            running = max(running, SegmentFooter.from_footer(key, footer).newest)
            at += footer.rows
    return running
