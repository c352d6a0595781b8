"""`SequenceHandler`: collects the records of a key from the first to the last, and processes them as a whole."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar, Literal

from actorproc.config.units import duration
from actorproc.errors import HandlerDefinitionError, SettingsError
from actorproc.handler.base import PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.handler.info import PartitionInfo
from actorproc.handler.keyed_state import Key
from actorproc.handler.one_by_one import OneByOne
from actorproc.handler.returned_rows import Returned
from actorproc.handler.wake_context import WakeContext
from actorproc.records import Batch, Record
from actorproc.runtime.user_code import failure_of

_OPEN, _CLOSED, _RECORDS = "sequences.open", "sequences.closed", "sequences.records"
"""Names of states: by key, the number of its open sequence, its count, whether it has its first, its deadline, its
bytes; by number and key, the count of a sequence that is over, and why it is incomplete; by number, index and key,
the records. A number is the partition and sequence of the first record. Earlier versions had the sequence alone,
without key."""

_Number = int | str

MIDDLE = "its first record never came"
AGAIN = "the first record of another sequence came before its last"
LATE = "its last record did not come before the deadline"


class SequenceHandler(PartitionHandler, ABC):
    """Processes whole sequences: all records of a key, from the one that is first to the one that is last.

    The records of an open sequence are kept in state. So sequences survive restarts and move with their partition, and
    no position is held back for them. A sequence is processed right after the batch with its last record.
    """

    deadline: ClassVar[float | str | None] = None
    """Seconds, or text such as "30m", after its first record by which a sequence must be complete. None: none."""

    deadline_clock: ClassVar[Literal["stream", "wall"]] = "stream"
    """The time that counts for the deadline: see `ctx.wake`."""

    most_records: ClassVar[int] = 10_000
    """A sequence of so many records without a last one is incomplete: a key that never ends must not fill the state."""

    most_bytes: ClassVar[int] = 64 * 2**20
    """A sequence whose values, keys and headers have so many bytes without a last record is incomplete, too."""

    _arguments: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **PartitionHandler._arguments,
        "key_of": ("record",),
        "is_first": ("record",),
        "is_last": ("record",),
        "process_sequence": ("key", "records", "ctx"),
        "on_incomplete": ("key", "records", "why", "ctx"),
    }
    _deadline: ClassVar[timedelta | None] = None

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if cls.deadline is not None:
            try:
                cls._deadline = timedelta(seconds=duration(f"{cls.__name__}.deadline", cls.deadline))
            except SettingsError as error:
                raise HandlerDefinitionError(str(error)) from None
        if cls.deadline_clock not in ("stream", "wall"):
            raise HandlerDefinitionError(
                f"{cls.__name__}.deadline_clock = {cls.deadline_clock!r}: allowed are 'stream' and 'wall'"
            )
        for name in ("most_records", "most_bytes"):
            most = getattr(cls, name)
            if type(most) is not int or most < 1:
                raise HandlerDefinitionError(f"{cls.__name__}.{name} = {most!r}: a whole number, 1 or more")
        is_async = any(map(inspect.iscoroutinefunction, (cls.process_sequence, cls.on_incomplete)))
        if cls.on_wake in (SequenceHandler.on_wake, SequenceHandler._on_wake_async):
            cls.on_wake = SequenceHandler._on_wake_async if is_async else SequenceHandler.on_wake  # type: ignore[method-assign]

    # For subclasses

    def key_of(self, record: Record) -> Key:
        """The key whose records make sequences. Default: the record's key, as text."""
        if record.key is None:
            raise ValueError("the record has no key: write key_of(self, record)")
        return record.key.decode()

    @abstractmethod
    def is_first(self, record: Record) -> bool:
        """Whether a sequence begins with this record."""

    @abstractmethod
    def is_last(self, record: Record) -> bool:
        """Whether a sequence ends with this record."""

    @abstractmethod
    def process_sequence(self, key: Any, records: Batch, ctx: WakeContext) -> Returned | Awaitable[Returned]:
        """Process a complete sequence. Return a row, several rows, or None. Plain or `async def`.

        If it raises, it is called again after a back-off, while all others go on. After `max_attempts` all records
        become one dead letter.
        """

    def on_incomplete(self, key: Any, records: Batch, why: str, ctx: WakeContext) -> Returned | Awaitable[Returned]:
        """A sequence is not complete. Default: one dead letter of kind `IncompleteSequence`, with all of its records.

        Args:
            records: those that came.
            why: the missing part, as text.
        """
        ctx.dead_letter(records, f"the sequence of {key!r} is incomplete: {why}", kind="IncompleteSequence")
        return None

    # For the partition

    def process(self, batch: Batch, ctx: PartitionContext) -> None:
        """Keep each record with the open sequence of its key."""
        alone = OneByOne(ctx)
        for record in batch:
            alone.begin()
            try:
                key, first, last = self.key_of(record), self.is_first(record), self.is_last(record)
                self._check_time(record)
                self._keep(record, key, first, last, ctx)
            except BaseException as error:  # noqa: BLE001  # the user's code
                if alone.failed(record, failure_of(error)):
                    return

    def _check_time(self, record: Record) -> None:
        if self._deadline is not None and self.deadline_clock == "stream" and record.timestamp is None:
            raise ValueError("the record has no timestamp, which the deadline needs; or set deadline_clock = 'wall'")

    def _keep(self, record: Record, key: Key, first: bool, last: bool, ctx: PartitionContext) -> None:
        found = ctx.state(_OPEN).get(key)
        if found is not None and (why := _interrupted(found[3], record, first)) is not None:
            self._close(key, found[0], found[1], why, ctx)
            found = None
        if found is None:
            number = f"{ctx.partition}/{record.sequence}"
            found = [number, 0, first, self._set_deadline(number, key, record, ctx), 0]
        number, count, whole, due, *earlier = found  # earlier versions did not count bytes
        headers = [list(header) for header in record.headers]
        fields = [record.sequence, record.value, record.key, headers, record.timestamp]
        ctx.state(_RECORDS).set(_record_key(number, count, key), fields)
        count, size = count + 1, _size(record) + sum(earlier)
        if last:
            self._close(key, number, count, None if whole else MIDDLE, ctx)
        elif count >= self.most_records:
            self._close(key, number, count, f"it has {count} records and no last one", ctx)
        elif size >= self.most_bytes:
            self._close(key, number, count, f"it has {size:,} bytes and no last record", ctx)
        else:
            ctx.state(_OPEN).set(key, [number, count, whole, due, size])

    def _set_deadline(self, number: _Number, key: Key, record: Record, ctx: PartitionContext) -> datetime | None:
        """Set the timer of a new sequence. Returns its time, if that is stream time."""
        if self._deadline is None:
            return None
        if self.deadline_clock == "wall" or record.timestamp is None:
            ctx.wake(_timer(number, key), after=self._deadline)
            return None
        due = record.timestamp + self._deadline
        ctx.wake(_timer(number, key), due)
        return due

    def _close(self, key: Key, number: _Number, count: int, why: str | None, ctx: PartitionContext) -> None:
        """The sequence is over. It is processed in `on_wake`, where a failure is its own."""
        ctx.state(_OPEN).delete(key)
        ctx.state(_CLOSED).set(_closed(number, key), [count, why])
        ctx.wake(_timer(number, key), after=0)

    def on_wake(self, key: Any, ctx: WakeContext) -> Any:
        """Process a sequence that is over, or has missed its deadline."""
        number, its_key = key[0], key[2] if key[1] else tuple(key[2:])
        over = self._take(number, its_key, ctx)
        if over is None:
            return None
        records, why = over
        if ctx.exhausted is not None:
            ctx.dead_letter(records, ctx.exhausted)
            return None
        if why is None:
            return self.process_sequence(its_key, records, ctx)
        return self.on_incomplete(its_key, records, why, ctx)

    async def _on_wake_async(self, key: Any, ctx: WakeContext) -> Any:
        result = SequenceHandler.on_wake(self, key, ctx)
        return await result if inspect.isawaitable(result) else result

    def _take(self, number: _Number, key: Key, ctx: WakeContext) -> tuple[Batch, str | None] | None:
        """Remove a sequence from state: its records, and why it is incomplete."""
        closed, opened = ctx.state(_CLOSED), ctx.state(_OPEN)
        if (found := closed.get(_closed(number, key))) is not None:
            closed.delete(_closed(number, key))
            count, why = found
        else:
            held = opened.get(key)
            if held is None or held[0] != number:
                return None
            opened.delete(key)
            count, why = held[1], LATE
        return _taken(number, count, key, ctx), why

    def record_key(self, key: Key, ctx: PartitionInfo) -> str | None:
        """The key of a sequence, unless a subclass takes it from elsewhere."""
        if type(self).key_of is not SequenceHandler.key_of:
            return None
        last = key[-1] if isinstance(key, tuple) else key
        return last if isinstance(last, str) else None


