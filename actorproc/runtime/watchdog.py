"""Watchdog thread that logs the stack of a blocked event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from actorproc.runtime.cpu import cpu_wait
from actorproc.runtime.stacks import shown, thread_stack


class Blockage(NamedTuple):
    """An event loop has not answered for some seconds."""

    where: str
    """The line of code that its thread is at."""
    seconds: float
    starved: bool
    """Most of that time its thread could have run, and got no CPU: no code is to blame."""


@contextmanager
def loop_watchdog(
    warn_after: float, log: Any, tell: Callable[[Blockage], None] | None = None, tell_after: float = 0.0
) -> Iterator[None]:
    """Log the stack of this thread whenever its event loop was blocked for `warn_after` seconds.

    Args:
        tell: called once for each blockage, in a thread of its own.
        tell_after: seconds of blockage after which it is called.
    """
    beat = time.monotonic()  # noqa: TID251  # real time: a simulated loop cannot block
    loop = asyncio.get_running_loop()
    due: asyncio.TimerHandle | None = None
    stop = threading.Event()
    thread, native = threading.get_ident(), threading.get_native_id()
    waited = cpu_wait(native)

    def watch() -> None:
        warned = told = 0.0  # the beat before the latest blockage: once per blockage
        while not stop.wait(warn_after / 4):
            silent = time.monotonic() - beat  # noqa: TID251
            if silent < warn_after:
                continue
            no_cpu = cpu_wait(native) - waited
            starved = no_cpu > silent / 2
            if warned != beat:
                warned = beat
                if starved:
                    log.warning(
                        "loop.starved", seconds=round(silent, 1), no_cpu=round(no_cpu, 1),
                        hint="other processes, or the CPU limit of the container, leave this one too little CPU",
                    )  # fmt: skip
                else:
                    log.warning(
                        "loop.blocked", seconds=round(silent, 1), stack=shown(thread_stack(thread)),
                        hint="await, or write a plain `def process`",
                    )  # fmt: skip
            if tell is not None and silent >= max(warn_after, tell_after) and told != beat:
                told = beat
                where = "".join(f"{at.filename}:{at.lineno}, in {at.name}" for at in thread_stack(thread)[-1:])
                found = Blockage(where, silent, starved)
                threading.Thread(target=tell, args=(found,), name="actorproc-blocked", daemon=True).start()

    def tick() -> None:  # no task: whoever cancels all tasks would end the host by it
        nonlocal beat, due, waited
        beat, waited = time.monotonic(), cpu_wait(native)  # noqa: TID251
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
