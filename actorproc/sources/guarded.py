"""A guard around sources of the user's: what their methods raise, or wrongly return, becomes a SourceError that names the method."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from numbers import Integral
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from actorproc.errors import PASSING, ActorprocError, SourceError, UsageError, blamed, described, storable
from actorproc.records import RECORD_SCHEMA, SEQUENCE, Batch, Cursor
from actorproc.runtime.budget import ByteBudget, Room
from actorproc.runtime.logger import get_logger
from actorproc.runtime.tasks import may_be_meant, restore_cancellation
from actorproc.sources.checks import check_methods, reading_method, signature
from actorproc.sources.log import LogSource
from actorproc.sources.output import OutputSource
from actorproc.sources.protocol import Chunk, End, Source, Start

T = TypeVar("T")

log = get_logger(__name__)


def guarded(source: Source, *, log: Any = log) -> Source:
    """The source; behind a guard if it is none of ours.

    Raises:
        UsageError: one of its methods is certainly wrong.
    """
    if isinstance(source, (LogSource, OutputSource, GuardedSource)):
        return source
    check_methods(source)
    return GuardedSource(source, log)


def kind_of(source: Source) -> str:
    """Name of its class, as the user has written it."""
    return source.kind if isinstance(source, GuardedSource) else type(source).__name__


class GuardedSource(Source):
    """Passes every call on. Its methods raise SourceError that says what was asked, and which method failed."""

    def __init__(self, source: Source, log: Any) -> None:
        self._source = source
        self._log = log
        self.kind = type(source).__name__

    def __str__(self) -> str:
        return str(self._source)

    @property
    def identity(self) -> str | None:  # type: ignore[override]  # known once it is open
        with _blamed(f"asking the source {self} for its identity"):
            identity = self._source.identity
        return None if identity is None else str(identity)

    async def open(self) -> None:
        """Open it.

        Raises:
            UsageError: one of its methods gives nothing that can be awaited.
        """
        with _blamed(f"opening the source {self}"):
            await self._awaited("open", self._source.open())
        try:
            await self._check_awaited()
        except BaseException:  # a cancellation, too: nobody else closes what has not opened
            await self.close()
            raise

    async def _check_awaited(self) -> None:
        """A plain def is right if what it gives can be awaited. So those that are no `async def` are called once, to see."""
        methods = {method: getattr(self._source, method) for method in ("partitions", "start", "end")}
        unsure = [method for method, found in methods.items() if not inspect.iscoroutinefunction(found)]
        reads = getattr(self._source, reading_method(self._source))
        if not unsure and inspect.isasyncgenfunction(reads):
            return
        try:
            names = await self.partitions()
        except SourceError:
            return  # said when the host looks at the source
        for partition in names[:1]:
            for method, arguments in (("start", (partition, "earliest")), ("end", (partition,))):
                if method not in unsure:
                    continue
                try:
                    answer = methods[method](*arguments)
                except PASSING:
                    raise
                except BaseException:  # noqa: BLE001, S112  # which says nothing of what it gives
                    continue
                _let_go(self._awaitable(method, answer))
            if not inspect.isasyncgenfunction(reads):
                await self._check_read(partition)

    async def _check_read(self, partition: str) -> None:
        """Of a plain def, that what it gives is an async generator; which is not begun."""
        try:
            position = await self.start(partition, "earliest")
            chunks: object = self._source.read_within(partition, position, Room(ByteBudget(sys.maxsize)))
        except PASSING:
            raise
        except BaseException:  # noqa: BLE001  # likewise
            return
        _let_go(chunks)
        if not isinstance(chunks, AsyncGenerator):
            method = reading_method(self._source)
            raise UsageError(
                f"the source's {self.kind}.{method} gave {chunks!r:.200}; it must be an async generator: "
                f"`async def {signature(method)}` that yields chunks"
            )
        await chunks.aclose()

    async def close(self) -> None:
        """What it raises is told, and hides no other error: nothing is lost by it."""
        try:
            with _blamed("it"):
                await self._awaited("close", self._source.close())
        except ActorprocError as error:
            self._log.warning("source.close_failed", source=str(self), error=described(error.__cause__ or error))

    async def register(self, processor: str, container: str) -> None:
        with _blamed(f"registering with the source {self}"):
            await self._awaited("register", self._source.register(processor, container))

    async def partitions(self) -> Sequence[str]:
        with _blamed(f"listing the partitions of {self}"):
            found = await self._awaited("partitions", self._source.partitions())
            names: list[object] = list(found) if isinstance(found, Iterable) and not isinstance(found, str) else [None]
            texts = [str.__str__(name) for name in names if isinstance(name, str)]  # NumPy's are no keys of JSON
            if len(texts) < len(names):
                raise self._wrong("partitions", found, "a list of names, each a str")
            for name in texts:
                if storable(name) != name:  # it is a key, as UTF-8; `os.listdir` gives such names
                    raise self._wrong(
                        "partitions", name, "names that UTF-8 can hold: write other bytes as text, such as %E9"
                    )
            twice = [name for name, times in Counter(texts).items() if times > 1]
            if twice:
                raise self._wrong("partitions", found, f"names that differ: {twice[0]!r} is there more than once")
            return texts

    async def start(self, partition: str, at: Start) -> str:
        with _blamed(f"asking {self} where partition {partition} starts"):
            position = self._checked("start", await self._awaited("start", self._source.start(partition, at)), str)
            self._check_position("start", position)
            return position

    async def end(self, partition: str) -> End:
        with _blamed(f"finding the end of partition {partition} of {self}"):
            end = self._checked("end", await self._awaited("end", self._source.end(partition)), End)
            self._check_position("end", end.position)
            if not isinstance(end.sequence, Integral | None):
                raise self._wrong("end", end, "an End whose sequence is an int, or None")
            return end

    def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        return self.read_within(partition, position, Room(ByteBudget(sys.maxsize)))

    async def read_within(self, partition: str, position: str, room: Room) -> AsyncGenerator[Chunk, None]:
        with _blamed(f"reading partition {partition} of {self}"):
            chunks: object = self._source.read_within(partition, position, room)
            _let_go(chunks)
            if not isinstance(chunks, AsyncGenerator):
                raise self._wrong("read", chunks, "an async generator: `async def read` that yields")
            async with aclosing(chunks):
                async for chunk in chunks:
                    yield self._checked_chunk(partition, chunk)

    def sequence_before(self, partition: str, position: str) -> int | None:
        with _blamed(f"asking {self} for the sequence before {position!r} in partition {partition}"):
            return self._at_once("sequence_before", self._source.sequence_before(partition, position))

    def reached(self, cursor: Cursor, end: End) -> bool:
        with _blamed(f"asking {self} whether an end is reached"):
            return self._at_once("reached", self._source.reached(cursor, end))

    def _at_once(self, method: str, answer: T) -> T:
        if inspect.iscoroutine(answer):
            _let_go(answer)
            raise SourceError(f"the source's {self.kind}.{method} must be a plain `def {method}`")
        return answer

    async def _awaited(self, method: str, answer: object) -> object:
        with restore_cancellation():
            return await self._awaitable(method, answer)

    def _awaitable(self, method: str, answer: object) -> Awaitable[object]:
        if not inspect.isawaitable(answer):
            raise UsageError(
                f"the source's {self.kind}.{method} gave {answer!r:.200}, which cannot be awaited; it must be "
                f"`async def {signature(method)}`"
            )
        return answer

    def _checked(self, method: str, answer: object, kind: type[T]) -> T:
        if not isinstance(answer, kind):
            raise self._wrong(method, answer, f"{'an' if kind is End else 'a'} {kind.__name__}")
        return answer

    def _checked_chunk(self, partition: str, chunk: object) -> Chunk:
        checked = self._checked("read", chunk, Chunk)
        self._check_position("read", checked.next)
        batch = self._checked("read", checked.batch, Batch)
        if batch.partition != partition:
            raise self._wrong("read", batch, f"of partition {partition!r}")
        fields = self._checked("read", batch.data, pa.RecordBatch).schema
        if not set(RECORD_SCHEMA.names) <= set(fields.names):
            raise self._wrong(
                "read", fields.names, f"a Batch of the columns {', '.join(RECORD_SCHEMA.names)} (RECORD_SCHEMA)"
            )
        sequences = batch.sequence_array
        if not pt.is_integer(sequences.type) or sequences.null_count:
            raise self._wrong("read", sequences, "sequences: integers, none of them null")
        if fields.equals(RECORD_SCHEMA) and sequences.type.equals(SEQUENCE.type):
            return checked
        columns = [self._column(batch.data.column(field.name), field) for field in RECORD_SCHEMA]
        data = pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)
        return Chunk(Batch(partition, data, self._column(sequences, SEQUENCE)), checked.next)

    def _column(self, column: pa.Array, field: pa.Field) -> pa.Array:
        """As all that is ours reads it, some of it by the bytes: a column may come in any type that can become the declared one."""
        if column.type.equals(field.type):
            return column
        wanted = f"{field.name}: {'bytes (of text: text.encode())' if pt.is_binary(field.type) else field.type}"
        if pt.is_binary(field.type) and not _holds_bytes(column.type):  # Arrow would take text
            raise self._wrong("read", f"{field.name}: {column.type}", wanted)
        try:
            return pc.cast(column, options=pc.CastOptions(field.type, allow_time_truncate=True))
        except pa.ArrowException as error:
            raise self._wrong("read", f"{field.name}: {column.type}", f"{wanted} ({error})") from None

    def _check_position(self, method: str, position: object) -> None:
        """It is stored as UTF-8, and given back one day."""
        if not isinstance(position, str) or storable(position) != position:
            raise self._wrong(method, position, "a position: a str that UTF-8 can hold")

    def _wrong(self, method: str, answer: object, wanted: str) -> SourceError:
        return SourceError(f"the source's {self.kind}.{method} gave {answer!r:.200}; it must be {wanted}")


def _holds_bytes(kind: pa.DataType) -> bool:
    if pt.is_dictionary(kind):
        return _holds_bytes(kind.value_type)
    binary = (pt.is_binary, pt.is_large_binary, pt.is_binary_view, pt.is_fixed_size_binary, pt.is_null)
    return any(holds(kind) for holds in binary)


def _let_go(answer: object) -> None:
    """It is not awaited, of which Python would complain."""
    if inspect.iscoroutine(answer):
        answer.close()
    elif isinstance(answer, asyncio.Future):
        answer.cancel()


@contextmanager
def _blamed(what: str) -> Iterator[None]:
    with blamed(what, SourceError):
        try:
            yield
        except asyncio.CancelledError:
            if may_be_meant():
                raise
            raise SourceError(f"{what} was cancelled from within: its task, or something that it awaited") from None
