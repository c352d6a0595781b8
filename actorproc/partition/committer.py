"""Commits rows, dead letters, keyed state and position of a partition in one step. Until then it keeps them in memory.

The commit protocol: docs/protocol.md. Its conditional writes make two owners at once harmless.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from actorproc.config.settings import Settings
from actorproc.counts import Counts
from actorproc.errors import Fenced, StoreUnavailable
from actorproc.output.attachments import Attachment
from actorproc.output.chain import ChainEnd, Commit, OutputChain, encode_commit
from actorproc.output.checkpoint import WITH_END, WITH_STATE, Checkpoint, CheckpointKeeper, Reset
from actorproc.partition.dead_letter_summary import DeadLetterSummary, summarize
from actorproc.partition.pending import Pending
from actorproc.partition.queue_reader import QueueReader
from actorproc.partition.statistics import PartitionStatistics
from actorproc.partition.time_spent import TimeSpent
from actorproc.partition.uncommitted import Uncommitted
from actorproc.records import Batch, Cursor
from actorproc.runtime.budget import BufferTotal
from actorproc.runtime.clock import Clock
from actorproc.state.partition_state import MissingState, PartitionState
from actorproc.state.sweeping import StateSweeper
from actorproc.storage.names import STATE, ProcessorLayout
from actorproc.storage.parquet import encoding_cost
from actorproc.storage.store import Store

_CLOCK_LEAD_MAX = 86_400.0  # seconds ahead of another host's clock

CHECKPOINT_EVERY = 16
"""Commits after which the checkpoint is written: the next owner has to walk that many at most."""


class Committer:
    """One partition under one epoch, from its claim on.

    Args:
        held: counts the bytes that wait for a commit, over all partitions of the host.
        log: a structlog logger that names the partition.
        queue: acknowledges what is committed, if the source is a queue.
    """

    def __init__(
        self,
        statistics: PartitionStatistics,
        *,
        host: str,
        schema: pa.Schema,
        store: Store,
        layout: ProcessorLayout,
        settings: Settings,
        clock: Clock,
        time: TimeSpent,
        held: BufferTotal,
        dead_letter_summary: DeadLetterSummary,
        log: Any,
        queue: QueueReader | None = None,
    ) -> None:
        self._statistics = statistics
        self._host = host
        self._schema = schema
        self._settings, self._clock = settings, clock
        self._time_spent = time
        self._dead_letter_summary = dead_letter_summary
        self._log = log
        self._queue = queue
        self._chain = OutputChain(store, layout, statistics.partition)
        self._store_time = store.time
        self._keeper = CheckpointKeeper(store, layout, statistics.partition, host=host, epoch=statistics.epoch)
        self.state = PartitionState(store, layout, statistics.partition, settings.state_bytes)
        self._sweeper = StateSweeper(store, layout, statistics.partition)
        self._number = 0
        self._totals = Counts()
        self._time = 0.0  # of the latest commit; no later commit gets an earlier time
        self._uncommitted = Uncommitted(settings, clock, held, queue)
        self._identities: tuple[str, ...] = ()  # that the walk has found
        self.settled = True
        """False once a commit was cut short: only a new start can find out whether it was made."""
        self.after_commit: Callable[[int, int, Exception | None], Awaitable[None]] = _ignore
        """Called after each commit, as `PartitionHandler.committed` is."""
        self.on_commit: Callable[[int], None] = _ignore_rows
        """Called after each commit that was made, with its rows. It must not wait."""
        self.on_processed: Callable[[Batch, int], None] = _ignore_records
        """Called with a batch of which the records up to a sequence are processed, before they are committed."""
        self.ended = False
        """The partition has ended: nothing may be committed any more."""
        self.resets: tuple[Reset, ...] = ()
        """The latest ones that the walk has found, oldest first."""
        self.cursor = Cursor("")
        """Processed up to here."""
        self.committed = Cursor("")

    async def open(
        self, first: Callable[[], Awaitable[Checkpoint]], check: Callable[[Cursor], Awaitable[None]]
    ) -> None:
        """Claim the checkpoint, and walk the chain of commits from there to its end.

        Args:
            first: asked for the first checkpoint, if there is none yet.
            check: raises an error if the source has no such position.

        Raises:
            Fenced: another host runs this partition.
            CorruptObject: commits are missing.
        """
        boundary = 0
        while True:
            checkpoint = await self._keeper.claim(first)
            self._chain.check_not_below(boundary, checkpoint.number)
            try:
                await self.state.load(checkpoint.state, checkpoint.stream_time)
                walked = await self._walk(checkpoint)
            except MissingState as missing:  # another owner has gone on and swept it, or somebody deleted it
                await self._keeper.check()
                raise missing.corrupt() from None
            boundary = await self._chain.boundary()
            if boundary <= checkpoint.number:
                break
            # The checkpoint was outdated: the walk may have met a file that was created too late, below the boundary.
        if walked and (gap := await self._chain.gap(self._number)) is not None:
            raise gap  # later commits exist: to fill the gap could repeat their rows
        self.state.restored(self._time)
        await check(self.cursor)
        self.committed = self.cursor
        self._uncommitted.counted = self.cursor.sequence
        if self._queue is not None:
            self._queue.begin(self.cursor.sequence, self._identities, self._check_is_last)
        self._statistics.cursor = self._statistics.committed = self.cursor
        if self._keeper.cut_off:
            self._log.warning(
                "partition.batch_cut_off", upto=self.cursor.sequence,
                why="at-most-once delivery: the former owner ended in the batch up to there, and its rows may be lost",
            )  # fmt: skip
        self._log.info("partition.opened", position=self.cursor.position, next_output=self._number)

    async def _walk(self, checkpoint: Checkpoint) -> bool:
        """Read the commits from the checkpoint to the end of the chain; False if the partition is new."""
        end, self._time, self._identities = ChainEnd.at(checkpoint), checkpoint.time, checkpoint.identities
        previous, new = Cursor(""), not checkpoint.time  # new: never moved, or an earlier checkpoint was deleted
        walked: dict[str, int] = {}
        walking = not new or await self._chain.begun()
        while walking and (commit := await self._chain.read(end.number)) is not None:
            if walked or commit.first.sequence < end.cursor.sequence:
                await self._chain.check_is_no_copy(end.number, commit, walked)
            self._chain.check_follows(end.number, commit, previous, None if new else end.cursor)
            previous = commit.next
            walked[commit.put_id] = end.number
            if commit.letters_size:
                await self._chain.publish(end.number, await self._chain.letters(end.number))
            await self.state.follow(end.number, commit)
            end = end.after(commit)
            self._time = max(self._time, commit.time)
            self._statistics.last_commit = _utc(commit.time)
            if end.cursor == commit.next:
                self._identities = commit.identities or self._identities
        self._number, self.cursor, self._totals = end.number, end.cursor, end.totals
        self.resets, self.ended, self._statistics.totals = end.resets, end.ended, end.totals
        return walking

    async def _check_is_last(self) -> None:
        """Raises Fenced: another owner has claimed the checkpoint, or committed, since this one walked the chain."""
        await self._keeper.check()
        if await self._chain.read(self._number) is not None:
            raise Fenced(f"another owner has made commit {self._number} meanwhile")

    @property
    def has_all_committed(self) -> bool:
        """Whether everything that is processed is committed."""
        return self.committed.sequence == self.cursor.sequence

    def clear(self) -> None:
        """Drop the results that wait for a commit."""
        self._uncommitted.clear()

    # Processed

    def add(self, batch: Batch, upto: int, cursor: Cursor, results: Pending, begun: float) -> None:
        """Add the results of the records of `batch` up to sequence `upto`. They wait for a commit.

        Args:
            begun: when the handler got the batch, on the clock's `monotonic`: its rows have waited since then.

        Raises:
            HandlerError: the keyed state would be too large; nothing was added.
        """
        changed = self.state.add(results.changes) if results.changes else 0  # may refuse, and then nothing counts
        self._statistics.counts += Counts(self._uncommitted.add(batch, upto, results, changed, begun))
        self.on_processed(batch, upto)
        self.move(cursor)

    def move(self, cursor: Cursor) -> None:
        """Note that everything up to `cursor` is processed."""
        cursor = max(cursor, self.cursor, key=lambda c: c.sequence)  # with at-most-once delivery it is ahead already
        if cursor != self.committed:
            self._uncommitted.moved()
        self.cursor = self._statistics.cursor = cursor

    def due_at(self) -> float | None:
        """When the next commit is due, on the clock's `monotonic`. None: nothing waits, or the handler commits."""
        return self._uncommitted.due_at()

    def is_due(self) -> bool:
        """Whether to commit now: enough rows wait, here or on this host, or they have waited long enough.

        Raises:
            HandlerError: too much waits on this host, but only the handler may commit (`auto_commit` is off).
        """
        return self._uncommitted.is_due(self.cursor.sequence)

    # Committing

    async def commit(self) -> None:
        """Make output, dead letters, state and position durable in one step.

        Raises:
            Fenced: another host runs this partition. Nothing is committed.
            StoreUnavailable: the outcome is unknown; only a new start can find it out.
        """
        upto, rows = self.cursor.sequence, self._uncommitted.new.rows
        is_empty = not self._uncommitted.has_results and self.cursor == self.committed
        try:
            await self._commit()
        except Exception as error:
            await self.after_commit(upto, rows, error)
            raise
        if self._queue is not None:
            await self._queue.committed(self.committed.sequence)
        if not is_empty:
            self.on_commit(rows)
            await self.after_commit(upto, rows, None)
        if self._number - self._keeper.current.number >= CHECKPOINT_EVERY:
            await self.checkpoint()

    async def _commit(self) -> None:
        waiting, statistics = self._uncommitted, self._statistics
        totals = self._totals + waiting.new
        with self._settling():
            if waiting.has_results:
                await self._write(waiting.results, totals)
            elif self.cursor != self.committed:
                await self._advance(self.cursor, totals)
                statistics.last_commit = _utc(self._time)
        statistics.counts += Counts(skipped=waiting.new.skipped)
        self._totals = statistics.totals = totals
        self.clear()
        self.committed = statistics.committed = self.cursor

    async def fence(self) -> None:
        """Commit an empty file, after which no earlier owner can commit.

        Raises:
            Fenced: another host has committed since the chain was walked.
        """
        with self._settling():
            await self._write(Pending(), self._totals)

    async def end(self, *, vanished: bool = False) -> None:
        """Commit an empty file that ends the partition, unless it has one, and say so in the checkpoint at once.

        Everything that is processed must be committed. A checkpoint alone would not do: an earlier owner could still
        create the next file. See tests/protocol/split_model.py.

        Args:
            vanished: the source has forgotten the partition, so that its rest is lost.

        Raises:
            Fenced: another host has committed since the chain was walked.
        """
        if not self.ended:
            with self._settling():
                await self._write(Pending(), self._totals, ended=True, vanished=vanished)
            self.ended = True
            self.committed = self._statistics.committed = self.cursor
        await self.checkpoint()

    async def _write(self, pending: Pending, totals: Counts, *, ended: bool = False, vanished: bool = False) -> None:
        """Create the next file of the chain, with rows, dead letters, state and position, and publish the letters."""
        statistics = self._statistics
        letters = [letter for _, letter in sorted(pending.letters.items())]
        time = self._next_time()
        size = self._uncommitted.row_bytes
        delta = await self._clock.run_cpu_work(size, self.state.delta, time) if self.state.pending else None
        commit = Commit(
            put_id=self._clock.nonce(), host=self._host, epoch=statistics.epoch,
            first=self.committed, next=self.cursor, totals=totals, time=time,
            rows=pending.rows, state_size=delta.size if delta else 0,
            format=WITH_END if ended else WITH_STATE if delta else 1,
            stream_time=self.state.stream_time, identities=self._identities_of(self.cursor),
            ended=ended, vanished=vanished,
        )  # fmt: skip
        lines = b"".join(letters)
        table = pa.concat_tables(pending.tables) if pending.tables else self._schema.empty_table()
        cost = encoding_cost(table) + len(lines)
        body, attached = await self._clock.run_cpu_work(cost, encode_commit, table, commit, lines)
        summary = await self._clock.run_cpu_work(self._uncommitted.letter_bytes, summarize, letters)
        if delta:
            attached = (*attached, Attachment(STATE, delta.body))
        await self._chain.create(self._number, commit.put_id, body, attached)
        if delta:
            self.state.committed(self._number, commit.put_id, delta)
        await self._chain.publish(self._number, lines)
        self.state.expire(time)
        self._number += 1
        statistics.commits += 1
        statistics.counts += Counts(rows=commit.rows, dead_letters=len(letters))
        statistics.last_commit = _utc(commit.time)
        self._dead_letter_summary.add(*summary)
        self._log.debug("partition.committed", number=self._number - 1, rows=commit.rows, letters=len(letters))

    async def go_ahead(self, cursor: Cursor) -> None:
        """For at-most-once delivery: records up to `cursor` count as processed before the handler sees them.

        Raises:
            Fenced: another host runs this partition.
        """
        with self._settling():
            await self._advance(cursor, self._totals, ahead=True)
        self.cursor = cursor

    async def _advance(self, cursor: Cursor, totals: Counts, *, ahead: bool = False) -> None:
        if self.state.unmerged >= CHECKPOINT_EVERY:
            await self._merge_state()
        time = self._next_time()
        await self._keeper.advance(
            self._number, cursor, totals, time, ahead=ahead, state=self.state.manifest,
            stream_time=self.state.stream_time, identities=self._identities_of(cursor),
            ended=self.ended, resets=self.resets,
        )  # fmt: skip
        self.state.expire(time)
        await self._sweeper.sweep(self._keeper.current)

    def _identities_of(self, cursor: Cursor) -> tuple[str, ...]:
        return () if self._queue is None else self._queue.identities(cursor.sequence)

    async def _merge_state(self) -> None:
        """Only for a checkpoint with a new number: a merged object below the stored number would be garbage."""
        if self._number > self._keeper.current.number:
            await self.state.merge(self._number)

    async def checkpoint(self) -> None:
        """Write the checkpoint, so that the next owner need not walk.

        Raises:
            Fenced: another host runs this partition.
        """
        stored = self._keeper.current
        if (stored.number, stored.cursor, stored.ended) != (self._number, self.committed, self.ended):
            with self._settling():
                await self._merge_state()
                await self._advance(self.committed, self._totals)

    @contextmanager
    def _settling(self) -> Iterator[None]:
        """Refuse to write after a write that was cut short: its file would look like another host's commit."""
        if not self.settled:
            raise StoreUnavailable("a commit was cut short, and only a new start can find out whether it was made")
        self.settled = False
        with self._time_spent.at("commit"):
            yield
        self.settled = True

    def now(self) -> float:
        """Seconds since 1970 by the store's clock, so that times to live and timers do not go by a host's."""
        return self._store_time.now()

    def _next_time(self) -> float:
        """The time, but never before that of an earlier commit, so that commits can be found by time.

        A time that is more than a day ahead came from a clock that was set wrong, and is not followed.
        """
        now = self.now()
        self._time = now if self._time - now > _CLOCK_LEAD_MAX else max(self._time, now)
        return self._time


def _utc(time: float) -> datetime:
    return datetime.fromtimestamp(time, UTC)


def _ignore_rows(rows: int) -> None:
    pass


def _ignore_records(batch: Batch, upto: int) -> None:
    pass


async def _ignore(upto: int, rows: int, error: Exception | None) -> None:
    pass
