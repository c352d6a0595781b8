"""What a handler holds while it works on a batch: where it runs, and what it emits, fails and commits."""

from __future__ import annotations

import inspect
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio
import pyarrow as pa

from actorproc.errors import HandlerError, HandlerMisuse
from actorproc.handler.attempt import Attempt, Closed, has_ended, is_forgotten
from actorproc.records import Batch, Record
from actorproc.rows.emitted import PIECE
from actorproc.rows.encoder import Row
from actorproc.rows.sequenced import owned
from actorproc.runtime.error_text import safe_repr
from actorproc.runtime.user_code import failure_of, user_code

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """Where a handler runs, the same for all its batches."""

    processor: str
    host: str
    partition: str
    epoch: int
    """Grows with each change of owner: send it along with side effects, so that a later owner fences an earlier one."""
    options: Any = None
    """The handler's `Options`, filled."""
    shared: Any = None
    """What the handler class's `shared` gave, the same object for all partitions of the host."""
    log: Any = None
    """A structlog logger with processor, host, partition and epoch bound."""


class PartitionContext:
    """One attempt at one batch.

    `async def process` uses it on the event loop; a plain `def process` uses it in its worker thread (where
    `anyio.from_thread.run(ctx.commit)` commits). After `process` has returned or failed it takes nothing more.
    """

    def __init__(
        self, site: PartitionInfo, attempt: Attempt, commit: Callable[[Attempt, int], Awaitable[None]]
    ) -> None:
        self._site = site
        self._attempt = attempt
        self._emitted = attempt.emitted
        self._rows = attempt.emitted.rows
        self._sequences = attempt.emitted.sequences
        self._commit = commit
        attempt.batch.emitted = attempt.emitted
        self._checked = attempt.batch
        self.attempt = attempt.number
        """Number of this attempt at these records, from 1."""

    # Where

    @property
    def processor(self) -> str:
        return self._site.processor

    @property
    def host(self) -> str:
        return self._site.host

    @property
    def partition(self) -> str:
        return self._site.partition

    @property
    def epoch(self) -> int:
        """Grows with each change of owner: send it along with side effects to fence an earlier owner's."""
        return self._site.epoch

    @property
    def options(self) -> Any:
        """The handler's `Options`, filled."""
        return self._site.options

    @property
    def shared(self) -> Any:
        """What the handler class's `shared` gave, the same object for all partitions of the host."""
        return self._site.shared

    @property
    def log(self) -> Any:
        """A structlog logger with processor, host, partition and epoch bound."""
        return self._site.log

    # What

    def emit(self, record: Record, row: Row) -> None:
        """Add an output row that came from `record`: a dict by column, or a tuple in the order of `output_schema` (faster).

        A row that does not fit `output_schema` is that record's failure.
        """
        if type(record) is not Record or record._batch is not self._checked:
            self._check(record)
        self._sequences.append(record.sequence)
        self._rows.append(row)
        if len(self._rows) >= PIECE:
            self._emitted.gather()

    def emit_many(self, record: Record, rows: Iterable[Row]) -> None:
        """Add any number of output rows that came from `record`."""
        self._check(record)
        rows = list(rows)  # first, as they may come from a generator that fails midway
        self._extend([record.sequence] * len(rows), rows)

    def emit_each(self, records: Sequence[Record] | Batch, rows: Sequence[Row]) -> None:
        """Add one output row for each of these records, in their order. Faster than `emit` for each."""
        if len(rows) != len(records):
            raise HandlerMisuse(f"{len(rows)} rows for {len(records)} records: emit_each takes one for each")
        rows = rows if isinstance(rows, list) else list(rows)
        if isinstance(records, Batch):
            if isinstance(self._attempt, Closed):
                self._attempt.refusing.refuse(records.sequences)
            if records.partition != self._attempt.batch.partition:
                raise _of_another(records, self._attempt.batch)
            self._emitted.add(rows, records.sequence_array)
            if records is self._attempt.batch and records.emitted_at_end is not None:
                # A loop that made the rows is over, and all of them are here.
                records.emitted_at_end = len(self._attempt.emitted)
            return
        for record in records:
            self._check(record)
        self._extend([record.sequence for record in records], rows)

    def _extend(self, sequences: Sequence[int], rows: Sequence[Row]) -> None:
        self._sequences.extend(sequences)
        self._rows.extend(rows)
        if len(self._rows) >= PIECE:
            self._emitted.gather()

    def emit_arrow(self, table: pa.Table | pa.RecordBatch) -> None:
        """Add output rows as columns. `_sequence` must be among them, as `batch.to_arrow()` gave it. Numbers are copied, so that
        NumPy arrays may be used again."""
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        if not isinstance(table, pa.Table) and not isinstance(self._attempt, Closed):  # that refuses whatever it is
            raise HandlerMisuse(f"emit_arrow takes a pyarrow Table or RecordBatch, not a {type(table).__name__}")
        self._attempt.tables.append(owned(table) if isinstance(table, pa.Table) else table)

    def dead_letter(self, record: Record, reason: str) -> None:
        """Give this record up: it becomes a dead letter with `reason`, and rows emitted for it are dropped."""
        self._check_open(record)
        if not isinstance(reason, str):
            raise TypeError(f"ctx.dead_letter takes a reason as text, not {type(reason).__name__}; an error: ctx.fail")
        self._attempt.letters[record.sequence] = reason

    def fail(self, record: Record, error: Exception, *, again: bool = True) -> None:
        """Say that this record alone failed: it is retried and in the end dead-lettered, the others go on.

        Args:
            again: False: trying again would not help; it is dead-lettered at once, unless `on_error` says otherwise.
        """
        self._check_open(record)
        if not isinstance(error, Exception):
            raise TypeError(f"ctx.fail takes an exception, not {safe_repr(error)}; a reason as text: ctx.dead_letter")
        self._attempt.failures[record.sequence] = failure_of(error)
        if not again:
            self._attempt.hopeless.add(record.sequence)

    def _check(self, record: Record) -> None:
        """That it is a record, and of this partition: sequences of another's would be taken for this one's."""
        if type(record) is not Record:
            raise _no_record(record)
        if record.partition != self._attempt.batch.partition:
            raise _of_another(record, self._attempt.batch)
        self._checked = record._batch

    def _check_open(self, record: Record) -> None:
        self._check(record)
        batch = self._attempt.batch
        index = bisect_left(batch.sequences, record.sequence)
        if index == len(batch) or batch.sequences[index] != record.sequence:
            raise HandlerMisuse(
                f"record {record.sequence} is not among those at hand ({batch.first} to {batch.last}): it was done before, or "
                "is tried apart from them"
            )
        if record.sequence <= self._attempt.committed:
            raise HandlerError(
                f"record {record.sequence} fails after ctx.commit() had committed it as done: commit when a record is "
                "finished, or commit up to an earlier one with ctx.commit(record)"
            )

    def map(
        self, batch: Iterable[Record], work: Callable[[Record], Awaitable[T]], *, concurrency: int = 32
    ) -> Coroutine[Any, Any, list[T | None]]:
        """Await `work` for many records at once. To be awaited itself.

        Returns:
            The results in record order. Where `work` raised, that record has failed, alone (see `fail`), its result is
            None, and rows emitted for it are dropped. Where it is cut off from outside, as by a time limit, the records that it
            was not done with have failed likewise, unless the handler then emits rows for them or gives them up.
        """
        if type(concurrency) is not int or concurrency < 1:
            raise HandlerMisuse(f"ctx.map: concurrency = {concurrency!r:.80}: a whole number, at least 1")
        if not callable(work):
            raise HandlerMisuse(
                f"ctx.map takes the batch, then a function to call with each record, not a {type(work).__name__}: "
                "write await ctx.map(batch, self.work)"
            )
        return self._attempt.called("map", self._map(batch, work, concurrency))

    async def _map(
        self, batch: Iterable[Record], work: Callable[[Record], Awaitable[T]], concurrency: int
    ) -> list[T | None]:
        records = list(batch)
        for record in records:
            self._check(record)
        self._attempt.batch.emitted_at_end = None  # which ones are worked on is known without
        results: list[T | None] = [None] * len(records)
        attempt, left = self._attempt, set(range(len(records)))
        attempt.awaited.update(record.sequence for record in records)
        first = not attempt.produced  # all rows that there are in the end come from here
        todo = iter(enumerate(records))

        async def worker() -> None:
            for index, record in todo:
                try:
                    with user_code("work"):
                        results[index] = await _awaitable(work(record))
                except Exception as error:  # noqa: BLE001  # it is this record's failure
                    self.fail(record, error)
                left.discard(index)
                attempt.finished(record.sequence)

        try:
            async with anyio.create_task_group() as tasks:
                for _ in range(min(concurrency, len(records))):
                    tasks.start_soon(worker)
        finally:
            if left:
                attempt.ended_early([records[index].sequence for index in left], emitted_by_it=first)
        if left:
            raise HandlerError("ctx.map was cancelled from within: work awaited something that was cancelled")
        return results

    def commit(self, upto: Record | None = None) -> Coroutine[Any, Any, None]:
        """Make position and output durable together, now: up to and with `upto`; without it to the end of the batch, which is
        for after a loop over it. To be awaited.

        It stops short of the first record that has failed or that `map` still works on. Whatever fails later in this attempt,
        what was committed is not processed again.

        Raises:
            Fenced: another host runs this partition; nothing was committed.
            HandlerError: what was emitted as columns does not fit: nothing was committed.
            HandlerMisuse: the handler is still amid the batch and does not say which record it has done; or the record is not
                of this batch.
        """
        return self._attempt.called("commit", self._commit_up_to(upto))

    async def _commit_up_to(self, upto: Record | None) -> None:
        await self._commit(self._attempt, self._end() if upto is None else self._up_to(upto))

    def _up_to(self, record: Record) -> int:
        batch = self._attempt.batch
        if not isinstance(record, Record):
            raise _no_record(record, "ctx.commit(record) commits up to it, ctx.commit() the whole batch")
        if record.partition != batch.partition or record.sequence > batch.last:
            raise HandlerMisuse(
                f"ctx.commit({record!r}): it is not of the batch at hand, {batch!r}; what is committed is never handled again"
            )
        return record.sequence

    def _end(self) -> int:
        """The last sequence, if the handler may be done with it."""
        batch, emitted = self._attempt.batch, self._attempt.emitted
        # As where list(batch) is worked through.
        listed = batch.emitted_at_end is not None and batch.emitted_at_end < len(emitted)
        # Which records are done is not for us to guess: it may have taken one more than it has worked on.
        if listed or batch.reached is not None:
            raise HandlerMisuse(
                "ctx.commit() takes the whole batch as done, and it was called amid its records, or rows were emitted after a "
                "loop over them: say up to which record all is done, ctx.commit(record), or ctx.commit(batch[-1])"
            )
        return batch.last

    # For the core

    def _finish(self) -> None:
        """`process` has returned: from now on nothing can be added.

        Raises:
            HandlerMisuse: it has not awaited what it called.
        """
        calls = list(self._attempt.calls)
        unfinished = {name for name, call in calls if not has_ended(call) and (name == "map" or is_forgotten(call))}
        for sequence in self._attempt.abandoned():
            self._attempt.failures[sequence] = HandlerError(_ABANDONED)
        self._close()
        self._emitted.check()
        if "map" in unfinished:
            raise HandlerMisuse(
                "ctx.map was called and not awaited: its records are not done when process returns; write await ctx.map(...)"
            )
        if unfinished:
            raise HandlerMisuse(
                "ctx.commit was called and not awaited, so nothing was committed: write await ctx.commit() in async def process; "
                "in a plain def, anyio.from_thread.run(ctx.commit)"
            )

    def _close(self, *, cut_off: bool = False) -> None:
        """From now on nothing can be added; it may be that `process` was cut off, and does not know it yet."""
        if isinstance(self._attempt, Closed):
            return
        for _, call in self._attempt.calls:
            if is_forgotten(call):
                call.close()  # else Python says, with lines of ours, that it was never awaited
        self._attempt = closed = Closed(self._attempt, self._site.log, cut_off=cut_off)
        self._rows = self._sequences = closed.refusing


_ABANDONED = (
    "ctx.map was cut off before its call for this record had ended, and the handler says nothing of it: set the time limit within "
    "the function that ctx.map calls, or emit a row for the record, or give it up with ctx.dead_letter"
)


def _no_record(given: object, how: str = "the record comes first, as in ctx.emit(record, row)") -> HandlerMisuse:
    kind = type(given).__name__
    article = "an" if kind[0].lower() in "aeiou" else "a"
    return HandlerMisuse(f"{article} {kind} was given in place of a record: {how}")


def _of_another(given: Record | Batch, batch: Batch) -> HandlerMisuse:
    return HandlerMisuse(
        f"{given!r} is of another partition than the batch at hand, {batch!r}, and handled there: keep records in attributes that "
        "are set in __init__ or opened; those of the class are shared by all partitions"
    )


def _awaitable(made: Awaitable[T]) -> Awaitable[T]:
    if not inspect.isawaitable(made):
        raise HandlerMisuse(f"ctx.map awaits what it is given; that returned a {type(made).__name__}: write async def")
    return made
