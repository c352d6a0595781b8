"""A guard around sources of others: errors name the method, and records get the declared types."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractContextManager, aclosing, asynccontextmanager
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from numbers import Integral
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from actorproc.errors import SourceError
from actorproc.records import RECORD_SCHEMA, SEQUENCE, Batch, ReadCost
from actorproc.runtime.budget import ReadBudget
from actorproc.runtime.error_text import describe_error
from actorproc.runtime.logger import get_logger
from actorproc.runtime.user_code import user_code
from actorproc.sources.log import LogSource
from actorproc.sources.output_source import OutputSource
from actorproc.sources.protocol import Chunk, End, Partition, Source, Start
from actorproc.sources.queue_protocol import Consumer, Deliveries, QueueSource

logger = get_logger(__name__)


def guard_source(source: Source, *, log: Any = logger) -> Source:
    """The source, wrapped in a `GuardedSource` unless it reads our own files."""
    if isinstance(source, LogSource | OutputSource | GuardedSource):
        return source
    return GuardedQueues(source, log) if isinstance(source, QueueSource) else GuardedSource(source, log)


def source_kind(source: Source) -> str:
    """Name of the source's class, seen through the guard."""
    return type(source.guarded if isinstance(source, GuardedSource) else source).__name__


class _Answer(NamedTuple):
    """A right answer of a method. `make` converts it: NumPy's numbers and text are none of Python's own."""

    is_right: Callable[[Any], bool]
    words: str
    make: Callable[[Any], Any] = lambda answer: answer


_POSITION = _Answer(lambda answer: isinstance(answer, str), "a position, which is a str", str)
_NUMBER = _Answer(lambda answer: isinstance(answer, Integral), "an int or None", int)
_TIME = _Answer(lambda answer: isinstance(answer, datetime) and answer.tzinfo is not None, "a time with its zone")
_TRUTH = _Answer(lambda answer: not inspect.isawaitable(answer), "a bool; it must be a plain `def`", bool)
_ANSWERS = {
    "start": _POSITION, "start_after": _POSITION, "position_of": _POSITION, "position_at": _POSITION,
    "sequence_before": _NUMBER, "records_between": _NUMBER, "bytes_between": _NUMBER,
    "time_at": _TIME, "reached": _TRUTH,
}  # fmt: skip
_NEVER_NONE = ("start", "position_at")


class GuardedSource(Source):
    """Wraps a source that a user wrote, or that reads somebody else's stream.

    An error of a method becomes a SourceError that names the method. Results that could lose, repeat or misplace
    records are refused: a position that is not text, sequences that are not integers, a chunk of another partition.
    Methods that are not defined here are passed on by `_passed_on`.
    """

    def __init__(self, source: Source, log: Any) -> None:
        self.guarded = source
        self._logger = log

    def __str__(self) -> str:
        return str(self.guarded)

    @property
    def identity(self) -> str | None:  # type: ignore[override]  # known once the source is open
        with self._user_code("identity"):
            identity = self.guarded.identity
        return None if identity is None else str(identity)

    @property
    def throttled(self) -> int:  # type: ignore[override]  # as the guarded source says
        given = self.guarded.throttled
        return given if isinstance(given, int) else 0

    @property
    def knows_keys(self) -> bool:  # type: ignore[override]  # as the guarded source says
        return bool(self.guarded.knows_keys)

    async def close(self) -> None:
        """Close the source. An error is only logged: nothing is lost by it, and it must not hide an earlier one."""
        try:
            await self._await("close")
        except SourceError as error:
            self._logger.warning(
                "source.close_failed", source=str(self), error=describe_error(error.__cause__ or error)
            )

    async def partitions(self) -> Sequence[str | Partition]:
        given = await self._await("partitions")
        listed = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [None]
        if not all(isinstance(one, str) or _is_partition(one) for one in listed):
            raise self._wrong("partitions", given, "a list of names, each a str or a Partition(name, parents)")
        found = [one if isinstance(one, Partition) else str(one) for one in listed]
        return list({one.name if isinstance(one, Partition) else one: one for one in found}.values())

    async def start(self, partition: str, at: Start) -> str:
        return str(await self._await("start", partition, at))

    async def keys_of(self, partition: str) -> Callable[[bytes], bool]:
        has = await self._await("keys_of", partition)

        def guarded(key: bytes) -> bool:
            with self._user_code("keys_of"):
                return bool(has(key))

        return guarded

    async def end(self, partition: str) -> End:
        end = await self._await("end", partition)
        if not isinstance(end, End) or not isinstance(end.sequence, Integral | None):
            raise self._wrong("end", end, "an End(position, sequence), whose sequence is an int or None")
        self._check_position("end", end.position)
        return end

    def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        return self.read_within(partition, position, ReadBudget.unlimited())

    async def read_within(self, partition: str, position: str, budget: ReadBudget) -> AsyncGenerator[Chunk, None]:
        with self._user_code("read"):
            chunks: object = self.guarded.read_within(partition, position, budget)
            if not isinstance(chunks, AsyncGenerator):
                raise self._wrong("read", chunks, "an async generator: `async def read` with a `yield`")
            async with aclosing(chunks):
                async for chunk in chunks:
                    yield self._checked(partition, chunk)

    def _call(self, method: str, *arguments: object) -> Any:
        with self._user_code(method):
            return self._right(method, getattr(self.guarded, method)(*arguments))

    async def _await(self, method: str, *arguments: object) -> Any:
        with self._user_code(method):
            return self._right(method, await getattr(self.guarded, method)(*arguments))

    def _right(self, method: str, answer: Any) -> Any:
        """The answer, if it is one that this method may give."""
        right = _ANSWERS.get(method)
        if right is None or (answer is None and method not in _NEVER_NONE):
            return answer
        if not right.is_right(answer):
            raise self._wrong(method, answer, right.words)
        return right.make(answer)

    def _user_code(self, method: str) -> AbstractContextManager[None]:
        return user_code(f"{method}() of the source {self}", SourceError, application_task=True)

    def _checked(self, partition: str, chunk: object) -> Chunk:
        if not isinstance(chunk, Chunk):
            raise self._wrong("read", chunk, "a Chunk(batch, next)")
        self._check_position("read", chunk.next)
        if not isinstance(chunk.cost, ReadCost | None):
            raise self._wrong("read", chunk.cost, "a ReadCost, or None, as the cost")
        if chunk.cuts is not None and not _are_growing(chunk.cuts):
            raise self._wrong("read", chunk.cuts, "growing sequences, or None, as the cuts")
        batch = self._checked_batch("read", partition, chunk.batch)
        return chunk if batch is chunk.batch else replace(chunk, batch=batch)

    def _checked_batch(self, method: str, partition: str, batch: object) -> Batch:
        if not isinstance(batch, Batch) or not isinstance(batch.data, pa.RecordBatch):
            raise self._wrong(method, batch, "a Batch of an Arrow RecordBatch")
        if batch.partition != partition:
            raise self._wrong(method, batch, f"a Batch of partition {partition!r}")
        sequences = batch.sequence_array
        if not pt.is_integer(sequences.type) or sequences.null_count:
            raise self._wrong(method, sequences, "sequences: integers, none of them null")
        if batch.data.schema.equals(RECORD_SCHEMA) and sequences.type.equals(SEQUENCE.type):
            return batch
        return _with_declared_types(batch)

    def _check_position(self, method: str, position: object) -> None:
        if not isinstance(position, str):
            raise self._wrong(method, position, "a position, which is a str")

    def _wrong(self, method: str, answer: object, expected: str) -> SourceError:
        return SourceError(f"{method}() of the source {self} returned {answer!r:.200}; expected {expected}")


