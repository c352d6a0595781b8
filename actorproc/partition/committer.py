"""Commits rows, dead letters, keyed state and position of a partition in one step. Until then it keeps them in memory.

The commit protocol: docs/protocol.md. Its conditional writes make two owners at once harmless.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from actorproc.counts import Counts
from actorproc.errors import Fenced, HandlerError, StoreUnavailable
from actorproc.handler.keyed_state import TIMERS
from actorproc.handler.state_kinds import wakes
from actorproc.output.attachments import Attachment
from actorproc.output.chain import Commit, OutputChain, encode_commit
from actorproc.output.checkpoint import WITH_END, WITH_STATE, Checkpoint, CheckpointKeeper, Reset
from actorproc.partition.claim import claim
from actorproc.partition.commit_due import CommitDue
from actorproc.partition.dead_letter_summary import summarize
from actorproc.partition.hook_queue import PartitionHooks
from actorproc.partition.host_context import HostContext
from actorproc.partition.queue_reader import Acknowledgements
from actorproc.partition.results import Results
from actorproc.partition.statistics import PartitionStatistics
from actorproc.partition.time_spent import TimeSpent
from actorproc.partition.timers import Timers
from actorproc.records import Batch, Cursor
from actorproc.runtime.logger import LogThrottle
from actorproc.sinks.set_of_deliveries import Deliveries
from actorproc.state.partition_state import PartitionState
from actorproc.state.sweeping import StateSweeper
from actorproc.storage.names import STATE
from actorproc.storage.parquet import encoding_cost

_CLOCK_LEAD_MAX = 86_400.0  # seconds ahead of another host's clock

CHECKPOINT_EVERY = 16
"""Commits after which the checkpoint is written: the next owner has to walk that many at most."""


class Committer:
    """One partition under one epoch, from its claim on.

    Args:
        acknowledgements: tell the source what is committed.
        log: a structlog logger that names the partition.
        hooks: of the application, told about each commit that was made. They must not wait.
        deliveries: to sinks: they get the rows of each commit.
        committed: called after each commit, as `PartitionHandler.committed` is.
        oldest: see `Commit.oldest`.
    """

    def __init__(
        self,
        context: HostContext,
        statistics: PartitionStatistics,
        acknowledgements: Acknowledgements,
        *,
        time: TimeSpent,
        log: Any,
        hooks: PartitionHooks,
        deliveries: Deliveries,
        committed: Callable[[int, int, Exception | None], Awaitable[None]],
        oldest: Callable[[], float | None],
    ) -> None:
        store, layout, settings, clock = context.store, context.layout, context.settings, context.clock
        self._statistics = statistics
        self._host = context.host
        self._schema = context.schema
        self._settings, self._clock = settings, clock
        self._time_spent = time
        self._dead_letter_summary = context.dead_letter_summary
        self._logger = log
        self._acknowledgements = acknowledgements
        self._hooks = hooks
        self._deliveries = deliveries
        self._nudges = context.nudges
        self._call_committed = committed
        self._oldest = oldest
        self._sets_timers = wakes(context.handler)
        self._chain = OutputChain(store, layout, statistics.partition)
        self._store_time = store.time
        self._keeper = CheckpointKeeper(store, layout, statistics.partition, host=context.host, epoch=statistics.epoch)
        self.state = PartitionState(store, layout, statistics.partition, settings.state_bytes)
        self._sweeper = StateSweeper(store, layout, statistics.partition)
        self._number = 0
        self._totals = Counts()
        self._time = 0.0  # of the latest commit; no later commit gets an earlier time
        self._waiting = Results()  # of processed records; `PartitionState` has their changes of state
        self._due = CommitDue(settings, clock, context.held, acknowledgements)
        self._counted = -1  # sequence up to which records are counted
        self._ahead = LogThrottle()
        self.settled = True
        """False once a commit was cut short: only a new start can find out whether it was made."""
        self.timers: Timers | None = None
        """Of a handler that sets timers, once the partition is open."""
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
        found = await claim(self._keeper, self._chain, self.state, first)
        end, self._time = found.end, found.time
        self._number, self.cursor, self._totals = end.number, end.cursor, end.totals
        self.resets, self.ended = end.resets, end.ended
        await check(self.cursor)
        self.committed = self.cursor
        self._deliveries.begin(end.number, self._keeper.current.depth, end.totals.rows)
        self._counted = self.cursor.sequence
        self._acknowledgements.begin(self.cursor.sequence, found.identities, self._check_is_last)
        if self._sets_timers:
            held, latest = self.state.held(TIMERS), self.state.stream_time
            self.timers = Timers(held, latest, self._settings, self._clock, self.now)
        statistics = self._statistics
        statistics.cursor = statistics.committed = self.cursor
        statistics.totals = end.totals
        if found.last_commit is not None:
            statistics.last_commit = _utc(found.last_commit)
        if self._keeper.cut_off:
            self._logger.warning(
                "partition.batch_cut_off", upto=self.cursor.sequence,
                why="at-most-once delivery: the former owner ended in the batch up to there, and its rows may be lost",
            )  # fmt: skip
        self._logger.info("partition.opened", position=self.cursor.position, next_output=self._number)

    async def _check_is_last(self) -> None:
        """Raises Fenced: another owner has claimed the checkpoint, or committed, since this one walked the chain."""
        await self._keeper.check()
        if await self._chain.read(self._number) is not None:
            raise Fenced(f"another owner has made commit {self._number} meanwhile")

    @property
    def has_all_committed(self) -> bool:
        """Whether everything that is processed is committed."""
        return self.committed.sequence == self.cursor.sequence

    def check_all_committed(self) -> None:
        """Raises HandlerError: the end is processed, but the handler, which alone commits, has left records."""
        if not self._settings.auto_commit and not self.has_all_committed:
            raise HandlerError(
                f"the end is processed, but the handler has not committed the records after "
                f"{self.committed.sequence}: with auto_commit off, call ctx.commit() at the end of each batch"
            )

    def clear(self) -> None:
        """Drop the results that wait for a commit: they are committed, or never will be."""
        self._waiting = Results()
        self._due.clear()

    # Processed

    def add(self, batch: Batch, upto: int, cursor: Cursor, results: Results, begun: float) -> None:
        """Add the results of the records of `batch` up to sequence `upto`. They wait for a commit.

        Args:
            begun: when the handler got the batch, on the clock's `monotonic`: its rows have waited since then.

        Raises:
            HandlerError: the keyed state would be too large; nothing was added.
        """
        changed = self.state.add(results.changes) if results.changes else 0  # may refuse, and then nothing counts
        records = batch.count_upto(upto) - batch.count_upto(self._counted)
        self._counted = max(self._counted, upto)
        self._statistics.counts += Counts(records)
        self._waiting.add(results, records, changed)
        self._due.added(results.row_bytes + changed + results.letter_bytes, begun, has_results=self._has_results)
        if self.timers is not None:
            self.timers.changed(results.changes)
            self._pass_time(self.timers, batch[: batch.count_upto(upto)])
        self.move(cursor)

    @property
    def _has_results(self) -> bool:
        """Whether a commit needs a file. Without results it only moves the checkpoint."""
        return bool(self._waiting.rows or self._waiting.letters or self.state.pending)

    def _pass_time(self, timers: Timers, processed: Batch) -> None:
        """Stream time goes on with these records, and is committed with them."""
        if not len(processed):
            return
        too_far = timers.passed(processed)
        self.state.stream_time = timers.latest
        if too_far is not None and self._ahead.due("", self._clock.monotonic()):
            self._logger.warning(
                "partition.timestamp_ahead", upto=processed.last, ahead=round(too_far - self.now()),
                why="it is further ahead than max_timestamp_ahead allows, so stream time and timers pass over it",
            )  # fmt: skip

    def move(self, cursor: Cursor) -> None:
        """Note that everything up to `cursor` is processed."""
        cursor = max(cursor, self.cursor, key=lambda c: c.sequence)  # with at-most-once delivery it is ahead already
        if cursor != self.committed:
            self._due.moved()
        self.cursor = self._statistics.cursor = cursor

    def due_at(self) -> float | None:
        """When the next commit is due, on the clock's `monotonic`. None: nothing waits, or the handler commits."""
        return self._due.at(self._waiting)

    async def commit_if_due(self) -> None:
        """Commit if enough rows wait, here or on this host, or if they have waited long enough.

        Raises:
            HandlerError: too much waits on this host, but only the handler may commit (`auto_commit` is off).
            Fenced, StoreUnavailable: as of `commit`.
        """
        if self._due.is_now(self._waiting, self.cursor.sequence):
            await self.commit()

    # Committing

    async def commit(self) -> None:
        """Make output, dead letters, state and position durable in one step.

        Raises:
            Fenced: another host runs this partition. Nothing is committed.
            StoreUnavailable: the outcome is unknown; only a new start can find it out.
        """
        upto, rows = self.cursor.sequence, self._waiting.rows
        is_empty = not self._has_results and self.cursor == self.committed
        try:
            await self._commit()
        except Exception as error:
            await self._call_committed(upto, rows, error)
            raise
        await self._acknowledgements.committed(self.committed.sequence)
        if not is_empty:
            self._hooks.committed(rows)
            await self._call_committed(upto, rows, None)
        if self._number - self._keeper.current.number >= CHECKPOINT_EVERY:
            await self.checkpoint()

    async def _commit(self) -> None:
        waiting, statistics = self._waiting, self._statistics
        totals = self._totals + waiting.counts
        with self._settling():
            if self._has_results:
                await self._write(waiting, totals)
            elif self.cursor != self.committed:
                await self._advance(self.cursor, totals)
                statistics.last_commit = _utc(self._time)
        statistics.counts += Counts(skipped=waiting.skipped)
        self._totals = statistics.totals = totals
        self.clear()
        self.committed = statistics.committed = self.cursor

    async def fence(self) -> None:
        """Commit an empty file, after which no earlier owner can commit.

        Raises:
            Fenced: another host has committed since the chain was walked.
        """
        with self._settling():
            await self._write(Results(), self._totals)

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
                await self._write(Results(), self._totals, ended=True, vanished=vanished)
            self.ended = True
            self.committed = self._statistics.committed = self.cursor
        await self.checkpoint()

    async def _write(self, results: Results, totals: Counts, *, ended: bool = False, vanished: bool = False) -> None:
        """Create the next file of the chain, with rows, dead letters, state and position, and publish the letters."""
        statistics = self._statistics
        letters = [letter for _, letter in sorted(results.letters.items())]
        time = self._next_time()
        delta = (
            await self._clock.run_cpu_work(results.row_bytes, self.state.delta, time) if self.state.pending else None
        )
        commit = Commit(
            put_id=self._clock.nonce(), host=self._host, epoch=statistics.epoch,
            first=self.committed, next=self.cursor, totals=totals, time=time,
            rows=results.rows, state_size=delta.size if delta else 0,
            format_version=WITH_END if ended else WITH_STATE if delta else 1,
            stream_time=self.state.stream_time, identities=self._acknowledgements.identities(self.cursor.sequence),
            ended=ended, vanished=vanished, oldest=self._oldest(),
        )  # fmt: skip
        lines = b"".join(letters)
        table = pa.concat_tables(results.tables) if results.tables else self._schema.empty_table()
        cost = encoding_cost(table) + len(lines)
        body, attached = await self._clock.run_cpu_work(cost, encode_commit, table, commit, lines)
        summary = await self._clock.run_cpu_work(results.letter_bytes, summarize, letters)
        if delta:
            attached = (*attached, Attachment(STATE, delta.body))
        await self._chain.create(self._number, commit.put_id, body, attached)
        self._nudges.tell(statistics.partition, self._number)
        if delta:
            self.state.committed(self._number, commit.put_id, delta)
        await self._chain.publish(self._number, lines)
        self.state.expire(time)
        self._deliveries.committed(self._number, table, commit.put_id, commit.first.sequence)
        self._number += 1
        statistics.commits += 1
        statistics.counts += Counts(rows=commit.rows, dead_letters=len(letters))
        statistics.last_commit = _utc(commit.time)
        self._dead_letter_summary.add(*summary)
        self._logger.debug("partition.committed", number=self._number - 1, rows=commit.rows, letters=len(letters))

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
            stream_time=self.state.stream_time, identities=self._acknowledgements.identities(cursor.sequence),
            ended=self.ended, resets=self.resets,
        )  # fmt: skip
        self.state.expire(time)
        await self._sweeper.sweep(self._keeper.current)

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
