"""Heads: each producer's hint of where it has written, so that an idle log costs its readers one LIST per host and poll.

A head is `open` before its producer's first append after a pause and until everything appended is in the hint. So a
head that stays open and does not change any more tells that its producer may have died between an append and the hint;
readers then look for themselves, a few times (`SWEEP_AGES`), and no record is stranded.

A head that is busy never ages. So a producer that goes on after an append of which nobody knows what became writes a
second head, which it then leaves alone: open, for readers to look by.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Literal, Self

import anyio

from actorproc.errors import CorruptObject, StoreError
from actorproc.runtime.clock import Clock
from actorproc.runtime.logger import get_logger
from actorproc.storage.document import document, to_document
from actorproc.storage.names import LOG_HEADS, is_log_head, log_head
from actorproc.storage.store import Conflict, Listing, Store

State = Literal["open", "idle", "closed"]

HINT_INTERVAL = 1.0
"""Seconds between two hints of a producer, at least."""

IDLE_AFTER = 10.0
"""Seconds without an append after which a producer says that it is idle. Less than the first of `SWEEP_AGES`."""

SWEEP_AGES = [30.0 * 2**k for k in range(7)]
"""Ages, in seconds, at which readers look for what an open head may hide. A late write can land up to 20 minutes after
its producer sent it (S3 refuses requests signed earlier); the last look is at 32."""

SWEEP_TIME = 30.0
"""Seconds over which one sweep is spread."""

FORGET_AFTER = 86_400.0
"""Seconds after which a head that was not closed is removed by a producer that starts."""

_DOUBT_INTERVAL = 2 * SWEEP_AGES[0]  # at least, between two writes of a head for doubts: readers look in between

_RENEW_NAME = FORGET_AFTER / 2  # a producer silent for so long takes a new head, so that none is removed under it

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Head:
    """`newest`: partition -> base of the newest file that this producer knows of."""

    producer: str
    state: State
    newest: Mapping[str, int] = field(default_factory=dict)
    put_id: str = ""

    def to_json(self) -> bytes:
        return to_document(asdict(self))

    @classmethod
    def from_json(cls, key: str, body: bytes) -> Self:
        with document(key, body, "head of a producer") as fields:
            newest = {str(partition): int(base) for partition, base in fields.pop("newest").items()}
            return cls(newest=newest, **fields)


@dataclass(slots=True)
class _Own:
    """A head that we write. `tag`: as we wrote it last."""

    name: str
    tag: str | None = None
    written_at: float = -math.inf


class HintWriter:
    """Keeps the head of one producer. `run` must be under way for hints to be written."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.newest: dict[str, int] = {}
        """Partition -> base of the newest file that is known; what others knew at the start is taken over."""
        self._store = store
        self._clock = clock
        self._state: State | None = "idle"  # None: one that is not `open` was sent and may be there or not
        self._own = _Own(clock.nonce())
        self._doubts = _Own(clock.nonce())  # the head that ages
        self._doubts_tried_at = -math.inf
        self._lock = anyio.Lock()
        self._appending = 0
        self._appended_at = -math.inf
        # Partitions on which an append ended without an answer. Until the head that ages covers them, our own stays open.
        self._unsettled: set[str] = set()
        self._dirty = False
        self._news = anyio.Event()
        self._removable: list[str] = []

    @property
    def producer(self) -> str:
        return self._own.name

    async def look_around(self) -> None:
        """Take over what other producers knew, and note whose heads can go."""
        listing = await list_hints(self._store)
        async with anyio.create_task_group() as tasks:
            for entry in listing.entries:
                tasks.start_soon(self._look_at, entry.key, listing.now - entry.modified > FORGET_AFTER)

    async def _look_at(self, key: str, old: bool) -> None:
        try:
            head = await read_hint(self._store, key)
        except StoreError as error:
            log.warning("log.head_not_read", key=key, error=str(error))
            return
        if head is None:
            return
        for partition, base in head.newest.items():
            self.newest[partition] = max(base, self.newest.get(partition, 0))
        if old or head.state == "closed":
            self._removable.append(key)

    async def begin(self) -> None:
        """Called before an append. On return the head is open, durably.

        Raises:
            StoreUnavailable, StoreRefused: it is not; do not append.
        """
        self._appending += 1  # from here on the head is not put to rest
        try:
            if not self._is_open():
                async with self._lock:
                    if not self._is_open():
                        await self._write("open")
        except BaseException:
            self._appending -= 1
            raise

    def _is_open(self) -> bool:
        return self._state == "open"

    def end(self, partition: str, base: int | None) -> None:
        """Called after an append: `base` of the new file, or None if nobody knows what became of it."""
        self._appending -= 1
        self._appended_at = self._clock.monotonic()
        if base is None:
            self._unsettled.add(partition)
        else:
            self._unsettled.discard(partition)
            self.newest[partition] = base
            self._dirty = True
        self._news.set()

    async def run(self) -> None:
        """Write hints while there are any, and say when it becomes quiet."""
        await self._news.wait()
        await self._clean()
        while True:
            await self._news.wait()
            self._news = anyio.Event()
            while self._state in ("open", None):
                now = self._clock.monotonic()
                idle_at = math.inf if self._appending or self._unsettled else self._appended_at + IDLE_AFTER
                doubt_at = self._doubts_tried_at + _DOUBT_INTERVAL if self._unsettled else math.inf
                if now >= doubt_at:
                    await self._leave_doubts()
                elif now >= idle_at:
                    await self._hint("idle")
                elif self._dirty:
                    await self._hint("open")
                else:
                    with anyio.move_on_after(min(idle_at, doubt_at) - now):
                        await self._news.wait()
                    self._news = anyio.Event()
                    continue
                await self._clock.sleep(HINT_INTERVAL)

    async def close(self) -> None:
        """Say that this producer is gone. With an append unsettled the head stays open: readers will look themselves."""
        if self._own.tag is not None and not self._unsettled:
            await self._hint("closed")

    async def _hint(self, state: State) -> None:
        try:
            async with self._lock:
                if state == "open" or self._appending == 0:
                    await self._write(state)
        except StoreError as error:
            log.warning("log.hint_failed", producer=self.producer, error=str(error))

    async def _leave_doubts(self) -> None:
        """Leave an open head to age. One is enough however many doubts there are: looking goes on for longer than a late write
        takes, by some minutes."""
        covered, self._doubts_tried_at = set(self._unsettled), self._clock.monotonic()
        try:
            await self._put(self._doubts, "open", {})
        except StoreError as error:
            log.warning("log.hint_failed", producer=self.producer, error=str(error))
        else:
            self._unsettled -= covered

    async def _write(self, state: State) -> None:
        self._dirty = False
        if state != "open":
            self._state = None
        try:
            await self._put(self._own, state, self.newest)
        except BaseException:
            self._dirty = True
            raise
        self._state = state

    async def _put(self, own: _Own, state: State, newest: Mapping[str, int]) -> None:
        """Compare-and-swap, so that a write that was thought lost cannot land on a later one and hide an append."""
        if own.tag is not None and self._clock.monotonic() - own.written_at > _RENEW_NAME:
            own.name, own.tag = self._clock.nonce(), None
        key, body = log_head(own.name), Head(own.name, state, newest, self._clock.nonce()).to_json()
        while True:
            try:
                own.tag = await self._store.write(key, body, own.tag)
                break
            except Conflict as conflict:  # an earlier write of ours has landed after all, or the head was removed
                own.tag = conflict.stored.tag if conflict.stored else None
        own.written_at = self._clock.monotonic()

    async def _clean(self) -> None:
        """Remove heads whose hints are in ours by now: they only make listings longer."""
        try:
            for key in self._removable:
                await self._store.delete(key)
        except StoreError as error:
            log.debug("log.heads_not_removed", error=str(error))


async def list_hints(store: Store) -> Listing:
    """The heads that are there."""
    listing = await store.list(LOG_HEADS)
    return replace(listing, entries=[entry for entry in listing.entries if is_log_head(entry.key)])


async def read_hint(store: Store, key: str) -> Head | None:
    stored = await store.get(key)
    try:
        return Head.from_json(key, stored.body) if stored else None
    except CorruptObject as error:
        log.warning("log.bad_head", key=key, error=str(error))
        return None
