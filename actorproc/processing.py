"""One batch through the handler: attempts, pauses between them, rows as Arrow, dead letters, the handler's own commits."""

from __future__ import annotations

import asyncio
import inspect
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import anyio
import pyarrow as pa
import pyarrow.compute as pc

from actorproc.bad_records import Part, Parts, Ruling
from actorproc.clock import Clock
from actorproc.context import Attempt, Late, PartitionContext, Site
from actorproc.errors import HandlerError, HandlerMisuse, RowsLost, TooManyDeadLetters, failure_of, told
from actorproc.handler import Decision, PartitionHandler
from actorproc.handler_threads import HandlerThreads
from actorproc.letter_limit import LetterLimit
from actorproc.output.dead_letters import render_letter, was_dead
from actorproc.records import SEQUENCE, Batch
from actorproc.retry import Backoff
from actorproc.rows.emitted import VALUES_AT_ONCE, Emitted
from actorproc.rows.encoder import RowEncoder, in_order
from actorproc.settings import Settings
from actorproc.tasks import is_stray

T = TypeVar("T")

_Encoded = tuple[list[pa.Table], dict[int, Exception]]
"""Rows that fit, as tables in order; and why others do not, by the sequence of their record."""

_SHORT = 1.0  # seconds of waits to try again that a drain sits out, rather than leave the batch to the next owner

_TOLD_AGAIN = 10.0  # seconds after which the log tells again that attempts fail

_SMALL = VALUES_AT_ONCE  # so few values are encoded on the event loop


@dataclass(slots=True)
class Outcome:
    """What came of records: rows, dead letters by sequence, and how many were passed over."""

    tables: list[pa.Table] = field(default_factory=list)
    letters: dict[int, bytes] = field(default_factory=dict)
    skipped: int = 0


class Interrupted(Exception):
    """A drain came while waiting to try again: the batch is left to the next owner."""


