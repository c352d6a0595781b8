"""Calls the hooks of a handler, each within a time limit: `opened`, `committed` and `closing`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio

from actorproc.config.settings import Settings
from actorproc.errors import Fault, PartitionStuck
from actorproc.handler.base import CloseReason, PartitionHandler
from actorproc.handler.info import PartitionInfo
from actorproc.partition.handler_threads import HandlerThreads
from actorproc.partition.host_context import HostContext
from actorproc.runtime.user_code import user_code

CLOSING_TIME = 10.0
"""Seconds that a handler's `closing` may take."""


@asynccontextmanager
async def in_time(settings: Settings, trouble: str, fault: Fault = "user") -> AsyncIterator[None]:
    """Raise PartitionStuck if the block takes longer than `max_process_time`, the handler's limit."""
    most = settings.max_process_time
    with anyio.move_on_after(most) as scope:
        yield
    if scope.cancelled_caught:
        raise PartitionStuck(f"{trouble} within max_process_time = {most:g} s", fault)


def new_handler(context: HostContext) -> PartitionHandler:
    """Make the handler of a partition."""
    with user_code("opening the handler"):
        return context.handler()


async def open_handler(handler: PartitionHandler, settings: Settings, info: PartitionInfo) -> None:
    """Call the handler's `opened`."""
    async with in_time(settings, "opened() has not ended"):
        with user_code("opening the handler"):
            await handler.opened(info)


async def call_committed(
    handler: PartitionHandler, info: PartitionInfo, upto: int, rows: int, error: Exception | None
) -> None:
    """Call the handler's `committed`. It may neither fail the partition nor hold it up for long."""
    with anyio.move_on_after(CLOSING_TIME) as scope:
        try:
            with user_code("committed"):
                await handler.committed(info, upto, rows, error)
        except Exception:  # the commit has ended as it has
            info.log.exception("partition.committed_failed")
    if scope.cancelled_caught:
        info.log.error("partition.committed_failed", why=f"it has not ended within {CLOSING_TIME:g} s")


async def close_handler(
    handler: PartitionHandler,
    info: PartitionInfo,
    reason: CloseReason,
    threads: HandlerThreads,
    commit: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Call the handler's `closing`, once no thread runs its `process` any more. Whatever it does, the partition ends.

    Args:
        commit: `ctx.commit` of `closing`; None: the partition is not to be committed any more.
    """
    with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSING_TIME) as scope:
        await threads.ended(info.partition)  # a plain `process` that was cut off still runs
        try:
            with user_code("closing"):
                await handler.closing(replace(info, _commit=commit), reason)
        except Exception:  # the partition ends all the same
            info.log.exception("partition.closing_failed")
    if scope.cancelled_caught:
        info.log.error("partition.closing_timed_out", after=CLOSING_TIME, why="process or closing still runs")
