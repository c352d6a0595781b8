"""Emits the return value of a handler's method: a row, several rows, or None."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from actorproc.errors import HandlerError, HandlerMisuse
from actorproc.handler.context import PartitionContext
from actorproc.records import Record
from actorproc.rows.encoder import Row
from actorproc.rows.fields import fields_of
from actorproc.runtime.error_text import safe_repr

Returned = Row | Iterable[Row] | None


def emit_returned(result: Any, record: Record, ctx: PartitionContext, method: str) -> None:
    """Emit the rows of `result` for `record`.

    Args:
        method: that returned it, for the error.

    Raises:
        HandlerError: it is neither a row, nor rows, nor None.
        Exception: an iterator of rows failed.
    """
    if result is None:
        return
    if isinstance(result, Mapping | tuple):
        ctx.emit(record, result)
    elif (fields := fields_of(result)) is not None:  # before iterables: a pydantic model is iterable
        ctx.emit(record, fields)
    elif isinstance(result, str | bytes) or not isinstance(result, Iterable):
        what = f"{method} returned {safe_repr(result):.200} ({type(result).__name__})"
        raise HandlerError(f"{what}; return a dict or tuple, several in a list, or None")
    else:
        ctx.emit_many(record, result)


def emit_fitting(result: Any, record: Record, ctx: PartitionContext) -> None:
    """Emit the rows that `process_record` returned for `record`, which are not None, if each fits the schema.

    Raises:
        RowMismatch: a row does not fit; none was emitted.
        HandlerError, HandlerMisuse, Exception: as `emit_returned` and `refuse_coroutines`.
    """
    if type(result) is dict or type(result) is tuple:
        rows: list[Row] = [result]
    elif isinstance(result, Mapping | tuple) or fields_of(result) is not None:
        rows = [result]
    else:
        if inspect.isawaitable(result):
            refuse_coroutines([result], "process_record")
        if isinstance(result, str | bytes) or not isinstance(result, Iterable):
            emit_returned(result, record, ctx, "process_record")
        rows = list(result)
    for row in rows:
        ctx._check_row(row)
    ctx.emit_many(record, rows)


def refuse_coroutines(results: Iterable[Any], method: str) -> NoReturn:
    """Raise HandlerMisuse: a plain `def` returned a coroutine, which has not run."""
    for result in filter(inspect.iscoroutine, results):
        result.close()  # else Python warns that it was never awaited
    raise HandlerMisuse(f"{method} returned a coroutine, which has not run: write async def {method} and await it")
