"""One batch through the handler: attempts, what came of its records, the handler's own commits."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import anyio
import pyarrow as pa

from actorproc.config.settings import Settings
from actorproc.errors import HandlerError, HandlerMisuse, RowsLost, TooManyDeadLetters
from actorproc.handler.attempt import Attempt, Late
from actorproc.handler.base import Decision, PartitionHandler
from actorproc.handler.context import PartitionContext, PartitionInfo
from actorproc.output.dead_letters import render_letter, was_dead
from actorproc.partition.attempt_rows import AttemptEncoder, Encoded
from actorproc.partition.bisection import Part, Parts, Ruling
from actorproc.partition.dead_letter_limit import DeadLetterLimit
from actorproc.partition.handler_threads import HandlerThreads
from actorproc.partition.outcome import Outcome
from actorproc.partition.retry_pause import Retrying
from actorproc.records import Batch
from actorproc.rows.sequenced import joined, rows_after, rows_upto
from actorproc.runtime.clock import Clock
from actorproc.runtime.error_text import format_error
from actorproc.runtime.user_code import user_code

_SHORT = 4 * 2**20  # bytes of a batch that a quick handler gets through in some ten milliseconds


@dataclass(frozen=True, slots=True)
class Workplace:
    """What all batches of a partition are processed with."""

    handler: PartitionHandler
    site: PartitionInfo
    settings: Settings
    clock: Clock
    encoder: AttemptEncoder
    retrying: Retrying
    threads: HandlerThreads
    """Where a plain `def` handler runs."""
    limit: DeadLetterLimit
    save: Callable[[Batch, Outcome, int], Awaitable[None]]
    """Called by `ctx.commit` with the batch, what is finished of it, and up to which sequence; makes it durable."""
    lost: Callable[[str], None]
    """Told how, when rows of a batch that counts came too late."""
    threaded: bool
    """The handler's `process` is a plain `def`."""


