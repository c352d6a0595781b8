"""Appending where the base was written down first: whoever goes on after a crash knows the only place where the file can be.

The rule, for whoever keeps the note: a base is left only after another's file was found there that counts, and the note moves on
by compare-and-swap before anything is sent to the next. Then all lower bases are settled, and the file lands once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import anyio

from actorproc.errors import CorruptObject
from actorproc.log.hints import HintWriter
from actorproc.log.offsets import newest_file, running_time
from actorproc.log.segment import SegmentFooter
from actorproc.retention.boundary import read_boundary
from actorproc.runtime.tasks import first_cause
from actorproc.storage.names import log_boundary, log_file
from actorproc.storage.parquet import footer_of
from actorproc.storage.store import Conflict, Store


class LogEnd(NamedTuple):
    """Where a partition ends: `base` of the next file, and the greatest timestamp below it, in microseconds since 1970."""

    base: int
    running: int


async def ending(log: Store, partition: str, hint: int) -> LogEnd:
    """Where the partition ends now. `hint` as in `last_base`."""
    found = await newest_file(log, partition, hint)
    if found is None:
        return LogEnd(0, 0)
    # Both of the same file: what another appends meanwhile is no part of the running time, so it must not be covered either.
    newest, end = found
    return LogEnd(end, await running_time(log, partition, newest))


async def land(
    log: Store, heads: HintWriter, partition: str, base: int, put_id: str, body: bytes, *, doubt: str
) -> bool:
    """Put a file with the notes' `put_id` at `base`. True: it is there, whoever wrote it; False: the base is another's for good.

    Args:
        doubt: what to do where nobody can tell whether it was there before.

    Raises:
        StoreUnavailable: not settled; the base may not be left.
        CorruptObject: what is there cannot be read, or is deleted while it is looked at; or the log was trimmed beyond
            the base since it was written down, so that the file may have been read, and what is there be void.
    """
    key = log_file(partition, base)
    await heads.begin()
    known: int | None = None
    try:
        try:
            await log.create(key, body)
        except Conflict as conflict:
            if conflict.stored is None:
                raise CorruptObject(
                    key, "was refused and is gone: files of a log are deleted while it is appended to"
                ) from None
            ours = SegmentFooter.from_footer(key, footer_of(key, conflict.stored.body)).put_id == put_id
        else:
            ours = True
        known = base  # if it is another's, too: he may have died before giving a hint
        lowest = (await read_boundary(log, log_boundary(partition))).lowest
        if base < lowest:
            raise CorruptObject(
                key,
                f"is where unfinished work was to append, and the log was trimmed below {lowest} since then: whether its "
                f"records were appended before, nobody can tell. {doubt}",
            )
        return ours
    finally:
        heads.end(partition, known)


@asynccontextmanager
async def hinting(log: Store) -> AsyncIterator[HintWriter]:
    """While inside, readers of the log are told of what is appended. An error leaves the head open: they look themselves."""
    heads = HintWriter(log, log.clock)
    await heads.look_around()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(heads.run)
            yield heads
            tasks.cancel_scope.cancel()
    except ExceptionGroup as group:
        raise first_cause(group) from None
    await heads.close()
