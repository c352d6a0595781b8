"""Shows records of any source, without a processor: nothing is committed or registered."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing
from dataclasses import dataclass

import anyio

from actorproc.errors import UsageError
from actorproc.records import Record
from actorproc.sources.protocol import Source, Start, list_partitions, parse_start
from actorproc.sources.queue_protocol import QueueSource
from actorproc.storage.names import natural


@dataclass(frozen=True, slots=True)
class PeekStart:
    """Where to begin: at a start of sources, at a sequence, or with the last few records."""

    at: Start = "earliest"
    sequence: int | None = None
    last: int | None = None

    @classmethod
    def parse(cls, text: str) -> PeekStart:
        """From `earliest`, `latest`, a time, a sequence, or -N for the last N records.

        Raises:
            UsageError: it is none of these.
        """
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdecimal()):
            return cls(parse_start(text))
        if text.startswith("-"):
            if int(digits) == 0:
                raise UsageError("--from -0: write -1 or less, for the last records")
            return cls(last=int(digits))
        return cls(sequence=int(digits))


async def peek(
    source: Source, start: PeekStart, limit: int, show: Callable[[Record], None], partitions: Collection[str] = ()
) -> None:
    """Show up to `limit` records of each partition. At `latest`, wait for new ones, of all partitions at once.

    A source that cannot make a position from a sequence is read from its beginning (`Source.position_at`).

    Args:
        source: an open one.
        partitions: only these.

    Raises:
        UsageError: there is no such partition, or the source is a queue, which would deliver the messages to nobody
            else meanwhile.
    """
    if isinstance(source, QueueSource):
        raise UsageError(f"{source} is a queue: to look at messages would take them from its consumers")
    known = list(await list_partitions(source))
    if unknown := [name for name in partitions if name not in known]:
        raise UsageError(f"no partition {unknown[0]!r}; there are: {', '.join(sorted(known, key=natural))}")
    chosen = sorted(partitions or known, key=natural)
    if start.at != "latest":
        for name in chosen:
            async for record in _records(source, name, start, limit):
                show(record)
        return
    async with anyio.create_task_group() as tasks:
        for name in chosen:
            tasks.start_soon(_follow, source, name, start, limit, show)


async def _follow(source: Source, name: str, start: PeekStart, limit: int, show: Callable[[Record], None]) -> None:
    async for record in _records(source, name, start, limit):
        show(record)


async def _records(source: Source, name: str, start: PeekStart, limit: int) -> AsyncGenerator[Record, None]:
    position = await _position(source, name, start)
    async with aclosing(_read(source, name, position, follows=start.at == "latest")) as records:
        if start.last is not None:
            last = deque[Record](maxlen=start.last)
            async for record in records:
                last.append(record)
            for record in list(last)[:limit]:
                yield record
            return
        left = limit
        async for record in records:
            if start.sequence is None or record.sequence >= start.sequence:
                yield record
                left -= 1
                if not left:
                    return


async def _position(source: Source, name: str, start: PeekStart) -> str:
    """Where to begin to read. It may be an earlier place."""
    position = await source.start(name, start.at)
    newest = None if start.sequence is start.last is None else (await source.end(name)).sequence
    if newest is None:
        return position
    first = (source.sequence_before(name, position) or 0) + 1
    wanted = newest + 1 - start.last if start.last is not None else min(start.sequence or 0, newest)
    return position if wanted <= first else await source.position_at(name, wanted)


async def _read(source: Source, name: str, position: str, *, follows: bool) -> AsyncGenerator[Record, None]:
    """The records from a position on, up to the end unless it `follows`."""
    async with aclosing(source.read(name, position)) as chunks:
        async for chunk in chunks:
            for record in chunk.batch:
                yield record
            if chunk.ended or (not len(chunk.batch) and not follows):
                return
