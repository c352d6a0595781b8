"""What a partition has processed and not committed yet, and how it becomes durable: rows, dead letters and position in one step.

The commit protocol: docs/protocol.md. That two owners at once do no harm is the work of the conditional writes here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from actorproc.config.settings import Settings
from actorproc.errors import HandlerError, StoreUnavailable
from actorproc.output.chain import Commit, OutputChain, encode_commit
from actorproc.output.checkpoint import CheckpointKeeper, Totals
from actorproc.partition.dead_letter_summary import DeadLetterSummary, summed_up
from actorproc.partition.outcome import Outcome
from actorproc.records import Batch, Cursor
from actorproc.runtime.budget import BufferTotal
from actorproc.runtime.clock import Clock
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.parquet import encoding_cost
from actorproc.storage.store import Store

_BROKEN = 86_400.0  # seconds ahead of another host's clock

CHECKPOINT_EVERY = 16
"""Commits after which the checkpoint follows: how far the next owner has to walk at most."""


PartitionState = Literal["opening", "running", "draining", "drained", "closing", "released", "waiting"]
"""`drained`: all that is done is committed, and the source's `read` is still to end. `released`: drained and committed, about to be handed over. `waiting`: it failed, and is started again after a pause."""


@dataclass(slots=True)
class PartitionStatistics:
    """What a partition actor has done since it started here. Times: seconds since 1970 by this host's clock."""

    partition: str
    epoch: int
    state: PartitionState = "opening"
    cursor: Cursor = field(default_factory=lambda: Cursor(""))
    """Processed up to here; committed up to `committed`."""
    committed: Cursor = field(default_factory=lambda: Cursor(""))
    records: int = 0
    rows: int = 0
    dead_letters: int = 0
    skipped: int = 0
    commits: int = 0
    last_commit: float | None = None
    error: str | None = None


@dataclass(slots=True)
class _Pending:
    """What was processed and is not committed yet."""

    tables: list[pa.Table] = field(default_factory=list)
    letters: list[bytes] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)
    bytes: int = 0
    letter_bytes: int = 0
    since: float | None = None
    """When the batch of the oldest row or dead letter of it had begun."""

    def __bool__(self) -> bool:
        return bool(self.totals.rows or self.letters)


