"""Hints: each producer says where it has appended, so an idle log costs its readers one LIST per host and poll.

A hint is a small document in the folder `heads/`. The producer makes it `open` before its first append after a pause.
It stays open until it names everything that was appended. If an open hint no longer changes, the producer may have died
between an append and the hint. Then readers look for new segments themselves, at the ages `SWEEP_AGES`.

A busy producer rewrites its hint all the time, so readers would never look. So after an append whose outcome is
unknown, the producer writes a second hint, which stays open and unchanged.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Literal

import anyio

from actorproc.errors import CorruptObject, StoreError, StoreUnavailable
from actorproc.runtime.clock import Clock
from actorproc.runtime.logger import get_logger
from actorproc.runtime.nudge import News, Nudges, OnNews
from actorproc.storage.backend import Listing
from actorproc.storage.document import Document
from actorproc.storage.names import LOG_HINTS, is_log_hint
from actorproc.storage.store import Store

State = Literal["open", "idle", "closed"]

SWEEP_AGES = [30.0 * 2**k for k in range(7)]
"""Ages of an open hint, in seconds, at which readers look for segments.

A write can land up to 20 minutes after its producer sent it (S3 refuses requests that were signed earlier); the last
look is after 32 minutes.
"""

SWEEP_TIME = 30.0
"""Seconds over which one sweep is spread."""

logger = get_logger(__name__)


class Hint(Document, frozen=True):
    """The document. `newest`: partition -> base of the newest segment that the producer knows of."""

    producer: str
    state: State
    newest: Mapping[str, int] = {}
    address: str | None = None
    """Where the producer takes the addresses of readers that want its news."""


async def list_hints(store: Store) -> Listing:
    """The hints in the log."""
    listing = await store.list(LOG_HINTS)
    return replace(listing, entries=[entry for entry in listing.entries if is_log_hint(entry.key)])


async def read_hint(store: Store, key: str) -> Hint | None:
    """The hint, or None if it is gone or corrupt."""
    stored = await store.get(key)
    try:
        return Hint.from_json(key, stored.body) if stored else None
    except CorruptObject as error:
        logger.warning("log.hint_corrupt", key=key, error=str(error))
        return None


@dataclass(slots=True)
class _Waiter:
    """A reader at the end of its partition, which has read all segments below `base`."""

    base: int
    event: anyio.Event = field(default_factory=anyio.Event)
    woken: bool = False


class HintWatch:
    """Wakes the readers of one log: when its hints say so, or its producers. However many wait, one polls for all.

    Any of the waiting readers polls, and another one takes over when it leaves. So there is no task to start and stop,
    and no request while nobody waits.

    Args:
        nudges: makes a listener that calls back with each partition that has news. Asked once a reader waits.
    """

    def __init__(self, store: Store, clock: Clock, poll_interval: float, nudges: Callable[[OnNews], Nudges]) -> None:
        self.newest: dict[str, int] = {}
        """Partition -> base of the newest segment, according to the hints."""
        self._store = store
        self._clock = clock
        self._interval = poll_interval
        self._tags: dict[str, str] = {}  # of the hints that were read
        self._sweeps: dict[str, int] = {}  # of the open ones: how many of `SWEEP_AGES` they had passed at the last poll
        self._waiting: dict[str, list[_Waiter]] = {}
        self._sweep: deque[str] = deque()
        self._sweep_share = 0  # partitions to wake at each poll
        self._polling = False
        self._polled_at = -math.inf
        self._lock = anyio.Lock()
        self._news = News()
        self._make_nudges = nudges
        self._nudges: Nudges | None = None
        self._writers: dict[str, str] = {}  # addresses by hint

    async def close(self) -> None:
        """Listen for no news any more."""
        nudges, self._nudges = self._nudges, None
        if nudges is not None:
            await nudges.close()

    async def wait(self, partition: str, base: int) -> None:
        """Wait until there may be a segment at `base` or later: a hint names one, or it is time to look."""
        if self.newest.get(partition, -1) >= base:
            return
        if self._nudges is None:
            self._nudges = self._make_nudges(self._told)
            await self._nudges.open(lambda: None)
        if self._news.take(partition, base):
            return
        waiter = _Waiter(base)
        self._waiting.setdefault(partition, []).append(waiter)
        try:
            while not waiter.woken:
                if self._polling:
                    await waiter.event.wait()
                    waiter.event = anyio.Event()
                else:
                    await self._poll_when_due(waiter)
        finally:
            waiters = self._waiting[partition]
            waiters.remove(waiter)
            if not waiters:
                del self._waiting[partition]
            if not self._polling and self._waiting:  # another reader polls from now on
                next(iter(self._waiting.values()))[0].event.set()

    async def refresh(self) -> None:
        """Read the hints, unless they were read within the poll interval."""
        async with self._lock:
            if self._clock.monotonic() - self._polled_at > self._interval:
                await self._poll()

    async def _poll_when_due(self, waiter: _Waiter) -> None:
        """Poll, unless the reader that polls is woken before it is time."""
        self._polling = True
        waiter.event = anyio.Event()
        try:
            due = self._polled_at + self._clock.jitter(self._interval)
            with anyio.move_on_after(max(0.0, due - self._clock.monotonic())):
                await waiter.event.wait()
                return
            async with self._lock:
                await self._poll()
        except StoreUnavailable as error:  # the store has retried already; readers wait until it is back
            logger.warning("log.poll_failed", log=self._store.url, error=str(error))
        finally:
            self._polling = False

    async def _poll(self) -> None:
        self._polled_at = self._clock.monotonic()
        listing = await list_hints(self._store)
        changed = {entry.key: entry.tag for entry in listing.entries if self._tags.get(entry.key) != entry.tag}
        async with anyio.create_task_group() as tasks:
            for key, tag in changed.items():
                tasks.start_soon(self._read, key, tag)
        ages = {entry.key: listing.now - entry.modified for entry in listing.entries}
        for key in self._tags.keys() - ages.keys():
            del self._tags[key]
            self._sweeps.pop(key, None)
            self._writers.pop(key, None)
        if self._nudges is not None:
            for address in self._writers.values():
                self._nudges.follow(address)
        self._plan_sweep(ages, changed=changed.keys())
        for _ in range(min(self._sweep_share, len(self._sweep))):
            self._wake(self._sweep.popleft())

    async def _read(self, key: str, tag: str) -> None:
        try:
            hint = await read_hint(self._store, key)
        except StoreError as error:  # the next poll reads it
            logger.warning("log.hint_not_read", key=key, error=str(error))
            return
        self._tags[key] = tag  # if the hint is newer than the listing, the next poll reads it again
        self._sweeps.pop(key, None)
        if hint is None or hint.state == "open":  # a corrupt one counts as open
            self._sweeps[key] = 0
        if hint is not None and hint.address and hint.state != "closed":
            self._writers[key] = hint.address
        else:
            self._writers.pop(key, None)
        for partition, base in hint.newest.items() if hint else ():
            if base > self.newest.get(partition, -1):
                self.newest[partition] = base
                self._wake(partition, base)

    def _plan_sweep(self, ages: Mapping[str, float], changed: Set[str]) -> None:
        due = False
        for key, before in self._sweeps.items():
            passed = bisect_right(SWEEP_AGES, ages[key])
            due = due or (passed > before and key not in changed)
            self._sweeps[key] = passed
        if due:
            self._sweep = deque(self._waiting)
            self._sweep_share = math.ceil(len(self._sweep) * self._interval / SWEEP_TIME)

    def _told(self, partition: str, base: int) -> None:
        if partition in self._waiting:
            self._wake(partition, base)
        else:  # its reader is about to wait, perhaps
            self._news.add(partition, base)

    def _wake(self, partition: str, newest: float = math.inf) -> None:
        for waiter in self._waiting.get(partition, ()):
            if newest >= waiter.base:
                waiter.woken = True
                waiter.event.set()