def _passed_on(name: str) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(getattr(Source, name)):
        return lambda self, *arguments: self._await(name, *arguments)
    return lambda self, *arguments: self._call(name, *arguments)


for _name, _value in vars(Source).items():
    if callable(_value) and not _name.startswith("_") and _name not in vars(GuardedSource):
        setattr(GuardedSource, _name, _passed_on(_name))


class GuardedQueues(GuardedSource, QueueSource):
    """Wraps queues that a user wrote."""

    guarded: QueueSource

    @asynccontextmanager
    async def consume(self, partition: str, unacknowledged: int) -> AsyncIterator[Consumer]:
        with self._user_code("consume"):
            async with self.guarded.consume(partition, unacknowledged) as consumer:
                yield _GuardedConsumer(self, partition, consumer)

    def checked(self, partition: str, deliveries: object) -> Deliveries:
        """The same messages with the declared types.

        Raises:
            SourceError: they are not `Deliveries`, or some have no identity.
        """
        if not isinstance(deliveries, Deliveries):
            raise self._wrong("receive", deliveries, "Deliveries(batch, identities)")
        batch, identities = self._checked_batch("receive", partition, deliveries.batch), deliveries.identities
        if len(identities) != len(batch) or not all(
            one is None or (one and isinstance(one, str)) for one in identities
        ):
            raise self._wrong("receive", identities, f"an identity for each of {len(batch)} messages, a str or None")
        return Deliveries(batch, identities)


class _GuardedConsumer(Consumer):
    def __init__(self, source: GuardedQueues, partition: str, consumer: Consumer) -> None:
        self._source, self._partition, self._consumer = source, partition, consumer

    async def receive(self) -> Deliveries:
        with self._source._user_code("receive"):
            return self._source.checked(self._partition, await self._consumer.receive())

    async def acknowledge(self, count: int) -> None:
        with self._source._user_code("acknowledge"):
            await self._consumer.acknowledge(count)


def _is_partition(one: object) -> bool:
    return (
        isinstance(one, Partition)
        and isinstance(one.parents, tuple)
        and all(isinstance(name, str) for name in (one.name, *one.parents))
    )


def _are_growing(cuts: Sequence[object]) -> bool:
    return all(isinstance(cut, Integral) for cut in cuts) and all(a < b for a, b in pairwise(cuts))  # type: ignore[operator]


def _with_declared_types(batch: Batch) -> Batch:
    """The batch with the columns and types of `RECORD_SCHEMA`: other code reads the columns' buffers as they are.

    Raises:
        KeyError, pa.ArrowException: a column is missing, or cannot become the declared type.
    """
    columns = [
        pc.cast(batch.data.column(field.name), options=pc.CastOptions(field.type, allow_time_truncate=True))
        for field in RECORD_SCHEMA
    ]
    data = pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)
    declared = Batch(batch.partition, data, batch.sequence_array.cast(SEQUENCE.type))
    declared.timestamp_type = batch.timestamp_type
    declared.refused = batch.refused
    return declared
