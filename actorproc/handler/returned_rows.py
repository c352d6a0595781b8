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
        raise _no_rows(result, method)
    else:
        ctx.emit_many(record, result)


def fitting(result: Any, ctx: PartitionContext) -> Any:
    """A row or rows that `process_record` returned, if each fits the schema: those of an iterator in a list.

    Raises:
        RowMismatch: a row does not fit.
        HandlerError, HandlerMisuse, Exception: as `emit_returned` and `refuse_coroutines`.
    """
    if isinstance(result, Mapping | tuple):
        rows: list[Any] = [result]
    elif (fields := fields_of(result)) is not None:
        rows = [fields]
    elif inspect.isawaitable(result):
        refuse_coroutines([result], "process_record")
    elif isinstance(result, str | bytes) or not isinstance(result, Iterable):
        raise _no_rows(result, "process_record")
    else:
        rows = result = list(result)
    for row in rows:
        ctx._check_row(row)
    return result


def _no_rows(result: object, method: str) -> HandlerError:
    what = f"{method} returned {safe_repr(result):.200} ({type(result).__name__})"
    return HandlerError(f"{what}; return a dict or tuple, several in a list, or None")


def refuse_coroutines(results: Iterable[Any], method: str) -> NoReturn:
    """Raise HandlerMisuse: a plain `def` returned a coroutine, which has not run."""
    for result in filter(inspect.iscoroutine, results):
        result.close()  # else Python warns that it was never awaited
    raise HandlerMisuse(f"{method} returned a coroutine, which has not run: write async def {method} and await it")
