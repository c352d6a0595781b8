"""`RecordHandler`: one record in, its rows out."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, ClassVar, NoReturn

from actorproc.context import PartitionContext, Row
from actorproc.errors import HandlerDefinitionError, HandlerError
from actorproc.handler import PartitionHandler
from actorproc.records import Batch, Record

Rows = Row | Iterable[Row] | None

_DICT = frozenset({dict})


class RecordHandler(PartitionHandler, ABC):
    """Processes record by record. A record that fails does so alone: the others go on, only it is tried again.

    Subclass it and write `process_record`, plain `def` (which then runs in a worker thread) or `async def`.
    """

    concurrency: ClassVar[int] = 1
    """How many records of a batch an `async def process_record` works on at once. Rows keep the order of the records."""

    @abstractmethod
    def process_record(self, record: Record, ctx: PartitionContext) -> Rows | Awaitable[Rows]:
        """A row, any number of rows (a generator will do), or None. What it raises is this record's failure.

        Committing is not for here, as a row is emitted after it was returned: `ctx.commit` raises HandlerError.
        """

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if inspect.isasyncgenfunction(cls.process_record):
            raise HandlerDefinitionError(
                f"{cls.__name__}.process_record is an async generator; collect the rows in a list and return it"
            )
        ours = (RecordHandler.process, RecordHandler._process_async)
        if cls.process in ours:  # the core looks at it to know whether a thread is needed
            awaited = inspect.iscoroutinefunction(cls.process_record)
            cls.process = RecordHandler._process_async if awaited else RecordHandler.process  # type: ignore[assignment]

    def process(self, batch: Batch, ctx: PartitionContext) -> None:
        """Call `process_record` for each record."""
        ctx.commit = _no_commit  # type: ignore[method-assign]
        work = self.process_record
        results: list[Any] = []
        append = results.append
        for record in batch:
            try:
                append(work(record, ctx))
            except Exception as error:  # noqa: BLE001  # the user's code; whatever it is, it is this record's failure
                append(None)
                ctx.fail(record, error)
        _emit(batch, results, ctx)

    async def _process_async(self, batch: Batch, ctx: PartitionContext) -> None:
        ctx.commit = _no_commit  # type: ignore[method-assign]

        async def work(record: Record) -> Any:
            return await self.process_record(record, ctx)  # type: ignore[misc]  # it is `async def`, or we were not here

        _emit(batch, await ctx.map(batch, work, concurrency=self.concurrency), ctx)


def _emit(batch: Batch, results: list[Any], ctx: PartitionContext) -> None:
    """Emit what `process_record` returned for each record."""
    if _DICT.issuperset(map(type, results)):
        ctx.emit_each(batch, results)
        return
    for record, result in zip(batch, results, strict=True):
        if result is None:
            continue
        if isinstance(result, Mapping):
            ctx.emit(record, result)
            continue
        if isinstance(result, str | bytes) or not isinstance(result, Iterable):
            what = f"{result!r} ({type(result).__name__})"
            ctx.fail(record, HandlerError(f"process_record returned {what}; return a dict, several in a list, or None"))
            continue
        try:
            ctx.emit_many(record, result)
        except Exception as error:  # noqa: BLE001  # a generator runs here: the user's code
            ctx.fail(record, error)


async def _no_commit(upto: Record | None = None) -> NoReturn:
    raise HandlerError(
        "process_record cannot commit: its row is not emitted yet; commit in a PartitionHandler's process"
    )
