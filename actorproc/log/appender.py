"""Appends to a partition of the built-in log: each file once, whatever becomes of replies and whoever else appends."""

from __future__ import annotations

import math
from typing import NamedTuple

import anyio
import pyarrow as pa
import pyarrow.compute as pc

from actorproc.errors import CorruptObject, StoreRefused, StoreUnavailable
from actorproc.log.offsets import newest_file, running_time
from actorproc.log.segment import SegmentFooter, encode_file
from actorproc.retention.boundary import RETENTION, read_boundary
from actorproc.runtime.backoff import Backoff
from actorproc.runtime.clock import Clock
from actorproc.runtime.logger import get_logger
from actorproc.storage.names import log_boundary, log_file
from actorproc.storage.parquet import encoding_cost, footer_of
from actorproc.storage.store import Conflict, Store, Stored

_RETRY = Backoff(0.2, 5.0)
_LOOK_AGAIN = 600.0  # seconds
_SURE = RETENTION / 2  # seconds for which what was the end of the log cannot have been trimmed

log = get_logger(__name__)


class _Moment(NamedTuple):
    """By both clocks of the machine: either may stand still while it sleeps, or be set."""

    monotonic: float
    wall: float


_NEVER = _Moment(-math.inf, -math.inf)


class _Untold(Exception):
    """Whether the records came into the log in time, nobody can tell, and no further try would."""


class Appender:
    """Appends to one partition, one file at a time. Several producers may append to the same partition.

    Args:
        hint: as in `last_base`.
    """

    def __init__(
        self, store: Store, partition: str, producer: str, *, compression: str, hint: int, clock: Clock
    ) -> None:
        self._store = store
        self._partition = partition
        self._producer = producer
        self._compression = compression
        self._hint = hint
        self._clock = clock
        self._base = 0  # of the next file, as far as we know: it was the end once
        self._running = 0  # greatest timestamp below it
        self._looked_at = _NEVER  # what lies at `_base` or beyond has come later

    async def append(self, table: pa.Table, give_up: float) -> int:
        """Append `table`, once, and return the sequence of its first record.

        Args:
            table: columns of `RECORD_SCHEMA`, at least one row, no timestamp null.
            give_up: when to stop trying, by the clock's `monotonic`.

        Raises:
            StoreUnavailable: not settled by then, or after what comes there was trimmed, or refused after a doubt; the
                records may be in the log, or come to be there yet.
            StoreRefused: the store said no; the records are not in the log.
            CorruptObject: another file in the way cannot be read.
        """
        began = self._now()
        newest = pc.max(table.column("timestamp")).cast(pa.int64()).as_py()
        body: bytes | None = None
        doubtful = False  # whether a try has ended without an answer
        why = "no answer"
        attempt = 0
        while True:
            try:
                # Cut off when time is up, or others would wait for as long as the store is tried.
                with anyio.fail_after(max(0.0, give_up - self._clock.monotonic())):
                    if body is None:  # and never later: a base that was tried is not left before it is settled
                        body = await self._prepare(table, newest)
                    base = await self._settle(body, table.num_rows, newest)
                break
            except StoreUnavailable as error:
                attempt, why = attempt + 1, str(error)
                doubtful = doubtful or body is not None
                delay = _RETRY.delay(attempt, self._clock.random)
            except StoreRefused as error:
                if not doubtful:
                    raise
                delay, why = math.inf, str(error)
            except TimeoutError:
                delay = math.inf
            except _Untold as untold:
                raise StoreUnavailable(f"{self._these(table)} were on their way for so long that {untold}") from None
            if self._clock.monotonic() + delay >= give_up:
                raise StoreUnavailable(f"{self._these(table)} are not confirmed; they may be in the log or not: {why}")
            log.warning("log.append_retry", partition=self._partition, attempt=attempt, error=why)
            await self._clock.sleep(delay)
        self._looked_at = began  # not later: our file may have come just then, and what follows it right after
        return base

    def _these(self, table: pa.Table) -> str:
        return f"{table.num_rows} records for partition {self._partition} of {self._store.url}"

    async def _prepare(self, table: pa.Table, newest: int) -> bytes:
        # After a pause files may have been deleted, so that a base we remember is free and yet not the end.
        if self._since(self._looked_at) > _LOOK_AGAIN:
            await self._locate()
        running = max(self._running, newest)
        notes = SegmentFooter(self._clock.nonce(), self._producer, newest, running, covers=self._base)
        return await self._clock.run_cpu_work(encoding_cost(table), encode_file, table, notes, self._compression)

    async def _check_not_trimmed(self, base: int) -> None:
        """After a long sleep, of the file at `base`: if the log was trimmed beyond that meanwhile, it is void, having come there
        after another's. Ours may have come in time, and been read. Nobody can tell."""
        if self._since(self._looked_at) <= _SURE:
            return
        try:
            boundary = await read_boundary(self._store, log_boundary(self._partition))
        except StoreRefused as error:
            raise _Untold(
                f"the log may have been trimmed beyond their place meanwhile; they may be in the log or not: {error}"
            ) from None
        if base < boundary.lowest:
            self._looked_at = _NEVER  # the end is somewhere else
            raise _Untold("the log was trimmed beyond their place meanwhile; they may be in the log or not")

    async def _settle(self, body: bytes, rows: int, newest: int) -> int:
        """Create the first base that is free. No base is left before it is known whose it is; the bytes stay the same."""
        lost = 0
        while True:
            base = self._base
            another: Conflict | None = None
            try:
                await self._store.create(log_file(self._partition, base), body)
            except Conflict as conflict:
                another = conflict
            await self._check_not_trimmed(base)
            if another is None:
                self._base, self._running = base + rows, max(self._running, newest)
                self._hint = base
                return base
            self._pass(base, another.stored)
            lost += 1
            if lost > 1:  # far behind: do not knock at every door
                await self._locate()

    def _pass(self, base: int, stored: Stored | None) -> None:
        """Somebody else's file is at `base`: go on after it."""
        key = log_file(self._partition, base)
        if stored is None:
            raise CorruptObject(key, "was refused and is gone: files of a log are deleted while it is appended to")
        footer = footer_of(key, stored.body)
        self._running = max(self._running, SegmentFooter.from_footer(key, footer).newest)
        self._base, self._hint = base + footer.rows, base

    async def _locate(self) -> None:
        """Find the end, and the greatest timestamp before it."""
        began = self._now()
        found = await newest_file(self._store, self._partition, self._hint)
        if found is not None:
            base, end = found
            if end > self._base:
                running = await running_time(self._store, self._partition, base)
                if self._since(began) > _SURE:  # what was read there may be void
                    await self._locate()
                    return
                self._base, self._hint, self._running = end, base, running
        self._looked_at = began

    def _now(self) -> _Moment:
        return _Moment(self._clock.monotonic(), self._clock.wall())

    def _since(self, moment: _Moment) -> float:
        """Seconds, by the clock that says more: a look too many does no harm."""
        now = self._now()
        return max(now.monotonic - moment.monotonic, now.wall - moment.wall)
