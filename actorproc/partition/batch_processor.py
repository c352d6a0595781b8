"""Runs the handler over a partition's batches, one batch at a time: attempts, retries, the handler's own commits."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from functools import partial
from typing import Any

import anyio
import pyarrow as pa

from actorproc.config.settings import Settings
from actorproc.errors import HandlerError, HandlerMisuse, RowMismatch, RowsLost, TooManyDeadLetters
from actorproc.handler.attempt import CUT_OFF, FAILED, Attempt
from actorproc.handler.base import Decision, PartitionHandler
from actorproc.handler.context import PartitionContext, PartitionInfo
from actorproc.handler.state import AttemptState
from actorproc.handler.state_kinds import state_kinds
from actorproc.output.dead_letters import render_letter, was_dead
from actorproc.partition.batch_size import Pace
from actorproc.partition.bisection import GivenUp, Part, Parts
from actorproc.partition.committer import Committer
from actorproc.partition.dead_letter_limit import DeadLetterLimit
from actorproc.partition.handler_threads import HandlerThreads
from actorproc.partition.pending import Pending
from actorproc.partition.read_ahead import ReadAhead
from actorproc.partition.retry_pause import RetryPause
from actorproc.partition.time_spent import TimeSpent
from actorproc.records import Batch, Cursor
from actorproc.rows.encoder import RowEncoder
from actorproc.rows.row_buffer import RowBuffer
from actorproc.rows.sequence_order import joined, rows_after, rows_upto
from actorproc.runtime.clock import Clock
from actorproc.runtime.error_text import format_error
from actorproc.runtime.user_code import user_code

_SHORT = 4 * 2**20  # bytes of a batch that a quick handler processes in some ten milliseconds

_BYTES_PER_VALUE = 2 / 3  # 50,000 values are worth a thread: they take some 5 ms

Encoded = tuple[list[pa.Table], dict[int, RowMismatch]]


class BatchProcessor:
    """Calls the handler of one partition.

    Args:
        committer: takes the results up to a record when the handler commits.
        reads: reads on during the pauses before another attempt.
        pace: does not count those pauses.
        threads: run a plain `def process`.
        draining: set when the partition should end soon.
        time: counts the pauses before another attempt.
    """

    def __init__(
        self,
        handler: PartitionHandler,
        info: PartitionInfo,
        schema: pa.Schema,
        settings: Settings,
        clock: Clock,
        *,
        committer: Committer,
        reads: ReadAhead,
        pace: Pace,
        threads: HandlerThreads,
        limit: DeadLetterLimit,
        draining: anyio.Event,
        time: TimeSpent,
    ) -> None:
        self.handler = handler
        self.info = info
        self.settings = settings
        self.clock = clock
        self.committer = committer
        self.threads = threads
        self.limit = limit
        self.encoder = RowEncoder(schema)
        self.state_kinds = state_kinds(type(handler))
        self.retries = RetryPause(settings, clock, info.log, draining)
        self.draining = draining
        self.late = threading.Event()
        """Set when rows came after `process` had returned."""
        self._reads = reads
        self._pace = pace
        self._time = time
        self._run: AttemptRun | None = None  # None between batches, so that the memory of the last one is free
        self._wanted = -1
        self._given_up: Set[int] = frozenset()

    async def process(self, batch: Batch, cuts: Sequence[int] | None = None) -> Pending:
        """The results of the batch that the handler has not committed itself.

        Args:
            cuts: sequences of the records up to which the handler may commit; None: of all. See `Chunk.cuts`.

        Raises:
            HandlerError: `on_error` returned `Decision.STOP`, too many records failed, or the handler is wrong.
            Interrupted: a drain began in the pause before another attempt.
        """
        run = _BatchRun(batch, self, cuts)
        with self.at_work(run):
            results = await run.process()
        self._wanted, self._given_up = run.wanted, run.given_up
        self.retries.batch_done()
        return results

    @contextmanager
    def at_work(self, run: AttemptRun) -> Iterator[None]:
        """Note that the handler works at this, whose progress is watched."""
        self._run = run
        try:
            yield
        finally:
            self._run = None

    def asked_for(self, batch: Batch, settled: bool) -> int:
        """The sequence up to which the handler wants the last processed `batch` committed.

        A handler cannot commit a record at which it fails. So records given up right behind the last requested one
        count as requested. At the beginning of the batch they count only if nothing earlier waits for a commit
        (`settled`).
        """
        upto = self._wanted
        if upto < 0 and not settled:
            return upto
        for sequence in batch.after(upto).sequences:
            if sequence not in self._given_up:
                break
            upto = sequence
        return upto

    async def pause(self, attempt: int, records: int) -> None:
        """Wait before the next attempt. Earlier batches are committed when they are due. Reading goes on.

        Raises:
            Interrupted: a drain began, and the pause is too long to wait for.
        """
        with self._pace.pause():
            if self.committer.is_due():
                await self.committer.commit()
            with self._reads.aside(), self._time.at("wait"):
                await self.retries.pause(attempt, records)

    @property
    def progress(self) -> tuple[object, ...] | None:
        """Changes when the handler emits, fails, commits or finishes a call of `map`; None while it is not called."""
        return self._run.progress if self._run else None


class AttemptRun:
    """Makes attempts at some records: calls the handler, on the event loop or in a thread, and encodes its rows.

    Args:
        work: the method to call with the records and the context.
    """

    def __init__(self, batch: Batch, processor: BatchProcessor, work: Callable[[Batch, PartitionContext], Any]) -> None:
        self._batch = batch
        self._on = processor
        self._work = work
        self._threaded = not inspect.iscoroutinefunction(work)
        self._current: Attempt | None = None
        self._attempts = 0
        self._committing = anyio.Lock()
        self._fatal: Exception | None = None  # the partition has to stop with this error

    @property
    def progress(self) -> tuple[object, ...] | None:
        at = self._current
        return None if at is None else (self._batch.first, self._attempts, at.progress)

    async def _commit(self, attempt: Attempt, upto: int) -> None:
        """Override: `ctx.commit`."""
        raise HandlerMisuse("ctx.commit: not here")

    async def _call(self, attempt: Attempt) -> Exception | None:
        """Call `process` and encode its rows. Returns why the attempt failed; it is closed then."""
        self._on.info.committed = self._on.committer.committed.sequence
        ctx = PartitionContext(self._on.info, attempt, self._commit, self._on.draining)
        try:
            with user_code("the handler"):
                encoded = await self._process(attempt, ctx)
                async with self._committing:
                    await self._encode(attempt, encoded)
        except Exception as error:  # noqa: BLE001  # whatever the handler raises
            return error
        except BaseException:
            ctx._close(CUT_OFF)  # a thread may still run it
            raise
        finally:
            self._current = None
            ctx._close(FAILED)
        return None

    async def _process(self, attempt: Attempt, ctx: PartitionContext) -> Encoded | None:
        """Call `process`. Returns the rows if they were encoded in its thread."""
        on = self._on
        if self._threaded:
            if on.handler._quick and on.clock.cores == 1 and attempt.batch.nbytes <= _SHORT:
                self._begin(attempt)  # on one core a thread only adds the cost of changing to it
                return self._process_in_thread(attempt, ctx)
            begun = partial(self._begin, attempt)
            return await on.threads.run(
                on.info.partition, begun, self._process_in_thread, attempt, ctx, no_thread=on.retries.no_thread
            )
        self._begin(attempt)
        _check_nothing(await self._work(attempt.batch, ctx))
        ctx._finish()
        return None

    def _begin(self, attempt: Attempt) -> None:
        """Note that the handler is called now: progress counts from here, not from the wait for a thread."""
        self._current = attempt
        self._attempts += 1
        self._on.retries.called()

    def _process_in_thread(self, attempt: Attempt, ctx: PartitionContext) -> Encoded | None:
        with user_code("the handler"):
            _check_nothing(self._work(attempt.batch, ctx))
        ctx._finish()
        if self._committing.locked():
            return None  # a commit is under way, and may take some of the rows
        return attempt.rows.detach().encode()

    # Rows

    async def _encode(self, attempt: Attempt, encoded: Encoded | None = None) -> None:
        """Encode what the attempt has emitted so far, in a thread if it is much. The handler may go on meanwhile."""
        if attempt.encoding_error is not None:
            raise attempt.encoding_error
        if encoded is None:
            rows = attempt.rows.detach()
            try:
                encoded = await self._on.clock.run_cpu_work(int(rows.values * _BYTES_PER_VALUE) + 1, rows.encode)
            except BaseException as error:
                # The rows are gone, so the attempt has failed, even if the handler catches what `ctx.commit` raises.
                attempt.encoding_error = _cut_short(error)
                raise
        tables, misfits = encoded
        if misfits and not self._on.encoder.width:
            raise HandlerMisuse(
                "a row was emitted, and the handler declares no output_schema, such as 'carrier string, n long'"
            )
        try:
            attempt.add_encoded(tables, misfits)
        except RowsLost as error:
            self._fatal = error
            raise


class _BatchRun(AttemptRun):
    """Processes one batch until each of its records is done, given up or skipped."""

    def __init__(self, batch: Batch, processor: BatchProcessor, cuts: Sequence[int] | None) -> None:
        super().__init__(batch, processor, processor.handler.process)
        self._cuts = cuts
        self._at_most_once = processor.settings.delivery == "at-most-once"
        self._parts = Parts(batch, processor.settings, processor.handler.on_error, processor.info.log)
        self._done = Pending()
        self._committed = -1  # sequence up to which the handler has committed the batch
        self.wanted = -1
        """Sequence up to which the handler asked for a commit."""
        self.given_up: set[int] = set()
        """Sequences of the records that will not be tried again."""

    async def process(self) -> Pending:
        self._on.limit.begin(self._batch)
        for part in self._parts:
            await self._attempt(part)
        done, self._done = self._done, Pending()  # a traceback may keep this object alive, but not its rows
        if done.tables:
            done.tables = [joined(done.tables)]
        return done

    # An attempt

    async def _attempt(self, part: Part) -> None:
        batch = part.batch[:]  # a copy, which the handler may change: another attempt needs the original
        rows = RowBuffer(self._on.encoder)
        state = AttemptState(
            self._on.committer.state.held, self._on.state_kinds, self._done.changes, self._on.clock.wall
        )
        attempt = Attempt(batch, rows, part.attempt, committed=self._committed, late=self._on.late, state=state)
        error = await self._call(attempt)
        async with self._committing:  # wait for a commit that the handler has begun and not awaited
            pass
        if self._fatal is not None:
            raise self._fatal
        if not self._at_most_once:  # with at-most-once delivery a stop would lose the batch
            for found in (error, *attempt.failures.values()):
                if (misuse := misuse_in(found)) is not None:
                    raise misuse
        if error is not None:
            await self._failed(part, error, attempt)
        else:
            await self._returned(part, attempt)

    async def _returned(self, part: Part, attempt: Attempt) -> None:
        table, failures = attempt.good_rows(), attempt.uncommitted(attempt.failures)
        if failures and attempt.state.used and not self._at_most_once:
            # Later records saw state without the failed ones, so nothing of the attempt counts.
            part.batch = part.batch.after(attempt.committed)
            await self._failed_alone(part, failures, attempt, others=True)
            return
        self._done.changes = attempt.state.changes()
        if table is not None:
            self._done.tables.append(table)
        for sequence, (reason, kind) in attempt.uncommitted(attempt.letters).items():
            if sequence not in failures:
                self._give_up(attempt, sequence, reason, Decision.DEAD_LETTER, kind)
        if failures:
            await self._failed_alone(part, failures, attempt, others=False)

    # Failures

    async def _failed(self, part: Part, error: Exception, attempt: Attempt) -> None:
        """The attempt as a whole failed. What the handler has committed of it stays done."""
        part.batch = rest = part.batch.after(attempt.committed)
        if not len(rest):
            self._on.info.log.error(
                "partition.failed_after_commit", sequence=attempt.committed, error=format_error(error),
                why="ctx.commit had already committed the whole batch",
            )  # fmt: skip
            return
        failures = attempt.uncommitted(attempt.failures)
        if failures and self._at_most_once:  # the handler sees no record twice
            failures = dict.fromkeys(rest.sequences, error) | failures
        if failures:  # they may be why it raised: the other records are tried without them
            await self._failed_alone(part, failures, attempt, others=True)
            return
        seeking = part.isolating
        given_up = self._parts.failed(part, error)
        if given_up is None or not (seeking or given_up):
            self._on.retries.log_failed(attempt.number, rest.sequences, error)
        await self._follow(given_up or {}, attempt, pause=given_up is None)

    async def _failed_alone(
        self, part: Part, failures: dict[int, Exception], attempt: Attempt, *, others: bool
    ) -> None:
        in_order = attempt.state.used and not self._at_most_once
        given_up = self._parts.failed_alone(part, failures, hopeless=attempt.hopeless, others=others, in_order=in_order)
        again = sorted(failures.keys() - given_up.keys())
        if again:
            self._on.retries.log_failed(attempt.number, again, failures[again[0]])
        await self._follow(given_up, attempt, pause=bool(again))

    async def _follow(self, given_up: GivenUp, attempt: Attempt, *, pause: bool) -> None:
        for sequence, (error, decision) in given_up.items():
            self._give_up(attempt, sequence, error, decision)
        if pause:
            await self._on.pause(attempt.number, len(self._batch))

    def _give_up(
        self, attempt: Attempt, sequence: int, error: Exception | str, decision: Decision, kind: str | None = None
    ) -> None:
        self.given_up.add(sequence)
        if decision is Decision.SKIP:
            self._done.skipped += 1
            self._on.retries.log_skipped(sequence, error)
            return
        index = int(self._batch.sequence_array.to_numpy().searchsorted(sequence))
        (record,) = self._batch[index : index + 1]
        self._done.letters[sequence] = render_letter(
            record, error, attempt.number, self._on.info, self._on.clock, kind=kind
        )
        if not was_dead(record):  # a replay before the cause is fixed must not stop the partition
            self._on.limit.failed(sequence, error)

    # The handler's commits

    async def _commit(self, attempt: Attempt, upto: int) -> None:
        """`ctx.commit`: commit the finished records up to `upto`, as far as there is no gap. One commit at a time."""
        async with self._committing:
            if self._fatal is not None:
                raise self._fatal
            if attempt.closed is not None:
                raise HandlerError("committed after process() had returned or failed")
            await self._commit_alone(attempt, upto)

    async def _commit_alone(self, attempt: Attempt, upto: int) -> None:
        self.wanted = max(self.wanted, upto)
        unfinished = attempt.unfinished()  # before the await: rows that come meanwhile are not encoded
        await self._encode(attempt)
        unfinished |= attempt.uncommitted(attempt.failures).keys()
        limit = self._cut_before(min([upto, *(sequence - 1 for sequence in (*unfinished, *self._parts.waiting))]))
        if limit < max(attempt.committed + 1, self._batch.first):
            return
        if attempt.state.changed and (
            limit < max(upto, attempt.batch.first) or attempt.has_results_after(limit)
        ):  # the changes are of later records, too
            return
        now = self._take(attempt, limit)
        self._committed = attempt.committed = limit
        committer, began = self._on.committer, self._on.clock.monotonic()  # the commit follows at once
        try:
            committer.add(self._batch, limit, Cursor(committer.cursor.position, limit), now, began)
            await committer.commit()
        except BaseException as error:  # only a new start can find out whether it is committed
            self._fatal = _cut_short(error)
            raise

    def _cut_before(self, sequence: int) -> int:
        """The sequence of the last record up to this one after which the batch may be cut; -1 if there is none."""
        if self._cuts is None:
            return sequence
        return max((cut for cut in self._cuts if cut <= sequence), default=-1)

    def _take(self, attempt: Attempt, upto: int) -> Pending:
        """The results of records up to `upto`, of this attempt and of earlier ones."""
        try:
            for sequence, (reason, kind) in attempt.letters.items():
                if attempt.committed < sequence <= upto:
                    self._give_up(attempt, sequence, reason, Decision.DEAD_LETTER, kind)
        except TooManyDeadLetters as error:
            self._fatal = error  # not the handler's failure: another attempt would find these letters written
            raise
        now, self._done = self._done.split(upto)
        now.changes = attempt.state.take()
        if (table := attempt.good_rows()) is not None:
            now.tables.append(rows_upto(table, upto))
            attempt.encoded = [rows_after(table, upto)]
        if now.tables:
            now.tables = [joined(now.tables)]
        return now


def _cut_short(error: BaseException) -> Exception:
    """What ended a `ctx.commit`: the error, or HandlerError for a cancellation."""
    return error if isinstance(error, Exception) else HandlerError("ctx.commit() was cut short")


def misuse_in(error: BaseException | None) -> HandlerMisuse | None:
    """The HandlerMisuse in an error, which task groups may have wrapped."""
    todo = [error]
    while todo:
        found = todo.pop()
        if isinstance(found, HandlerMisuse):
            return found
        if isinstance(found, BaseExceptionGroup):
            todo.extend(reversed(found.exceptions))
    return None


def _check_nothing(returned: object) -> None:
    """Returned rows are not emitted, and a coroutine that a plain def returns is not awaited."""
    if inspect.iscoroutine(returned):
        returned.close()
        raise HandlerMisuse("process returned a coroutine: nothing of it has run; write async def process")
    if returned is not None:
        raise HandlerMisuse(
            f"process returned a {type(returned).__name__}: emit rows with ctx.emit(record, row), and return nothing"
        )
