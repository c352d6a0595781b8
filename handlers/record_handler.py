"""`RecordHandler`: processes record by record."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import count, islice
from typing import Any, ClassVar, Generic, NoReturn, get_args, get_origin

from typing_extensions import TypeVar

from actorproc.codecs.typed_values import TypedValues
from actorproc.errors import HandlerDefinitionError, HandlerMisuse
from actorproc.handler.base import PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.handler.decoder import Values, values_of
from actorproc.handler.one_by_one import OneByOne, Writers
from actorproc.handler.returned_rows import Returned, emit_returned, fitting, refuse_coroutines
from actorproc.records import Batch, Record
from actorproc.rows.row_buffer import PIECE
from actorproc.runtime.user_code import failure_of, user_code

T = TypeVar("T", default=Record)

_ROW = frozenset({dict, tuple})
_current: ContextVar[Record] = ContextVar("record")  # of the task that awaits `process_record`


class RecordHandler(PartitionHandler, ABC, Generic[T]):
    """Processes record by record. If a record fails, the others continue, and only that record is retried.

    A handler that uses `ctx.state` (or declares `State`, or has `on_wake`) keeps the order: the record that failed is
    tried again, after a pause, before the next record is processed. Its changes of state and its rows are dropped
    first; no other record is called again.

    Subclass it and write `process_record`, as plain `def` (which runs in a worker thread) or as `async def`.

    `RecordHandler[Flight]` decodes each value into a `Flight`, and passes that instead of the record: a
    `msgspec.Struct` (from JSON twice as fast as by `record.json()`), a dataclass, TypedDict, pydantic model..., or
    plain objects (`RecordHandler[dict]`). The setting `decode` says how; the default is JSON. A value that does not
    fit is dead-lettered at once, with the field named.
    """

    concurrency: ClassVar[int] = 1
    """Records of a batch that an `async def process_record` works on at once. Rows keep the order of the records.

    With more than 1, a record that failed is tried again after the others. If it has changed state before it failed,
    the whole batch is processed again, in order: its changes cannot be told from those of the others."""

    _arguments: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **PartitionHandler._arguments,
        "process_record": ("record", "ctx"),
    }
    _kind: ClassVar[Any] = Record
    _parameter: ClassVar[Any] = T  # type: ignore[misc]  # the variable itself
    """The type variable that stands for the kind in subclasses of this class; None: they cannot change it."""
    _in_order = False
    """Whether the handler is known to use state."""

    @abstractmethod
    def process_record(self, record: T, ctx: PartitionContext, /) -> Returned | Awaitable[Returned]:
        """Return a row, several rows (a list, a generator), or None. An exception is this record's failure.

        A row is a dict by column, or a tuple in the order of `output_schema`, which is faster; or a `msgspec.Struct`,
        dataclass or pydantic model, by its fields.

        `ctx.commit` raises HandlerMisuse here, since a row is emitted after it was returned.
        """

    @property
    def record(self) -> Record:
        """The record that `process_record` works on: its key, headers and timestamp beside a parsed value."""
        return self._at()

    def _at(self) -> Record:
        raise HandlerMisuse("self.record is known while process_record runs, or a generator of rows that it returned")

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if inspect.isasyncgenfunction(cls.process_record):
            raise HandlerDefinitionError(
                f"{cls.__name__}.process_record is an async generator; collect the rows in a list and return it"
            )
        if type(cls.concurrency) is not int or cls.concurrency < 1:
            raise HandlerDefinitionError(f"{cls.__name__}.concurrency = {cls.concurrency!r}: a whole number, 1 or more")
        if (kind := _declared(cls)) is not None:
            cls._parameter = kind if isinstance(kind, TypeVar) else None
            if cls._parameter is None:
                cls._kind = kind if kind is Record else _checked(cls, kind)
        ours = (RecordHandler.process, RecordHandler._process_async)
        if cls.process in ours:  # the core looks at it to know whether a thread is needed
            awaited = inspect.iscoroutinefunction(cls.process_record)
            if cls.concurrency > 1 and not awaited and not getattr(cls.process_record, "__isabstractmethod__", False):
                raise HandlerDefinitionError(
                    f"{cls.__name__}.concurrency = {cls.concurrency}: it needs an `async def process_record`"
                )
            cls.process = RecordHandler._process_async if awaited else RecordHandler.process  # type: ignore[assignment]

    def process(self, batch: Batch, ctx: PartitionContext) -> None:
        """Call `process_record` for each record."""
        with self._record_by_record(ctx):
            self._process(batch, ctx)

    @contextmanager
    def _record_by_record(self, ctx: PartitionContext) -> Iterator[None]:
        """Meanwhile `ctx.commit` is refused; afterwards there is no `self.record`, which would keep the batch."""
        ctx.commit = _no_commit  # type: ignore[method-assign]
        try:
            yield
        finally:
            del ctx.commit
            self.__dict__.pop("_at", None)

    def _process(self, batch: Batch, ctx: PartitionContext) -> None:
        alone, done = OneByOne(ctx, in_order=self._keeps_order()), 0
        if self._keeps_order():
            self._process_in_order(batch, ctx, alone)
            return
        used = ctx._attempt.state.views
        results: list[Any] = []
        append = results.append

        def at_work() -> Record:
            return batch[done + len(results)]

        for given, work in self._given(batch, ctx):
            self._at = at_work  # type: ignore[method-assign]  # again: a lazy iterator of rows sets it to its record
            for argument in given:
                try:
                    append(work(argument, ctx))
                except BaseException as error:  # noqa: BLE001  # any error is this record's failure
                    alone.failed(self.record, failure_of(error))
                    append(None)
                if used:
                    break
            piece, last = batch[done : done + len(results)], None
            if used:  # for the first time
                last = piece[-1]
                results[-1] = alone.fitting(last, results[-1])
            self._emit(piece, results, ctx)
            done += len(results)
            results.clear()
            if used:
                self._in_order = True
                if last is None:  # by a lazy iterator of rows, behind the calls for later records
                    ended = alone.back_before(piece.first)
                else:
                    ended = alone.ends_at(last.sequence) or alone.back_to_first_failure()
                if not ended:
                    self._process_in_order(batch[done:], ctx, alone)
                return

    def _keeps_order(self) -> bool:
        return self._in_order or self.State is not None or type(self).on_wake is not PartitionHandler.on_wake

    def _process_in_order(self, batch: Batch, ctx: PartitionContext, alone: OneByOne) -> None:
        """Settle each record before the next one begins."""
        done = 0
        results: list[Any] = []
        append, begin = results.append, alone.begin
        failures, is_plain = ctx._attempt.failures, ctx._attempt.rows.is_plain
        sequences = batch.each_sequence()

        def at_work() -> Record:
            at = done + len(results)
            return batch[at : at + 1][0]

        for given, work in self._given(batch, ctx):
            self._at = at_work  # type: ignore[method-assign]
            for argument, sequence in zip(given, sequences, strict=False):  # `given` ends first, and takes no sequence
                begin()
                try:
                    result = work(argument, ctx)
                    if result is not None and not is_plain(result):
                        result = fitting(result, ctx)
                except BaseException as error:  # noqa: BLE001  # any error is this record's failure
                    alone.failed(self.record, failure_of(error))
                    result = None
                append(result)
                if failures and alone.ends_at(sequence):
                    break
            self._emit(batch[done : done + len(results)], results, ctx)
            if ctx._attempt.stopped is not None:
                return
            done += len(results)
            results.clear()
            ctx.alive()

    def _given(
        self, batch: Batch, ctx: PartitionContext
    ) -> Iterator[tuple[Iterable[Any], Callable[[Any, PartitionContext], Any]]]:
        """Arguments of the calls, in order and in pieces, and the function to call."""
        typed, work = self._values(ctx), self.process_record
        if typed is None:
            records = iter(batch)
            for _ in range(0, len(batch), PIECE):
                yield islice(records, PIECE), work
            return
        for at, parsed in zip(count(0, PIECE), typed.parse_pieces(batch.data.column("value"), PIECE)):
            if parsed is None:
                yield batch[at : at + PIECE].values, partial(self._parse_and_process, typed)
            else:
                yield parsed, work

    def _values(self, ctx: PartitionContext) -> Values[Any] | None:
        """Decodes the values; None: the handler takes records."""
        return None if self._kind is Record else values_of(ctx.decoder, self._kind)

    def _parse_and_process(self, typed: Values[Any], value: bytes | None, ctx: PartitionContext) -> Any:
        try:
            parsed = typed.parse(value)
        except ValueError as error:
            return ctx._refuse(self.record, error)
        return self.process_record(parsed, ctx)

    async def _process_async(self, batch: Batch, ctx: PartitionContext) -> None:
        with self._record_by_record(ctx):
            await self._process_each(batch, ctx)

    async def _process_each(self, batch: Batch, ctx: PartitionContext) -> None:
        self._at = _current.get  # type: ignore[method-assign]
        typed = self._values(ctx)

        async def work(record: Record) -> Any:
            _current.set(record)
            try:
                given: Any = record if typed is None else typed.parse(record.value)
            except ValueError as error:
                return ctx._refuse(record, error)
            return await self.process_record(given, ctx)  # type: ignore[misc]  # it is `async def`, or we were not here

        if self.concurrency == 1:
            await self._await_in_order(batch, ctx, work)
            return
        writers = ctx._attempt.state.journal = Writers(_current)
        self._emit(batch, await ctx.map(batch, work, concurrency=self.concurrency), ctx)
        self._in_order = self._in_order or bool(ctx._attempt.state.views)
        ctx._attempt.traceless |= writers.without_change(ctx._attempt.failures)

    async def _await_in_order(
        self, batch: Batch, ctx: PartitionContext, work: Callable[[Record], Awaitable[Any]]
    ) -> None:
        """Settle each record before the next one begins."""
        alone = OneByOne(ctx, in_order=self._keeps_order())
        results: list[Any] = []
        token = _current.set(batch[0])
        try:
            await self._await_each(batch, ctx, work, alone, results)
        finally:
            _current.reset(token)  # a record keeps its batch, and this task waits for the next one
        self._emit(batch[: len(results)], results, ctx)

    async def _await_each(
        self,
        batch: Batch,
        ctx: PartitionContext,
        work: Callable[[Record], Awaitable[Any]],
        alone: OneByOne,
        results: list[Any],
    ) -> None:
        for record in batch:
            alone.begin()
            result = None
            try:
                with user_code("the handler"):
                    result = await work(record)
            except Exception as error:  # noqa: BLE001  # any error is this record's failure
                alone.failed(record, error)
            results.append(alone.fitting(record, result))
            ctx.alive()
            if alone.ends_at(record.sequence):
                break
            if not self._in_order and ctx._attempt.state.used:
                self._in_order = True
                if alone.back_to_first_failure():
                    break

    def _emit(self, batch: Batch, results: list[Any], ctx: PartitionContext) -> None:
        """Emit the rows that `process_record` returned for each record."""
        if _ROW.issuperset(map(type, results)):
            ctx.emit_each(batch, results)
            return
        if any(map(inspect.isawaitable, results)):
            refuse_coroutines(results, "process_record")
        for record, result in zip(batch, results, strict=True):
            if result is None:
                continue
            if type(result) in _ROW:
                ctx.emit(record, result)
                continue
            self._at = partial(_same, record)  # type: ignore[method-assign]  # for a lazy iterator of rows
            try:
                emit_returned(result, record, ctx, "process_record")
            except BaseException as error:  # noqa: BLE001  # the user's code
                ctx.fail(record, failure_of(error))


def _declared(cls: type) -> Any:
    """The type or type variable that a base of `cls` gives for the argument of `RecordHandler`; None: no base does."""
    for base in cls.__dict__.get("__orig_bases__", ()):
        origin = get_origin(base)
        if isinstance(origin, type) and issubclass(origin, RecordHandler) and origin._parameter is not None:
            return get_args(base)[origin.__parameters__.index(origin._parameter)]  # type: ignore[attr-defined]
    return None


def _checked(cls: type, kind: Any) -> Any:
    """The type, if values can become instances of it. Of all formats JSON makes the plainest objects."""
    try:
        TypedValues(kind)
        return kind
    except (TypeError, NameError) as error:
        raise HandlerDefinitionError(
            f"{cls.__name__}: JSON cannot be parsed into {getattr(kind, '__name__', kind)}: {error}. "
            "Give RecordHandler[...] a msgspec.Struct, dataclass, NamedTuple, TypedDict or pydantic model, defined "
            "before the handler"
        ) from None


def _same(record: Record) -> Record:
    return record


async def _no_commit(upto: Record | None = None) -> NoReturn:
    raise HandlerMisuse(
        "process_record cannot commit: its row is not emitted yet; commit in a PartitionHandler's process"
    )