class BatchRun:
    """What becomes of one batch, while it is at hand."""

    def __init__(self, batch: Batch, place: Workplace) -> None:
        self._batch = batch
        self._place = place
        self._once = place.settings.delivery == "at-most-once"
        self._parts = Parts(batch, place.settings, place.handler.on_error, place.site.log)
        self._done = Outcome()
        self._current: Attempt | None = None
        self._attempts = 0
        self._committing = anyio.Lock()
        self._committed = -1  # sequence up to which the handler has committed the batch
        self._broken: Exception | None = None
        self.wanted = -1
        """Sequence up to which the handler asked for a commit."""
        self.given_up: set[int] = set()
        """Sequences of the records that will not be tried again."""

    async def process(self) -> Outcome:
        """Everything that came of the batch and was not committed by the handler itself.

        Raises:
            HandlerError: the handler's `on_error` said stop, too many records failed, or the handler itself is wrong. Nothing
                of the batch counts.
            Interrupted: a drain came while waiting to try again.
        """
        self._place.limit.begin(self._batch)
        for part in self._parts:
            await self._attempt(part)
        done, self._done = self._done, Outcome()  # a traceback may keep this object alive, and must not keep the rows
        if done.tables:
            done.tables = [joined(done.tables)]
        return done

    @property
    def progress(self) -> tuple[object, ...] | None:
        """Changes whenever the handler gets on; None while it has nothing to do."""
        at = self._current
        if at is None:
            return None
        return self._batch.first, self._attempts, at.batch.reached, at.produced, len(at.awaited), at.committed

    # An attempt

    async def _attempt(self, part: Part) -> None:
        place = self._place
        late = Late(place.lost)
        batch = part.batch[:]  # what the handler does to its lists is to reach no other attempt, and no dead letter
        attempt = Attempt(batch, place.encoder.new_emitted(), part.attempt, committed=self._committed, late=late)
        ctx = PartitionContext(place.site, attempt, self._commit)
        error: Exception | None = None
        encoded: Encoded | None = None
        try:
            with user_code("the handler"):
                if place.threaded and self._needs_no_thread(batch):
                    self._begin(attempt)
                    encoded = self._in_thread(ctx, attempt)
                elif place.threaded:
                    begun = partial(self._begin, attempt)
                    encoded = await place.threads.run(
                        place.site.partition, begun, self._in_thread, ctx, attempt, starved=place.retrying.starved
                    )
                else:
                    self._begin(attempt)
                    _check_nothing(await place.handler.process(batch, ctx))  # type: ignore[misc]  # an async def
                    ctx._finish()  # what is emitted while the rows are encoded would be lost
                async with self._committing:  # what the handler began to commit and did not wait for
                    table, failures = self._settled(attempt, encoded or await place.encoder.encode(attempt))
                    self._current = None
        except Exception as raised:  # noqa: BLE001  # whatever the handler raises
            error = raised
        except BaseException:
            ctx._close(cut_off=True)  # a thread may still run it
            raise
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
            late.count(upto=attempt.committed)
            await self._failed(part, error, attempt)
            return
        if table is not None:
            self._done.tables.append(table)
        for sequence, reason in attempt.uncommitted(attempt.letters).items():
            if sequence not in failures:
                self._give_up(attempt, sequence, reason, Decision.DEAD_LETTER)
        late.count(dropped=failures.keys() | attempt.letters.keys())
        if failures:
            await self._failed_alone(part, failures, attempt, others=False)
        else:
            self._parts.succeeded(part)

    def _needs_no_thread(self, batch: Batch) -> bool:
        """On one core a thread would only cost: all wait for it."""
        place = self._place
        return place.handler._quick and place.clock.cores == 1 and batch.nbytes <= _SHORT

    def _begin(self, attempt: Attempt) -> None:
        """The handler is at work from now on; while it waits for a thread it is not stuck."""
        self._current = attempt
        self._attempts += 1
        self._place.retrying.fed()

    def _in_thread(self, ctx: PartitionContext, attempt: Attempt) -> Encoded | None:
        with user_code("the handler"):
            _check_nothing(self._place.handler.process(attempt.batch, ctx))
        ctx._finish()
        if attempt.is_committing:
            return None  # some of it may be gone soon
        return self._place.encoder.encoded(attempt)

    def _settled(self, attempt: Attempt, encoded: Encoded) -> tuple[pa.Table | None, dict[int, Exception]]:
        try:
            return self._place.encoder.settle(attempt, encoded)
        except RowsLost as error:
            self._broken = error
            raise

    # What failed

    async def _failed(self, part: Part, error: Exception, attempt: Attempt) -> None:
        """The attempt as a whole failed; what the handler has committed of it stays done."""
        rest, suspect = part.batch.after(attempt.committed), attempt.batch.reached
        if suspect is not None:
            suspect -= len(part.batch) - len(rest)
        if not len(rest) or (suspect is not None and suspect < 0):
            self._place.site.log.error(
                "partition.failed_after_commit", sequence=attempt.committed, error=format_error(error),
                why="ctx.commit had committed it as done",
            )  # fmt: skip
        part.batch = rest
        failures = attempt.uncommitted(attempt.failures)
        if failures and self._once:  # and nothing is shown again
            failures = dict.fromkeys(rest.sequences, error) | failures
        if failures:  # they may be why it raised: the others get a chance of their own
            await self._failed_alone(part, failures, attempt, others=True)
        elif len(rest):
            seeking = part.isolating
            ruling = self._parts.failed(part, error, suspect)
            if ruling.again or not (seeking or ruling.given_up):
                self._place.retrying.tell(attempt.number, rest.sequences, error)
            await self._follow(ruling, attempt)

    async def _failed_alone(
        self, part: Part, failures: dict[int, Exception], attempt: Attempt, *, others: bool
    ) -> None:
        ruling = self._parts.failed_alone(part, failures, hopeless=attempt.hopeless, others=others)
        again = sorted(failures.keys() - ruling.given_up.keys())
        if again:
            self._place.retrying.tell(attempt.number, again, failures[again[0]])
        await self._follow(ruling, attempt)

    async def _follow(self, ruling: Ruling, attempt: Attempt) -> None:
        for sequence, (error, verdict) in ruling.given_up.items():
            self._give_up(attempt, sequence, error, verdict)
        if ruling.again:
            await self._place.retrying.pause(attempt.number, len(self._batch))

    def _give_up(self, attempt: Attempt, sequence: int, error: Exception | str, verdict: Decision) -> None:
        site = self._place.site
        self.given_up.add(sequence)
        if verdict is Decision.SKIP:
            self._done.skipped += 1
            self._place.retrying.tell_skipped(sequence, error)
            return
        index = int(self._batch.sequence_array.to_numpy().searchsorted(sequence))
        (record,) = self._batch[index : index + 1]
        self._done.letters[sequence] = render_letter(record, error, attempt.number, site, self._place.clock)
        if not was_dead(record):  # else a replay before its cause was mended would stop all that is sound
            self._place.limit.failed(sequence, error)

    # What the handler commits

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
        self.wanted = max(self.wanted, upto)
        # Before the await: what finishes meanwhile is not in the table.
        awaited = [*attempt.awaited, *attempt.abandoned()]
        counts = len(attempt.emitted), len(attempt.tables)
        table, failures = self._settled(attempt, await self._place.encoder.encode(attempt))
        unfinished = [*failures, *awaited, *self._parts.waiting]
        limit = min([upto, *(sequence - 1 for sequence in unfinished)])
        if limit < max(attempt.committed + 1, self._batch.first):
            return
        try:
            for sequence, reason in attempt.letters.items():
                if attempt.committed < sequence <= limit:
                    self._give_up(attempt, sequence, reason, Decision.DEAD_LETTER)
        except TooManyDeadLetters as error:
            self._broken = error  # no failure of the handler's: another attempt would find these letters written
            raise
        now, later = self._done.cut(limit)
        if table is not None:
            now.tables.append(rows_upto(table, limit))
        if now.tables:
            now.tables = [joined(now.tables)]
        try:
            self._done, self._committed, attempt.committed = later, limit, limit
            _forget(attempt, limit, *counts)
            await self._place.save(self._batch, now, limit)
        except BaseException as error:  # whether it is committed is not known here: only a new start can tell
            self._broken = error if isinstance(error, Exception) else HandlerError("ctx.commit() was cut short")
            raise


def _misuse_in(error: BaseException | None) -> HandlerMisuse | None:
    """A mistake of the handler's itself, also where a task group has wrapped it."""
    todo = [error]
    while todo:
        found = todo.pop()
        if isinstance(found, HandlerMisuse):
            return found
        if isinstance(found, BaseExceptionGroup):
            todo.extend(reversed(found.exceptions))
    return None


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
    attempt.tables[:tables] = [rows_after(table, upto) for table in attempt.tables[:tables]]
