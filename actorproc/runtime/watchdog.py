"""Watchdog thread that logs the stack of a blocked event loop."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio

from actorproc.runtime.stacks import shown, thread_stack


@asynccontextmanager
async def loop_watchdog(
    warn_after: float, log: Any, tell: Callable[[str, float], None] | None = None, tell_after: float = 0.0
) -> AsyncIterator[None]:
    """Log the stack of this thread whenever its event loop was blocked for `warn_after` seconds.

    Args:
        tell: called once for each blockage, in a thread of its own: the line that blocks it, and the seconds so far.
        tell_after: seconds of blockage after which it is called.
    """
    beat = time.monotonic()  # noqa: TID251  # real time: a simulated loop cannot block
    stop = threading.Event()
    thread = threading.get_ident()

    def watch() -> None:
        warned = told = 0.0  # the beat before the latest blockage: once per blockage
        while not stop.wait(warn_after / 4):
            silent = time.monotonic() - beat  # noqa: TID251
            if silent >= warn_after and warned != beat:
                warned = beat
                log.warning(
                    "loop.blocked", seconds=round(silent, 1), stack=shown(thread_stack(thread)),
                    hint="await, or write a plain `def process`",
                )  # fmt: skip
            if tell is not None and silent >= max(warn_after, tell_after) and told != beat:
                told = beat
                where = [f"{at.filename}:{at.lineno}, in {at.name}" for at in thread_stack(thread)[-1:]]
                threading.Thread(target=tell, args=(*where, silent), name="actorproc-blocked", daemon=True).start()

    async def tick() -> None:
        nonlocal beat
        while True:
            beat = time.monotonic()  # noqa: TID251
            await anyio.sleep(warn_after / 4)  # noqa: TID251

    watcher = threading.Thread(target=watch, name="actorproc-watchdog", daemon=True)
    watcher.start()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tick)
            yield
            tasks.cancel_scope.cancel()
    finally:
        stop.set()
        watcher.join()
