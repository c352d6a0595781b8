"""`PartitionContext`: the object through which `process` emits, fails and commits."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any, TypeVar

import anyio
import pyarrow as pa

from actorproc.errors import DecodeError, HandlerError, HandlerMisuse, SchemaError
from actorproc.handler.attempt import CUT_OFF, RETURNED, Attempt
from actorproc.handler.call import HandlerCall
from actorproc.handler.decoder import Decoder, Values, columns_of, values_of
from actorproc.handler.info import PartitionInfo
from actorproc.handler.record_map import map_records
from actorproc.records import Batch, Record
from actorproc.rows.encoder import Row
from actorproc.rows.row_buffer import PIECE
from actorproc.rows.sequence_order import owned
from actorproc.runtime.error_text import safe_repr
from actorproc.runtime.user_code import failure_of

T = TypeVar("T")


class PartitionContext(HandlerCall):
    """One attempt at one batch.

    `async def process` uses it on the event loop. A plain `def process` uses it in its worker thread, where
    `anyio.from_thread.run(ctx.commit)` commits. Once `process` has returned or failed, its methods raise HandlerError.
    """

    def __init__(
        self,
        info: PartitionInfo,
        attempt: Attempt,
        commit: Callable[[Attempt, int], Awaitable[None]],
        draining: anyio.Event,
    ) -> None:
        super().__init__(info, attempt, draining)
        self._buffer = attempt.rows
        self._rows = attempt.rows.rows
        self._sequences = attempt.rows.sequences
        self._commit_upto = commit
        self._trusted: Batch | None = attempt.batch  # records of it need no check; None once the attempt is closed

    # Rows

    def emit(self, record: Record, row: Row) -> None:
        """Add an output row for `record`: a dict by column, or a tuple in the order of `output_schema` (faster).

        A row that does not fit `output_schema` fails its record.
        """
        if type(record) is not Record or record._batch is not self._trusted:
            self._check(record)
        self._sequences.append(record.sequence)
        self._rows.append(row)
        if len(self._rows) >= PIECE:
            self._buffer.gather()

    def emit_many(self, record: Record, rows: Iterable[Row]) -> None:
        """Add any number of output rows for `record`."""
        self._check(record)
        rows = list(rows)  # a generator may fail midway
        self._extend([record.sequence] * len(rows), rows)

    def emit_each(self, records: Sequence[Record] | Batch, rows: Sequence[Row]) -> None:
        """Add one output row for each of `records`, in their order. Faster than `emit` for each."""
        self._check_open()
        if len(rows) != len(records):
            raise HandlerMisuse(f"{len(rows)} rows for {len(records)} records: emit_each takes one for each")
        rows = rows if isinstance(rows, list) else list(rows)
        if isinstance(records, Batch):
            if records.partition != self._attempt.batch.partition:
                raise _of_another(records, self._attempt.batch)
            self._buffer.add(rows, records.sequence_array)
            return
        for record in records:
            self._check(record)
        self._extend([record.sequence for record in records], rows)

    def _extend(self, sequences: Sequence[int], rows: Sequence[Row]) -> None:
        self._check_open()  # making the rows may have taken long
        self._sequences.extend(sequences)
        self._rows.extend(rows)
        if len(self._rows) >= PIECE:
            self._buffer.gather()

    def emit_arrow(self, table: pa.Table | pa.RecordBatch) -> None:
        """Add output rows as columns, with the column `_sequence` of `batch.to_arrow()` among them.

        Numbers are copied, so that NumPy arrays may be used again.
        """
        self._check_open()
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        if not isinstance(table, pa.Table):
            raise HandlerMisuse(f"emit_arrow takes a pyarrow Table or RecordBatch, not a {type(table).__name__}")
        self._buffer.tables.append(owned(table))

    # Decoded values

    def decode(self, batch: Batch, kind: Any = Any) -> Iterator[tuple[Record, Any]]:
        """Yield each record with its value, decoded as the setting `decode` says.

        A record whose value does not decode fails at once, as by `fail(..., again=False)`, and is not yielded.

        Args:
            kind: decode into a `msgspec.Struct`, dataclass, TypedDict or pydantic model; Any: into plain objects.
        """
        for records, values in self.decode_lists(batch, kind):
            yield from zip(records, values, strict=True)

    def decode_lists(self, batch: Batch, kind: Any = Any) -> Iterator[tuple[Batch | list[Record], list[Any]]]:
        """Yield records and their decoded values in lists of up to 512, for `emit_each`: faster than one by one.

        A record whose value does not decode fails as in `decode`, and is in no list.

        Args:
            kind: as of `decode`.
        """
        try:
            values = values_of(self.decoder, kind)
        except TypeError as error:
            raise HandlerMisuse(f"ctx.decode: values cannot become {safe_repr(kind)}: {error}") from None
        refuse = self._refuser()
        for start, decoded in zip(count(0, PIECE), values.parse_pieces(batch.data.column("value"), PIECE)):
            piece = batch[start : start + PIECE]
            if decoded is not None:
                yield piece, decoded
            elif (good := _one_by_one(piece, values, refuse))[0]:
                yield good

    def decode_key(self, record: Record, kind: Any = Any) -> Any:
        """The record's key, decoded as the setting `decode_key` says.

        Args:
            kind: as of `decode`.

        Raises:
            DecodeError: the key does not decode. Not caught, it fails the record if that is processed alone.
            HandlerMisuse: `decode_key` is not set, or keys cannot become this kind.
        """
        if self.key_decoder is None:
            raise HandlerMisuse("ctx.decode_key: the setting decode_key is not set")
        try:
            keys = values_of(self.key_decoder, kind)
        except TypeError as error:
            raise HandlerMisuse(f"ctx.decode_key: keys cannot become {safe_repr(kind)}: {error}") from None
        try:
            return keys.parse(record.key)
        except ValueError as error:
            raise DecodeError(f"the key: {error}") from error

    def decode_arrow(self, batch: Batch, schema: pa.Schema | str | None = None) -> pa.Table:
        """The values decoded into columns, with `_sequence`, ready for `emit_arrow`.

        Fields that the schema does not name are ignored, missing ones are null. A record whose value does not decode,
        or does not fit the schema, fails at once, as by `fail(..., again=False)`, and has no row.

        Args:
            schema: the columns, as Spark DDL or a pyarrow schema; default: those of the output.
        """
        return self._decode_arrow(batch, self.decoder, self.output_schema if schema is None else schema)[0]

    def _decode_arrow(self, batch: Batch, decoder: Decoder, schema: pa.Schema | str) -> tuple[pa.Table, bool]:
        """The columns, and whether they came quickly: none was decoded value by value, and all did decode."""
        try:
            columns = columns_of(decoder, schema)
        except SchemaError as error:  # whatever the record: none shall become a dead letter for it
            raise HandlerMisuse(f"values cannot be decoded into these columns: {error}") from None
        refuse = self._refuser()
        table, errors = columns.parse(batch.data.column("value"), batch.sequence_array)
        for sequence, wrong in errors.items():
            refuse(batch[bisect_left(batch.sequences, sequence)], wrong)
        return table, columns.is_columnar and not errors

    # Records that fail

    def dead_letter(self, record: Record, reason: str, *, kind: str = "DeadLetter") -> None:
        """Give this record up: it becomes a dead letter, and its rows are dropped.

        Args:
            reason: the letter's error message.
            kind: the letter's error type, by which letters can be listed and replayed.
        """
        self._check_at_hand(record)
        for name, text in (("reason", reason), ("kind", kind)):
            if not isinstance(text, str):
                raise TypeError(f"ctx.dead_letter: {name} must be a str, not {type(text).__name__}; an error: ctx.fail")
        self._attempt.letters[record.sequence] = reason, kind

    def fail(self, record: Record, error: Exception, *, again: bool = True) -> None:
        """Fail this record alone: it is tried again and in the end dead-lettered. The other records are processed.

        Args:
            again: False if another attempt would not help: it is dead-lettered at once, unless `on_error` decides
                otherwise.
        """
        self._check_at_hand(record)
        if not isinstance(error, Exception):
            raise TypeError(f"ctx.fail takes an exception, not {safe_repr(error)}; a reason as text: ctx.dead_letter")
        self._attempt.failures[record.sequence] = failure_of(error)
        if not again:
            self._attempt.hopeless.add(record.sequence)

    def _check_row(self, row: Row) -> None:
        """Raises RowMismatch if the row does not fit `output_schema`."""
        if (misfit := self._buffer.misfit(row)) is not None:
            raise misfit

    def _refuser(self) -> Callable[[Record, Exception], None]:
        """`_refuse`, unless the handler may have changed state for the record already."""
        return partial(self.fail, again=False) if self._attempt.state.used else self._refuse

    def _refuse(self, record: Record, error: Exception) -> None:
        """Fail a record that no state was changed for, as `fail(..., again=False)` does."""
        self.fail(record, error, again=False)
        self._attempt.traceless.add(record.sequence)

    def _check_open(self) -> None:
        if self._attempt.closed is not None:
            raise self._refusal()

    def _refusal(self) -> HandlerError:
        """The error may end up in a task that nobody awaits. So it is logged, and the partition looks at `late`."""
        why = self._attempt.closed or ""
        if why == RETURNED and not self._attempt.late.is_set():
            self._attempt.late.set()
            self.log.error("partition.emitted_too_late", error=why)
        return HandlerError(why)

    def _check(self, record: Record) -> None:
        """The sequence of another partition's record would be taken for one of this partition."""
        self._check_open()
        if type(record) is not Record:
            raise _no_record(record)
        if record.partition != self._attempt.batch.partition:
            raise _of_another(record, self._attempt.batch)
        self._trusted = record._batch

    def _check_at_hand(self, record: Record) -> None:
        self._check(record)
        batch = self._attempt.batch
        if not batch.has(record.sequence):
            raise HandlerMisuse(
                f"record {record.sequence} is not among those at hand ({batch.first} to {batch.last}): it was done "
                "before, or is tried apart from them"
            )
        if record.sequence <= self._attempt.committed:
            raise HandlerError(
                f"record {record.sequence} fails after ctx.commit() had committed it as done: commit when a record is "
                "finished, or commit up to an earlier one with ctx.commit(record)"
            )

    # Calls to await

    def map(
        self, batch: Iterable[Record], work: Callable[[Record], Awaitable[T]], *, concurrency: int = 32
    ) -> Coroutine[Any, Any, list[T | None]]:
        """Await `work(record)` for many records at once. To be awaited itself.

        If it is cut off, for example by a time limit around it, its unfinished records have failed, unless the handler
        gives them up.

        Returns:
            The results in record order. If `work` raises, that record has failed alone (see `fail`), its result is
            None, and its rows are dropped.
        """
        self._check_open()
        if type(concurrency) is not int or concurrency < 1:
            raise HandlerMisuse(f"ctx.map: concurrency = {concurrency!r:.80}: a whole number, at least 1")
        if not callable(work):
            raise HandlerMisuse(
                f"ctx.map takes the batch, then a function to call with each record, not a {type(work).__name__}: "
                "write await ctx.map(batch, self.work)"
            )
        records = list(batch)
        self._attempt.maps += 1  # if it is not awaited, its records are not done
        return map_records(self._attempt, records, work, concurrency, check=self._check, fail=self.fail)

    async def commit(self, upto: Record | None = None) -> None:
        """Make position and output durable now: up to and with the record `upto`, or the whole batch.

        `ctx.commit()` takes every record of the batch as done, so call it after the last one. A commit stops short of
        the first record that has failed or that `map` still works on. Committed records are not processed again,
        whatever fails later.

        Changes of `ctx.state` are not known by record. So while they wait for a commit, only the whole batch can be
        committed; a commit that would stop short of a record commits nothing.

        Raises:
            Fenced: another host runs this partition; nothing was committed.
            HandlerError: a table of `emit_arrow` does not fit the schema; nothing was committed.
            HandlerMisuse: the record is not of this batch, or the state has changed, and it is not the last record.
        """
        self._check_open()
        await self._commit_upto(self._attempt, self._attempt.batch.last if upto is None else self._up_to(upto))

    def _up_to(self, record: Record) -> int:
        batch = self._attempt.batch
        if not isinstance(record, Record):
            raise _no_record(record, "ctx.commit(record) commits up to it, ctx.commit() the whole batch")
        if record.partition != batch.partition or record.sequence > batch.last:
            raise HandlerMisuse(
                f"ctx.commit({record!r}): it is not of the batch at hand, {batch!r}; a committed record is never "
                "processed again"
            )
        if record.sequence < batch.last and self._attempt.state.changed:
            raise HandlerMisuse(
                f"ctx.commit({record!r}): the state has changed in this batch, and changes are not known by record, so "
                "only the whole batch can be committed: ctx.commit() after the last record. For commits after fewer "
                "records set max_batch_records"
            )
        return record.sequence

    # For the partition

    def _finish(self) -> None:
        """`process` has returned: close the attempt.

        Raises:
            HandlerMisuse: a `map` has not ended, or several threads emitted at once.
        """
        self._close(RETURNED)
        self._attempt.fail_cut_off()
        self._buffer.check()
        if self._attempt.maps:
            raise HandlerMisuse(
                "ctx.map was called and not awaited: its records are not done when process returns; write await "
                "ctx.map(...)"
            )

    def _close(self, why: str = CUT_OFF) -> None:
        if self._attempt.closed is None:
            self._attempt.closed, self._trusted = why, None
            self._attempt.state.closed = self._refusal


def _one_by_one(
    piece: Batch, values: Values[Any], refuse: Callable[[Record, Exception], None]
) -> tuple[list[Record], list[Any]]:
    good, decoded = list[Record](), list[Any]()
    for record in piece:
        try:
            decoded.append(values.parse(record.value))
        except ValueError as why:
            refuse(record, why)
        else:
            good.append(record)
    return good, decoded


def _no_record(given: object, how: str = "the record comes first, as in ctx.emit(record, row)") -> HandlerMisuse:
    kind = type(given).__name__
    article = "an" if kind[0].lower() in "aeiou" else "a"
    return HandlerMisuse(f"{article} {kind} was given in place of a record: {how}")


def _of_another(given: Record | Batch, batch: Batch) -> HandlerMisuse:
    return HandlerMisuse(
        f"{given!r} is of another partition than the batch at hand, {batch!r}, and processed there: keep records in "
        "attributes that are set in __init__ or opened; attributes of the class are shared by all partitions"
    )
