"""Watchdog thread that logs the stack of a blocked event loop."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio


@asynccontextmanager
async def loop_watchdog(warn_after: float, log: Any) -> AsyncIterator[None]:
    """Log the stack of this thread whenever its event loop was blocked for `warn_after` seconds."""
    beat = time.monotonic()  # noqa: TID251  # real time: a simulated loop cannot block
    stop = threading.Event()
    thread = threading.get_ident()

    def watch() -> None:
        warned = 0.0
        while not stop.wait(warn_after / 4):
            silent = time.monotonic() - beat  # noqa: TID251
            if silent < warn_after or warned == beat:
                continue
            warned = beat  # once per blockage
            frame = sys._current_frames().get(thread)
            stack = "".join(traceback.format_stack(frame)[-8:]) if frame else None
            log.warning(
                "loop.blocked", seconds=round(silent, 1), stack=stack, hint="await, or write a plain `def process`"
            )

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
