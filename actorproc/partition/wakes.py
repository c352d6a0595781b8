"""Calls `on_wake` for the timers that are due, between the batches of a partition."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pyarrow as pa

from actorproc.config.settings import Settings
from actorproc.errors import HandlerError
from actorproc.handler.attempt import Attempt
from actorproc.handler.context import PartitionContext
from actorproc.handler.keyed_state import TIMERS, Key, unpack_key
from actorproc.handler.returned_rows import emit_returned, refuse_coroutines
from actorproc.handler.timers import unpack_timer, utc
from actorproc.handler.wake_context import WakeContext
from actorproc.output.letter import render_letter
from actorproc.partition.handler_calls import HandlerCalls, misuse_in
from actorproc.partition.results import Results
from actorproc.partition.timers import Timers
from actorproc.records import SEQUENCE, Batch, Record
from actorproc.rows.sequence_order import joined
from actorproc.runtime.error_text import format_error
from actorproc.runtime.logger import LogThrottle

_MOST = 500
"""Timers called in one attempt: enough to encode their rows together, few enough to repeat if one of them fails."""

_MOST_LETTERS = 2**62
"""Of the timers of one owner: keeps their numbers negative."""

_LONGEST = 1.0
"""Seconds after which an attempt calls no further timer, so that commits and handoffs do not wait."""


class Wakes:
    """Fires the timers of one partition. A timer stays in state until its `on_wake` has returned.

    A timer that fails is tried again after a back-off, in memory only. All others go on.

    Args:
        timers: those of the committer.
        is_caught_up: whether all that the source had is processed. Asked again and again: timers may take minutes.
    """

    def __init__(
        self, calls: HandlerCalls, timers: Timers, settings: Settings, is_caught_up: Callable[[], bool]
    ) -> None:
        self._calls = calls
        self._timers = timers
        self._settings = settings
        self._committer = calls.committer
        self._draining = calls.draining
        self._is_caught_up = is_caught_up
        self._failures = LogThrottle()
        self._fired = self._given_up = 0

    @property
    def _allowed(self) -> bool:
        """With `auto_commit` off, the commit of a timer must not take records along that the handler keeps back."""
        committer = self._committer
        return self._settings.auto_commit or committer.has_all_committed

    def next_in(self) -> float:
        """Seconds until a timer may be due; infinity: none will be."""
        return self._timers.next_in(at_end=self._is_caught_up()) if self._allowed else float("inf")

    async def fire(self, *, idle: bool = True) -> bool:
        """Call `on_wake` for each timer that is due, once. Commits that are due are made in between.

        Args:
            idle: whether stream time may follow the wall clock.

        Returns:
            Whether any has succeeded.

        Raises:
            HandlerMisuse: the handler misuses the API.
        """
        called: set[bytes] = set()
        before = self._fired
        while self._allowed and not self._draining.is_set():
            keys = self._timers.due(_MOST, called, at_end=idle and self._is_caught_up())
            if not keys:
                break
            called.update(keys)
            failed = [key for key in keys if key in self._timers.failures]
            if len(failed) < len(keys):
                called.difference_update(await self._call([key for key in keys if key not in self._timers.failures]))
            for key in failed:
                await self._call([key])
        return self._fired > before

    async def fire_all_due(self) -> None:
        """Fire the timers that are due now, except those that have failed more than `max_attempts` times."""
        most = self._settings.max_attempts
        with self._timers.wall_clock_stopped():  # a timer that sets itself again would be due for ever
            while self._allowed and not self._draining.is_set():
                if not await self.fire():
                    if all(failure.tries > most for failure in self._timers.failures.values()):
                        return
                    with anyio.move_on_after(self.next_in()):
                        await self._draining.wait()

    async def fire_all(self, goes_on: Callable[[Key], bool]) -> None:
        """Call `on_wake` for each timer, whatever its time, before the partition ends.

        Args:
            goes_on: says whether the timer of a key goes on in the partition that gets the records of the key.

        Raises:
            HandlerError: a timer fails. A new start of the partition tries it again.
        """
        self._timers.end({key for key in self._committer.state.held(TIMERS) if goes_on(unpack_key(key))})
        while keys := self._timers.due(_MOST, (), at_end=True):
            await self._call(keys)
            for key, failure in self._timers.failures.items():
                why = format_error(failure.error)
                raise HandlerError(f"the partition has ended, but on_wake of {unpack_key(key)!r} fails: {why}")

    async def _call(self, keys: Sequence[bytes]) -> Sequence[bytes]:
        """Call these in one attempt; if it fails, each alone. Returns those that were not called, for lack of time."""
        run = WakeRun(keys, self._calls, self._timers, self._settings.max_attempts)
        begun = self._calls.clock.monotonic()
        error = await run.attempt()
        if error is None:
            await self._accept(run, begun)
        else:
            if len(keys) == 1:
                self._failed(keys[0], error)  # its next call comes after the back-off, not before
            else:
                for key in keys:
                    await self._call([key])
            return ()
        self._timers.put_back(run.left)
        return run.left

    async def _accept(self, run: WakeRun, begun: float) -> None:
        committer, cursor = self._committer, self._committer.cursor
        results = run.results(cursor.sequence, self._given_up)
        self._fired += len(run.called)
        self._given_up += len(results.letters)
        committer.add(Batch.empty(self._calls.info.partition), cursor.sequence, cursor, results, begun)
        if self._settings.auto_commit:
            await committer.commit_if_due()
        else:
            await committer.commit()

    def _failed(self, key: bytes, error: Exception) -> None:
        delay = self._timers.failed(key, error)
        tries = self._timers.failures[key].tries
        log = self._calls.info.log
        say = log.warning if self._failures.due("", self._calls.clock.monotonic()) else log.debug
        say(
            "partition.wake_failed", key=unpack_key(key), attempt=tries, again_in=round(delay, 1),
            error=format_error(error),
        )  # fmt: skip


class WakeRun:
    """Calls `on_wake` for some timers in one attempt. Each is a record of a batch: its key, and no value."""

    def __init__(self, keys: Sequence[bytes], calls: HandlerCalls, timers: Timers, max_attempts: int) -> None:
        self._batch = Batch.of(calls.info.partition, [None] * len(keys), range(len(keys)), keys=keys)
        self._calls = calls
        self._timers = timers
        self._max_attempts = max_attempts
        self._until = 0.0
        self._exhausted: Exception | None = None
        self._made: Attempt | None = None
        self.called: list[bytes] = []
        """Keys of the timers that were called, or were not due any more."""

    @property
    def left(self) -> Sequence[bytes]:
        """Keys of the others."""
        keys: list[Any] = self._batch.keys
        return keys[len(self.called) :]

    async def attempt(self) -> Exception | None:
        """Call them. Returns why the attempt failed.

        Raises:
            HandlerMisuse: the handler misuses the API.
        """
        failed = self._timers.failures.get(self._batch.keys[0] or b"")
        number = failed.tries + 1 if failed else 1
        self._exhausted = failed.error if failed and number > self._max_attempts else None
        attempt = self._calls.attempt(self._batch, number, may_stop=False)
        is_async = inspect.iscoroutinefunction(self._calls.handler.on_wake)
        error = await self._calls.call(attempt, self._each_async if is_async else self._each)
        error = error or next(iter(attempt.failures.values()), None)
        if (misuse := misuse_in(error)) is not None:
            raise misuse
        self._made = attempt
        return error

    def _each(self, batch: Batch, ctx: PartitionContext) -> None:
        wake = self._begin(ctx)
        for record in batch:
            if self._is_due(record, wake):
                result = self._calls.handler.on_wake(unpack_key(record.key or b""), wake)
                if inspect.isawaitable(result):
                    refuse_coroutines([result], "on_wake")
                emit_returned(result, record, ctx, "on_wake")
            if self._is_enough(record):
                return

    async def _each_async(self, batch: Batch, ctx: PartitionContext) -> None:
        wake = self._begin(ctx)
        for record in batch:
            if self._is_due(record, wake):
                result: Any = self._calls.handler.on_wake(unpack_key(record.key or b""), wake)
                emit_returned(await result, record, ctx, "on_wake")
            if self._is_enough(record):
                return

    def _begin(self, ctx: PartitionContext) -> WakeContext:
        self._until = self._calls.clock.wall() + _LONGEST
        return WakeContext(self._calls.info, ctx._attempt, self._calls.draining, self._exhausted)

    def _is_due(self, record: Record, wake: WakeContext) -> bool:
        """Take the timer out of state, if an earlier one of this attempt has not done so, or set it anew."""
        timers, key = wake._attempt.state.view(TIMERS), record.key or b""
        packed = timers.packed(key)
        if packed is None or not self._timers.is_due(packed):
            return False
        wake.due = utc(unpack_timer(packed).at)
        timers.delete(unpack_key(key))
        return True

    def _is_enough(self, record: Record) -> bool:
        self.called.append(record.key or b"")
        return self._calls.clock.wall() > self._until or self._calls.draining.is_set()

    def results(self, sequence: int, given_up_before: int) -> Results:
        """The results of the attempt, which did not fail: their rows get this sequence."""
        attempt, calls = self._made, self._calls
        if attempt is None:
            raise RuntimeError("there was no attempt")
        results = Results(changes=attempt.state.changes())
        for table in _of(sequence, attempt.encoded):
            results.add_rows(table)
        for number, (records, reason, kind) in enumerate(attempt.given_up, given_up_before - _MOST_LETTERS):
            letter = render_letter(
                records[-1], reason, attempt.number, calls.info, calls.clock, kind=kind, earlier=records[:-1]
            )
            results.add_letter(number, letter)
        return results


def _of(sequence: int, tables: list[pa.Table]) -> list[pa.Table]:
    """The rows in their order, all with this sequence."""
    if not tables or not (table := joined(tables)).num_rows:
        return []
    sequences = pa.chunked_array([pa.repeat(pa.scalar(sequence, pa.int64()), table.num_rows)])
    return [table.set_column(table.schema.get_field_index(SEQUENCE.name), SEQUENCE, sequences)]