def _size(record: Record) -> int:
    """Bytes that a record takes in state."""
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.value or b"") + len(record.key or b"") + headers


def _interrupted(due: datetime | None, record: Record, first: bool) -> str | None:
    """Why an open sequence with this deadline is over before this record of its key; None: it is not."""
    if due is not None and record.timestamp is not None and record.timestamp >= due:
        return LATE  # its timer has not fired yet
    return AGAIN if first else None


def _timer(number: _Number, key: Key) -> Key:
    """Of a sequence: its number, whether the key is a single item, and the key."""
    return (number, 0, *key) if isinstance(key, tuple) else (number, 1, key)


def _closed(number: _Number, key: Key) -> Key:
    return number if isinstance(number, int) else _timer(number, key)


def _record_key(number: _Number, index: int, key: Key) -> Key:
    """Key in the state of a record of a sequence."""
    if isinstance(number, int):
        return (number, index)
    return (number, index, *key) if isinstance(key, tuple) else (number, index, key)


def _taken(number: _Number, count: int, key: Key, ctx: WakeContext) -> Batch:
    """The records of a sequence, which are removed from state."""
    state = ctx.state(_RECORDS)
    stored = [_record_key(number, index, key) for index in range(count)]
    fields = [state[found] for found in stored]
    for found in stored:
        state.delete(found)
    sequences, values, keys, headers, timestamps = zip(*fields, strict=True)
    return Batch.of(ctx.partition, values, sequences, keys=keys, headers=headers, timestamps=timestamps)
