"""Writes the hint of a producer, as `actorproc.log.hints` describes it, and deletes old ones of others."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Self

import anyio

from actorproc.errors import StoreError
from actorproc.log.hints import SWEEP_AGES, Hint, State, list_hints, read_hint
from actorproc.runtime.clock import Clock
from actorproc.runtime.logger import get_logger
from actorproc.runtime.nudge import Nudges
from actorproc.runtime.tasks import first_cause
from actorproc.storage.names import log_hint
from actorproc.storage.store import Conflict, Store

HINT_INTERVAL = 1.0
"""Minimum seconds between two writes of a producer's hint."""

IDLE_AFTER = 10.0
"""Seconds without an append after which a hint becomes idle. Less than the first of `SWEEP_AGES`."""

FORGET_AFTER = 86_400.0
"""Age in seconds at which a hint that was not closed is deleted, by the next producer that starts."""

_AGING_INTERVAL = 2 * SWEEP_AGES[0]  # minimum seconds between two writes of the second hint; readers look in between

_RENEW_NAME = FORGET_AFTER / 2  # after such a silence a producer takes a new name, as its old hint may be deleted

logger = get_logger(__name__)


@dataclass(slots=True)
class _OwnHint:
    """A hint that we write. `tag`: of the version that we wrote last."""

    name: str
    tag: str | None = None
    written_at: float = -math.inf


class HintWriter:
    """Writes the hint of one producer."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.nudges = Nudges()
        """Tell the log's readers of each append. By default none."""
        self.newest: dict[str, int] = {}
        """Partition -> base of the newest segment known, at first from the hints of other producers."""
        self._store = store
        self._clock = clock
        self._state: State | None = "idle"  # None: a write of another state is under way, or its outcome is unknown
        self._own = _OwnHint(clock.nonce())
        self._aging = _OwnHint(clock.nonce())  # the second hint, which is left unchanged
        self._aging_tried_at = -math.inf
        self._lock = anyio.Lock()
        self._appending = 0
        self._appended_at = -math.inf
        # Partitions with an append whose outcome is unknown. Our hint stays open until the second hint covers them.
        self._unsettled: set[str] = set()
        self._dirty = False
        self._changed = anyio.Event()
        self._removable: list[str] = []

    @property
    def producer(self) -> str:
        return self._own.name

    @classmethod
    @asynccontextmanager
    async def running(cls, log: Store) -> AsyncIterator[Self]:
        """Write hints as long as the block runs. After an error the hint stays open, so that readers look."""
        writer = cls(log, log.clock)
        await writer.read_others()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(writer.run)
                yield writer
                tasks.cancel_scope.cancel()
        except ExceptionGroup as group:
            raise first_cause(group) from None
        await writer.close()

    async def read_others(self) -> None:
        """Learn the newest segments from the hints of other producers, and find hints to delete."""
        listing = await list_hints(self._store)
        async with anyio.create_task_group() as tasks:
            for entry in listing.entries:
                tasks.start_soon(self._read_other, entry.key, listing.now - entry.modified > FORGET_AFTER)

    async def _read_other(self, key: str, old: bool) -> None:
        try:
            hint = await read_hint(self._store, key)
        except StoreError as error:
            logger.warning("log.hint_not_read", key=key, error=str(error))
            return
        if hint is None:
            return
        for partition, base in hint.newest.items():
            self.newest[partition] = max(base, self.newest.get(partition, 0))
        if old or hint.state == "closed":
            self._removable.append(key)

    async def begin(self) -> None:
        """Call this before an append. On return the stored hint is open.

        Raises:
            StoreUnavailable, StoreRefused: it is not open; do not append.
        """
        self._appending += 1  # from here on `run` keeps the hint open
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
        """Call this after an append. `base`: of the new segment; None if the outcome of the append is unknown."""
        self._appending -= 1
        self._appended_at = self._clock.monotonic()
        if base is None:
            self._unsettled.add(partition)
        else:
            self._unsettled.discard(partition)
            self.newest[partition] = base
            self._dirty = True
            self.nudges.tell(partition, base)
        self._changed.set()

    async def run(self) -> None:
        """Write the hint while there are appends, and make it idle after a pause."""
        await self._changed.wait()
        await self._delete_old()
        while True:
            await self._changed.wait()
            self._changed = anyio.Event()
            while self._state in ("open", None):
                now = self._clock.monotonic()
                idle_at = math.inf if self._appending or self._unsettled else self._appended_at + IDLE_AFTER
                aging_at = self._aging_tried_at + _AGING_INTERVAL if self._unsettled else math.inf
                if now >= aging_at:
                    await self._write_aging_hint()
                elif now >= idle_at:
                    await self._hint("idle")
                elif self._dirty:
                    await self._hint("open")
                else:
                    with anyio.move_on_after(min(idle_at, aging_at) - now):
                        await self._changed.wait()
                    self._changed = anyio.Event()
                    continue
                await self._clock.sleep(HINT_INTERVAL)

    async def close(self) -> None:
        """Close the hint. It stays open if the outcome of an append is unknown, so that readers look."""
        if self._own.tag is not None and not self._unsettled:
            await self._hint("closed")

    async def _hint(self, state: State) -> None:
        try:
            async with self._lock:
                if state == "open" or self._appending == 0:
                    await self._write(state)
        except StoreError as error:
            logger.warning("log.hint_failed", producer=self.producer, error=str(error))

    async def _write_aging_hint(self) -> None:
        """Write the second hint, which stays open and ages.

        One write covers all partitions, because readers look for longer than a write can be in flight.
        """
        covered, self._aging_tried_at = set(self._unsettled), self._clock.monotonic()
        try:
            await self._put(self._aging, "open", {})
        except StoreError as error:
            logger.warning("log.hint_failed", producer=self.producer, error=str(error))
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

    async def _put(self, own: _OwnHint, state: State, newest: Mapping[str, int]) -> None:
        """Compare-and-swap: an earlier write that arrives late cannot overwrite a later one, and so hide an append."""
        if own.tag is not None and self._clock.monotonic() - own.written_at > _RENEW_NAME:
            own.name, own.tag = self._clock.nonce(), None
        hint = Hint(
            put_id=self._clock.nonce(), producer=own.name, state=state, newest=newest, address=self.nudges.address
        )
        key, body = log_hint(own.name), hint.to_json()
        while True:
            try:
                own.tag = await self._store.write(key, body, own.tag)
                break
            except Conflict as conflict:  # an earlier write of ours arrived late, or the hint was deleted
                own.tag = conflict.stored.tag if conflict.stored else None
        own.written_at = self._clock.monotonic()

    async def _delete_old(self) -> None:
        """Delete old hints of others. Ours names their segments now."""
        try:
            for key in self._removable:
                await self._store.delete(key)
        except StoreError as error:
            logger.debug("log.hints_not_deleted", error=str(error))