class BatchProcessor:
    """Calls a handler with batches, one at a time.

    Args:
        save: called by `ctx.commit` with the batch, what is finished of it, and up to which sequence; makes it durable.
        draining: set when the partition should end soon: waiting to try again is then cut short.
        threads: where a plain `def` handler runs.
        limit: of dead letters.
        aside: entered while waiting to try again.
        lost: told how, when rows of a batch that counts came too late.
    """

    def __init__(
        self,
        handler: PartitionHandler,
        site: Site,
        schema: pa.Schema,
        settings: Settings,
        clock: Clock,
        *,
        save: Callable[[Batch, Outcome, int], Awaitable[None]],
        draining: anyio.Event,
        threads: HandlerThreads,
        limit: LetterLimit,
        aside: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
        lost: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._handler = handler
        self._site = site
        self._settings = settings
        self._clock = clock
        self._save = save
        self._draining = draining
        self._threads = threads
        self._aside = aside
        self._lost = lost
        self._rows = RowEncoder(schema)
        self._threaded = not inspect.iscoroutinefunction(handler.process)
        self._sat_out = 0.0  # seconds of pauses since a drain came
        self._backoff = Backoff(settings.retry_backoff, settings.retry_backoff_max)
        self._once = settings.delivery == "at-most-once"
        self._limit = limit
        self._whole: Batch | None = None  # None between batches
        self._parts: Parts | None = None
        self._done = Outcome()
        self._current: Attempt | None = None
        self._attempts = 0
        self._committing = anyio.Lock()
        self._broken: Exception | None = None
        self._saved = -1  # sequence up to which this batch was committed by the handler itself
        self._given_up: set[int] = set()
        self._tell_at = float("-inf")
        self.trouble: str | None = None
        """Why the batch at hand is tried again, if it is."""
        self.wanted = -1
        """Sequence up to which the handler asked for a commit in the last batch."""

    async def process(self, batch: Batch) -> Outcome:
        """Everything that came of the batch and was not committed by the handler itself.

        Raises:
            HandlerError: the handler's `on_error` said stop, too many records failed, or the handler itself is wrong. Nothing
                of the batch counts.
            Interrupted: a drain came while waiting to try again.
        """
        self._whole, self._done, self._saved, self.wanted = batch, Outcome(), -1, -1
        self._parts = Parts(batch, self._settings, self._handler.on_error, self._site.log)
        self._limit.begin(batch)
        self._given_up = set()
        for part in self._parts:
            await self._attempt(part, self._parts)
        if len(self._done.tables) > 1:
            self._done.tables = [in_order(pa.concat_tables(self._done.tables))]
        self._whole = self.trouble = None  # its memory is for the next one
        return self._done

    def asked_for(self, batch: Batch, settled: bool) -> int:
        """Up to which sequence of `batch`, the one processed last, the handler wants to have committed.

        A handler cannot commit a record that it fails at. So records given up right behind the last one that it asked for count
        as asked for, too; those at the batch's beginning only if it is `settled`: nothing from before waits for a commit.
        """
        upto = self.wanted
        if upto < 0 and not settled:
            return upto
        for sequence in batch.after(upto).sequences:
            if sequence not in self._given_up:
                break
            upto = sequence
        return upto

    @property
    def progress(self) -> tuple[object, ...] | None:
        """Changes whenever the handler gets on; None while it has nothing to do."""
        current = self._current
        if current is None:
            return None
        return self._attempts, current.batch.reached, current.produced, len(current.awaited), self._saved

    def _begin(self, attempt: Attempt) -> None:
        """The handler is at work from now on; while it waits for a thread it is not stuck."""
        self._current = attempt
        self._attempts += 1

    async def _attempt(self, part: Part, parts: Parts) -> None:
        attempt = Attempt(part.batch, Emitted(self._rows), part.attempt, late=Late(self._lost))
        ctx = PartitionContext(self._site, attempt, self._commit)
        error: Exception | None = None
        encoded: _Encoded | None = None
        try:
            if self._threaded:
                begun = partial(self._begin, attempt)
                encoded = await self._threads.run(self._site.partition, begun, self._in_thread, ctx, attempt)
            else:
                self._begin(attempt)
                _check_nothing(await self._handler.process(part.batch, ctx))  # type: ignore[misc]  # an async def
                ctx._finish()  # what is emitted while the rows are encoded would be lost
            async with self._committing:  # what the handler began to commit and did not wait for
                table, failures = self._joined(attempt, encoded or await self._encode(attempt))
                self._current = None
        except asyncio.CancelledError:
            if not is_stray():
                ctx._close(cut_off=True)  # a thread may still be at it
                raise
            error = HandlerError("the handler was cancelled from within: its task, or something that it awaited")
        except (KeyboardInterrupt, GeneratorExit):  # of this process, of this coroutine
            raise
        except BaseException as raised:  # noqa: BLE001  # the user's code may raise anything
            error = failure_of(raised)
        finally:
            self._current = None
            ctx._close()
        async with self._committing:  # likewise, of a handler that failed
            pass
        if self._broken is not None:
            raise self._broken
        if not self._once:  # at most once it would lose the batch
            for found in (error, *attempt.failures.values()):
                if (misuse := _misuse_in(found)) is not None:
                    raise misuse
        if error is not None:
            await self._failed(part, parts, error, attempt)
            return
        if table is not None:
            self._done.tables.append(table)
        for sequence, reason in self._open(attempt.letters).items():
            if sequence not in failures:
                self._give_up(attempt, sequence, reason, Decision.DEAD_LETTER)
        if failures:
            await self._failed_alone(part, parts, failures, attempt, others=False)
        else:
            parts.succeeded(part)
            if attempt.late is not None:
                attempt.late.count()

    async def _failed(self, part: Part, parts: Parts, error: Exception, attempt: Attempt) -> None:
        """The attempt as a whole failed; what the handler has committed of it stays done."""
        rest, suspect = part.batch.after(self._saved), part.batch.reached
        if suspect is not None:
            suspect -= len(part.batch) - len(rest)
        if not len(rest) or (suspect is not None and suspect < 0):
            self._site.log.error(
                "partition.failed_after_commit", sequence=self._saved, error=told(error),
                why="ctx.commit had committed it as done",
            )  # fmt: skip
        part.batch = rest
        failures = self._open(attempt.failures)
        if failures and self._once:  # and nothing is shown again
            failures = dict.fromkeys(rest.sequences, error) | failures
        if failures:  # they may be why it raised: the others get a chance of their own
            await self._failed_alone(part, parts, failures, attempt, others=True)
        elif len(rest):
            seeking = part.isolating
            ruling = parts.failed(part, error, suspect)
            if ruling.again or not seeking:
                self._tell(attempt, rest.sequences, error)
            await self._follow(ruling, attempt)

    async def _failed_alone(self, part: Part, parts: Parts, failures: dict[int, Exception], attempt: Attempt, *, others: bool) -> None:  # fmt: skip
        ruling = parts.failed_alone(part, failures, hopeless=attempt.hopeless, others=others)
        again = sorted(failures.keys() - ruling.given_up.keys())
        if again:
            self._tell(attempt, again, failures[again[0]])
        await self._follow(ruling, attempt)

    def _tell(self, attempt: Attempt, failed: Sequence[int], error: Exception) -> None:
        """Say that records failed and are tried again; in the log not every time, where it goes on."""
        records = f"record {failed[0]}" if len(failed) == 1 else f"{len(failed):,} records from {failed[0]} on"
        self.trouble = f"tries {records} again, after attempt {attempt.number}: {told(error)}"
        say, now = self._site.log.debug, self._clock.monotonic()
        if now >= self._tell_at:
            say, self._tell_at = self._site.log.warning, now + _TOLD_AGAIN
        say(
            "partition.attempt_failed",
            attempt=attempt.number,
            records=len(failed),
            first=failed[0],
            error=told(error),
        )

    async def _follow(self, ruling: Ruling, attempt: Attempt) -> None:
        for sequence, (error, verdict) in ruling.given_up.items():
            self._give_up(attempt, sequence, error, verdict)
        if ruling.again:
            await self._pause(attempt.number)

    # What an attempt produced

    def _open(self, by_sequence: dict[int, T]) -> dict[int, T]:
        """Without the records that the handler has committed already."""
        return {s: what for s, what in by_sequence.items() if s > self._saved}

    def _in_thread(self, ctx: PartitionContext, attempt: Attempt) -> _Encoded:
        try:
            _check_nothing(self._handler.process(attempt.batch, ctx))
        except (KeyboardInterrupt, GeneratorExit) as raised:  # nobody's but the handler's, in a thread
            raise failure_of(raised) from raised
        ctx._finish()
        return self._encoded(attempt.emitted, attempt.tables)

    async def _encode(self, attempt: Attempt) -> _Encoded:
        # With `ctx.commit` more may come meanwhile.
        emitted, tables = attempt.emitted.copy(), list(attempt.tables)
        values = emitted.waiting * self._rows.width + sum(table.num_rows * table.num_columns for table in tables)
        if values <= _SMALL:
            return self._encoded(emitted, tables)
        return await self._clock.offload(self._encoded, emitted, tables)

    def _encoded(self, emitted: Emitted, given: list[pa.Table]) -> _Encoded:
        misfits: dict[int, Exception] = {}
        tables, unfit = emitted.encode()
        misfits.update(unfit)
        for one in given:
            table, unfit = self._rows.encode_table(one)
            misfits.update(unfit)
            tables.append(table)
        return tables, misfits

    def _joined(self, attempt: Attempt, encoded: _Encoded) -> tuple[pa.Table | None, dict[int, Exception]]:
        """Rows of the records that neither failed nor were given up, and the failures, rows that do not fit among them."""
        tables, misfits = encoded
        if misfits and not self._rows.width:
            raise HandlerMisuse(
                "a row was emitted, and the handler declares no output_schema, such as 'carrier string, n long'"
            )
        if misfits:
            self._check_origin(attempt.batch, pa.array(sorted(misfits), pa.int64()))
        attempt.hopeless |= misfits.keys() - attempt.failures.keys()  # the same record makes the same row
        failures = misfits | self._open(attempt.failures)  # the reason that was given
        if not tables:
            return None, failures
        table = tables[0] if len(tables) == 1 else in_order(pa.concat_tables(tables))  # each is in order by itself
        self._check_origin(attempt.batch, table[SEQUENCE.name])
        unwanted = failures.keys() | attempt.letters.keys()
        if unwanted:
            given_up = pc.is_in(table[SEQUENCE.name], value_set=pa.array(sorted(unwanted), pa.int64()))
            table = table.filter(pc.invert(given_up))
        return table, failures

    def _check_origin(self, batch: Batch, sequences: pa.Array | pa.ChunkedArray) -> None:
        """Rows, those that do not fit as well, must belong to records that are still at hand. `sequences` are in order."""
        if len(sequences) == 0:
            return
        first, last = sequences[0].as_py(), sequences[-1].as_py()
        if first < batch.first or last > batch.last:
            raise HandlerError(
                f"rows with _sequence {first}..{last} were emitted for a batch of {batch.first}..{batch.last}: "
                "a row belongs to a record of the batch at hand"
            )
        if batch.last - batch.first >= len(batch):  # there are gaps
            foreign = pc.invert(pc.is_in(sequences, value_set=batch.sequence_array))
            if pc.any(foreign).as_py():
                sequence = sequences.filter(foreign)[0]
                raise HandlerError(f"a row was emitted for record {sequence}, which is not among those at hand")
        if first <= self._saved:
            self._broken = RowsLost(
                f"a row was emitted for a record up to {self._saved}, which ctx.commit had committed already, and is lost: "
                "emit first, or commit up to an earlier record with ctx.commit(record)"
            )
            raise self._broken

    async def _commit(self, attempt: Attempt, upto: int) -> None:
        """`ctx.commit`: save what is finished without a gap, up to `upto` at most. One at a time, also within `ctx.map`."""
        async with self._committing:
            if self._broken is not None:
                raise self._broken
            if attempt is not self._current:
                raise HandlerError("committed after process() had returned or failed")
            with attempt.emitted.still():
                await self._commit_alone(attempt, upto)

    async def _commit_alone(self, attempt: Attempt, upto: int) -> None:
        batch, parts = self._whole, self._parts
        if batch is None or parts is None:
            raise AssertionError("an attempt is at work without a batch")
        self.wanted = max(self.wanted, upto)
        awaited = list(attempt.awaited)  # before the await: what finishes meanwhile is not in the table
        counts = len(attempt.emitted), len(attempt.tables)
        table, failures = self._joined(attempt, await self._encode(attempt))
        unfinished = [*failures, *awaited, *parts.waiting]
        limit = min([upto, *(sequence - 1 for sequence in unfinished)])
        if limit <= self._saved:
            return
        try:
            for sequence, reason in attempt.letters.items():
                if self._saved < sequence <= limit:
                    self._give_up(attempt, sequence, reason, Decision.DEAD_LETTER)
        except TooManyDeadLetters as error:
            self._broken = error  # no failure of the handler's: another attempt would find these letters written
            raise
        done = self._done
        tables = done.tables if table is None else [*done.tables, table]
        everything = in_order(pa.concat_tables(tables)) if tables else None
        now, later = Outcome(skipped=done.skipped), Outcome()
        if everything is not None:
            cut = pc.less_equal(everything[SEQUENCE.name], limit)
            now.tables = [everything.filter(cut)]
        for table in done.tables:
            later.tables.append(table.filter(pc.greater(table[SEQUENCE.name], limit)))
        for sequence, letter in done.letters.items():
            (now if sequence <= limit else later).letters[sequence] = letter
        try:
            self._saved, self._done, attempt.committed = limit, later, limit
            _forget(attempt, limit, *counts)
            await self._save(batch, now, limit)
        except BaseException as error:  # whether it is committed is not known here: only a new start can tell
            self._broken = error if isinstance(error, Exception) else HandlerError("ctx.commit() was cut short")
            raise

    # What failed

    def _give_up(self, attempt: Attempt, sequence: int, error: Exception | str, verdict: Decision) -> None:
        record = attempt.batch[bisect_left(attempt.batch.sequences, sequence)]
        self._given_up.add(sequence)
        if verdict is Decision.SKIP:
            self._done.skipped += 1
            self._site.log.warning(
                "partition.record_skipped", sequence=sequence, error=error if isinstance(error, str) else told(error)
            )
            return
        self._done.letters[sequence] = render_letter(record, error, attempt.number, self._site, self._clock)
        if not was_dead(record):  # else a replay before its cause was mended would stop all that is sound
            self._limit.failed(sequence, error)

    async def _pause(self, attempt: int) -> None:
        delay = self._backoff.delay(attempt, self._clock.random)
        async with self._aside():
            if self._sat_out + delay <= _SHORT:
                await self._clock.sleep(delay)
                self._sat_out += delay * self._draining.is_set()
                return
            with anyio.move_on_after(delay):
                await self._draining.wait()
        if self._draining.is_set():
            self._site.log.warning(
                "partition.batch_left",
                records=len(self._whole or ()),
                why="it would be tried again too late for this drain; the next owner processes it anew",
            )
            raise Interrupted


def _misuse_in(error: BaseException | None) -> HandlerMisuse | None:
    """A mistake of the handler's itself, also where a task group has wrapped it."""
    if isinstance(error, BaseExceptionGroup):
        return next((found for inner in error.exceptions if (found := _misuse_in(inner)) is not None), None)
    return error if isinstance(error, HandlerMisuse) else None


def _check_nothing(returned: object) -> None:
    """Rows that are returned are not emitted, and what a plain def returns is not awaited: neither may pass for done."""
    if inspect.iscoroutine(returned):
        returned.close()  # it is never awaited, as was just said
        raise HandlerMisuse("process returned a coroutine: nothing of it has run; write async def process")
    if returned is not None:
        raise HandlerMisuse(
            f"process returned a {type(returned).__name__}: emit rows with ctx.emit(record, row), and return nothing"
        )


def _forget(attempt: Attempt, upto: int, rows: int, tables: int) -> None:
    """Drop what was committed, of the first `rows` and `tables`, in place: the context holds the same lists."""
    attempt.emitted.forget(upto, rows)
    attempt.tables[:tables] = [
        table.filter(pc.greater(table[SEQUENCE.name], upto)) for table in attempt.tables[:tables]
    ]
