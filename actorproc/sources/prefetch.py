"""Fetches the files of a log's partition: one by one, or several at once while a slow store has a backlog."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from itertools import islice

import anyio

from actorproc.runtime.clock import Clock
from actorproc.runtime.tasks import first_cause
from actorproc.storage.listing import numbered_files
from actorproc.storage.names import log_dir, log_file
from actorproc.storage.store import Store

_SLOW_GET = 0.004  # seconds
_CONCURRENT_FILES = 8
_LISTED_FILES = 200


class Prefetching:
    """Prefetched bytes of all partitions of a host, and how long a GET takes.

    Args:
        bytes_max: bytes that all partitions together may prefetch.
    """

    def __init__(self, store: Store, clock: Clock, bytes_max: int) -> None:
        self.store = store
        self.bytes_max = bytes_max
        self.bytes_held = 0  # including files that are being fetched
        self._clock = clock
        self._get_seconds = 0.0  # smoothed

    @property
    def is_slow(self) -> bool:
        """Whether GETs take so long that fetching several files at once pays."""
        return self._get_seconds >= _SLOW_GET

    async def get(self, partition: str, base: int, size: int = 0) -> bytes | None:
        began = self._clock.monotonic()
        stored = await self.store.get(log_file(partition, base), size=size)
        self._get_seconds += (self._clock.monotonic() - began - self._get_seconds) / 8
        return stored.body if stored else None


class FilePrefetcher:
    """The files of one partition, in order.

    Args:
        more_after: says whether there may be files after the one with this base. Without, a listing would be in vain.
    """

    def __init__(self, shared: Prefetching, partition: str, more_after: Callable[[int], Awaitable[bool]]) -> None:
        self._shared = shared
        self._more_after = more_after
        self._partition = partition
        self._listed: deque[tuple[int, int]] = deque()  # base and size
        self._bodies: dict[int, bytes] = {}
        self._sizes: dict[int, int] = {}  # of the files that count in `bytes_held`: all but the one that is asked for
        self._consecutive = 0  # files since the reader was at the end

    async def take(self, base: int) -> bytes | None:
        """The file at `base`, or None if it does not exist."""
        lags = base not in self._bodies and self._consecutive >= 2 and self._shared.is_slow
        if lags and await self._more_after(base):
            await self._fetch(base)
        body = self._bodies.pop(base, None)
        self._shared.bytes_held -= self._sizes.pop(base, 0)
        if body is None:
            body = await self._shared.get(self._partition, base)
        self._consecutive = self._consecutive + 1 if body is not None else 0
        return body

    def clear(self) -> None:
        """Drop the files that were fetched and not taken."""
        self._shared.bytes_held -= sum(self._sizes.values())
        self._sizes.clear()
        self._bodies.clear()

    async def _fetch(self, base: int) -> None:
        """Get the file at `base` and files after it."""
        shared = self._shared
        self.clear()
        while self._listed and self._listed[0][0] < base:
            self._listed.popleft()
        if len(self._listed) < 2:
            files = await numbered_files(shared.store, log_dir(self._partition), base, _LISTED_FILES)
            self._listed = deque((number, entry.size) for number, entry in files)
        try:
            async with anyio.create_task_group() as tasks:
                for file, size in islice(self._listed, _CONCURRENT_FILES):
                    if file != base:
                        if shared.bytes_held + size > shared.bytes_max:
                            break
                        self._sizes[file] = size  # before the fetch, so that other partitions see it
                        shared.bytes_held += size
                    tasks.start_soon(self._get, file, size)
        except ExceptionGroup as group:
            raise first_cause(group) from None

    async def _get(self, base: int, size: int) -> None:
        body = await self._shared.get(self._partition, base, size)
        if body is not None:
            self._bodies[base] = body
