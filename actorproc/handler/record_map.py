"""`ctx.map`: a function awaited for many records at once."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio

from actorproc.errors import HandlerError, HandlerMisuse
from actorproc.handler.attempt import Attempt
from actorproc.records import Record
from actorproc.runtime.user_code import user_code

T = TypeVar("T")


async def map_records(
    attempt: Attempt,
    records: Sequence[Record],
    work: Callable[[Record], Awaitable[T]],
    concurrency: int,
    *,
    check: Callable[[Record], None],
    fail: Callable[[Record, Exception], None],
) -> list[T | None]:
    """Await `work(record)` for all records, some at a time. See `PartitionContext.map`.

    Args:
        attempt: has counted this call in `maps`.
        check: refuses a record of another partition.
        fail: called with each record whose work raises.
    """
    results: list[T | None] = [None] * len(records)
    left, todo = set(range(len(records))), iter(enumerate(records))

    async def worker() -> None:
        for index, record in todo:
            try:
                with user_code("work"):
                    results[index] = await _awaitable(work(record))
            except Exception as error:  # noqa: BLE001  # it fails this record
                fail(record, error)
            left.discard(index)
            attempt.map_ended(record.sequence, done=True)

    try:
        for record in records:
            check(record)
        attempt.mapping.update(record.sequence for record in records)
        try:
            async with anyio.create_task_group() as tasks:
                for _ in range(min(concurrency, len(records))):
                    tasks.start_soon(worker)
        finally:
            for index in left:
                attempt.map_ended(records[index].sequence, done=False)
    finally:
        attempt.maps -= 1
    if left:
        raise HandlerError("ctx.map was cancelled from within: work awaited something that was cancelled")
    return results


def _awaitable(made: Awaitable[T]) -> Awaitable[T]:
    if not inspect.isawaitable(made):
        raise HandlerMisuse(f"ctx.map awaits what it is given; that returned a {type(made).__name__}: write async def")
    return made
