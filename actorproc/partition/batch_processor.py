"""Processes the batches of a partition: attempts, retries, records given up, and the handler's own commits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence, Set

from actorproc.config.settings import Settings
from actorproc.errors import HandlerError
from actorproc.handler.attempt import Attempt
from actorproc.handler.base import Decision
from actorproc.output.letter import render_letter, was_dead
from actorproc.partition.bisection import GivenUp, Part, Parts
from actorproc.partition.dead_letter_limit import DeadLetterLimit
from actorproc.partition.delivery_mode import DeliveryMode
from actorproc.partition.handler_calls import HandlerCalls, cut_short, misuse_in
from actorproc.partition.results import Results
from actorproc.records import Batch, Cursor
from actorproc.rows.sequence_order import rows_after, rows_upto
from actorproc.runtime.error_text import format_error

UNREADABLE = "UnreadableRecord"
"""Error type of the dead letter of a record that its source refuses. See `Batch.refused`."""

Pause = Callable[[int, int], Awaitable[None]]
"""Waits after an attempt, given its number and the records of the batch."""


class BatchProcessor:
    """Processes the batches of one partition, one at a time.

    Args:
        pause: raises `Interrupted` if a drain began, and the pause is too long to wait for.
    """

    def __init__(self, calls: HandlerCalls, settings: Settings, limit: DeadLetterLimit, pause: Pause) -> None:
        self.calls = calls
        self.settings = settings
        self.delivery = DeliveryMode.of(settings)
        self.limit = limit
        self.pause = pause
        self._wanted = -1
        self._given_up: Set[int] = frozenset()

    async def process(self, batch: Batch, cuts: Sequence[int] | None = None) -> Results:
        """The results of the batch that the handler has not committed itself.

        Args:
            cuts: sequences of the records up to which the handler may commit; None: of all. See `Chunk.cuts`.

        Raises:
            HandlerError: `on_error` returned `Decision.STOP`, too many records failed, or the handler is wrong.
            Interrupted: a drain began in the pause before another attempt.
        """
        run = BatchRun(batch, self, cuts)
        results = await run.process()
        self._wanted, self._given_up = run.wanted, run.given_up
        self.calls.retries.batch_done()
        return results

    def asked_for(self, batch: Batch, all_committed: bool) -> int:
        """The sequence up to which the handler wants the last processed `batch` committed.

        A handler cannot commit a record at which it fails. So records given up right behind the last requested one
        count as requested. At the beginning of the batch they count only if nothing earlier waits for a commit
        (`all_committed`).
        """
        upto = self._wanted
        if upto < 0 and not all_committed:
            return upto
        for sequence in batch.after(upto).sequences:
            if sequence not in self._given_up:
                break
            upto = sequence
        return upto


class BatchRun:
    """Processes one batch until each of its records is done, given up or skipped."""

    def __init__(self, batch: Batch, processor: BatchProcessor, cuts: Sequence[int] | None) -> None:
        self._batch = batch
        self._calls = calls = processor.calls
        self._repeats = processor.delivery.repeats
        self._limit = processor.limit
        self._pause = processor.pause
        self._cuts = cuts
        readable, self._refused = batch.without_refused()
        self._parts = Parts(readable, processor.settings, processor.delivery, calls.handler.on_error, calls.info.log)
        self._done = Results()  # of the records that are done and that the handler has not committed itself
        self._committed = -1  # sequence up to which the handler has committed the batch
        self.given_up: set[int] = set()
        """Sequences of the records that will not be tried again, committed ones included."""
        self.wanted = -1
        """Sequence up to which the handler asked for a commit."""

    async def process(self) -> Results:
        """The results of the records that the handler has not committed."""
        self._limit.begin(self._batch)
        for sequence, reason in self._refused.items():
            self._give_up(0, sequence, reason, Decision.DEAD_LETTER, UNREADABLE)
        for part in self._parts:
            await self._attempt(part)
        done, self._done = self._done, Results()  # a traceback may keep this object alive, but not its rows
        done.join()
        return done

    # An attempt

    async def _attempt(self, part: Part) -> None:
        batch = part.batch[:]  # a copy, which the handler may change: another attempt needs the original
        attempt = self._calls.attempt(
            batch, part.attempt, self._done.changes, committed=self._committed, may_stop=self._repeats
        )
        error = await self._calls.call(attempt, self._calls.handler.process, self._commit)
        if self._repeats:  # else a stop would lose the batch
            for found in (error, *attempt.failures.values()):
                if (misuse := misuse_in(found)) is not None:
                    raise misuse
        if error is not None:
            await self._failed(part, error, attempt)
        else:
            await self._returned(part, attempt)

    async def _returned(self, part: Part, attempt: Attempt) -> None:
        failures = attempt.failed()
        if failures.keys() - attempt.traceless and attempt.state.used and self._repeats:
            # Later records saw the changes of failed ones, so nothing of the attempt counts.
            self._calls.retries.log_rerun(len(part.batch), attempt.number)
            part.batch = part.batch.after(attempt.committed)
            await self._failed_alone(part, failures, attempt, others=True)
            return
        self._done.changes = attempt.state.changes()
        if (table := attempt.good_rows()) is not None:
            self._done.add_rows(table)
        if attempt.stopped is not None:
            self._parts.put_off(part.batch.after(attempt.stopped))
        for sequence, (reason, kind) in attempt.uncommitted(attempt.letters).items():
            if sequence not in failures and attempt.counts(sequence):
                self._give_up(attempt.number, sequence, reason, Decision.DEAD_LETTER, kind)
        if failures:
            await self._failed_alone(part, failures, attempt, others=False)

    # Failures

    async def _failed(self, part: Part, error: Exception, attempt: Attempt) -> None:
        """The attempt as a whole failed. What the handler has committed of it stays done."""
        if attempt.committed >= part.batch.first:
            part.attempt = 1  # earlier attempts failed at records that are done
        part.batch = rest = part.batch.after(attempt.committed)
        if not len(rest):
            self._calls.info.log.error(
                "partition.failed_after_commit", sequence=attempt.committed, error=format_error(error),
                why="ctx.commit had already committed the whole batch",
            )  # fmt: skip
            return
        failures = attempt.failed()
        if failures and not self._repeats:
            failures = dict.fromkeys(rest.sequences, error) | failures
        if failures:  # they may be why it raised: the other records are tried without them
            if error not in failures.values():
                self._calls.retries.log_failed(attempt.number, rest.sequences, error)
                self._parts.check_goes_on(part, error)
            await self._failed_alone(part, failures, attempt, others=True)
            return
        seeking = part.isolating
        given_up = self._parts.failed(part, error)
        if given_up is None or not (seeking or given_up):
            self._calls.retries.log_failed(attempt.number, rest.sequences, error)
        await self._follow(given_up or {}, attempt, pause=given_up is None)

    async def _failed_alone(
        self, part: Part, failures: dict[int, Exception], attempt: Attempt, *, others: bool
    ) -> None:
        in_order = others and attempt.state.used and self._repeats
        given_up = self._parts.failed_alone(part, failures, hopeless=attempt.hopeless, others=others, in_order=in_order)
        again = sorted(failures.keys() - given_up.keys())
        if again:
            self._calls.retries.log_failed(attempt.number, again, failures[again[0]])
        await self._follow(given_up, attempt, pause=bool(again))

    async def _follow(self, given_up: GivenUp, attempt: Attempt, *, pause: bool) -> None:
        for sequence, (error, decision) in given_up.items():
            self._give_up(attempt.number, sequence, error, decision)
        if pause:
            await self._pause(attempt.number, len(self._batch))

    def _give_up(
        self, attempts: int, sequence: int, error: Exception | str, decision: Decision, kind: str | None = None
    ) -> None:
        """The record is skipped, or becomes a dead letter.

        Args:
            attempts: at this record; 0 if the handler was never called for it.

        Raises:
            TooManyDeadLetters: the limit is exceeded.
        """
        self.given_up.add(sequence)
        if decision is Decision.SKIP:
            self._done.skipped += 1
            self._calls.retries.log_skipped(sequence, error)
            return
        index = int(self._batch.sequence_array.to_numpy().searchsorted(sequence))
        (record,) = self._batch[index : index + 1]
        letter = render_letter(record, error, attempts, self._calls.info, self._calls.clock, kind=kind)
        self._done.add_letter(sequence, letter)
        if not was_dead(record):  # a replay before the cause is fixed must not stop the partition
            self._limit.failed(sequence, error, kind)

    # The handler's commits

    async def _commit(self, attempt: Attempt, upto: int) -> None:
        """`ctx.commit`: commit the finished records up to `upto`, as far as there is no gap. One commit at a time."""
        async with attempt.committing:
            if attempt.fatal is not None:
                raise attempt.fatal
            if attempt.closed is not None:
                raise HandlerError("committed after process() had returned or failed")
            await self._commit_alone(attempt, upto)

    async def _commit_alone(self, attempt: Attempt, upto: int) -> None:
        self.wanted = max(self.wanted, upto)
        unfinished = attempt.unfinished()  # before the await: rows that come meanwhile are not encoded
        await self._calls.encode(attempt)
        unfinished |= attempt.failed().keys()
        limit = self._cut_before(min([upto, *(sequence - 1 for sequence in (*unfinished, *self._parts.waiting))]))
        if limit < max(attempt.committed + 1, self._batch.first):
            return
        if attempt.state.changed and limit < attempt.batch.last:
            return  # changes are not known by record
        committer, began = self._calls.committer, self._calls.clock.monotonic()  # the commit follows at once
        try:
            now = self._take_upto(attempt, limit)
            self._committed = attempt.committed = limit
            committer.add(self._batch, limit, Cursor(committer.cursor.position, limit), now, began)
            await committer.commit()
        except BaseException as error:  # only a new start can find out whether it is committed, so no attempt follows
            attempt.fatal = cut_short(error)
            raise

    def _cut_before(self, sequence: int) -> int:
        """The sequence of the last record up to this one after which the batch may be cut; -1 if there is none."""
        if self._cuts is None:
            return sequence
        return max((cut for cut in self._cuts if cut <= sequence), default=-1)

    def _take_upto(self, attempt: Attempt, upto: int) -> Results:
        """Take the results of records up to `upto`, of this attempt and of earlier ones.

        Raises:
            TooManyDeadLetters: the limit is exceeded.
        """
        for sequence, (reason, kind) in attempt.letters.items():
            if attempt.committed < sequence <= upto:
                self._give_up(attempt.number, sequence, reason, Decision.DEAD_LETTER, kind)
        now, self._done = self._done.split(upto)
        now.changes = attempt.state.take()
        if (table := attempt.good_rows()) is not None:
            now.add_rows(rows_upto(table, upto))
            attempt.encoded = [rows_after(table, upto)]
        now.join()
        return now
