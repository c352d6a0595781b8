"""Awaits many tasks at once, and unwraps the errors of task groups."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import anyio

K = TypeVar("K")
V = TypeVar("V")


def first_cause(error: Exception, known: BaseException | None = None) -> Exception:
    """The first error within nested exception groups. The group `known` is not unwrapped."""
    while isinstance(error, ExceptionGroup) and error is not known:
        error = error.exceptions[0]
    return error


async def gather(keys: Sequence[K], work: Callable[[K], Awaitable[V]]) -> Mapping[K, V]:
    """Await `work` of all keys concurrently. Returns the results in the order of the keys."""
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
