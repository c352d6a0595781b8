"""Appends batches to one partition, each once, although replies get lost and other producers append."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

import anyio
import pyarrow as pa

from actorproc.errors import StoreRefused, StoreUnavailable
from actorproc.log.positions import log_end
from actorproc.log.segment import SegmentFooter, create_segment, encode_seal, encode_segment, newest_timestamp
from actorproc.retention.boundary import RETENTION, read_boundary
from actorproc.runtime.backoff import Backoff
from actorproc.runtime.clock import LONG_AGO, Clock
from actorproc.runtime.logger import get_logger
from actorproc.storage.names import log_boundary
from actorproc.storage.parquet import encoding_cost
from actorproc.storage.store import Store

_RETRY = Backoff(0.2, 5.0)
_LOOK_AGAIN = 600.0  # seconds after which the end of the log is looked up again
_SURE = RETENTION / 2  # seconds for which no trim can delete the end of the log, after it was seen

logger = get_logger(__name__)


class PartitionEnded(Exception):
    """The partition has ended, because the log has grown. The records are not in it.

    Attributes:
        base: the place of the seal.
    """

    def __init__(self, base: int) -> None:
        self.base = base


class _Content(NamedTuple):
    """The content of an append. `newest`: its greatest timestamp. `encode` makes the file, once the end is known."""

    what: str
    rows: int
    newest: int
    encode: Callable[[], Awaitable[bytes]]


class _OutcomeUnknown(Exception):
    """It is unknown whether the records were appended, and another attempt could not find it out."""


class Appender:
    """Appends to one partition, one segment at a time. Several producers may append to the same partition.

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
        self._base = 0  # of the next segment: the end of the log when it was seen last
        self._running = 0  # greatest timestamp below it
        self._looked_at = LONG_AGO  # segments at or after `_base` were created later

    async def append(self, table: pa.Table, deadline: float) -> int:
        """Append the records of `table`, once, and return the sequence of the first one.

        Args:
            table: columns of `RECORD_SCHEMA`, at least one row, no timestamp null.
            deadline: when to stop trying, by the clock's `monotonic`.

        Raises:
            PartitionEnded: the partition has ended; the records are not in it.
            StoreUnavailable: the outcome is unknown. The records may be in the log, or appear there later.
            StoreRefused: the store refused; the records are not in the log.
            CorruptObject: a segment of another producer cannot be read.
        """
        newest = newest_timestamp(table)
        what = f"{table.num_rows} records"
        return await self._create(
            _Content(what, table.num_rows, newest, partial(self._encode, table, newest)), deadline
        )

    async def seal(self, deadline: float) -> int:
        """End the partition, unless it has ended. Returns the base of the seal. Raises as `append` does."""
        try:
            return await self._create(_Content("the end marks", 0, 0, self._encode_seal), deadline)
        except PartitionEnded as ended:
            return ended.base

    async def _create(self, content: _Content, deadline: float) -> int:
        began = self._clock.moment()
        body: bytes | None = None
        doubtful = False  # whether an earlier attempt may have created a segment
        why = "no answer"
        attempt = 0
        while True:
            try:
                # The time limit covers the retries of the store, too; later batches wait behind this one.
                with anyio.fail_after(max(0.0, deadline - self._clock.monotonic())):
                    if body is None:  # once: a base that was tried stays until its owner is known
                        # After a long pause segments may have been trimmed, so that `_base` is free although the log
                        # ends later.
                        if self._clock.since(self._looked_at) > _LOOK_AGAIN:
                            await self._locate()
                        body = await content.encode()
                    base = await self._settle(body, content.rows, content.newest)
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
            except _OutcomeUnknown as unknown:
                raise StoreUnavailable(f"{self._these(content)} were sent so long ago that {unknown}") from None
            if self._clock.monotonic() + delay >= deadline:
                raise StoreUnavailable(
                    f"{self._these(content)} are not confirmed; they may be in the log or not: {why}"
                )
            logger.warning("log.append_retry", partition=self._partition, attempt=attempt, error=why)
            await self._clock.sleep(delay)
        self._looked_at = began  # not later: segments may follow ours from the moment it was created
        return base

    def _these(self, content: _Content) -> str:
        return f"{content.what} for partition {self._partition} of {self._store.url}"

    async def _encode(self, table: pa.Table, newest: int) -> bytes:
        running = max(self._running, newest)
        footer = SegmentFooter(
            put_id=self._clock.nonce(), producer=self._producer, newest=newest, running=running, covers=self._base
        )
        return await self._clock.run_cpu_work(encoding_cost(table), encode_segment, table, footer, self._compression)

    async def _encode_seal(self) -> bytes:
        return encode_seal(self._clock.nonce(), self._producer, self._running, self._base)

    async def _check_not_trimmed(self, base: int) -> None:
        """Raise if the log was trimmed beyond `base` during a long sleep.

        The segment there is void then. Ours may have been created in time and read, so the outcome is unknown.
        """
        if self._clock.since(self._looked_at) <= _SURE:
            return
        try:
            boundary = await read_boundary(self._store, log_boundary(self._partition))
        except StoreRefused as error:
            raise _OutcomeUnknown(
                f"the log may have been trimmed beyond their place meanwhile; they may be in the log or not: {error}"
            ) from None
        if base < boundary.lowest:
            self._looked_at = LONG_AGO  # look up the end again
            raise _OutcomeUnknown("the log was trimmed beyond their place meanwhile; they may be in the log or not")

    async def _settle(self, body: bytes, rows: int, newest: int) -> int:
        """Create the segment at the first free base. Before it moves on from a base it knows whose segment is there."""
        lost = 0
        while True:
            base = self._base
            try:
                other = await create_segment(self._store, self._partition, base, body)
            finally:  # also after an error: a segment that is gone may have been trimmed
                await self._check_not_trimmed(base)
            self._hint = base
            if other is None:
                self._base, self._running = base + rows, max(self._running, newest)
                return base
            footer, self._base = other
            if footer.ended:
                raise PartitionEnded(base)
            self._running = max(self._running, footer.newest)
            lost += 1
            if lost > 1:  # far behind: do not try every base
                await self._locate()

    async def _locate(self) -> None:
        """Look up the end of the log."""
        began = self._clock.moment()
        end = await log_end(self._store, self._partition, self._hint)
        if end.base > self._base:
            if self._clock.since(began) > _SURE:  # the end that was seen may have been trimmed
                await self._locate()
                return
            self._base, self._running, self._hint = end
        self._looked_at = began
