"""Watchdog thread that logs the stack of a blocked event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from actorproc.runtime.stacks import shown, thread_stack


@contextmanager
def loop_watchdog(
    warn_after: float, log: Any, tell: Callable[[str, float], None] | None = None, tell_after: float = 0.0
) -> Iterator[None]:
    """Log the stack of this thread whenever its event loop was blocked for `warn_after` seconds.

    Args:
        tell: called once for each blockage, in a thread of its own: the line that blocks it, and the seconds so far.
        tell_after: seconds of blockage after which it is called.
    """
    beat = time.monotonic()  # noqa: TID251  # real time: a simulated loop cannot block
    loop = asyncio.get_running_loop()
    due: asyncio.TimerHandle | None = None
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

    def tick() -> None:  # no task: whoever cancels all tasks would end the host by it
        nonlocal beat, due
        beat = time.monotonic()  # noqa: TID251
        due = loop.call_later(warn_after / 4, tick)

    tick()
    watcher = threading.Thread(target=watch, name="actorproc-watchdog", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        if due is not None:
            due.cancel()
        stop.set()
        watcher.join()