class Committer:
    """One partition under one epoch, from its claim on.

    Args:
        held: counts the bytes that wait for a commit, over all partitions of the host.
        log: a structlog logger that names the partition.
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
        held: BufferTotal,
        news: DeadLetterSummary,
        log: Any,
    ) -> None:
        self._statistics = statistics
        self._host = host
        self._schema = schema
        self._settings, self._clock = settings, clock
        self._held = held.share()
        self._news = news
        self._log = log
        self._chain = OutputChain(store, layout, statistics.partition)
        self._keeper = CheckpointKeeper(store, layout, statistics.partition, host=host, epoch=statistics.epoch)
        self._number = 0
        self._totals = Totals()
        self._time = 0.0  # no commit is made before
        self._pending = _Pending()
        self._counted = -1  # sequence up to which records are in the totals
        self._moved_at: float | None = None  # when the cursor left what is committed
        self.settled = True
        """False once a commit was cut short: whether it was made only a new start can tell."""
        self.cursor = Cursor("")
        """Processed up to here."""
        self.committed = Cursor("")

    async def open(self, start: Callable[[], Awaitable[str]]) -> None:
        """Claim the checkpoint, and walk the chain of commits from there to its end.

        Args:
            start: asked for the position to begin at, if there is no checkpoint yet.

        Raises:
            Fenced: another host runs this partition.
            CorruptObject: commits are missing.
        """
        checkpoint = await self._keeper.claim(start)
        self._number, self.cursor, self._totals = checkpoint.number, checkpoint.cursor, checkpoint.totals
        self._time = checkpoint.time
        previous, new = Cursor(""), not checkpoint.time  # never moved: perhaps another one was deleted
        walking = not new or await self._chain.begun()
        while walking and (commit := await self._next_commit()) is not None:
            self._chain.check_follows(self._number, commit, previous, None if new else self.cursor)
            previous = commit.next
            await self._chain.publish(self._number, commit)
            self._number += 1
            self._totals = commit.totals
            self._time = max(self._time, commit.time)
            self._statistics.last_commit = commit.time
            if commit.next.sequence >= self.cursor.sequence:
                self.cursor = commit.next
        self.committed = self.cursor
        self._counted = self.cursor.sequence
        self._statistics.cursor = self._statistics.committed = self.cursor
        self._log.info("partition.opened", position=self.cursor.position, next_output=self._number)

    async def _next_commit(self) -> Commit | None:
        """The one that the walk comes to. A gap must not be filled with rows that later commits have."""
        commit = await self._chain.read(self._number, letters=True)
        if commit is None and (gap := await self._chain.gap(self._number)) is not None:
            raise gap
        return commit

    def close(self) -> None:
        """Let go of what was not committed."""
        self._pending = _Pending()
        self._held.clear()

    # Processed

    def processed(self, batch: Batch, upto: int, cursor: Cursor, outcome: Outcome, begun: float) -> None:
        """Take over what came of the records of `batch` up to sequence `upto`; it waits for a commit.

        Args:
            begun: when the handler got the batch, on the clock's `monotonic`: so long its rows have waited.
        """
        records = len(batch.after(self._counted)) - len(batch.after(upto))
        self._counted = max(self._counted, upto)
        self._add(outcome, records, begun)
        self._statistics.records += records
        self.move(cursor)

    def move(self, cursor: Cursor) -> None:
        """Everything up to `cursor` is processed, and nothing came of what is new."""
        cursor = max(cursor, self.cursor, key=lambda c: c.sequence)  # at most once: it has gone ahead
        if cursor != self.committed:
            self._moved_at = self._moved_at or self._clock.monotonic()
        self.cursor = self._statistics.cursor = cursor

    def _add(self, outcome: Outcome, records: int, begun: float) -> None:
        pending = self._pending
        rows = sum(table.num_rows for table in outcome.tables)
        size, letter_size = sum(table.nbytes for table in outcome.tables), sum(map(len, outcome.letters.values()))
        pending.tables += outcome.tables
        pending.letters += [letter for _, letter in sorted(outcome.letters.items())]
        pending.totals += Totals(records, rows, len(outcome.letters), outcome.skipped)
        self._held.add(size + letter_size)
        pending.bytes += size
        pending.letter_bytes += letter_size
        if pending and pending.since is None:
            pending.since = begun

    # Due

    def due_at(self) -> float | None:
        """When the next commit is due; None while there is nothing to commit."""
        if not self._settings.auto_commit:
            return None
        if self._pending.since is not None:
            return self._pending.since + self._settings.commit_interval
        return None if self._moved_at is None else self._moved_at + self._settings.idle_commit_interval

    def is_due(self) -> bool:
        """Whether to commit now: enough has come together, here or on this host, or it has waited long enough.

        Raises:
            HandlerError: enough has come together on this host, but only the handler may commit (`auto_commit` is off).
        """
        pending, settings = self._pending, self._settings
        excessive = self._held.excessive()
        due = self.due_at()
        if due is None:
            if excessive and not settings.auto_commit:
                raise HandlerError(
                    f"{self._held.held} bytes of rows wait for ctx.commit() here, and on this host more than "
                    f"uncommitted_bytes = {self._held.tally.size} allows: commit more often, raise it, or turn auto_commit on"
                )
            return False
        full = (
            pending.totals.rows >= settings.commit_rows
            or pending.bytes >= settings.commit_bytes
            or pending.letter_bytes >= settings.commit_dead_letter_bytes
        )
        return full or excessive or self._clock.monotonic() >= due

    # Committing

    async def commit(self) -> None:
        """Make output, dead letters and position durable in one step.

        Raises:
            Fenced: another host runs this partition; nothing of it is committed.
            StoreUnavailable: not settled; only a new start can tell.
        """
        with self._settling():
            await self._commit()
        if self._number - self._keeper.current.number >= CHECKPOINT_EVERY:
            await self.checkpoint()

    async def _commit(self) -> None:
        pending, totals, statistics = self._pending, self._totals + self._pending.totals, self._statistics
        if pending:
            commit = Commit(
                put_id=self._clock.nonce(), host=self._host, epoch=statistics.epoch,
                first=self.committed, next=self.cursor, totals=totals, time=self._now(),
                rows=pending.totals.rows, letters=b"".join(pending.letters),
            )  # fmt: skip
            table = pa.concat_tables(pending.tables) if pending.tables else self._schema.empty_table()
            cost = encoding_cost(table) + len(commit.letters)
            body, letters = await self._clock.run_cpu_work(cost, encode_commit, table, commit)
            news = await self._clock.run_cpu_work(pending.letter_bytes, summed_up, pending.letters)
            await self._chain.create(self._number, commit.put_id, body, letters)
            await self._chain.publish(self._number, commit)
            self._number += 1
            statistics.commits += 1
            statistics.rows += commit.rows
            statistics.dead_letters += len(pending.letters)
            self._news.add(news)
            statistics.last_commit = commit.time
            self._log.debug(
                "partition.committed", number=self._number - 1, rows=commit.rows, letters=len(pending.letters)
            )
        elif self.cursor != self.committed:
            await self._keeper.advance(self._number, self.cursor, totals, self._now())
            statistics.last_commit = self._time
        statistics.skipped += pending.totals.skipped
        self._totals, self._pending, self._moved_at = totals, _Pending(), None
        self._held.clear()
        self.committed = statistics.committed = self.cursor

    async def go_ahead(self, cursor: Cursor) -> None:
        """At most once: records up to `cursor` count as processed before anybody sees them.

        Raises:
            Fenced: another host runs this partition.
        """
        with self._settling():
            await self._keeper.advance(self._number, cursor, self._totals, self._now(), ahead=True)
        self.cursor = cursor

    async def checkpoint(self) -> None:
        """Write how far is committed, so that the next owner need not walk.

        Raises:
            Fenced: another host runs this partition.
        """
        if (self._keeper.current.number, self._keeper.current.cursor) != (self._number, self.committed):
            with self._settling():
                await self._keeper.advance(self._number, self.committed, self._totals, self._now())

    @contextmanager
    def _settling(self) -> Iterator[None]:
        """While inside, it is written. Another write after one that was cut short would take that for another host's."""
        if not self.settled:
            raise StoreUnavailable("a commit was cut short, and only a new start can tell whether it was made")
        self.settled = False
        yield
        self.settled = True

    def _now(self) -> float:
        """The time by this host's clock, but never before that of an earlier commit, whoever made it: so commits can be
        found by time. A clock that was ahead by more than a day was broken, and nobody follows it."""
        now = self._clock.wall()
        self._time = now if self._time - now > _BROKEN else max(self._time, now)
        return self._time
