"""Tasks at once: many awaited together, the first cause in what they raise, and cancellations that nobody wished for."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import anyio

K = TypeVar("K")
V = TypeVar("V")


def is_foreign_cancellation() -> bool:
    """Whether the CancelledError at hand is no wish of ours: it came out of something awaited, or user code has cancelled
    the task that it runs in. No cancel scope around is cancelled then, and the task can go on."""
    task = asyncio.current_task()
    if task is None or anyio.current_effective_deadline() == -math.inf:
        return False
    _uncancel(task, 0)
    return True


def may_be_meant() -> bool:
    """Whether the CancelledError at hand may be meant for this very task, which can be that of whoever runs the processor."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


@contextmanager
def restore_cancellation() -> Iterator[None]:
    """Around what users have written, in a task of ours: what it leaves of cancellations in the task is taken back.

    A scope of anyio's does not end its own cancellation in a task with more of them than when it was entered. Before Python 3.13
    asyncio's TaskGroup leaves one whenever one of its tasks has failed.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        yield
    except asyncio.CancelledError:
        raise  # `is_foreign_cancellation` tells whose it is
    except BaseException:
        _uncancel(task, before)
        raise
    _uncancel(task, before)


def _uncancel(task: asyncio.Task[Any] | None, before: int) -> None:
    if task is None or anyio.current_effective_deadline() == -math.inf:  # a scope around counts on its own ones
        return
    while task.cancelling() > before:
        task.uncancel()


def first_cause(error: Exception, known: BaseException | None = None) -> Exception:
    """The first error in nested groups of them: what a task group wraps. A `known` one stays as it is, if it is a group."""
    while isinstance(error, ExceptionGroup) and error is not known:
        error = error.exceptions[0]
    return error


async def gather(keys: Sequence[K], work: Callable[[K], Awaitable[V]]) -> Mapping[K, V]:
    """`work` of each key, all at once (the store bounds what is under way), in the order of the keys."""
    results: dict[K, V] = {}

    async def do(key: K) -> None:
        results[key] = await work(key)

    try:
        async with anyio.create_task_group() as tasks:
            for key in keys:
                tasks.start_soon(do, key)
    except ExceptionGroup as group:
        raise first_cause(group) from None
    return {key: results[key] for key in keys}
