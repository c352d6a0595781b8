"""Processes the batches of a partition: attempts, retries, records given up, and the handler's own commits."""

from __future__ import annotations

from collections.abc import Sequence, Set

from actorproc.errors import HandlerError
from actorproc.handler.attempt import Attempt
from actorproc.handler.base import Decision
from actorproc.handler.state import AttemptState
from actorproc.partition.attempt_run import AttemptRun, cut_short, misuse_in
from actorproc.partition.batch_results import BatchResults
from actorproc.partition.bisection import GivenUp, Part, Parts
from actorproc.partition.dead_letter_limit import DeadLetterLimit
from actorproc.partition.opened_handler import OpenedHandler
from actorproc.partition.pending import Pending
from actorproc.records import Batch, Cursor
from actorproc.rows.row_buffer import RowBuffer
from actorproc.runtime.error_text import format_error

UNREADABLE = "UnreadableRecord"
"""Error type of the dead letter of a record that its source refuses. See `Batch.refused`."""


class BatchProcessor:
    """Processes the batches of one partition, one at a time."""

    def __init__(self, opened: OpenedHandler, limit: DeadLetterLimit) -> None:
        self.opened = opened
        self._limit = limit
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
        run = BatchRun(batch, self.opened, self._limit, cuts)
        results = await run.process()
        self._wanted, self._given_up = run.wanted, run.results.given_up
        self.opened.retries.batch_done()
        return results

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


class BatchRun(AttemptRun):
    """Processes one batch until each of its records is done, given up or skipped."""

    def __init__(self, batch: Batch, opened: OpenedHandler, limit: DeadLetterLimit, cuts: Sequence[int] | None) -> None:
        super().__init__(batch, opened, opened.handler.process)
        self._cuts = cuts
        self._at_most_once = opened.settings.delivery == "at-most-once"
        readable, self._refused = batch.without_refused()
        self._parts = Parts(readable, opened.settings, opened.handler.on_error, opened.info.log)
        self.results = BatchResults(batch, opened, limit)
        self._committed = -1  # sequence up to which the handler has committed the batch
        self.wanted = -1
        """Sequence up to which the handler asked for a commit."""

    async def process(self) -> Pending:
        for sequence, reason in self._refused.items():
            self.results.give_up(0, sequence, reason, Decision.DEAD_LETTER, UNREADABLE)
        for part in self._parts:
            await self._attempt(part)
        return self.results.take()

    # An attempt

    async def _attempt(self, part: Part) -> None:
        batch = part.batch[:]  # a copy, which the handler may change: another attempt needs the original
        rows = RowBuffer(self._on.encoder)
        committer = self._on.committer
        state = AttemptState(committer.state.held, self._on.state_kinds, self.results.changes, committer.now)
        attempt = Attempt(
            batch, rows, part.attempt, committed=self._committed, late=self._on.late, state=state,
            may_stop=not self._at_most_once,
        )  # fmt: skip
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
        failures = attempt.failed()
        if failures.keys() - attempt.traceless and attempt.state.used and not self._at_most_once:
            # Later records saw the changes of failed ones, so nothing of the attempt counts.
            self._on.retries.log_rerun(len(part.batch), attempt.number)
            part.batch = part.batch.after(attempt.committed)
            await self._failed_alone(part, failures, attempt, others=True)
            return
        self.results.add(attempt)
        if attempt.stopped is not None:
            self._parts.put_off(part.batch.after(attempt.stopped))
        for sequence, (reason, kind) in attempt.uncommitted(attempt.letters).items():
            if sequence not in failures and attempt.counts(sequence):
                self.results.give_up(attempt.number, sequence, reason, Decision.DEAD_LETTER, kind)
        if failures:
            await self._failed_alone(part, failures, attempt, others=False)

    # Failures

    async def _failed(self, part: Part, error: Exception, attempt: Attempt) -> None:
        """The attempt as a whole failed. What the handler has committed of it stays done."""
        if attempt.committed >= part.batch.first:
            part.attempt = 1  # earlier attempts failed at records that are done
        part.batch = rest = part.batch.after(attempt.committed)
        if not len(rest):
            self._on.info.log.error(
                "partition.failed_after_commit", sequence=attempt.committed, error=format_error(error),
                why="ctx.commit had already committed the whole batch",
            )  # fmt: skip
            return
        failures = attempt.failed()
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
        in_order = others and attempt.state.used and not self._at_most_once
        given_up = self._parts.failed_alone(part, failures, hopeless=attempt.hopeless, others=others, in_order=in_order)
        again = sorted(failures.keys() - given_up.keys())
        if again:
            self._on.retries.log_failed(attempt.number, again, failures[again[0]])
        await self._follow(given_up, attempt, pause=bool(again))

    async def _follow(self, given_up: GivenUp, attempt: Attempt, *, pause: bool) -> None:
        for sequence, (error, decision) in given_up.items():
            self.results.give_up(attempt.number, sequence, error, decision)
        if pause:
            await self._on.pause(attempt.number, len(self._batch))

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
        unfinished |= attempt.failed().keys()
        limit = self._cut_before(min([upto, *(sequence - 1 for sequence in (*unfinished, *self._parts.waiting))]))
        if limit < max(attempt.committed + 1, self._batch.first):
            return
        if attempt.state.changed and limit < attempt.batch.last:
            return  # changes are not known by record
        committer, began = self._on.committer, self._on.clock.monotonic()  # the commit follows at once
        try:
            now = self.results.take_upto(attempt, limit)
            self._committed = attempt.committed = limit
            committer.add(self._batch, limit, Cursor(committer.cursor.position, limit), now, began)
            await committer.commit()
        except BaseException as error:  # only a new start can find out whether it is committed, so no attempt follows
            self._fatal = cut_short(error)
            raise

    def _cut_before(self, sequence: int) -> int:
        """The sequence of the last record up to this one after which the batch may be cut; -1 if there is none."""
        if self._cuts is None:
            return sequence
        return max((cut for cut in self._cuts if cut <= sequence), default=-1)
